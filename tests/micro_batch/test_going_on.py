"""A run that lasts goes on in place of the next one as long as nothing comes (docs/schedules.md, "A stream")."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from conduit_tasks.broker.runs import Runs
from conduit_tasks.errors import SourceError
from conduit_tasks.micro_batch import pipeline_file, plan
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import PlanResult, plan_run
from conduit_tasks.operate.control import stop
from tests.micro_batch.harness import payloads, state, write_pipeline
from tests.micro_batch.side_by_side import patient  # noqa: F401 - a fixture
from tests.micro_batch.test_handing_over import Run, out
from tests.micro_batch.test_lasting import NODES, STREAM
from tests.micro_batch.test_whole import events
from tests.waiting import until


def ready(run: str) -> bool:
    broker = state("p")
    course = broker.runs.under_way(run)
    broker.close()
    return course is not None and all(map(course.takes_over, NODES)) and course.at_work("acks.in")


def planned(run: str, limit: float = 300.0) -> PlanResult:
    """What a run does that its schedule has begun."""
    return plan_run("p", run, drain_limit=limit)


@pytest.fixture
def idle(home: Path) -> Path:
    """A pipeline to which nothing has come."""
    write_pipeline(home, "p", STREAM)
    (home / "data").mkdir()
    return home


def ended(run: Run) -> None:
    stop("p", deadline=240)
    run.ended()


def test_a_run_to_which_nothing_came_goes_on_past_its_limit_and_no_other_begins(
    idle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "ENDING", 0.5)
    one, began = Run("one", limit=15.0), time.monotonic()
    until(lambda: ready("one"))
    time.sleep(max(0.0, began + 8.0 - time.monotonic()))
    # When the next run is planned, then it finds nothing to do
    found = planned("two", limit=15.0)
    assert not found.work
    assert found.reason == "nothing has come since run one began: it goes on"
    # And what comes after the limit is read and delivered by the run that goes on
    time.sleep(max(0.0, began + 20.0 - time.monotonic()))
    assert one.played is None
    rows = events(idle / "data", "a.jsonl", 0, 30)
    until(lambda: out(idle) == 30)
    assert ready("one")
    # And the next one takes over
    assert planned("three").work
    ended(one)
    assert payloads(idle / "out/all.jsonl") == rows


def test_a_run_that_goes_on_ends_by_the_limit_that_counts_from_then(
    idle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "ENDING", 0.5)
    one = Run("one", limit=15.0)
    until(lambda: ready("one"))
    at = time.monotonic()
    assert not planned("two", limit=15.0).work
    assert "lasted 15 s" in str(one.ended().said["sources.in"])
    assert time.monotonic() - at > 14.0


def told(monkeypatch: pytest.MonkeyPatch, tell: str, name: str, instead: Any, **also: Any) -> None:
    """Has the task of run `one` that tells the broker something about `name` tell this instead, and waits until it
    has."""
    original, heard = getattr(Runs, tell), Event()

    def other(runs: Runs, run: str, about: str, value: Any, *more: Any, **options: Any) -> Any:
        ours = (run, about) == ("one", name)
        answer = original(runs, run, about, instead if ours else value, *more, **(options | also if ours else options))
        if ours:
            heard.set()
        return answer

    monkeypatch.setattr(Runs, tell, other)
    assert heard.wait(120)


def too_long(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "IDLE", 299.0)


def its_limit_is_reached(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As seen by the next run: each of its nodes may have decided to end
    monkeypatch.setattr(plan, "ENDING", 300.0)


def acks_have_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, "tell_at_work", "acks.in", 0.0)


def a_node_waits_to_be_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, "tell_at_work", "destinations.red", 20.0, begins=True)


def the_file_has_changed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_file, "CHANGED", 60.0)
    write_pipeline(home, "p", STREAM.replace("max-records: 40", "max-records: 900"))


def nothing_may_be_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "room_for", lambda *_: None)


def something_came(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events(home / "data", "a.jsonl", 0, 30)
    until(lambda: out(home) == 30)


def a_node_is_gone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, "tell_at_work", "destinations.red", 0.0)


def a_source_fails(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, "tell_left_out", "in", "it is gone")


def the_scheduler_stops(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened("p", "one") as context:
        assert context.broker.runs.wind_up() == "one"


@pytest.mark.parametrize(
    "why",
    [
        too_long,
        its_limit_is_reached,
        something_came,
        a_node_is_gone,
        a_node_waits_to_be_tried_again,
        acks_have_ended,
        a_source_fails,
        the_file_has_changed,
        nothing_may_be_read,
        the_scheduler_stops,
    ],
)
def test_the_next_run_begins_where_the_one_before_is_not_idle_or_not_whole(
    idle: Path, monkeypatch: pytest.MonkeyPatch, why: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    one = Run("one")
    until(lambda: ready("one"))
    why(idle, monkeypatch)
    assert planned("two").work
    ended(one)


@pytest.mark.parametrize("run", ["one", "zero"])
def test_a_run_that_is_cleared_begins_although_nothing_has_come(idle: Path, run: str) -> None:
    """Given one that is cleared as a whole, itself or an older one: its tasks have work of their own."""
    one = Run("one")
    until(lambda: ready("one"))
    # By its second attempt (`airflow/tasks.py`) or because it is the one under way
    assert planned(run, limit=300.0 if run == "one" else 0.0).work
    ended(one)


def test_a_run_that_has_begun_and_is_not_ready_is_taken_over(idle: Path) -> None:
    assert planned("one").work
    assert planned("two").work


def test_a_source_that_cannot_be_asked_is_left_to_the_next_run(idle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Run("one")
    until(lambda: ready("one"))

    def fails(*_: object) -> list[object]:
        raise SourceError("the disk is gone")

    monkeypatch.setattr("conduit_tasks.micro_batch.asking._plan", fails)
    assert planned("two").work
    monkeypatch.undo()
    ended(one)


def test_a_run_of_which_another_has_taken_over_cannot_go_on(idle: Path) -> None:
    broker = state("p")
    broker.runs.begin("one", None, 0, lasts=True)
    assert broker.runs.go_on("one")
    broker.runs.begin("two", None, 0, lasts=True)
    assert not broker.runs.go_on("one")
    two, one = broker.runs.latest()
    assert two is not None
    assert two.counted == two.since
    assert one is not None
    assert one.counted > one.since
    broker.close()
