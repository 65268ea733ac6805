"""The last records of a stage: from the newest files of the spool, masked, with the answers of the ledger."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import ConfigError, SpoolError
from conduit_tasks.operate import peek as peeking
from conduit_tasks.operate.peek import Place, peek, spooled
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.spool.spool import Spool
from tests.micro_batch.harness import run_once, write_pipeline
from tests.operate.asking import here

__all__ = ["here"]

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 5}
    mask: [.Payload.After.card]
    dead-letter-queue: {window-size: 0}
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: n}
        processors:
          - {id: early, plugin: error, condition: "{{ eq .Payload.After.n 7 }}"}
      - {id: all, type: destination, plugin: file, settings: {path: out/all.jsonl}}
      - id: even
        type: destination
        plugin: file
        settings: {path: out/even.jsonl}
        trigger: {filters: [{exact: {even: "true"}}]}
        processors:
          - {id: bad, plugin: error, settings: {message: "no {{ .Payload.After.card }}"},
             condition: "{{ eq .Payload.After.n 2 }}"}
    processors:
      - {id: late, plugin: error, condition: "{{ eq .Payload.After.n 6 }}"}
      - {id: even, plugin: field.set,
         settings: {field: .Metadata.even, value: "{{ eq (mod .Payload.After.n 2) 0 }}"}}
"""


