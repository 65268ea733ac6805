"""A run that lasts hands over to the next one without a gap, in order (docs/architecture.md, "One run", C1, C9)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import LeaseHeld, Unavailable
from conduit_tasks.micro_batch import course, draining, runs, waiting, work_through
from conduit_tasks.micro_batch.at_work import ACKS, at_work
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.deliver_task import DeliverTask
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.operate.control import stop
from conduit_tasks.settings import forget
from tests.micro_batch.harness import here, payloads, state, write_pipeline
from tests.micro_batch.side_by_side import Played, all_at_work, patient, play  # noqa: F401 - a fixture
from tests.micro_batch.test_lasting import NODES, STREAM
from tests.micro_batch.test_whole import events
from tests.waiting import until


class Feed:
    """New events all the time, until it is stopped."""

    def __init__(self, home: Path, pause: float = 0.02) -> None:
        self.home, self.pause, self.rows = home, pause, list[dict[str, Any]]()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Feed:
        (self.home / "data").mkdir(exist_ok=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        n = 0
        while not self._ends.wait(self.pause):
            self.rows.extend(events(self.home / "data", f"{n:05d}.jsonl", 3 * n, 3))
            n += 1

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


class Run:
    """A run in a thread of its own."""

    def __init__(self, name: str, **options: Any) -> None:
        self.played: Played | None = None
        self._thread = threading.Thread(target=self._run, args=(name, options), daemon=True)
        self._thread.start()

    def _run(self, name: str, options: dict[str, Any]) -> None:
        self.played = play("p", name, **options)

    def ended(self, seconds: float = 300.0) -> Played:
        self._thread.join(seconds)
        assert self.played is not None, "the run did not end"
        return self.played


def out(home: Path) -> int:
    return len(payloads(home / "out/all.jsonl"))


def all_is_there(home: Path, rows: list[dict[str, Any]]) -> None:
    assert payloads(home / "out/all.jsonl") == rows
    assert payloads(home / "out/red.jsonl") == [r for r in rows if r["colour"] == "red"]
    broker = state("p")
    assert broker.positions.acked("in") == broker.positions.planned("in")
    broker.close()


@pytest.mark.proves("C1", "C2", "C9")
def test_runs_hand_over_to_each_other_while_events_come_all_in_order_and_none_twice(home: Path) -> None:
    write_pipeline(home, "p", STREAM)
    with Feed(home) as feed:
        runs = [Run("run-0")]
        for n in range(1, 5):
            before = out(home)
            until(lambda before=before: out(home) > before + 20)
            # When the next one begins, then the one before ends by itself, and none is to follow it
            runs.append(Run(f"run-{n}"))
            ended = runs[-2].ended()
            assert not ended.again
            assert {state for node, state in ended.states.items()} == {"success"}, ended
    until(lambda: out(home) >= len(feed.rows))
    stop("p", deadline=240)
    runs[-1].ended()
    all_is_there(home, feed.rows)


def test_a_run_works_on_until_the_next_one_is_ready(home: Path) -> None:
    write_pipeline(home, "p", STREAM)
    starts = threading.Event()

    def slow_start() -> None:
        starts.wait(240)

    with Feed(home) as feed:
        one = Run("one")
        until(lambda: out(home) > 10)
        # Given a next run whose applications take their time to start
        two = Run("two", warm=slow_start)
        until(lambda: all_at_work("two", NODES))
        before = out(home)
        until(lambda: out(home) > before + 10)
        assert one.played is None
        starts.set()
        one.ended()
    until(lambda: out(home) >= len(feed.rows))
    stop("p", deadline=240)
    two.ended()
    all_is_there(home, feed.rows)


@pytest.mark.proves("C9")
def test_a_successor_that_is_killed_before_it_is_ready_holds_nothing_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(home, "p", STREAM)
    with Feed(home) as feed:
        one = Run("one")
        until(lambda: out(home) > 10)
        # When the next run has planned, and some of its tasks have begun, and is killed
        assert plan_run("p", "two").work
        broker = state("p")
        broker.runs.tell_at_work("two", "sources.in", 0.5, begins=True)
        broker.close()
        before = out(home)
        until(lambda: out(home) > before + 20)
        # Then the one after that takes over
        three = Run("three")
        one.ended()
        before = out(home)
        until(lambda: out(home) > before + 10)
    until(lambda: out(home) >= len(feed.rows))
    stop("p", deadline=240)
    three.ended()
    all_is_there(home, feed.rows)


def test_a_run_whose_successor_never_gets_ready_ends_and_frees_its_slots(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "TAKES_OVER", 1.0)
    write_pipeline(home, "p", STREAM)
    (home / "data").mkdir(exist_ok=True)
    rows = events(home / "data", "a.jsonl", 0, 30)
    one = Run("one")
    until(lambda: out(home) == 30)
    # Given a next run for which no slot is free
    assert plan_run("p", "two").work
    ended = one.ended()
    assert not ended.again
    rows += events(home / "data", "b.jsonl", 30, 30)
    # When its nodes begin, then they go on, and wait for none of the run before
    two = Run("two")
    until(lambda: out(home) == 60)
    stop("p", deadline=240)
    two.ended()
    all_is_there(home, rows)


def test_the_next_runs_destination_waits_for_the_lease_as_long_as_the_run_before_has_something_under_way(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough to be renewed in time also where this process stands still for a moment
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "4")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.2")
    forget()
    # A destination's lease lasts for its timeout as well
    red = "settings: {path: out/red.jsonl, format: payload}"
    write_pipeline(home, "p", STREAM.replace(red, f"{red}\n        delivery: {{timeout: 1s}}"))
    (home / "data").mkdir(exist_ok=True)
    goes_on = threading.Event()

    def slow(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        if threading.current_thread().name == "destinations.red" and isinstance(function, DeliverTask):
            goes_on.wait(240)
        return here(function, pieces)

    rows = events(home / "data", "a.jsonl", 0, 30)
    one = Run("one", run_all=slow)
    until(lambda: out(home) == 30)
    two = Run("two")
    until(lambda: all_at_work("two", NODES))
    # For longer than its lease would last without being renewed
    time.sleep(7.0)
    assert one.played is None
    assert not payloads(home / "out/red.jsonl")
    goes_on.set()
    assert one.ended().states["destinations.red"] == "success"
    rows += events(home / "data", "b.jsonl", 30, 30)
    until(lambda: out(home) == 60)
    stop("p", deadline=240)
    assert two.ended().states["destinations.red"] == "success"
    all_is_there(home, rows)


@pytest.mark.proves("C9")
@pytest.mark.parametrize("when", ["while it waits to be tried again", "while it waits for the lease"])
def test_a_destination_that_is_down_ends_once_the_next_run_has_taken_over_from_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "120")
    forget()
    monkeypatch.setattr(work_through, "DOWN", 300.0 if "tried" in when else 0.05)
    red = "settings: {path: out/red.jsonl, format: payload}"
    write_pipeline(home, "p", STREAM.replace(red, f"{red}\n        delivery: {{timeout: 1s}}"))
    (home / "data").mkdir(exist_ok=True)
    rows = events(home / "data", "a.jsonl", 0, 30)
    down, lingers, goes_on = threading.Event(), threading.Event(), threading.Event()
    held = waiting.Waiting.lingers

    def linger(self: waiting.Waiting, node: str, seconds: float = waiting.LOOK) -> Any:
        if node != "destinations.red":
            return held(self, node, seconds)
        lingers.set()
        # Once the next run's node has the lease, it is too late for this one to get it back
        return held(self, node, seconds) if "tried" in when else goes_on.wait(240)

    monkeypatch.setattr(waiting.Waiting, "lingers", linger)

    def refused(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        if down.is_set() and isinstance(function, DeliverTask) and function.destination == "red":
            raise Unavailable("it is down")
        return here(function, pieces)

    # Given a run whose destination has delivered something, and is then down
    one = Run("one", run_all=refused)
    until(lambda: len(payloads(home / "out/red.jsonl")) == len([r for r in rows if r["colour"] == "red"]))
    down.set()
    rows += events(home / "data", "b.jsonl", 30, 30)
    until(lingers.is_set)
    # When the next one takes over from it, and keeps at it
    two = Run("two")
    until(lambda: payloads(home / "out/red.jsonl") == [r for r in rows if r["colour"] == "red"])
    goes_on.set()
    # Then it ends in good order, long before it would be tried again or its successor's lease could lapse
    ended = one.ended(60.0)
    assert ended.states["destinations.red"] == "success"
    assert "run two takes over" in ended.said["destinations.red"]
    # And what it had delivered would be delivered again if it were cleared
    with opened("p", "one") as context:
        assert runs.finished(context, "red", "one")
    stop("p", deadline=240)
    two.ended()
    all_is_there(home, rows)


def test_a_cleared_destination_does_not_leave_to_the_next_run_what_it_is_to_send_again(home: Path) -> None:
    write_pipeline(home, "p", STREAM)
    plan_run("p", "one")
    plan_run("p", "two")
    # Given a next run whose destination is at work
    with opened("p", "two") as other, other.broker.leases.acquire("destinations.red", "two", ttl=240.0):
        other.broker.runs.tell_at_work("two", "destinations.red", 240.0, begins=True)
        other.broker.runs.tell_ready("two", "destinations.red")
        with opened("p", "one") as context, closing(draining.Draining(context, "one", 300.0)) as run:

            def again() -> course.Ended:
                told = lambda **_: None  # noqa: E731
                return deliver_destination(
                    context, "red", here, run="one", wait=0.1, cleared=True, progress=told, draining=run
                )

            # When a task of the run before is cleared that had delivered nothing, then it has nothing to do
            assert again().reason == "run two takes over"
            # If it had delivered something, it does not end as if that were sent again
            context.broker.redeliveries.finish_run("red", "one")
            with pytest.raises(LeaseHeld):
                again()


def test_a_run_that_is_killed_in_the_hand_over_loses_nothing(home: Path) -> None:
    write_pipeline(home, "p", STREAM)
    (home / "data").mkdir(exist_ok=True)
    rows = events(home / "data", "a.jsonl", 0, 40)
    # Given a run that was killed in mid-work: it says that it is at work, has leases, and says no more
    assert plan_run("p", "one").work
    with opened("p", "one") as context:
        broker = context.broker
        for node in NODES:
            broker.runs.tell_at_work("one", node, 2.0, begins=True)
            broker.runs.tell_ready("one", node)
        for node in [*NODES, "plan"]:
            broker.leases.acquire(node, context.owner, ttl=1.0)
        # When the next one begins
        two = Run("two")
        until(lambda: out(home) == 40)
    stop("p", deadline=240)
    two.ended()
    all_is_there(home, rows)


def test_a_graceful_stop_in_the_hand_over_ends_both(home: Path) -> None:
    write_pipeline(home, "p", STREAM)
    held = threading.Event()

    def slow_start() -> None:
        held.wait(240)

    with Feed(home) as feed:
        one = Run("one")
        until(lambda: out(home) > 10)
        two = Run("two", warm=slow_start)
        until(lambda: all_at_work("two", NODES))
        stop("p", deadline=240)
        held.set()
        one.ended()
        two.ended()
    delivered = payloads(home / "out/all.jsonl")
    assert delivered == feed.rows[: len(delivered)]
    assert not plan_run("p", "after").work


def test_a_run_that_is_started_by_hand_leaves_the_one_that_lasts_alone(home: Path) -> None:
    write_pipeline(home, "p", STREAM)
    with Feed(home):
        one = Run("one")
        until(lambda: out(home) > 10)
        assert play("p", "by hand", by_hand=True).idle
        assert play("p", "bounded", limits={"max-records": 3}).idle
        before = out(home)
        until(lambda: out(home) > before)
        stop("p", deadline=240)
    one.ended()


def test_a_task_of_a_run_that_was_taken_over_from_asks_for_no_other_run(home: Path) -> None:
    write_pipeline(home, "p", STREAM)
    plan_run("p", "one")
    with at_work("p", "one", NODES[0]) as ends:
        broker = state("p")
        broker.runs.tell_at_work("one", ACKS, 0)
        plan_run("p", "two")
        ends.worked, ends.again = True, "it was at work"
        broker.close()
    assert ends.follows is None


def test_a_run_goes_on_past_its_limit_for_as_long_as_the_next_one_may_take_to_be_ready(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(home, "p", STREAM)
    plan_run("p", "one")
    with opened("p", "one") as context, closing(draining.Draining(context, "one", 0.0)) as node:
        ended = node.leaves("sources.in")
        assert ended is not None
        assert ended.again
        plan_run("p", "two")
        assert node.leaves("sources.in") is None
        # Until the same node of the next one is ready, and only while that is at work
        context.broker.runs.tell_ready("two", "sources.in")
        assert node.leaves("sources.in") is None
        context.broker.runs.tell_at_work("two", "sources.in", 30.0)
        ended = node.leaves("sources.in")
        assert ended is not None
        assert not ended.again
        # A task that is tried again is not ready yet
        context.broker.runs.tell_at_work("two", "sources.in", 30.0, begins=True)
        assert node.leaves("sources.in") is None
        # Or for so long at most
        monkeypatch.setattr(course, "TAKES_OVER", 0.0)
        assert node.leaves("sources.in") is not None
