"""The issues of many pipelines together: found in a few round trips, in order, bounded, and only for whom they are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.client import Pipeline as Batch

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.dead_letters import index_entries
from conduit_tasks.broker.redrive import Settled
from conduit_tasks.dead_letters import columns
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.micro_batch.context import open_broker, opened
from conduit_tasks.operate import all_issues
from conduit_tasks.operate.all_issues import Everywhere, Wanted, everywhere
from conduit_tasks.operate.issues import note_failure, together
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.settings import settings
from conduit_tasks.topology import Destination, Pipeline, Source
from tests.micro_batch.harness import write_pipeline

MANY = int(os.environ.get("CONDUIT_TEST_PIPELINES", "0"))
"""With 1000 the test of round trips prints how long it takes when each pipeline has letters and failed tasks."""


def pipeline(id: str) -> Pipeline:
    return Pipeline(id, (Source("in", "file"),), (Destination("web", "http"), Destination("file", "file")))


def root() -> str:
    return settings().path(settings().dead_letters)


def letter(id: str, seq: int, error: str = "it is refused", at: float = 1_790_000_000.0) -> DeadLetter:
    record = Record(b"%d" % seq, "create", {}, f"k{seq}".encode(), None, {"n": seq}, 0, Origin(id, "in", "a", {}))
    return DeadLetter(1, seq, record, "destinations.web", error, "http 400", 1, 0, at + seq, seq)


def dead(id: str, *letters: DeadLetter, destination: str = "web") -> None:
    """Stores letters, and indexes them."""
    DeadLetterStore(root(), id, destination).store(letters)
    broker = open_broker(id)
    broker.redis.hset(broker.keys.dead(destination), items=index_entries(letters))


def fails(id: str, node: str = "sources.in", error: str = "in.txt is gone", attempt: str = "1") -> None:
    log = {"dag": id, "run": "r", "task": node, "map_index": -1, "try": 1}
    note_failure(open_broker(id), node, node, "SourceError", error, attempt, log)


def found(*ids: str, may: Any = lambda _: True, **wanted: Any) -> Everywhere:
    return everywhere(open_broker("").redis, [pipeline(id) for id in ids], Wanted(**wanted), may)


def said(of: Everywhere) -> list[str]:
    return [f"{each.pipeline} {each.issue.node} {each.issue.count}" for each in of.issues]


@pytest.fixture(autouse=True)
def fresh(home: Path) -> Iterator[None]:
    columns._kept.clear()
    yield
    columns._kept.clear()


def test_they_are_those_of_each_pipeline_the_newest_or_the_largest_first() -> None:
    dead("a", letter("a", 1), letter("a", 2), letter("a", 3))
    dead("b", letter("b", 9))
    fails("b")
    every = found("a", "b", "c")
    assert said(every) == ["b sources.in 1", "b destinations.web 1", "a destinations.web 3"]
    assert (every.total, every.open, every.pipelines, every.withheld) == (3, 3, 2, 0)
    assert said(found("a", "b", order="most"))[0] == "a destinations.web 3"
    # They are what each pipeline's own list has
    for id in ("a", "b"):
        write_pipeline(
            Path(os.environ["CONDUIT_HOME"]),
            id,
            f'version: "2.2"\npipelines: [{{id: {id}, connectors: [{{id: in, type: source, plugin: file, settings: '
            "{path: x}}, {id: web, type: destination, plugin: log}, {id: file, type: destination, plugin: log}]}]\n",
        )
        with opened(id, "test") as context:
            letters = columns.look(root(), id).open
            own = together(letters, context.broker)
        assert [each.issue for each in every.issues if each.pipeline == id] == own


def test_what_is_looked_for_is_a_state_a_kind_and_a_part_of_a_name() -> None:
    for id in ("flights", "trains"):
        dead(id, letter(id, 1))
        fails(id)
    (refused, *_) = [each.issue for each in found("flights").issues if each.issue.kind == "dead letters"]
    open_broker("flights").issues.decide(refused.id, "acknowledged", "ann")
    both = ("flights", "trains")
    assert said(found(*both)) == ["trains sources.in 1", "flights sources.in 1", "trains destinations.web 1"]
    assert said(found(*both, state="acknowledged")) == ["flights destinations.web 1"]
    every = found(*both, state=None)
    assert said(every)[-1] == "flights destinations.web 1", "what is open comes first"
    assert (every.total, every.open) == (4, 3)
    assert said(found(*both, kind="dead letters")) == ["trains destinations.web 1"]
    assert said(found(*both, text="FLI")) == ["flights sources.in 1"]
    assert said(found(*both, text="http")) == ["trains destinations.web 1"]
    # What is looked for changes nothing of how many are open
    assert found(*both, text="nowhere").open == 3


def test_a_decision_that_is_over_and_a_task_that_has_succeeded_count_as_they_do_in_each_list() -> None:
    dead("a", letter("a", 1))
    (one,) = found("a").issues
    broker = open_broker("a")
    broker.issues.decide(one.issue.id, "muted", "ann", 1.0)
    (again,) = found("a").issues
    assert (again.issue.state, again.issue.opening) == ("open", 1.0)
    fails("a")
    broker.issues.succeeded("sources.in")
    assert said(found("a", state="resolved")) == ["a sources.in 1"]
    # Letters that were sent again are in no issue
    Marks(root(), "a").write("web", [Settled((0, 1, 1, 0), "redriven", 1, 1.0, "ann")])
    assert found("a").total == 0


def test_letters_of_a_destination_that_has_left_the_file_count(home: Path) -> None:
    dead("a", letter("a", 1), destination="gone")
    assert found("a").total == 0, "nobody says that it has any"
    broker = open_broker("a")
    broker.redis.hset(broker.keys.left, "gone", "1")
    assert said(found("a")) == ["a destinations.web 1"]


def test_those_that_are_not_for_whoever_asks_are_counted_by_pipeline_and_nothing_of_them_is_read() -> None:
    for id in ("a", "b"):
        dead(id, letter(id, 1))
    asked: list[str] = []

    def may(id: str) -> bool:
        asked.append(id)
        return id != "b"

    some = found("a", "b", "c", may=may)
    assert (said(some), some.withheld, some.open, some.pipelines) == (["a destinations.web 1"], 1, 1, 1)
    assert asked == ["a", "b"], "nothing is asked about a pipeline without failures"
    assert [name for _, name in columns._kept] == ["a"]


def test_letters_that_cannot_be_read_are_said_and_the_others_are_shown() -> None:
    for id in ("a", "b"):
        dead(id, letter(id, 1))
    fails("a")
    next(Path(root(), "a").rglob("*.parquet")).write_bytes(b"torn")
    some = found("a", "b")
    assert said(some) == ["a sources.in 1", "b destinations.web 1"]
    assert "is no file of dead letters" in some.unread["a"]


def test_a_look_that_is_given_a_time_says_how_much_is_left_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given pipelines with letters and failed tasks, of which two are looked at for the first time when the time is over
    monkeypatch.setattr(all_issues, "LEAST", 2)
    ids = [f"p{n}" for n in range(5)]
    for id in ids:
        dead(id, letter(id, 1))
        fails(id)
    told: list[str] = []

    def look(within: float | None) -> Everywhere:
        redis = open_broker("").redis
        return everywhere(redis, [pipeline(id) for id in ids], Wanted(), within=within, looking=told.append)

    # Then each look has what is known, and some more
    looks = [look(0.0) for _ in range(4)]
    assert [(each.pending, each.total) for each in looks] == [(3, 7), (1, 9), (0, 10), (0, 10)]
    assert told == ["p0", "p1", *ids[:4], *ids, *ids]
    # One that has time, or takes it, is whole at once
    for within in (60.0, None):
        columns._kept.clear()
        assert look(within) == looks[-1]
    # What is new of a pipeline that is known is there at once
    dead("p0", letter("p0", 2))
    assert "p0 destinations.web 2" in said(look(0.0))


def test_no_more_are_kept_than_is_said_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_issues, "MOST", 3)
    monkeypatch.setattr(all_issues, "PORTION", 2)
    for n in range(5):
        dead(f"p{n}", letter(f"p{n}", n))
    some = found(*(f"p{n}" for n in range(5)))
    assert said(some) == [f"p{n} destinations.web 1" for n in (4, 3, 2)]
    assert (some.total, some.open, some.pipelines) == (5, 5, 5)


def test_a_thousand_pipelines_take_a_few_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"p{n}" for n in range(MANY or 1_000)]
    for id in ids if MANY else ids[::100]:
        dead(id, letter(id, 1))
        fails(id)
    trips: list[int] = []
    execute = Batch.execute

    def counted(self: Any, **options: Any) -> Any:
        trips.append(len(self.command_stack))
        return execute(self, **options)

    monkeypatch.setattr(Batch, "execute", counted)
    for _ in range(3):
        trips.clear()
        began, cpu = time.monotonic(), time.process_time()
        some = found(*ids)
        if MANY:
            print(f"{time.monotonic() - began:.2f} s, {time.process_time() - cpu:.2f} s of CPU, {some.total} issues")
    # Of 200 each: what there is, the failed tasks, and the decisions
    assert len(trips) <= 15
    assert max(trips) <= 5 * 200


def test_issues_are_found_anew_at_each_look_only_if_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CAUSES", 2)
    dead("a", letter("a", 1), letter("a", 2, "it has no name"))
    first = columns.look(root(), "a")
    assert first.causes is columns.look(root(), "a").causes
    before = columns._kept[root(), "a"].bytes
    dead("a", letter("a", 3, "it has no place"))
    assert len(columns.look(root(), "a").causes) == 3
    assert columns.look(root(), "a").causes is not columns.look(root(), "a").causes
    assert columns._kept[root(), "a"].bytes > before > 2 * 4_096


def test_a_pipeline_that_nobody_has_run_has_none() -> None:
    assert found("never").total == found().total == 0
    assert Broker("never", open_broker("").redis).issues.failing() == {}
