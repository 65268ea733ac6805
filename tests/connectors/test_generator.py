"""The generator: records made up, the same again for the same position."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime

import pytest

from conduit_tasks.connectors import generator
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.generator import GeneratorSource
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import READ_SCHEMA, to_records

FIELDS = {f"format.options.{t}": t for t in ("int", "string", "time", "bool", "duration")}


def source(**settings: str) -> GeneratorSource:
    return GeneratorSource({"format.type": "structured", **FIELDS, **settings})


def read(connector: GeneratorSource, slices: list[Slice]) -> list[Record]:
    batches = [b for s in slices for b in connector.read(s)]
    assert all(b.schema == READ_SCHEMA for b in batches)
    return [r for b in batches for r in to_records(b, Origin("p", "in", ""))]


def test_values_have_the_type_asked_for() -> None:
    records = read(source(), source().plan({}, Limit(records=50)))
    assert len({r.position for r in records}) == 50
    for record in records:
        values = record.after
        assert isinstance(values, dict)
        assert {name: type(v) for name, v in values.items()} == {
            "int": int, "string": str, "time": str, "bool": bool, "duration": int
        }  # fmt: skip
        assert datetime.fromisoformat(values["time"]).tzinfo is not None
    assert {r.after["bool"] for r in records if isinstance(r.after, dict)} == {True, False}


@pytest.mark.proves("I3")
def test_a_record_is_the_same_however_the_slices_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(source(), source().plan({}, Limit(records=100)))
    monkeypatch.setattr(generator, "SLICE", 7)
    monkeypatch.setattr(generator, "_BATCH", 3)
    slices = source().plan({}, Limit(records=100))
    assert len(slices) == 15
    assert [(r.position, r.after) for r in read(source(), slices)] == [(r.position, r.after) for r in whole]
    assert [r.after for r in read(source(seed="1"), slices)] != [r.after for r in whole]


def test_it_ends_after_the_count_and_goes_on_from_its_position() -> None:
    connector = source(recordCount="25")
    first = connector.plan({}, Limit(records=20))
    rest = connector.plan(json.loads(json.dumps({"": first[-1].end})), Limit(records=20))
    assert [r.position for r in read(connector, first + rest)] == [b"%d" % n for n in range(25)]
    assert connector.plan({"": rest[-1].end}, Limit()) == []


def test_the_rate_bounds_what_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(generator.time, "time", lambda: clock)
    connector = source(rate="10")
    position = {}
    taken = []
    for seconds in (0.0, 0.55, 0.5, 3600.0):
        clock += seconds
        slices = connector.plan(position, Limit())
        taken.append(sum(s.records or 0 for s in slices))
        position = {"": slices[-1].end}
    assert taken == [10, 5, 5, 600]
    slow = source(rate="0.01")
    slices = slow.plan({}, Limit())
    assert [s.records for s in slices] == [1]
    clock += 99
    assert slow.plan({"": slices[-1].end}, Limit()) == []
    clock += 2
    position = {"": slices[-1].end}
    assert [s.records for s in slow.plan(position, Limit())] == [1]


def test_operations_decide_which_payload_there_is() -> None:
    connector = source(operations="create,update,delete,snapshot", **{"format.type": "raw"})
    records = read(connector, connector.plan({}, Limit(records=200)))
    assert set(Counter(r.operation for r in records)) == {"create", "update", "delete", "snapshot"}
    for r in records:
        assert (r.before is not None) == (r.operation in ("update", "delete"))
        assert (r.after is not None) == (r.operation != "delete")
        raw = r.after or r.before
        assert isinstance(raw, bytes)
        assert set(json.loads(raw)) == {"int", "string", "time", "bool", "duration"}


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"format.options.x": "float"}, r"format\.options\.x"),
        ({"operations": "create,upsert"}, "operations"),
        ({"recordCount": "-1"}, "recordCount"),
        ({"rate": "fast"}, "rate"),
        ({"format.type": "file"}, r"format\.type"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        source(**settings)


def test_a_payload_without_fields_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"format\.options\.<field>"):
        GeneratorSource({"format.type": "raw"})
