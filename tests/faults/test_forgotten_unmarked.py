"""Redis forgets something else than what was sent again, of which no mark says anything yet (SEMANTICS X7)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from conduit_tasks.errors import SpoolError
from conduit_tasks.micro_batch import checkpoint, rebuild, rebuild_destination
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.spool.checkpoint import Checkpoint, tokens
from tests.faults.forgetful import Forgetful, broker
from tests.faults.parts import drive
from tests.faults.test_forgotten_again import IN, failing, joined, redrive, waiting
from tests.faults.test_forgotten_letters import delivered, letters
from tests.micro_batch.harness import here
from tests.replay.test_replay import again

__all__ = ["broker"]


def sealed() -> None:
    """A micro-batch, of which no destination has anything yet."""
    plan_run("p", "sealed")
    with opened("p", "sealed") as context:
        read_source(context, "in", here, 5.0)


@pytest.mark.proves("X7", "X3", "I4")
def test_a_replay_that_no_mark_tells_of_stands_if_redis_forgets_what_was_sealed_since(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a replay that died when all was sent, before it wrote a mark
    place = joined(quick)
    with monkeypatch.context() as patch:
        patch.setattr(Marker, "mark", failing(Marker.mark, 0))
        with pytest.raises(SpoolError):
            again(*IN)
    assert place.got("late") == [*range(30, 40), *range(30)]
    early = broker.log()
    # When Redis forgets what was sealed since, so that its state is rebuilt, and the replay goes on
    place.feed(2)
    sealed()
    broker.put_back(early)
    drive()
    again(*IN)
    # Then what it had sent is still there, once
    assert place.got("late") == [*range(30, 40), *range(30), 40, 41]


@pytest.mark.proves("X7", "X2", "I4")
def test_a_redrive_that_no_mark_tells_of_stands_if_redis_forgets_what_was_sealed_since(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a redrive that wrote no mark
    source = waiting(quick)
    with monkeypatch.context() as patch:
        patch.setattr(Marker, "mark", failing(Marker.mark, 0))
        redrive()
    assert delivered(quick, "A") == [1, 2, 3, 4, 5, 6, 7]
    early = broker.log()
    # When Redis forgets what was sealed since, so that its state is rebuilt
    source.put(("B", ""))
    sealed()
    broker.put_back(early)
    drive()
    redrive()
    # Then what it had sent is still there, once
    assert delivered(quick, "A") == [1, 2, 3, 4, 5, 6, 7]
    assert delivered(quick, "B") == [0, 8]
    assert letters("a") == []


@pytest.mark.proves("X7", "X2", "I4")
def test_what_is_sent_while_a_rebuild_is_put_together_stands(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a state to write, and a redrive that confirmed something since it was put together
    source = waiting(quick)
    with opened("p", "rebuild") as context:
        build = partial(rebuild.from_spool, context.pipeline, context.spool, context.broker)
        found = build()
        with monkeypatch.context() as patch:
            patch.setattr(Marker, "mark", failing(Marker.mark, 0))
            redrive()
        # When it is written
        rebuild.apply(context.broker, found, replace=True, again=build)
    source.put(("B", ""))
    drive()
    redrive()
    # Then what was sent is there, once
    assert delivered(quick, "A") == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.proves("X7")
def test_a_copy_of_redis_from_before_a_rebuild_says_less_than_a_mark_from_after_it(
    quick: Path, broker: Forgetful
) -> None:
    # Given a destination that was rebuilt, with a mark since
    source = waiting(quick)
    with opened("p", "rebuild") as context:
        found = rebuild.from_spool(context.pipeline, context.spool, context.broker)
        rebuild.apply(context.broker, found, replace=True)
    source.put(("B", ""))
    drive()
    with opened("p", "look") as context:
        key, marks = context.broker.keys.destination("a"), Checkpoint(context.spool, "p").read()
        there = tokens(context.spool, "p")
        # When Redis counts more words, it is believed
        context.broker.redis.hincrby(key, "words", 100)
        believed = rebuild_destination.newest(context.pipeline, context.broker, marks, there)["destinations.a"]
        assert believed.known.words == marks["destinations.a"].known.words + 100
        # But not if they are from before the rebuild
        context.broker.redis.hdel(key, rebuild_destination.LINEAGE)
        assert rebuild_destination.newest(context.pipeline, context.broker, marks, there) == marks


def test_a_mark_that_falls_due_while_one_is_written_is_left_out(quick: Path, broker: Forgetful) -> None:
    waiting(quick)
    with opened("p", "look") as context:
        marker, said = Marker(context, "destinations.a", 1), list[bool]()
        with pytest.MonkeyPatch.context() as patch:
            due = list[Callable[[], bool]]()

            def every(_: str, __: float, call: Callable[[], bool]) -> nullcontext[None]:
                due.append(call)
                return nullcontext()

            patch.setattr(checkpoint, "every", every)
            patch.setattr(Checkpoint, "write", lambda *_: said.append(due[0]()))
            with marker.marking():
                marker.mark()
    assert said == [True]
