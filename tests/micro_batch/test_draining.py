"""A run drains: its nodes work side by side until nothing is left (docs/architecture.md, "One run", C9, C13, X1)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import PipelineStopped
from conduit_tasks.micro_batch import course, draining, pipeline_file, work_through
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.operate.control import force_stop, stop
from tests.micro_batch.harness import here, payloads, state, write_pipeline
from tests.micro_batch.side_by_side import Played, patient, play  # noqa: F401 - a fixture
from tests.micro_batch.test_whole import TWO, events
from tests.waiting import until

COLOURED = TWO.replace("settle: 0s", "settle: 0s, cloudevents.subject: '{{ .Payload.After.colour }}'")


def drained(home: Path, rows: list[dict[str, Any]], name: str = "all") -> None:
    """Everything is delivered in order, acked, and nothing is left to do."""
    assert payloads(home / f"out/{name}.jsonl") == rows
    broker = state("p")
    assert broker.positions.acked("in") == broker.positions.planned("in")
    broker.close()
    assert not plan_run("p", "after").work


def runs_until_idle(most: int = 20, **options: Any) -> list[Played]:
    """Runs until one has nothing to do."""
    runs: list[Played] = []
    for n in range(most):
        runs.append(play("p", f"run-{n}", **options))
        if runs[-1].idle:
            return runs
    raise AssertionError(f"not idle after {most} runs: {runs[-1].said}")


@pytest.mark.proves("C9", "C13", "I2")
def test_one_run_delivers_a_backlog_of_many_micro_batches_in_order(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 400)
    played = play("p")
    assert not played.again
    broker = state("p")
    assert broker.micro_batches.latest_sealed() == 10
    broker.close()
    assert payloads(home / "out/red.jsonl") == [r for r in rows if r["colour"] == "red"]
    drained(home, rows)


def test_what_comes_while_a_run_is_under_way_is_delivered_by_it(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 200)

    def more() -> None:
        until(lambda: bool(payloads(home / "out/all.jsonl")))
        rows.extend(events(home / "data", "b.jsonl", 200, 100))

    play("p", run_all=held_at(3, lambda: len(rows) == 300), meanwhile=more)
    drained(home, rows)


PROCESSED = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 40}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/a*.jsonl", format: jsonl, settle: 0s}}
      - {id: other, type: source, plugin: file, settings: {path: "data/b*.jsonl", format: jsonl, settle: 0s}}
      - {id: all, type: destination, plugin: file, settings: {path: out/all.jsonl, format: payload}}
    processors:
      - {id: mark, plugin: field.set, settings: {field: .Payload.After.seen, value: "yes"}}
"""


@pytest.mark.proves("C1", "C2")
def test_sources_and_processors_go_on_together_though_one_source_has_less(home: Path) -> None:
    write_pipeline(home, "p", PROCESSED)
    first, second = events(home / "data", "a.jsonl", 0, 300), events(home / "data", "b.jsonl", 1_000, 30)
    play("p")
    out = payloads(home / "out/all.jsonl")
    assert [r["n"] for r in out if r["n"] < 1_000] == [r["n"] for r in first]
    assert [r["n"] for r in out if r["n"] >= 1_000] == [r["n"] for r in second]
    assert {r["seen"] for r in out} == {"yes"}
    assert not plan_run("p", "after").work


@pytest.mark.proves("X1", "C13")
def test_a_slow_destination_does_not_keep_the_next_micro_batch_from_being_read(home: Path) -> None:
    # Given a lag budget of all there is, and a destination that does not begin before the other has everything
    keys = "    isolate: true\n    lag-budget: {records: 1000}\n    connectors:"
    write_pipeline(home, "p", COLOURED.replace("    connectors:", keys))
    rows = events(home / "data", "a.jsonl", 0, 400)
    red = [r for r in rows if r["colour"] == "red"]
    others_done = threading.Event()

    def slow(function: Callable[[Any], Any], pieces: Any) -> list[Any]:
        if threading.current_thread().name == "destinations.red":
            assert others_done.wait(240), "the others waited for it"
        return [function(piece) for piece in pieces]

    def watch() -> None:
        until(lambda: len(payloads(home / "out/all.jsonl")) == len(rows))
        others_done.set()

    play("p", run_all=slow, meanwhile=watch)
    assert payloads(home / "out/red.jsonl") == red
    drained(home, rows)


