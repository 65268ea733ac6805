"""What a replay reads, and what it leaves alone: queues and acks, processors, filters and handlers (X3)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa

from conduit_tasks.connectors import registry
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.resend.replay import Replayed, replay
from tests.connectors import tap
from tests.delivery.shelf import shelves, tell  # noqa: F401 - a fixture
from tests.micro_batch.harness import lines, payloads, run_once, run_until_quiet, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    event-time: {time}
    micro-batch: {{max-records: 4}}
    dead-letter-queue: {{window-size: 0}}
    connectors:
      - {{id: in, type: source, {source}}}
"""
LINES = "plugin: file, settings: {path: data.jsonl, format: jsonl, settle: 0s}"
READ = """'.Metadata["opencdc.readAt"]'"""


def write(home: Path, source: str, *more: str, time: str = ".Payload.After.t", pipeline: str = "") -> None:
    text = PIPELINE.format(time=time, source=source) + "".join(f"      - {line}\n" for line in more)
    write_pipeline(home, "p", text + pipeline)


def shelf(name: str, more: str = "") -> str:
    return f"{{id: {name}, type: destination, plugin: shelf, settings: {{path: out/{name}.jsonl}}{more}}}"


def again(*names: str, what: str = "missing", start: str = "2020-01-01", end: str = "2100-01-01") -> list[Replayed]:
    return replay("p", start, end, names, what, run="r", wait=120.0)


def got(home: Path, name: str) -> list[int]:
    file = home / "out" / f"{name}.jsonl"
    return [row["n"] for row in payloads(file)] if file.exists() else []


@pytest.mark.proves("X3", "T2")
def test_of_a_queue_the_spool_is_replayed_and_nothing_is_received_or_deleted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given ten messages that were delivered, and two that came since
    monkeypatch.setitem(registry.BUILTIN, "folder-queue", "tests.micro_batch.folder_queue")
    folder = home / "queue"
    folder.mkdir()
    for n in range(10):
        (folder / f"{n:03}.new").write_text(json.dumps({"n": n}))
    source = (
        "plugin: folder-queue, settings: {path: queue}, processors: "
        "[{id: decode, plugin: json.decode, settings: {field: .Payload.After}}, "
        "{id: key, plugin: field.set, settings: {field: .Key, value: '{{ .Payload.After.n }}'}}]"
    )
    write(home, source, shelf("a"), time=READ)
    run_until_quiet("p")
    deleted = lines(folder / "deleted")
    for n in (10, 11):
        (folder / f"{n:03}.new").write_text(json.dumps({"n": n}))
    # When all goes to a destination that joined since, and wants some of it
    write(home, source, shelf("a"), shelf("late", ", trigger: {filters: [{sql: 'INT(subject) >= 6'}]}"), time=READ)
    (outcome,) = again("late")
    # Then it has what it wants, and the queue is as it was
    assert (got(home, "late"), outcome.delivered) == ([6, 7, 8, 9], 4)
    assert lines(folder / "deleted") == deleted
    assert sorted(path.name for path in folder.glob("*.*")) == ["010.new", "011.new"]


@pytest.mark.proves("X3", "C7", "C5")
def test_a_replay_passes_the_processors_as_they_are_now_and_tells_the_handlers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given six records, one of which the destination refused, and processors that changed since
    told: list[tuple[str, str, int]] = []
    module = ModuleType("replay_handlers")
    module.notify = lambda changes: told.extend((c.state, c.node, c.record.after["n"]) for c in changes)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "replay_handlers", module)
    (home / "data.jsonl").write_text("".join(f'{{"n": {n}, "t": "2021-01-0{n + 1}"}}\n' for n in range(6)))
    tell(home / "out" / "a.jsonl", "refuse", [4])
    write(home, LINES, shelf("a"))
    run_until_quiet("p")
    assert got(home, "a") == [0, 1, 2, 3, 5]

    def setting(id: str, field: str, value: str) -> str:
        return f"{{id: {id}, plugin: field.set, settings: {{field: .Payload.After.{field}, value: {value}}}}}"

    handlers = (
        "    handlers: [{on: nacked, call: 'replay_handlers:notify'}, {on: acked, call: 'replay_handlers:notify'}]\n"
    )
    own = f", processors: [{setting('own', 'own', 'x')}]"
    write(home, LINES, shelf("a", own), pipeline=f"    processors: [{setting('all', 'all', 'y')}]\n" + handlers)
    # When four days go again, and the one is refused again
    (outcome,) = again("a", what="all", start="2021-01-03", end="2021-01-07")
    # Then they went through both, and each change was told
    assert (outcome.delivered, outcome.dead) == (3, 1)
    rows = payloads(home / "out" / "a.jsonl")[5:]
    assert [(row["after"]["n"], row["after"]["own"], row["after"]["all"]) for row in rows] == [
        (n, "x", "y") for n in (2, 3, 5)
    ]
    assert sorted(told) == [
        ("acked", "destinations.a", 2),
        ("acked", "destinations.a", 3),
        ("acked", "destinations.a", 5),
        ("nacked", "destinations.a", 4),
    ]
    with opened("p", "look") as context:
        (letter,) = context.broker.dead_letters.entries("a")
    assert letter.epoch > 0, "the earlier letter is closed, the later one stands"


