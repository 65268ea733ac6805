"""The state of a message as a whole: acked once all acked, nacked once one nacked, left once (SEMANTICS C3, C4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.ledger.messages import Messages, Overall
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.micro_batch.context import open_spool, opened
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.resend.redrive import redrive
from conduit_tasks.settings import settings
from tests.faults.parts import events
from tests.micro_batch.harness import deliver_again, run_once, write_pipeline

FILE = """
version: "2.2"
pipelines:
  - id: p
    isolate: true
    dead-letter-queue: {window-size: 0}
    processors:
      - {id: early, plugin: error, settings: {message: no}, condition: '{{ eq .Payload.After.n 1.0 }}'}
      - {id: drop, plugin: filter, condition: '{{ eq .Payload.After.n 2.0 }}'}
      - {id: mark, plugin: field.set, settings: {field: '.Metadata["cloudevents.subject"]', value: few},
         condition: '{{ lt .Payload.After.n 6.0 }}'}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - id: all
        type: destination
        plugin: file
        settings: {path: out/all.jsonl, format: payload}
        processors: [{id: late, plugin: error, settings: {message: no}, condition: '{{ eq .Payload.After.n 4.0 }}'}]
      - id: few
        type: destination
        plugin: file
        settings: {path: out/few.jsonl, format: payload}
        trigger: {filters: [{exact: {subject: few}}]}
"""
# In brackets: 1 fails early, 2 is filtered, 0 to 5 are wanted by both, 4 fails at one of the two.
OPEN = ["open", "nacked", "acked", "open", "nacked", "open", "acked", "acked"]
DONE = ["acked", "nacked", "acked", "acked", "nacked", "acked", "acked", "acked"]


def overall() -> Overall:
    pipeline = get_pipeline("p")
    return Overall(pipeline, open_spool(pipeline), settings().path(settings().dead_letters))


def states(messages: Messages) -> list[str]:
    return [messages.state(seq) for seq in range(messages.total)]


@pytest.fixture
def half(home: Path) -> Path:
    """One destination has everything; the other, which wants some of it, is away."""
    write_pipeline(home, "p", FILE)
    events(home / "data", 8)
    (home / "out/few.jsonl").mkdir(parents=True)
    run_once("p")
    return home


@pytest.mark.proves("C3", "C4")
def test_a_message_is_acked_when_all_that_want_it_acked_and_nacked_when_one_nacked(half: Path) -> None:
    # Given that one destination has not got its records: what it does not want has ended all the same
    assert states(overall().of(1)) == OPEN
    # When it has
    (half / "out/few.jsonl").rmdir()
    run_once("p", "again")
    # Then what was open is acked, and nothing else has changed
    assert states(overall().of(1)) == DONE


@pytest.mark.proves("C3", "X2")
def test_a_redrive_changes_nothing_of_the_message_it_came_from(half: Path) -> None:
    write_pipeline(half, "p", FILE.replace("eq .Payload.After.n 4.0", "eq .Payload.After.n 99.0"))
    with opened("p", "t") as context:
        (outcome,) = redrive(context, Selection(destination="all"), "me", wait=60.0)
    assert outcome.redriven == 1
    assert states(overall().of(1)) == OPEN


@pytest.mark.proves("C3")
def test_what_is_delivered_again_because_somebody_asked_changes_nothing_either(half: Path) -> None:
    # Given that a cleared task delivers what it had delivered, and a record fails now
    write_pipeline(half, "p", FILE.replace("eq .Payload.After.n 4.0", "ge .Payload.After.n 7.0"))
    deliver_again("p", "all", "run")
    rows = Ledger(open_spool(get_pipeline("p")), "p").read("all").to_pylist()
    assert [(r["first"], r["outcome"]) for r in rows if r["epoch"] and r["outcome"] == "nacked"] == [(7, "nacked")]
    # Then the message that it was is what it was
    assert states(overall().of(1)) == OPEN


@pytest.mark.proves("C4")
def test_what_was_collected_and_what_a_killed_attempt_confirmed_is_derived_from_what_is_left(half: Path) -> None:
    # Given a micro-batch whose files are gone, and attempts that were killed before they wrote of it
    (half / "out/few.jsonl").rmdir()
    run_once("p", "again")
    pipeline = get_pipeline("p")
    spool = open_spool(pipeline)
    book = Ledger(spool, "p").read()
    spool.collect("p", 1)
    assert states(overall().of(1)) == DONE
    # And also where only the dead letters say which of the confirmed ones were nacked
    rows = [
        {**row, "outcome": "confirmed"} for row in book.to_pylist() if row["outcome"] != "open" and row["destination"]
    ]
    told = Overall(pipeline, spool, settings().path(settings().dead_letters), type(book).from_pylist(rows, book.schema))
    assert states(told.of(1)) == DONE
    # And of one that nobody knows, nothing is said
    assert overall().of(7).rows() == []


@pytest.mark.proves("C4", "X5")
def test_the_ledger_answers_it_by_sql_and_for_one_record(half: Path) -> None:
    def call(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["ledger", "p", *arguments], catch_exceptions=False)

    found = call(
        "--sql", "SELECT state, SUM(records) AS n FROM messages GROUP BY state ORDER BY state", "--format", "json"
    )
    assert json.loads(found.stdout) == [
        {"state": "acked", "n": 3}, {"state": "nacked", "n": 2}, {"state": "open", "n": 3}
    ]  # fmt: skip
    rows = json.loads(call("--sql", "SELECT * FROM messages ORDER BY first", "--format", "json").stdout)
    assert [(r["micro_batch"], r["first"], r["last"], r["records"], r["state"]) for r in rows][-2:] == [
        (1, 5, 5, 1, "open"), (1, 6, 7, 2, "acked")
    ]  # fmt: skip
    # A destination that is asked for alone does not change what a message is
    one = call("--destination", "all", "--sql", "SELECT COUNT(*) AS n FROM messages", "--format", "json")
    assert json.loads(one.stdout) == [{"n": len(rows)}]
    for seq, state in enumerate(OPEN):
        assert f"{state} as a whole" in call("--micro-batch", "1", "--seq", str(seq)).stderr
