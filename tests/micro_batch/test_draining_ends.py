"""How a run that drains ends: always, and never silently with work left that no run follows for (C9, C15, X1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.runs import Runs
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.errors import Outdated, PipelineStopped, SourceError
from conduit_tasks.micro_batch import at_work, course, draining
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import Next, plan_run
from conduit_tasks.micro_batch.work_needed import awaited
from tests.micro_batch.harness import payloads, state, write_pipeline
from tests.micro_batch.side_by_side import Played, patient, play  # noqa: F401 - a fixture
from tests.micro_batch.test_draining import COLOURED, PROCESSED
from tests.micro_batch.test_whole import TWO, events
from tests.waiting import until

AT_ONCE = "    error-recovery: {min-delay: 1ms, max-delay: 1ms}\n    connectors:"


def followed(most: int = 20, **options: Any) -> list[Played]:
    """A run, and those that follow at once."""
    runs = [play("p", "run-0", **options)]
    while runs[-1].again:
        assert len(runs) < most, f"runs follow each other for ever: {runs[-1].again}"
        left = runs[-1].left
        runs.append(play("p", f"run-{len(runs)}", limits=None if left is None else {"max-records": left}))
    return runs


@pytest.mark.proves("X1")
def test_a_destination_that_is_stopped_alone_and_behind_ends(home: Path) -> None:
    write_pipeline(home, "p", COLOURED.replace("    connectors:", "    lag-budget: {records: 1000}\n    connectors:"))
    rows = events(home / "data", "a.jsonl", 0, 80)
    with opened("p", "set-up") as context:
        context.broker.lifecycle.halt_destination("red")
    played = play("p")
    assert payloads(home / "out/all.jsonl") == rows
    assert not played.again


@pytest.mark.proves("C15")
@pytest.mark.parametrize("node", ["sources.in", "processors", "destinations.all"])
def test_a_graceful_stop_that_has_come_to_its_end_fails_no_node_that_waits(home: Path, node: str) -> None:
    write_pipeline(home, "p", PROCESSED)
    events(home / "data", "a.jsonl", 0, 40)
    play("p")
    with opened("p", "run") as context:
        context.broker.lifecycle.stop(60.0)
        assert context.broker.lifecycle.stopped()
        # Its nodes look once more: nothing is left, and that is no failure
        waits = draining.Draining(context, "run", 60.0)
        if node == "sources.in":
            assert isinstance(waits.slices("in"), course.Ended)
        elif node == "processors":
            assert isinstance(waits.staged(), course.Ended)
        else:
            assert not waits.more("destinations.all", context.broker.micro_batches.latest_sealed())
        # But a forceful stop is
        context.broker.lifecycle.start()
        context.broker.lifecycle.force_stop()
        with pytest.raises(PipelineStopped):
            waits.more("destinations.all", context.broker.micro_batches.latest_sealed())


@pytest.mark.parametrize("late", ["sources.in", "destinations.all", "destinations.red"])
def test_what_a_node_that_begins_late_leaves_is_for_a_run_that_follows(
    home: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    monkeypatch.setattr(course, "BEGINS_WITHIN", 0.5)
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 200)
    followed(late={late: 2.0})
    assert payloads(home / "out/all.jsonl") == rows
    assert not plan_run("p", "after").work


TWO_SOURCES = TWO.replace(
    "      - {id: all,",
    '      - {id: other, type: source, plugin: file, settings: {path: "more/*.jsonl", format: jsonl, settle: 0s}}\n'
    "      - {id: all,",
)


def test_what_comes_for_a_source_that_has_just_ended_is_for_a_run_that_follows(home: Path) -> None:
    write_pipeline(home, "p", TWO_SOURCES)
    events(home / "data", "a.jsonl", 0, 10)
    # Given a source that ended as nothing was new, just before another one found something for it
    plan_run("p", "run")
    with opened("p", "run") as context:
        broker = context.broker
        broker.runs.tell_at_work("run", "sources.other", 0)
        broker.runs.tell_at_work("run", "sources.in", 0)
        found = broker.micro_batches.unsealed()
        assert found is not None
        assert found.missing == ["sources.in"]
        ended = draining.Draining(context, "run", 60.0).slices("other")
        assert isinstance(ended, course.Ended)
        assert ended.again


@pytest.mark.parametrize("lost", ["destinations.all", "sources.in"])
def test_a_node_that_stands_still_for_longer_than_its_word(
    home: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(course, "BEGINS_WITHIN", 0.5)
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 200)
    stood = []

    def still(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        if threading.current_thread().name == lost and not stood:
            stood.append(1)
            with opened("p", "run-0") as context:
                # Its word has lapsed, and it says nothing meanwhile
                until = time.monotonic() + 3
                while time.monotonic() < until:
                    context.broker.redis.hset(context.broker.keys.under_way, f"node:{lost}", "1")
                    time.sleep(0.01)
        return [function(piece) for piece in pieces]

    followed(run_all=still)
    assert payloads(home / "out/all.jsonl") == rows
    assert not plan_run("p", "after").work


def test_a_destination_that_is_down_starts_no_runs_one_after_the_other(home: Path) -> None:
    down = COLOURED.replace("path: out/red.jsonl", "path: blocked/red.jsonl")
    write_pipeline(home, "p", down)
    (home / "blocked").write_text("no folder")
    events(home / "data", "a.jsonl", 0, 200)
    for n in range(4):
        played = play("p", f"run-{n}", limit=0.0)
        print(n, played.said, played.again)
    assert not played.again


def test_a_run_of_so_many_records_in_a_pool_of_one_slot(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "BEGINS_WITHIN", 0.5)
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 400)
    runs = followed(slots=1, limits={"max-records": 100})
    print([r.again for r in runs])
    assert payloads(home / "out/all.jsonl") == rows[:100]


@pytest.mark.parametrize("how", ["forgotten", "older"])
def test_a_redis_that_forgets_the_run(home: Path, how: str) -> None:
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 400)

    def forget() -> None:
        until(lambda: bool(payloads(home / "out/all.jsonl")))
        broker = state("p")
        if how == "forgotten":
            broker.redis.delete(broker.keys.under_way, broker.keys.bell)
        else:
            broker.redis.hset(broker.keys.under_way, mapping={"run": "earlier", "began": "1"})
        broker.close()

    followed(meanwhile=forget)
    assert payloads(home / "out/all.jsonl") == rows


def test_a_source_that_fails_for_good_leaves_nobody_waiting_for_each_other(home: Path) -> None:
    # Given processors that wait for both sources, of which one fails at every try
    write_pipeline(home, "p", PROCESSED.replace("    connectors:", AT_ONCE))
    rows = [*events(home / "data", "a.jsonl", 0, 40), *events(home / "data", "b.jsonl", 100, 40)]

    def fails(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        if threading.current_thread().name == "sources.other":
            raise SourceError("no such mount")
        return [function(piece) for piece in pieces]

    # Then the run ends, fails, and the next one delivers everything
    played = play("p", run_all=fails, retries=1, patience=300)
    assert played.state == "failed"
    followed()
    assert sorted(r["n"] for r in payloads(home / "out/all.jsonl")) == [r["n"] for r in rows]


def test_tasks_that_begin_a_moment_later_are_waited_for(home: Path) -> None:
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 120)
    assert not play("p", late={"destinations.all": 1.5, "destinations.red": 1.5}).again
    assert payloads(home / "out/all.jsonl") == rows


def test_acks_wait_for_a_node_that_has_no_slot_yet(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "BEGINS_WITHIN", 0.5)
    write_pipeline(home, "p", COLOURED)
    events(home / "data", "a.jsonl", 0, 40)
    said = list(play("p", late={"destinations.red": 2.5}).said)
    assert said.index("destinations.red") < said.index("acks.in")


def test_what_is_delivered_between_two_looks_ends_no_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a source that finds the lag budget used up, by what is delivered when it looks who is behind
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 200)
    own, looked = draining.open_next, []

    def open_next(context: Any, limits: Any = None) -> Next:
        looked.append(1)
        if len(looked) == 3:
            broker = context.broker
            until(lambda: len(set(broker.deliveries.cursors(["all", "red"]))) == 1)
            return Next(None, "the lag budget is used up", looked=False, budget=True)
        return own(context, limits)

    monkeypatch.setattr(draining, "open_next", open_next)
    assert not play("p").again
    assert payloads(home / "out/all.jsonl") == rows


def test_a_source_that_cannot_be_read_leaves_the_others_to_a_run_at_once(home: Path) -> None:
    write_pipeline(home, "p", TWO_SOURCES)
    rows = events(home / "data", "a.jsonl", 0, 200)
    events(home / "more", "b.jsonl", 1_000, 10)

    def fails(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        if threading.current_thread().name == "sources.other":
            raise SourceError("no such mount")
        return [function(piece) for piece in pieces]

    runs = [play("p", "run-0", run_all=fails)]
    while runs[-1].again:
        assert len(runs) < 10, f"runs follow each other for ever: {runs[-1].again}"
        runs.append(play("p", f"run-{len(runs)}", run_all=fails))
    assert runs[0].state == "failed"
    assert payloads(home / "out/all.jsonl") == rows


def test_a_run_that_has_read_all_it_may_is_followed_until_that_is_delivered(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a run of so many records, and a destination whose task never begins
    monkeypatch.setattr(course, "BEGINS_WITHIN", 0.5)
    monkeypatch.setattr(draining, "NEVER", 1.0)
    write_pipeline(home, "p", COLOURED.replace("    connectors:", "    lag-budget: {records: 1000}\n    connectors:"))
    rows = events(home / "data", "a.jsonl", 0, 400)
    first = play("p", "run-0", limits={"max-records": 100}, without=["destinations.all"])
    # Then the run that follows delivers what was read, and reads nothing
    assert first.again
    assert first.left == 0
    second = play("p", "run-1", limits={"max-records": 0})
    assert payloads(home / "out/all.jsonl") == rows[:100]
    assert not second.again
    # And one that is to read nothing finds nothing to do now
    assert play("p", "run-2", limits={"max-records": 0}).idle


def test_a_node_with_a_changed_file_ends_in_order_where_the_run_got_on_and_fails_where_it_did_not(home: Path) -> None:
    # Given a run whose micro-batch is open, and a file that changes before a node begins
    write_pipeline(home, "p", COLOURED)
    rows = events(home / "data", "a.jsonl", 0, 80)
    changed = COLOURED.replace("out/red", "out/scarlet")
    plan_run("p", "run-0")
    write_pipeline(home, "p", changed)
    # Then it fails, as a machine that has another file for ever would have runs follow each other for ever
    with pytest.raises(Outdated):
        awaited("p", "sources.in", "run-0", limit=60.0)
    # But where something was delivered in this run a run follows, which reads it again
    write_pipeline(home, "p", COLOURED)
    play("p", "run-1", limits={"max-records": 40})
    plan_run("p", "run-2")
    with opened("p", "run-2") as context:
        context.broker.runs.begin("run-2", None, 0, moved=-1)
    write_pipeline(home, "p", changed)
    work = awaited("p", "sources.in", "run-2", limit=60.0)
    assert work.again
    assert not work.submit
    followed()
    assert payloads(home / "out/all.jsonl") == rows


def test_a_source_that_cannot_be_asked_in_the_middle_of_a_run_is_told_to_its_acks_until_it_can(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(home, "p", TWO_SOURCES.replace("    connectors:", AT_ONCE))
    rows = events(home / "data", "a.jsonl", 0, 120)
    events(home / "more", "b.jsonl", 0, 10)
    asked: list[str] = []
    own = FileSource.plan
    fails = range(2, 1_000)

    def plan(self: FileSource, position: Any, limit: Any) -> Any:
        if "more" in self.settings["path"]:
            asked.append("other")
            # Its first time is the plan of the run, which goes well
            if len(asked) in fails:
                raise SourceError("no such mount")
        return own(self, position, limit)

    monkeypatch.setattr(FileSource, "plan", plan)
    played = play("p", "run-0")
    assert len(asked) > 1
    assert "no such mount" in played.said["acks.other"]["left_out"]
    assert not played.said["acks.in"]["left_out"]
    assert [r for r in payloads(home / "out/all.jsonl") if r in rows]
    # When it fails once in the middle of a run, and can be asked again in the same one, that is told as well
    fails = range(len(asked) + 2, len(asked) + 3)
    events(home / "data", "a.jsonl", 120, 400)
    assert play("p", "run-1").said["acks.other"]["left_out"] == ""
    assert len(asked) > fails[0]


def test_a_node_whose_end_the_acks_heard_is_followed_by_no_run_however_quickly_they_end(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(home, "p", COLOURED)
    events(home / "data", "a.jsonl", 0, 8)
    assert plan_run("p", "run").work
    tell = Runs.tell_at_work

    def then_acks(runs: Runs, run: str, node: str, seconds: float, again: str = "", **more: Any) -> Any:
        heard = tell(runs, run, node, seconds, again, **more)
        if seconds <= 0 and node != at_work.ACKS:
            tell(runs, run, at_work.ACKS, 0)
        return heard

    # Given acks that end right behind the first node's word of its end
    monkeypatch.setattr(Runs, "tell_at_work", then_acks)
    with at_work.at_work("p", "run", "sources.in") as first:
        first.well = first.worked = True
    assert first.follows is None
    # Then one that ends behind them has a run follow
    with at_work.at_work("p", "run", "destinations.all") as second:
        second.well = second.worked = True
    assert second.follows is not None
