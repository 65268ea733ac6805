"""Singer taps as sources: real child processes that say what they should, and what they should not."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.singer.connector import SingerSource
from conduit_tasks.connectors.singer.schema import avro
from conduit_tasks.errors import SourceError
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import to_records
from tests.connectors import tap as script
from tests.micro_batch.harness import payloads, run_once, state, write_pipeline
from tests.waiting import until

TAP = f"{sys.executable} -I {script.__file__}"
ORIGIN = Origin("p", "c", "")
ROW = ["record", {"id": 1, "name": "a"}]


def source(does: Any = None, **settings: str) -> SingerSource:
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    config = {"config": json.dumps(does)} if does else {}
    of = SingerSource({"command": TAP, "schemas": "false", **config, **given})
    of.pipeline, of.connector = "p", "in"
    return of


def read(of: SingerSource, start: Any = None, records: int | None = None, size: int | None = None) -> list[Record]:
    found = Slice("", "", start, None, hint=[records, size], open=True)
    return [record for batch in of.read(found) for record in to_records(batch, ORIGIN)]


def reached(of: SingerSource) -> Any:
    return of.reached(Slice("", "", None, None, open=True))


def step(*steps: Any) -> dict[str, Any]:
    return {"steps": [["schema"], *steps]}


def at(n: int) -> dict[str, Any]:
    return {"bookmarks": {"rows": {"id": n}}}


def fails(config: Any, **settings: str) -> str:
    with pytest.raises(SourceError) as caught:
        read(source(config, **settings))
    return str(caught.value)


def test_a_tap_is_read_to_its_end_and_goes_on_from_its_state() -> None:
    of = source({"rows": 25})
    assert [s.open for s in of.plan({}, Limit())] == [True]
    records = read(of)
    assert [r.after["id"] for r in records] == list(range(25))  # type: ignore[index]
    one = records[3]
    assert (one.position, one.key, one.operation) == (b'rows:{"id":3}', b'{"id":3}', "create")
    assert one.after == {"id": 3, "name": "row 3"}
    assert one.metadata["opencdc.collection"] == "rows"
    assert one.metadata["opencdc.createdAt"] == "1767323045000000000"
    end = reached(of)
    assert end["state"] == at(20)
    # It is not started again before its pause is over, and then from the STATE: what it said behind that comes again
    assert of.plan({"": end}, Limit()) == []
    [again] = source({"rows": 25}, pause="0s").plan({"": end}, Limit())
    assert again.start == end
    assert [(r.after["id"], r.id) for r in read(of, end)] == [(r.after["id"], r.id) for r in records[20:]]  # type: ignore[index]


def test_a_micro_batch_ends_at_a_state_once_it_is_full_and_the_next_goes_on_at_once() -> None:
    got, start = [], None
    for _ in range(20):
        of = source({"rows": 95})
        if not of.plan({"": start} if start else {}, Limit()):
            break
        part = read(of, start, records=15)
        assert len(part) <= 25
        got += [r.after["id"] for r in part]  # type: ignore[index]
        start = reached(of)
    assert sorted(set(got)) == list(range(95))
    assert len(got) < 130
    assert start["state"] == at(90)
    # By bytes, too
    of = source({"rows": 95})
    assert len(read(of, size=500)) < 30
    assert "ended" not in reached(of)


def test_a_tap_whose_state_does_not_move_is_read_to_its_end_whatever_the_limit() -> None:
    same = {"state": {"x": 1}}
    rows = [["record", {"id": n}] for n in range(30)]
    of = source(step(*[each for row in rows for each in (row, ["state", {"x": 1}])]))
    assert len(read(of, same, records=10)) == 30
    assert reached(of)["state"] == {"x": 1}


def test_a_tap_that_cannot_go_on_in_the_middle_of_a_stream_is_not_cut_there() -> None:
    """As the SDK's taps say it of a stream whose rows are not sorted; others say nothing, and come back to a STATE."""
    # Given rows of which each STATE says how far they are, but from which none goes on
    for progress in ("progress_markers", "x"):
        steps = []
        for n in range(40):
            steps += [["record", {"id": n}], ["state", {"bookmarks": {"rows": {"at": 1, progress: n}}}]]
        start: Any = None
        seen = 0
        for _ in range(60):
            of = source(step(*steps))
            if not of.plan({"": start} if start else {}, Limit()):
                break
            seen += len(read(of, start, records=10))
            start = reached(of)
        # Then it comes to its end: after the first STATE, or once it was cut at each
        assert "ended" in start
        if progress == "progress_markers":
            assert seen == 50