def test_by_default_the_next_micro_batch_is_read_once_the_one_before_is_delivered(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    events(home / "data", "a.jsonl", 0, 200)
    ahead: list[int] = []

    def watched(function: Callable[[Any], Any], pieces: Any) -> list[Any]:
        if threading.current_thread().name == "sources.in":
            broker = state("p")
            ahead.append(broker.deliveries.backlog(["all", "red"]).micro_batches)
            broker.close()
        return [function(piece) for piece in pieces]

    play("p", run_all=watched)
    assert ahead == [0] * 5


def test_a_pool_of_one_slot_moves_a_micro_batch_a_run_and_asks_for_the_next_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "BEGINS_WITHIN", 1.0)
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 120)
    runs = runs_until_idle(slots=1)
    assert all(run.again for run in runs[:2])
    assert payloads(home / "out/all.jsonl") == rows


@pytest.mark.parametrize("missing", ["sources.in", "destinations.all", "destinations.red"])
def test_a_node_whose_task_never_begins_is_not_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(course, "BEGINS_WITHIN", 1.0)
    monkeypatch.setattr(draining, "NEVER", 2.0)
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 120)
    play("p", without=[missing])
    runs_until_idle()
    assert payloads(home / "out/all.jsonl") == rows


def test_a_run_that_has_lasted_as_long_as_it_may_leaves_the_rest_to_one_that_follows_at_once(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 120)
    first = play("p", "first", limit=0.0)
    assert "lasted" in first.again
    assert 0 < len(payloads(home / "out/all.jsonl")) < 120
    assert not play("p", "second").again
    drained(home, rows)


def test_a_destination_that_is_at_work_past_the_runs_limit_leaves_the_rest_to_one_that_follows(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "BEGINS_WITHIN", 1.0)
    monkeypatch.setattr(draining, "NEVER", 2.0)
    # Given a destination with a backlog of several micro-batches
    keys = "    isolate: true\n    lag-budget: {records: 1000}\n    connectors:"
    write_pipeline(home, "p", COLOURED.replace("    connectors:", keys))
    events(home / "data", "a.jsonl", 0, 400)
    play("p", "one", without=["destinations.red"])
    # When it delivers in a run that has lasted as long as it may
    plan_run("p", "two")
    with opened("p", "two") as context:
        assert context.broker.micro_batches.latest_sealed() == 10
        ended = work_through.work_through(context, "destinations.red", "two", here, limit=0.0)
        cursor = context.broker.deliveries.get("red").cursor
    # Then it does its share of one, and another run follows
    assert cursor == 1
    assert ended.again
    assert "9 are left to the next run" in ended.reason


@pytest.mark.proves("C15")
def test_a_run_whose_scheduler_stops_opens_nothing_more_and_another_follows(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 400)
    # Given a run under way with a backlog
    plan_run("p", "one")
    with opened("p", "one") as context:
        assert context.broker.runs.wind_up() == "one"
        # When its source has read what was open
        ended = work_through.work_through(context, "sources.in", "one", here, limit=3600.0)
    # Then it ends, and another run goes on at once
    assert ended.again
    assert "scheduler stops" in ended.reason
    play("p", "two")
    drained(home, rows)


