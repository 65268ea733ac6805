"""A record's way as a waterfall: what is stored of each step, and what is said not to be (X5)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import Result

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.ledger.entry import SCHEMA, Attempt, Tally, unrecorded
from conduit_tasks.ledger.find import Place
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.ledger.waterfall import (
    ACKED_BY,
    COLLECTED,
    NOT_STAGED,
    OF_ATTEMPTS,
    OF_SENDS,
    RANGE,
    Step,
    Waterfalls,
    bar,
)
from conduit_tasks.micro_batch.context import open_spool
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.settings import settings
from tests.faults.parts import events
from tests.ledger.test_ledger import WEB
from tests.micro_batch.harness import run_once, write_pipeline

PROCESSED = "    processors: [{id: x, plugin: field.set, settings: {field: .Metadata.x, value: y}}]\n"


def waterfalls() -> Waterfalls:
    pipeline = get_pipeline("p")
    return Waterfalls(pipeline, open_spool(pipeline))


@pytest.mark.proves("X5")
def test_a_waterfall_has_each_step_and_attempt_with_answer_and_duration(
    home: Path, receivers: Any, conduit: Callable[..., Result]
) -> None:
    # Given a record that is refused once its target is up again
    receiver = receivers("--refuse", "n=3")
    receiver.mode("down")
    write_pipeline(home, "p", WEB.replace("URL", receiver.url).rstrip() + "\n" + PROCESSED)
    events(home / "data", 10)
    before = time.time()
    run_once("p", "first")
    receiver.mode("up")
    run_once("p", "second")
    # Then its steps are there, in order, each within the time of the runs
    way = waterfalls().of(Place(1, 3, "in"))
    assert [(s.step, s.node, s.outcome, s.status, s.run) for s in way.steps] == [
        ("read", "sources.in", None, None, None),
        ("processed", "processors", None, None, None),
        ("sealed", "seal", None, None, None),
        ("attempt", "destinations.file", "acked", "done", "first"),
        ("attempt", "destinations.web", "open", "waiting", "first"),
        ("attempt", "destinations.web", "nacked", "done", "second"),
        ("acked", "acks.in", None, None, None),
    ]
    times = [at for step in way.steps for at in (step.began, step.ended) if at is not None]
    assert len(times) == 2 * len(way.steps) - 1, "all but when the ack was given"
    assert all(before - 1 <= at <= time.time() + 1 for at in times)
    assert [step.ended for step in way.steps] == sorted(step.ended or 0 for step in way.steps)
    assert way.steps[1].began == way.steps[0].ended
    assert way.notes == [ACKED_BY, OF_ATTEMPTS, OF_SENDS]
    # And what became of it at each destination
    file, web = way.targets
    assert (file.destination, file.attempts, file.outcome) == ("file", 1, "acked")
    assert (web.attempts, web.outcome, web.error_class, web.first) == (2, "nacked", "http 400", way.steps[4].began)
    assert web.seconds == pytest.approx((way.steps[5].ended or 0) - (way.steps[4].began or 0), abs=1e-4)
    assert 0 < (web.attempting or 0) < web.seconds
    # And what was refused ended when its record was given up, not with the micro-batch
    letter = DeadLetterStore(settings().path(settings().dead_letters), "p").live("web", 1, 3, 0)
    assert letter is not None
    assert way.steps[5].ended == letter["at"].timestamp()
    others = waterfalls().of(Place(1, 4, "in")).steps[5].ended
    assert others is not None
    assert letter["at"].timestamp() < others
    # And another record of the micro-batch has its own answer
    assert waterfalls().of(Place(1, 4, "in")).targets[1].outcome == "acked"

    # The command finds it by its key, and says the same
    key = json.loads((home / "data").glob("*.jsonl").__next__().read_text().splitlines()[3])["k"]
    said = conduit("records", "history", "p", "--key", key, "--format", "json")
    found = json.loads(said.stdout)
    assert 3 in [place["seq"] for place in found["places"]]
    [one] = [each for each in found["waterfalls"] if each["place"]["seq"] == 3]
    assert (one["state"], one["targets"][1]["outcome"]) == ("nacked", "nacked")
    text = conduit("records", "history", "p", "--record", one["place"]["id"], "--micro-batch", "1")
    assert text.exit_code == 0
    assert "nacked as a whole" in text.stdout
    assert "█" in text.stdout
    assert "http 400" in text.stdout
    assert OF_ATTEMPTS in " ".join(text.stderr.split())
    for options, why in (
        (["--key", "k", "--record", "0"], "exactly one of"),
        (["--field", ".Key"], "exactly one of"),
        ([], "exactly one of"),
        (["--key", "k", "--micro-batch", "1"], "--micro-batch goes with --record"),
        (["--field", ".Payload.After.n", "--value", "1"], "add .Payload.After.n to `index`"),
        (["--record", "0" * 32], "no record 000"),
    ):
        wrong = conduit("records", "history", "p", *options)
        assert wrong.exit_code != 0
        assert why in str(wrong.exception) + wrong.stderr

    # A micro-batch of an earlier version, and one that is collected, are said to be so
    spool = open_spool(get_pipeline("p"))
    for stage in (home / ".conduit/spool/p/0000000001").glob("*-*.json"):
        stage.write_bytes(stage.read_bytes().replace(b'"staged_at"', b'"other"'))
    old = waterfalls().of(Place(1, 3, "in"))
    assert (old.steps[0].ended, NOT_STAGED in old.notes) == (None, True)
    spool.collect("p", 1)
    gone = waterfalls().of(Place(1, 3, "in"))
    assert [step.step for step in gone.steps] == ["attempt", "attempt", "attempt", "acked"]
    assert COLLECTED in gone.notes


@pytest.mark.proves("X5")
def test_the_way_of_an_acked_record_has_all_steps_and_says_what_is_not_stored(
    home: Path, receivers: Any, conduit: Callable[..., Result]
) -> None:
    # Given records that all arrive, some of them at the second or third request
    receiver = receivers("--unavailable", "0.6")
    write_pipeline(
        home,
        "p",
        WEB.replace("URL", receiver.url).replace("timeout: 5s", "timeout: 5s, retry: 20, backoff-delay: 10ms"),
    )
    events(home / "data", 10)
    run_once("p", "first")
    # Then the way of each is whole: a time for each step, and an answer and a duration for each destination
    way = waterfalls().of(Place(1, 3, "in"))
    assert [(s.step, s.node, s.outcome, s.status) for s in way.steps] == [
        ("read", "sources.in", None, None),
        ("sealed", "seal", None, None),
        ("attempt", "destinations.file", "acked", "done"),
        ("attempt", "destinations.web", "acked", "done"),
        ("acked", "acks.in", None, None),
    ]
    assert all(step.ended is not None for step in way.steps)
    assert all(step.began is not None for step in way.steps[:-1])
    assert [(t.outcome, t.attempts, (t.seconds or 0) > 0) for t in way.targets] == [("acked", 1, True)] * 2
    # And how often it was sent is said not to be stored; how often any of the attempt was, is
    assert way.notes == [ACKED_BY, OF_ATTEMPTS, OF_SENDS]
    file, web = way.steps[2:4]
    assert (file.sends, file.retried, web.sends) == (None, 0, None)
    assert web.retried == receiver.summary()["unavailable"] > 0
    key = json.loads((home / "data").glob("*.jsonl").__next__().read_text().splitlines()[3])["k"]
    text = conduit("records", "history", "p", "--key", key)
    assert f"{web.retried} repeated send(s) in the attempt" in " ".join(text.stdout.split())
    assert OF_SENDS in " ".join(text.stderr.split())
    # And once the micro-batch is collected, the attempts and their answers are left, by numbers
    spool = open_spool(get_pipeline("p"))
    spool.collect("p", 1)
    gone = waterfalls().of(Place(1, 3, "in"))
    assert [(s.step, s.outcome, s.retried) for s in gone.steps] == [
        ("attempt", "acked", 0),
        ("attempt", "acked", web.retried),
        ("acked", None, None),
    ]
    assert COLLECTED in gone.notes
    rows = json.loads(conduit("ledger", "p", "--micro-batch", "1", "--seq", "3", "--format", "json").stdout)
    assert [row["outcome"] for row in rows] == ["acked", "acked"]
    lost = conduit("records", "history", "p", "--record", "0" * 32)
    assert "conduit ledger p --micro-batch M --seq N" in str(lost.exception) + " ".join(lost.stderr.split())


def test_a_range_that_may_be_about_others_is_marked_and_gives_way_to_an_exact_row(home: Path) -> None:
    # Given one of several tasks by key, whose acked records lie scattered, and a redrive
    write_pipeline(home, "p", WEB.replace("URL", "http://localhost:1/"))
    at = int(time.time() * 1e6)
    base = {"destination": "web", "micro_batch": 1, "status": "done", "run": "r", "began": at, "ended": at + 5}
    rows = [
        {**base, "attempt": "1", "first": 0, "last": 9, "records": 4, "outcome": "acked", "epoch": 0},
        {**base, "attempt": "1", "first": 3, "last": 3, "records": 1, "outcome": "nacked", "epoch": 0},
    ]
    again = {**base, "attempt": "2", "first": 3, "last": 3, "records": 1, "outcome": "acked", "epoch": 1}
    ledger = Ledger(open_spool(get_pipeline("p")), "p")
    ledger.write(pa.Table.from_pylist(rows, SCHEMA))
    ledger.write(pa.Table.from_pylist([again], SCHEMA))
    # Then a nack is told by its own row, and another record's by the range, marked
    way = waterfalls().of(Place(1, 3, "in"))
    assert [(s.outcome, s.exact, s.epoch) for s in way.steps] == [("nacked", True, 0), ("acked", True, 1)]
    assert [t.outcome for t in way.targets] == [None, "nacked"], "what was sent again is another message"
    way = waterfalls().of(Place(1, 4, "in"))
    assert ([(s.outcome, s.exact) for s in way.steps], RANGE in way.notes) == ([("acked", False)], True)
    assert [(t.destination, t.attempts) for t in way.targets] == [("file", 0), ("web", 1)]


def test_an_attempt_that_was_killed_has_no_beginning_but_confirmed_what_it_did(home: Path) -> None:
    # Given records that an attempt confirmed, which left no word of itself; the next one noted them as it began
    write_pipeline(home, "p", WEB.replace("URL", "http://localhost:1/"))
    at = time.time()
    next_one = Attempt("web", 1, "2", "r", "c", RangeSet.of([(5, 9)]), began=at)
    ledger = Ledger(open_spool(get_pipeline("p")), "p")
    ledger.write(unrecorded(replace(next_one, id="unrecorded-1"), RangeSet.of([(0, 4)])))
    ledger.write(Tally(next_one).table())
    # Then its way says so, and how long it took is not made up
    way = waterfalls().of(Place(1, 3, "in"))
    [step] = way.steps
    assert (step.outcome, step.status, step.began) == ("confirmed", "unrecorded", None)
    assert step.ended == pytest.approx(at, abs=1e-3)
    assert [(t.attempts, t.outcome, t.seconds, t.attempting) for t in way.targets] == [
        (0, None, None, None),
        (1, "confirmed", 0.0, 0.0),
    ]


def test_a_bar_lies_where_its_time_does() -> None:
    assert bar(0.0, 5.0, (0.0, 10.0), 10) == "█████"
    assert bar(5.0, 10.0, (0.0, 10.0), 10) == "     █████"
    assert bar(10.0, 10.0, (0.0, 10.0), 10) == "         █"
    assert bar(None, 5.0, (0.0, 10.0), 10) == "     ▏"
    assert bar(None, None, (0.0, 10.0), 10) == ""
    assert bar(3.0, 3.0, (3.0, 3.0), 4) == "█"
    assert Step("read", "x", None, None).exact
