"""A chain over columns does exactly what it does over records, whatever is in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_tasks.processors import columns
from conduit_tasks.processors.chain import Chain
from conduit_tasks.record.record import OPERATIONS, Origin, Record
from conduit_tasks.record.schema import spool_batch, to_records
from conduit_tasks.topology import Processor

ORIGINS = [
    Origin("p", "in", "0", {"file": "a", "kind": "x"}),
    Origin("p", "in", "1"),
]

STEPS: dict[str, Processor] = {
    p.id: p
    for p in (
        Processor("set", "field.set", {"field": ".Payload.After.seen", "value": "{{ .Metadata.kind }}"}),
        Processor("deep", "field.set", {"field": ".Payload.Before.a.b", "value": "1"}),
        Processor("mark", "field.set", {"field": ".Metadata.mark", "value": "{{ .Operation }}"}),
        Processor("operation", "field.set", {"field": ".Operation", "value": "delete"}, '{{ eq .Metadata.kind "x" }}'),
        Processor("rename", "field.rename", {"mapping": ".Payload.After.n:m,.Metadata.file:path"}),
        Processor("exclude", "field.exclude", {"fields": ".Payload.After.s,.Key"}),
        Processor("convert", "field.convert", {"field": ".Payload.After.n", "type": "int"}),
        Processor("encode", "json.encode", {"field": ".Payload.After"}),
        Processor("decode", "json.decode", {"field": ".Payload.After"}),
        Processor("filter", "filter", {}, "{{ eq .Payload.After.n 1 }}"),
        Processor("error", "error", {"message": "no {{ .Payload.After.s }}"}, '{{ eq .Payload.After.s "bad" }}'),
        Processor("clone", "clone", {"count": "2"}, "{{ ne .Payload.After.n 2 }}"),
        Processor("split", "split", {"field": ".Payload.After.list"}, "{{ .Payload.After.list }}"),
    )
}

data = (
    st.none()
    | st.binary(max_size=4)
    | st.fixed_dictionaries(
        {},
        optional={
            "n": st.none() | st.integers(-3, 3) | st.sampled_from(["1", "x"]),
            "s": st.sampled_from(["good", "bad", "ü"]),
            "list": st.lists(st.integers(0, 3) | st.just({"n": 1}), max_size=3),
        },
    )
)
records = st.builds(
    Record,
    position=st.binary(min_size=1, max_size=3),
    operation=st.sampled_from(OPERATIONS),
    metadata=st.dictionaries(st.sampled_from(["kind", "file", "own"]), st.sampled_from(["x", "y"]), max_size=2),
    key=data,
    before=data,
    after=data,
)


def run(chain: Chain, batch: Any) -> columns.Passed:
    [(start, end, passed)] = columns.parts(chain, batch, ORIGINS, np.arange(batch.num_rows), 1 << 30)
    assert (start, end) == (0, batch.num_rows)
    return passed


def outcome_of(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(r.position, r.operation, r.meta(), r.key, r.before, r.after) for r in records]


@settings(deadline=None, max_examples=300)
@given(st.lists(records, max_size=12), st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4))
def test_columns_and_records_come_to_the_same(given: list[Record], names: list[str]) -> None:
    chain = Chain([STEPS[name] for name in names])
    slices = [i % 2 for i in range(len(given))]
    batch = spool_batch(slices, list(range(len(given))), given)

    results = chain.run(to_records(batch, ORIGINS))
    passed = run(chain, batch)

    assert chain.columnar
    assert {row: (r.error, r.error_class, r.processor) for row, r in passed.errors.items()} == {
        row: (r.error, r.error_class, r.processor) for row, r in enumerate(results) if r.error is not None
    }
    assert passed.rows.tolist() == [row for row, r in enumerate(results) for _ in r.records]
    expected = [record for r in results for record in r.records]
    assert outcome_of(to_records(passed.batch, ORIGINS)) == outcome_of(expected)
    assert passed.batch.schema == batch.schema


@pytest.mark.parametrize("name", ["filter", "set"])
def test_more_rows_than_a_block_keep_their_order(name: str) -> None:
    count = 3 * columns.BLOCK + 7
    given = [Record(b"%d" % n, after={"n": n % 3, "s": "good"}) for n in range(count)]
    batch = spool_batch([1] * count, list(range(count)), given)

    passed = run(Chain([STEPS[name]]), batch)

    expected = [n for n in range(count) if name == "set" or n % 3 != 1]
    assert passed.rows.tolist() == expected == passed.batch.column("n").to_pylist()
    assert [r.position for r in to_records(passed.batch, ORIGINS)] == [b"%d" % n for n in expected]


def test_a_column_that_nothing_changes_is_not_touched() -> None:
    text = b'{"n": 2,   "s":"spaces stay"}'
    batch = spool_batch([0], [0], [Record(b"1", after={"n": 2})])
    batch = columns._with(batch, "after", columns.pa.array([text], columns.pa.binary()))

    passed = run(Chain([STEPS["filter"], STEPS["mark"]]), batch)

    assert passed.batch.column("after").to_pylist() == [text]
    assert dict(passed.batch.column("metadata").to_pylist()[0])["mark"] == "create"


def test_a_chain_that_may_look_at_anything_stays_with_records() -> None:
    assert not Chain([Processor("any", "python", {"call": "tests.processors.conftest:record"})]).columnar
    assert Chain([Processor("all", "field.set", {"field": ".Metadata.x", "value": "{{ . }}"})]).reads >= {"position"}


def test_places_count_among_equals() -> None:
    assert columns.places(np.array([3, 3, 5, 7, 7, 7])).tolist() == [0, 1, 0, 0, 1, 2]
    assert columns.places(np.array([], np.int64)).tolist() == []