def test_nothing_is_wound_up_where_no_run_is_known(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    with opened("p", "none") as context:
        assert context.broker.runs.wind_up() == ""
        assert context.broker.runs.under_way("none") is None


def test_a_run_of_so_many_records_reads_no_more_and_asks_for_no_other(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 400)
    played = play("p", limits={"max-records": 100})
    assert payloads(home / "out/all.jsonl") == rows[:100]
    assert not played.again


def held_at(number: int, condition: Callable[[], bool]) -> Callable[..., list[Any]]:
    """Executors whose `number`-th job of the source waits for a condition, so that the run is in the middle then."""
    jobs: list[str] = []

    def run_all(function: Callable[[Any], Any], pieces: Any) -> list[Any]:
        if threading.current_thread().name == "sources.in":
            jobs.append("one")
            if len(jobs) == number:
                until(condition)
        return [function(piece) for piece in pieces]

    return run_all


@pytest.mark.proves("C16")
def test_a_forceful_stop_ends_every_node_that_waits(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    events(home / "data", "a.jsonl", 0, 40)
    hanging, stopped = threading.Event(), threading.Event()

    def hangs(function: Callable[[Any], Any], pieces: Any) -> list[Any]:
        hanging.set()
        assert stopped.wait(240)
        return [function(piece) for piece in pieces]

    def interrupt() -> None:
        assert hanging.wait(240)
        force_stop("p")
        stopped.set()

    played = play("p", run_all=hangs, meanwhile=interrupt)
    assert isinstance(played.said["sources.in"], PipelineStopped)
    assert not payloads(home / "out/all.jsonl")


@pytest.mark.proves("C15")
def test_a_graceful_stop_in_the_middle_delivers_what_is_read_and_reads_no_more(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    events(home / "data", "a.jsonl", 0, 4_000)
    said: list[Any] = []

    def interrupt() -> None:
        until(lambda: bool(payloads(home / "out/all.jsonl")))
        said.append(stop("p", deadline=240))

    with closing(state("p")) as broker:
        played = play(
            "p", run_all=held_at(3, lambda: broker.lifecycle.status().status == "stopping"), meanwhile=interrupt
        )
    assert said[0].status == "stopped"
    assert not played.again
    broker = state("p")
    assert broker.positions.acked("in") == broker.positions.planned("in")
    assert 0 < broker.micro_batches.latest_sealed() < 100
    assert len(payloads(home / "out/all.jsonl")) == 40 * broker.micro_batches.latest_sealed()
    broker.close()


def test_a_file_that_changes_in_the_middle_ends_the_run_and_the_next_works_with_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_file, "CHANGED", 0.0)
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 4_000)

    changed = threading.Event()

    def change() -> None:
        until(lambda: bool(payloads(home / "out/all.jsonl")))
        write_pipeline(
            home, "p", COLOURED.replace("out/red", "out/scarlet").replace("max-records: 40", "max-records: 900")
        )
        changed.set()

    played = play("p", run_all=held_at(3, changed.is_set), meanwhile=change)
    assert "has changed" in played.again
    runs_until_idle()
    assert payloads(home / "out/all.jsonl") == rows
    assert (home / "out/scarlet.jsonl").exists()


def test_a_node_that_waits_does_so_without_asking_all_the_time(home: Path) -> None:
    # Given a run whose source reads for two seconds
    write_pipeline(home, "p", COLOURED)
    events(home / "data", "a.jsonl", 0, 10)

    def slow(function: Callable[[Any], Any], pieces: Any) -> list[Any]:
        if threading.current_thread().name == "sources.in":
            time.sleep(2.0)
        return [function(piece) for piece in pieces]

    broker = state("p")
    before = broker.redis.info("commandstats").get("cmdstat_xread", {"calls": 0})["calls"]
    began = time.monotonic()
    play("p", run_all=slow)
    looks = broker.redis.info("commandstats")["cmdstat_xread"]["calls"] - before
    broker.close()
    # Then each of the four others looks about once a second, and when something happens
    assert looks < 4 * (18 + time.monotonic() - began)


def test_what_is_known_of_a_run_is_gone_when_the_next_begins(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    events(home / "data", "a.jsonl", 0, 10)
    plan_run("p", "one")
    with opened("p", "one") as context:
        broker = context.broker
        assert broker.runs.tell_at_work("one", "sources.in", 30.0)
        broker.runs.begin("two", None, 0)
        assert not broker.runs.tell_at_work("one", "sources.in", 30.0)
        assert broker.runs.under_way("one") is None
        course = broker.runs.under_way("two")
        assert course is not None
        assert not course.began_at("sources.in")
        json.dumps(course.nodes)


def test_a_node_says_how_far_it_is_while_it_is_at_work(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_through, "TELLS", 0.02)
    write_pipeline(home, "p", COLOURED)
    events(home / "data", "a.jsonl", 0, 200)
    told: list[tuple[str, dict[str, Any]]] = []

    def slowly(function: Callable[[Any], Any], pieces: Any) -> list[Any]:
        time.sleep(0.1)
        return [function(piece) for piece in pieces]

    play("p", run_all=slowly, progress=lambda node, fields: told.append((node, fields)))
    far = [fields for name, fields in told if name == "destinations.all" and "per_second" in fields]
    assert far
    assert all(each["records"] % 40 == 0 and each["per_second"] > 0 and each["behind"] >= 0 for each in far)
    assert any(name == "sources.in" and fields["records"] for name, fields in told)