@pytest.fixture
def delivered(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ten records in two micro-batches; 2, 6 and 7 failed, each somewhere else. Files are all that is looked at: they
    are made once."""
    kept = tmp_path_factory.getbasetemp() / "home of the last records"
    if kept.exists():
        shutil.copytree(kept, home, dirs_exist_ok=True)
        return
    write_pipeline(home, "p", PIPELINE)
    (home / "data").mkdir()
    rows = (json.dumps({"n": n, "card": f"4111-{n}", "token": "hush"}) for n in range(10))
    (home / "data" / "a.jsonl").write_text("".join(f"{row}\n" for row in rows))
    run_once("p", "first")
    run_once("p", "second")
    shutil.copytree(home, kept)


def last(node: str, count: int = 20) -> list[tuple[int, str | None]]:
    return [(each["record"]["payload"]["after"]["n"], each["state"]) for each in seen(node, count)["records"]]


def seen(node: str, count: int = 20) -> dict[str, Any]:
    return peek(get_pipeline("p"), node, count)


def test_each_stage_shows_its_last_records_what_failed_in_it_and_the_answers(delivered: None) -> None:
    # As read: after the source's own processors
    assert last("sources.in") == [
        *((9, "passed"), (8, "passed"), (7, "nacked"), (6, "passed"), (5, "passed")),
        *((n, "passed") for n in (4, 3, 2, 1, 0)),
    ]
    # After the pipeline's processors: what failed at the source is not there
    assert last("processors", 4) == [(9, "passed"), (8, "passed"), (6, "nacked"), (5, "passed")]
    # What a trigger wants, with what became of it
    assert last("destinations.even") == [(8, "acked"), (4, "acked"), (2, "nacked"), (0, "acked")]
    assert last("destinations.all", 2) == [(9, "acked"), (8, "acked")]
    # And each says more
    failed = seen("processors")["records"][2]
    assert (failed["error"]["node"], failed["seq"], failed["micro_batch"]) == ("processors/late", 1, 2)
    answer = seen("destinations.even")["records"][2]["answer"]
    assert (answer["outcome"], answer["error_class"], answer["exact"]) == ("nacked", "processor", True)


def test_what_is_secret_is_not_shown_also_in_errors(delivered: None) -> None:
    for node in ("sources.in", "processors", "destinations.all", "destinations.even"):
        text = json.dumps(seen(node))
        assert "4111" not in text
        assert "hush" not in text
    assert seen("destinations.even")["records"][2]["answer"]["error"] == "no ***"


def test_a_micro_batch_that_is_not_sealed_yet_shows_what_was_read(home: Path, delivered: None) -> None:
    # Given a third micro-batch whose source has staged, and whose seal is not there
    spool = Spool(str(home / ".conduit" / "spool"))
    assert spool.sealed("p", 2), "the spool of this home"
    spool.remove(str(spool.sealed("p", 2)))
    # Then it shows as read, without a number yet, and nowhere else
    found = seen("sources.in", 1)["records"][0]
    assert (found["record"]["payload"]["after"]["n"], found["seq"]) == (9, None)
    assert last("processors", 1) == [(4, "passed")]
    assert last("destinations.even", 1) == [(4, "acked")]


def test_a_record_is_found_again_exact_by_its_place_and_goes_on_from_there(delivered: None) -> None:
    pipeline = get_pipeline("p")

    def entry(node: str, n: int) -> tuple[Any, str, int]:
        [one] = [each for each in seen(node)["records"] if each["record"]["payload"]["after"]["n"] == n]
        record, at = spooled(pipeline, Place.read(one["place"]))
        assert isinstance(record.after, dict)
        assert record.id == one["id"]
        return record.after["card"], at.node, at.first

    assert entry("sources.in", 9) == ("4111-9", "processors", 0)
    assert entry("processors", 9) == ("4111-9", "processors", 2)
    assert entry("destinations.even", 8) == ("4111-8", "destinations.even", 0)
    # One that failed enters where it failed
    assert entry("sources.in", 7) == ("4111-7", "sources.in", 0)
    assert entry("processors", 6) == ("4111-6", "processors", 0)


@pytest.mark.parametrize("text", ["", "x", "sources.in/1/0/0", "sources.in/1/0/0/-1", "sources.in/1/0/0/" + "9" * 30])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no place in the spool: `conduit records peek` prints places"):
        Place.read(text)


def test_a_place_whose_record_is_gone_and_a_node_that_is_not_there_are_refused(delivered: None) -> None:
    with pytest.raises(ConfigError, match=r"sources.in/9/0/0/0 is not in the spool of p any more"):
        spooled(get_pipeline("p"), Place.read("sources.in/9/0/0/0"))
    with pytest.raises(ConfigError, match=r"pipeline p has no node sources.x; a record enters at"):
        seen("sources.x")


def test_it_reads_no_more_than_its_bounds(delivered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of many records only the last are read
    found = seen("processors", 3)
    assert (len(found["records"]), found["looked"], found["more"]) == (3, 1, True)
    assert (seen("processors")["looked"], seen("processors")["more"]) == (2, False)
    # Of many bytes the first row group, whatever its size
    monkeypatch.setattr(peeking, "BYTES", 1)
    found = seen("sources.in")
    assert ([each["micro_batch"] for each in found["records"]], found["more"]) == ([2, 2, 2, 2], True)
    monkeypatch.undo()
    # Of many micro-batches the newest
    monkeypatch.setattr(peeking, "MICRO_BATCHES", 1)
    assert {each["micro_batch"] for each in seen("sources.in")["records"]} == {2}
    assert seen("sources.in")["more"]
    monkeypatch.setattr(peeking, "MOST", 2)
    assert len(seen("sources.in", 50)["records"]) == 2


def test_a_file_that_is_missing_is_an_error_and_a_micro_batch_that_is_gone_is_none(
    home: Path, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / ".conduit" / "spool" / "p" / "0000000002"
    for part in folder.glob("processors-*/part-*.parquet"):
        part.unlink()
    with pytest.raises(SpoolError, match="is missing"):
        seen("processors")
    # When it is collected between the look at the folder and that at its files
    before = Spool.micro_batches
    calls: list[int] = []

    def collected(self: Spool, pipeline: str) -> list[int]:
        found = before(self, pipeline)
        calls.append(1)
        return found if len(calls) == 1 else found[:1]

    for manifest in folder.glob("manifest-*.json"):
        manifest.write_text("")
    monkeypatch.setattr(Spool, "micro_batches", collected)
    assert last("processors", 1) == [(4, "passed")]


def test_a_dead_letter_and_a_record_in_its_place_are_tried_from_where_they_are(delivered: None) -> None:
    from contextlib import nullcontext

    from conduit_tasks.operate.ask import Ask
    from conduit_tasks.operate.try_child import run
    from conduit_tasks.operate.trying import Outside

    def steps(**ask: Any) -> list[str]:
        said: list[dict[str, Any]] = []
        run(Ask("p", **ask), said.append, Outside(nullcontext()))
        assert "4111" not in json.dumps(said)
        return [f"{s['node']} {s.get('processor', s['step'])} {s['outcome']}" for s in said if "step" in s]

    # A letter enters at what failed it, or where it is said, named by its id or by its key
    found = {n: each for n in (2, 6, 7) for each in _letters() if each["n"] == n}
    assert steps(letter=[found[7]["id"]]) == ["sources.in early failed"]
    assert steps(letter=[found[6]["id"]]) == ["processors late failed"]
    assert steps(letter=["even", *found[2]["key"]]) == ["destinations.even bad failed"]
    assert steps(letter=[found[6]["id"]], node="destinations.all") == ["destinations.all sent sent"]
    with pytest.raises(ConfigError, match="p has no dead letter even/0/1/9/0"):
        steps(letter=["even", 0, 1, 9, 0])
    # A record in the spool goes on from its place
    place = seen("sources.in", 1)["records"][0]["place"]
    on = ["processors late skipped", "processors even changed", "destinations.all trigger wanted"]
    assert steps(place=place)[:3] == on
    assert steps(place=seen("processors", 1)["records"][0]["place"])[0] == on[2]
    assert steps(place=seen("destinations.even", 1)["records"][0]["place"]) == [
        "destinations.even bad skipped",
        "destinations.even sent sent",
    ]


def _letters() -> list[dict[str, Any]]:
    from conduit_tasks.dead_letters.store import DeadLetterStore, row_key
    from conduit_tasks.settings import settings

    rows = DeadLetterStore(settings().path(settings().dead_letters), "p").list()
    return [{"n": row["record"]["payload"]["after"]["n"], "id": row["id"], "key": row_key(row)} for row in rows]


@pytest.mark.usefixtures("here")
def test_at_a_destination_records_are_shown_as_its_processors_make_them_if_that_is_found_in_time(
    delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.operate import apart
    from conduit_tasks.operate.apart import peeked

    pipeline = get_pipeline("p")
    found = peeked(pipeline, "destinations.even", 3)["records"]
    assert [each["sent"]["records"] == [each["record"]] for each in found] == [True, True, False]
    assert found[2]["sent"] == {"records": [], "left_out": []}, "its processor fails it"
    assert [[step["outcome"] for step in each["steps"]] for each in found] == [["skipped"], ["skipped"], ["failed"]]
    assert found[2]["steps"][0]["error"] == "no ***"
    assert "4111" not in json.dumps(found)
    # When the process ends without an answer, they are shown as they came
    monkeypatch.setattr(apart, "_ask", lambda ask, seconds: (b'{"pee', b"", True, -9))
    found = peeked(pipeline, "destinations.even", 3)["records"]
    assert [(each["state"], each["sent"]) for each in found] == [("acked", None), ("acked", None), ("nacked", None)]
    assert [each["steps"] for each in found] == [None] * 3
    # And other stages need none
    monkeypatch.setattr(apart, "_ask", None)
    assert peeked(pipeline, "processors", 1)["records"][0]["sent"] is None


@pytest.mark.usefixtures("here")
def test_the_command_prints_the_last_records(delivered: None) -> None:
    from typer.testing import CliRunner

    from conduit_tasks.cli.main import app

    done = CliRunner().invoke(app, ["records", "peek", "p", "--node", "destinations.even", "--last", "3"])
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert [line.partition(" {")[0] for line in lines] == [
        "place state record error",
        "destinations.even/2/0/3/0 acked",
        "destinations.even/1/0/4/0 acked",
        "destinations.even/1/0/2/0 nacked",
    ]
    assert '"key": "2", "after": {"n": 2, "card": "***", "token": "***"}} no ***' in lines[3]
    done = CliRunner().invoke(app, ["records", "peek", "p", "--last", "1", "--format", "json"])
    assert json.loads(done.stdout)["records"][0]["place"] == "processors/2/0/4/0"
    nothing = CliRunner().invoke(app, ["records", "peek", "p", "--node", "nowhere"])
    assert (nothing.exit_code, "has no node nowhere" in str(nothing.exception)) == (1, True)


def test_a_spool_without_micro_batches_shows_nothing_and_says_so(home: Path) -> None:
    from typer.testing import CliRunner

    from conduit_tasks.cli.main import app

    write_pipeline(home, "p", PIPELINE)
    done = CliRunner().invoke(app, ["records", "peek", "p"])
    assert (done.exit_code, done.stderr) == (
        0,
        "none at processors in the newest 20 micro-batches that the spool has\n",
    )


def test_the_answer_is_that_of_the_newest_attempt_and_a_nack_counts_before_a_row_about_others(
    home: Path, delivered: None
) -> None:
    import time

    import pyarrow as pa

    from conduit_tasks.ledger.entry import SCHEMA
    from conduit_tasks.ledger.store import Ledger

    def row(attempt: str, first: int, last: int, records: int, outcome: str) -> dict[str, Any]:
        named = {"destination": "all", "micro_batch": 2, "status": "done", "attempt": attempt, "epoch": 0}
        at = int((time.time() + int(attempt)) * 1e6)
        return {**named, "first": first, "last": last, "records": records, "outcome": outcome, "ended": at}

    def answer(seq: int) -> tuple[str, bool]:
        [one] = [
            each["answer"]
            for each in seen("destinations.all")["records"]
            if each["seq"] == seq and each["micro_batch"] == 2
        ]
        return one["outcome"], one["exact"]

    book = Ledger(Spool(str(home / ".conduit" / "spool")), "p")
    # Given a later attempt by one of several tasks, whose row is about some of its range
    book.write(pa.Table.from_pylist([row("10", 0, 4, 2, "acked"), row("10", 3, 3, 1, "nacked")], SCHEMA))
    assert answer(3) == ("nacked", True)
    assert answer(4) == ("acked", True), "the first attempt told exactly"
    # And a later one that tells of all
    book.write(pa.Table.from_pylist([row("20", 0, 4, 5, "open")], SCHEMA))
    assert answer(3) == ("open", True)
