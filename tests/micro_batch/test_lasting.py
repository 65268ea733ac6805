"""Under `@continuous` a run lasts: its nodes wait for what comes (docs/architecture.md, "One run", C9, X1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import Unavailable
from conduit_tasks.ledger import store
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.micro_batch import acks, course, deliver, draining, pace, pipeline_file, plan, runs, work_through
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver_task import DeliverTask
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.wake import Look, Watch
from conduit_tasks.operate.control import force_stop, start, stop, stop_destination
from tests.micro_batch.harness import files_of, payloads, state, write_pipeline
from tests.micro_batch.side_by_side import all_at_work, patient, play  # noqa: F401 - a fixture
from tests.micro_batch.test_draining import COLOURED
from tests.micro_batch.test_whole import events
from tests.waiting import until

STREAM = COLOURED.replace("    connectors:", '    schedule: "@continuous"\n    connectors:')
NODES = ["sources.in", "destinations.all", "destinations.red"]
ALONE = STREAM.replace("    connectors:", "    isolate: true\n    lag-budget: {records: 1000}\n    connectors:")


def delivered(home: Path, rows: list[dict[str, Any]]) -> Callable[[], bool]:
    return lambda: len(payloads(home / "out/all.jsonl")) >= len(rows)


def test_a_run_lasts_and_delivers_what_comes_within_its_time(home: Path) -> None:
    # Given a pipeline that has nothing to do
    write_pipeline(home, "p", STREAM)
    (home / "data").mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []

    def come() -> None:
        # When something comes, again and again, each time after all is delivered
        for n in range(4):
            rows.extend(events(home / "data", f"{n}.jsonl", 10 * n, 10))
            until(delivered(home, rows))
        stop("p", deadline=240)

    # Then one run delivers it all, and each node of it was started once
    played = play("p", limit=60.0, meanwhile=come)
    assert payloads(home / "out/all.jsonl") == rows
    assert payloads(home / "out/red.jsonl") == [r for r in rows if r["colour"] == "red"]
    assert {state for node, state in played.states.items() if not node.startswith("acks")} == {"success"}
    assert not played.again


def test_a_run_ends_by_its_limit_also_where_nothing_came(home: Path) -> None:
    write_pipeline(home, "p", STREAM)
    (home / "data").mkdir(exist_ok=True)
    played = play("p", limit=1.0)
    assert not played.idle
    assert "lasted 1 s" in str(played.said["sources.in"])
    assert played.again


@pytest.mark.parametrize("how", [{"by_hand": True}, {"limits": {"max-records": 5}}])
def test_a_run_that_is_started_by_hand_or_bounded_ends_when_nothing_is_left(home: Path, how: dict[str, Any]) -> None:
    write_pipeline(home, "p", STREAM)
    rows = events(home / "data", "a.jsonl", 0, 10)
    play("p", **how)
    assert payloads(home / "out/all.jsonl") == rows[: how.get("limits", {}).get("max-records", 10)]
    assert not plan_run("p", "after", by_hand=True).work or "limits" in how


def test_a_forceful_stop_ends_it_though_nothing_is_at_work(home: Path) -> None:
    write_pipeline(home, "p", STREAM)
    (home / "data").mkdir(exist_ok=True)

    def end() -> None:
        until(lambda: all_at_work("run", NODES))
        force_stop("p")

    played = play("p", meanwhile=end)
    assert set(played.states.values()) <= {"failed", "success"}
    assert not plan_run("p", "after").work


def test_a_changed_file_ends_it_though_nothing_is_at_work(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_file, "CHANGED", 0.0)
    write_pipeline(home, "p", STREAM)
    (home / "data").mkdir(exist_ok=True)
    changed = STREAM.replace("max-records: 40", "max-records: 900")

    def change() -> None:
        until(lambda: all_at_work("run", NODES))
        write_pipeline(home, "p", changed)

    played = play("p", meanwhile=change)
    assert "has changed" in played.again


def test_a_file_that_changes_while_a_node_begins_is_noticed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_file, "CHANGED", 0.0)
    write_pipeline(home, "p", STREAM)
    (home / "data").mkdir(exist_ok=True)
    plan_run("p", "run")
    with opened("p", "run") as context:
        write_pipeline(home, "p", STREAM.replace("max-records: 40", "max-records: 900"))
        with closing(draining.Draining(context, "run", 5.0)) as node:
            ended = node.slices("in")
    assert isinstance(ended, course.Ended)
    assert "has changed" in ended.reason


@pytest.mark.slow
def test_a_run_that_lasts_says_how_far_it_is_and_not_every_micro_batch(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work_through, "TELLS", 0.2)
    caplog.set_level("INFO", "conduit_tasks.micro_batch")
    write_pipeline(home, "p", STREAM.replace("max-records: 40", "max-records: 2"))
    rows = events(home / "data", "a.jsonl", 0, 60)
    told: list[dict[str, Any]] = []

    def come() -> None:
        until(delivered(home, rows))
        until(lambda: bool(told))
        stop("p", deadline=240)

    play("p", meanwhile=come, progress=lambda name, fields: told.append(fields))
    assert told
    assert all("per_second" in fields for fields in told)
    assert len([r for r in caplog.records if r.name.startswith("conduit_tasks.micro_batch")]) < 30


def test_what_micro_batches_leave_behind_does_not_grow_with_their_number(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks, "LEDGER", 0.0)
    monkeypatch.setattr(store, "MANY", 10)
    keys = "    spool: {retention: 0s}\n    connectors:"
    write_pipeline(home, "p", STREAM.replace("max-records: 40", "max-records: 1").replace("    connectors:", keys))
    left: list[tuple[int, int]] = []
    rows: list[dict[str, Any]] = []

    def kept() -> int:
        return len([path for path in files_of(home / ".conduit") if "rolled" not in path.name])

    def come() -> None:
        for n in range(2):
            rows.extend(events(home / "data", f"{n}.jsonl", 18 * n, 18))
            until(delivered(home, rows))
            with closing(state("p")) as broker:
                until(lambda broker=broker: broker.positions.acked("in") == broker.positions.planned("in"))
                until(lambda n=n: len(list((home / ".conduit/spool/p").glob("0*"))) <= 3)
                if left:  # Then as many keys and files are there after twice as many micro-batches
                    until(lambda broker=broker: broker.redis.dbsize() <= left[0][0] + 2)
                    until(lambda: kept() <= left[0][1] + 15)
                left.append((broker.redis.dbsize(), kept()))
        stop("p", deadline=240)

    play("p", meanwhile=come)
    assert len(left) == 2
    with closing(state("p")) as broker:
        assert broker.micro_batches.latest_sealed() == 36
    # And each is in the ledger once
    with opened("p", "look") as context:
        book = Ledger(context.spool, "p")
        of_all = [row["micro_batch"] for row in book.read("all").to_pylist()]
        newest = [row["micro_batch"] for row in book.newest(5, "all")[0].to_pylist()]
    assert sorted(of_all) == list(range(1, 37))
    assert newest == sorted(newest, reverse=True)


@pytest.mark.proves("X1")
def test_a_destination_that_is_down_is_tried_again_by_the_same_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_through, "DOWN", 0.1)
    write_pipeline(home, "p", ALONE)
    rows = events(home / "data", "a.jsonl", 0, 40)
    tries: list[float] = []

    def down(function: Callable[[Any], Any], pieces: Any) -> list[Any]:
        if threading.current_thread().name == "destinations.red" and isinstance(function, DeliverTask):
            tries.append(time.monotonic())
            if len(tries) < 4:
                raise Unavailable("it is down")
        return [function(piece) for piece in pieces]

    def watch() -> None:
        until(lambda: bool(payloads(home / "out/red.jsonl")))
        stop("p", deadline=240)

    played = play("p", run_all=down, meanwhile=watch)
    assert played.states["destinations.red"] == "success"
    drained_after_start(home, rows)


def test_a_run_that_hears_too_late_that_it_delivered_delivers_again_if_it_is_cleared(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_through, "DOWN", 0.1)
    write_pipeline(home, "p", ALONE)
    rows = events(home / "data", "a.jsonl", 0, 40)
    heard, drains = list[float](), list[str]()
    drained = deliver.Drain.until_caught_up

    def drain(self: deliver.Drain) -> course.Ended:
        drains.append(self.destination.id)
        return drained(self)

    monkeypatch.setattr(deliver.Drain, "until_caught_up", drain)

    def late(function: Callable[[Any], Any], pieces: Any) -> list[Any]:
        answers = [function(piece) for piece in pieces]
        if threading.current_thread().name == "destinations.red" and isinstance(function, DeliverTask) and not heard:
            # Given a destination that has everything, of which its driver does not hear
            heard.append(time.monotonic())
            raise Unavailable("it is not heard any more")
        return answers

    def watch() -> None:
        until(lambda: drains.count("red") == 2)
        until(delivered(home, rows))
        stop("p", deadline=240)

    # When the run ends well, as nothing is left
    assert play("p", run_all=late, meanwhile=watch).states["destinations.red"] == "success"
    drained_after_start(home, rows)
    # Then a task that is cleared is to send it again
    with opened("p", "look") as context:
        assert runs.finished(context, "red", "run")


def test_a_destination_that_is_stopped_and_started_goes_on_in_the_same_run(home: Path) -> None:
    write_pipeline(home, "p", ALONE)
    rows = events(home / "data", "a.jsonl", 0, 40)
    stop_destination("p", "red")

    def watch() -> None:
        until(delivered(home, rows))
        assert not payloads(home / "out/red.jsonl")
        start("p", "red")
        until(lambda: bool(payloads(home / "out/red.jsonl")))
        stop("p", deadline=240)

    play("p", meanwhile=watch)
    drained_after_start(home, rows)


def test_a_node_that_failed_a_moment_ago_is_waited_for_in_the_run(home: Path) -> None:
    # Given a delivery that failed in the run before
    write_pipeline(home, "p", ALONE)
    rows = events(home / "data", "a.jsonl", 0, 40)
    broken = [True]

    def breaks(function: Callable[[Any], Any], pieces: Any) -> list[Any]:
        if threading.current_thread().name == "destinations.red" and isinstance(function, DeliverTask) and broken:
            broken.clear()
            raise RuntimeError("it broke")
        return [function(piece) for piece in pieces]

    first = play("p", "one", run_all=breaks, limit=30.0)
    assert first.states["destinations.red"] == "failed"
    # Then that run was followed, as what is left would wait for its whole time otherwise
    assert "destinations.red" in first.again

    def watch() -> None:
        until(lambda: bool(payloads(home / "out/red.jsonl")))
        stop("p", deadline=240)

    play("p", "two", meanwhile=watch)
    drained_after_start(home, rows)


def drained_after_start(home: Path, rows: list[dict[str, Any]]) -> None:
    assert payloads(home / "out/red.jsonl") == [r for r in rows if r["colour"] == "red"]
    assert payloads(home / "out/all.jsonl") == rows
    broker = state("p")
    assert broker.positions.acked("in") == broker.positions.planned("in")
    broker.close()


def test_a_source_that_has_nothing_is_looked_at_ever_more_rarely(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pipeline(home, "p", STREAM)
    (home / "data").mkdir(exist_ok=True)
    looks: list[float] = []
    pauses: list[float] = []
    asked: list[float] = []
    rest = pace.Pace.rest

    def look(self: Watch) -> Look:
        looks.append(time.monotonic())
        return self._look()

    def rests(self: pace.Pace) -> None:
        rest(self)
        pauses.append(self._pause)

    def ask(*arguments: Any) -> Any:
        asked.append(time.monotonic())
        return plan.open_next(*arguments)

    monkeypatch.setattr(Watch, "look", look)
    monkeypatch.setattr(draining, "open_next", ask)
    monkeypatch.setattr(pace.Pace, "rest", rests)
    play("p", limit=6.0)
    # Ten times a second at first, then once, without a lease or a new connector
    assert 1 < len(looks) <= 16
    assert pauses == sorted(pauses)
    assert pace.BUSY < pauses[0] < pauses[-1] <= pace.PLANS_AGAIN
    # The first rest is that of who was asked whole
    assert all(after - before >= pause - 0.01 for (before, after), pause in zip(pairwise(looks), pauses[1:]))
    assert len(asked) == 1