def test_without_key_properties_a_record_is_named_by_state_and_number_and_with_content_by_what_it_holds() -> None:
    rows = [["record", {"id": 1}], ["record", {"id": 1}], ["record", {"id": 2}]]
    steps = {"steps": [["schema", "rows", []], *rows]}
    first, again, later = (read(source(steps), start) for start in (None, None, {"state": {"x": 1}}))
    assert [r.position for r in first] == [r.position for r in again]
    assert len({r.id for r in [*first, *later]}) == 6
    assert {r.key for r in first} == {None}
    changed = step(
        ["record", {"id": 1, "name": "a"}], ["record", {"id": 1, "name": "b"}], ["record", {"id": 1, "name": "a"}]
    )
    assert len({r.id for r in read(source(changed))}) == 1
    ids = [r.id for r in read(source(changed, record_id="content"))]
    assert (len(set(ids)), ids[0]) == (2, ids[2])


def test_a_deleted_row_is_a_delete_and_other_messages_are_told_apart() -> None:
    gone = {"id": 7, "_sdc_deleted_at": "2026-01-01T00:00:00Z"}
    activate = json.dumps({"type": "ACTIVATE_VERSION", "stream": "rows", "version": 1})
    [deleted, kept] = read(
        source(step(["record", gone], ["raw", activate + "\n\n"], ["record", {"id": 8, "_sdc_deleted_at": None}]))
    )
    assert (deleted.operation, deleted.before, deleted.after) == ("delete", gone, None)
    assert kept.operation == "create"


def test_digits_and_text_stay_as_they_are() -> None:
    row = '{"id": 123456789012345678901234567890, "name": "\\u00e9\\u2028"}'
    line = f'{{"type": "RECORD", "stream": "rows", "record": {row}}}'
    [record] = read(source(step(["raw", line])))
    assert record.after == {"id": 123456789012345678901234567890, "name": "é\u2028"}


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([["raw", "hello\n"]], "printed no JSON; a tap prints messages only, and logs to stderr: hello"),
        ([["raw", "[1]\n"]], "printed no message: it has no type: [1]"),
        ([["raw", '{"type": "RECORD"}\n']], "a RECORD without a record"),
        ([["raw", '{"type": "RECORD", "record": {}}\n']], "a message without a stream"),
        ([["raw", '{"type": "STATE"}\n']], "a STATE without a value"),
        ([["raw", '{"type": "SCHEMA", "stream": "a"}\n']], "a SCHEMA without a schema"),
        ([["raw", '{"type": "BATCH", "stream": "a"}\n']], "take batch_config out of its config"),
        ([["record", "other", {"id": 1}]], "a RECORD of other before its SCHEMA"),
        ([["record", {"name": "a"}]], "a RECORD of rows without its key property id"),
        ([["state", {"x": "y" * 300_000}]], "a STATE of 3000"),
        ([["exit", 3]], "ended with exit code 3"),
        ([["kill"]], "was killed by signal 9"),
        ([["log", "no such table"], ["exit", 1]], "ended with exit code 1; its log ends with: no such table"),
        ([["big", 70 << 20]], "printed a message of more than 64 MiB"),
        ([["sleep", 600]], "said nothing for 2 s (timeout)"),
    ],
)
@pytest.mark.proves("C10")
def test_a_tap_that_misbehaves_is_a_clear_error_and_nothing_of_it_is_left(steps: list[Any], said: str) -> None:
    before = set(psutil.Process().children())
    assert said in fails(step(ROW, *steps), timeout="2s" if "timeout" in said else "5m")
    assert {p for p in psutil.Process().children() if p.is_running()} <= before