@pytest.mark.proves("X3")
def test_what_a_replay_reads_makes_no_duplicates_of_live_records(home: Path) -> None:
    # Given a key that is not remembered any more
    from conduit_tasks.micro_batch.context import open_broker

    processors = ", processors: [{id: once, plugin: dedupe, settings: {key: .Payload.After.k}}]"
    write(home, LINES + processors, shelf("a"))
    (home / "data.jsonl").write_text('{"n": 0, "k": "x", "t": "2021-01-01"}\n')
    run_until_quiet("p")
    redis = open_broker("p").redis
    assert redis.delete(*redis.scan_iter("*:dedupe:*")) == 1
    # When its record is replayed
    assert again("a", what="all")[0].delivered == 1
    # Then the next live one with that key is its first
    with (home / "data.jsonl").open("a") as file:
        file.write('{"n": 1, "k": "x", "t": "2021-01-02"}\n')
    run_until_quiet("p")
    assert got(home, "a") == [0, 0, 1]


@pytest.mark.proves("X3")
@pytest.mark.parametrize("kind", ["INTEGER", "TIMESTAMP"])
def test_a_late_joiner_gets_the_rows_of_a_table_it_missed(home: Path, kind: str) -> None:
    engine = sa.create_engine(f"sqlite:///{home}/d.db")

    def insert(first: int, last: int) -> None:
        with engine.begin() as connection:
            for n in range(first, last):
                at: Any = n if kind == "INTEGER" else f"2021-01-01 00:00:{n:02}"
                row = {"at": at, "n": n, "t": f"2021-01-{n + 1:02}"}
                connection.execute(sa.text("INSERT INTO t VALUES (:at, :n, :t)"), row)

    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE t (at {kind}, n INTEGER, t TEXT)"))
    insert(0, 9)
    source = f'plugin: sql, settings: {{url: "sqlite:///{home}/d.db", table: t, column: at}}'
    write(home, source, shelf("a"))
    run_until_quiet("p")
    write(home, source, shelf("a"), shelf("late"))
    insert(9, 12)
    run_until_quiet("p")
    insert(12, 14)
    again("late", start="2021-01-03", end="2021-01-20")
    engine.dispose()
    assert got(home, "late") == [9, 10, 11, *range(2, 9)]
    run_until_quiet("p")
    assert got(home, "late")[10:] == [12, 13]


@pytest.mark.proves("X3", "C14")
def test_a_version_of_a_row_that_is_replayed_closes_no_dead_letter_of_another(home: Path) -> None:
    """Given a row under one id that was delivered on one day, and refused as it was on the next, then a replay of the
    first day leaves the dead letter open, and one of the second sends what it holds."""
    config = home / "tap.json"
    command = f"{sys.executable} -I {tap.__file__}"
    source = f"plugin: singer, settings: {{command: '{command}', config: tap.json, schemas: 'false', pause: 0s}}"
    write(home, source, shelf("a"))
    for n, day in enumerate(("2013-03-01", "2013-03-02")):
        row = {"id": 1, "n": n, "t": f"{day}T12:00:00Z"}
        config.write_text(json.dumps({"steps": [["schema"], ["record", row], ["state", {"at": n}]]}))
        (home / "out").mkdir(exist_ok=True)
        tell(home / "out" / "a.jsonl", "refuse", [1])
        run_once("p", f"run-{n}")
    tell(home / "out" / "a.jsonl", "refuse", [])

    def letters() -> int:
        with opened("p", "look") as context:
            return context.broker.dead_letters.count("a")

    assert (got(home, "a"), letters()) == ([0], 1)
    for what in ("all", "failed"):
        replay("p", "2013-03-01", "2013-03-02", ("a",), what, run=what, wait=60.0)
        assert letters() == 1
    (outcome,) = replay("p", "2013-03-02", "2013-03-03", ("a",), "failed", run="later", wait=60.0)
    assert (outcome.delivered, letters()) == (1, 0)
    assert got(home, "a") == [0, 0, 1]