@pytest.mark.proves("C10")
def test_what_a_failing_tap_said_up_to_a_state_is_kept_and_the_failure_is_told_until_it_is_tried_again() -> None:
    of = source({"rows": 100, "dies_at": 57})
    records = read(of)
    # Then what came is delivered, and the position is its last STATE, so that nothing is passed over
    assert [r.after["id"] for r in records] == list(range(58))  # type: ignore[index]
    end = reached(of)
    assert end["state"] == at(50)
    assert "ended with exit code 3; its log ends with: it is over" in end["failed"]
    with pytest.raises(SourceError, match=r"exit code 3.*is read; it is started again from there after 60 s"):
        of.plan({"": end}, Limit())
    well = source({"rows": 100}, pause="0s")
    assert well.plan({"": end}, Limit())
    assert [r.after["id"] for r in read(well, end)] == list(range(50, 100))  # type: ignore[index]
    assert "failed" not in reached(well)
    # A tap that gets no further is an error that nothing moves
    with pytest.raises(SourceError, match="has said no new STATE"):
        read(source(step(["state", {"x": 1}], ROW, ["exit", 1])), {"state": {"x": 1}})
    # So is garbage, or silence, behind a STATE
    of = source(step(ROW, ["state", {"x": 1}], ["record", {"id": 2}], ["raw", "oops\n"]))
    assert len(read(of)) == 2
    assert reached(of)["state"] == {"x": 1}
    assert "printed no JSON" in reached(of)["failed"]


def test_a_pause_that_a_machine_ahead_of_time_has_noted_is_over() -> None:
    at_once = source({"rows": 1}, pause="1m")
    now = time.time()
    assert at_once.plan({"": {"ended": now}}, Limit()) == []
    for moment in (now - 61, now + 3_600):
        assert len(at_once.plan({"": {"ended": moment}}, Limit())) == 1


def test_schemas_become_avro() -> None:
    import fastavro

    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "2nd name": {"type": ["null", "string"], "format": "date-time"},
            "tags": {"type": "array", "items": {"type": ["number", "null"]}},
            "of": {"type": "object", "properties": {"x": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}},
            "any": {"type": "object"},
            "more": {},
        },
    }
    made = avro("shop.orders", schema)
    parsed = fastavro.parse_schema(made)
    assert made["name"] == "shop_orders"
    types = {field["name"]: field["type"] for field in made["fields"]}
    assert types["id"] == ["null", "long"]
    assert types["_2nd_name"] == ["null", "string"]
    assert types["tags"][1]["items"] == ["null", "double"]
    assert types["of"][1]["fields"][0]["type"] == ["null", "boolean"]
    assert (types["any"], types["more"]) == (["null", "string"], ["null", "string"])
    row = {"id": 1, "_2nd_name": None, "tags": [1.5], "of": {"x": True}, "any": "{}", "more": None}
    assert fastavro.validate(row, parsed)


PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 20}
    connectors:
      - id: in
        type: source
        plugin: singer
        settings: {command: "COMMAND", config: 'CONFIG', pause: 1h}
      - {id: out, type: destination, plugin: file, settings: {path: out.jsonl, format: payload}}
"""


@pytest.mark.proves("C9", "C10", "C11")
def test_a_pipeline_reads_a_tap_micro_batch_by_micro_batch_registers_its_schema_and_survives_its_death(
    home: Path,
) -> None:
    # Given a tap that dies in the middle
    def write(**config: Any) -> None:
        write_pipeline(home, "p", PIPELINE.replace("COMMAND", TAP).replace("CONFIG", json.dumps(config)))

    def ids() -> list[int]:
        return [row["id"] for row in payloads(home / "out.jsonl")]

    write(rows=95, dies_at=57)
    while True:
        said = run_once("p")
        if isinstance(said["plan"], SourceError):
            break
    assert "exit code 3" in str(said["plan"])
    assert sorted(set(ids())) == list(range(58))
    # When it is well again, and its pause is over
    write(rows=95)
    broker = state("p")
    kept = broker.positions.planned("in")[""]
    assert kept["state"] == at(50)
    broker.close()
    file = home / "include" / "pipelines" / "p.yaml"
    file.write_text(file.read_text().replace("pause: 1h", "pause: 0s"))

    def arrived() -> bool:
        run_once("p")
        return 94 in ids()

    # A source that failed is left alone for a second.
    until(arrived)
    # Then everything is there, in order but for what was behind a STATE, which came again
    assert list(dict.fromkeys(ids())) == list(range(95))
    assert broker is not None
    listed = CliRunner().invoke(app, ["schemas", "list"])
    assert "p.in.rows" in listed.output
    shown = json.loads(CliRunner().invoke(app, ["schemas", "show", "p.in.rows"]).output)
    assert [field["name"] for field in shown["fields"]] == ["id", "name", "price"]


def test_it_keeps_the_contract_of_a_source(home: Path) -> None:
    report = accept(
        "singer", source={"command": TAP, "config": json.dumps({"rows": 100, "behind": True}), "pause": "1h"}
    )
    assert [check for check in report.checks if check.passed is False] == []
