"""Redis forgets something of a destination right before its lease is taken: nothing is sent or confirmed on what it
says then (SEMANTICS X7)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.leases import Leases
from conduit_tasks.micro_batch.context import opened
from tests.delivery import shelf
from tests.delivery.shelf import shelves
from tests.delivery.test_redrive import send, states
from tests.faults.forgetful import Forgetful, broker
from tests.faults.parts import drive
from tests.replay.test_replay import Place, again

__all__ = ["broker", "shelves"]

QUICKLY = "delivery: {timeout: 1s}"


@pytest.fixture
def before_lease(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something happen before the lease of a destination is taken for the next time."""
    acquire, todo = Leases.acquire, list[Callable[[], None]]()

    def acquiring(self: Leases, node: str, *args: Any, **more: Any) -> Any:
        if todo and node.startswith("destinations."):
            todo.pop()()
        return acquire(self, node, *args, **more)

    monkeypatch.setattr(Leases, "acquire", acquiring)
    return todo.append


@pytest.mark.proves("X7", "X2")
@pytest.mark.parametrize("plugin", ["shelf", "binder"])
def test_a_redrive_sends_nothing_before_the_state_is_back(
    quick: Path, broker: Forgetful, before_lease: Any, plugin: str
) -> None:
    # Given a dead letter whose cause is fixed, and a copy of Redis from before the micro-batch behind it
    place = shelf.Place(quick, plugin)
    place.refuse(0)
    place.feed([(0, "x"), (1, "z")])
    drive()
    place.refuse()
    copy = broker.log()
    place.feed([(2, "z"), (3, "z")])
    drive()
    # When it is put back as a redrive begins, then that brings the state back first
    before_lease(lambda: broker.put_back(copy))
    assert send().redriven == 1
    assert (place.got(), states()) == ([1, 2, 3, 0], [(0, 0, 1, "redriven")])
    # And runs go on
    place.feed([(4, "z")])
    drive()
    assert place.got() == [1, 2, 3, 0, 4]


@pytest.mark.proves("X7", "X3")
@pytest.mark.parametrize("plugin", ["shelf", "binder"])
def test_a_replay_sends_nothing_before_the_state_is_back(
    quick: Path, broker: Forgetful, before_lease: Any, plugin: str
) -> None:
    # Given a copy of Redis from before the second micro-batch
    place = Place(quick, plugin, QUICKLY)
    place.feed(5)
    drive()
    copy = broker.log()
    place.feed(5)
    drive()
    # When it is put back as a replay begins to send, then that brings the state back first
    before_lease(lambda: broker.put_back(copy))
    assert again("2013-03-01", "2013-04-01", "a", what="all")[0].delivered == 10
    place.feed(1)
    drive()
    assert place.got("a") == [*range(10), *range(10), 10]


@pytest.mark.proves("X7")
def test_a_state_that_a_rebuild_does_not_bring_back_is_named_with_what_to_do(quick: Path, broker: Forgetful) -> None:
    # Given a Redis that has forgotten a micro-batch, and counts more words than the mark all the same
    place = Place(quick, "shelf", QUICKLY)
    place.feed(5)
    drive()
    copy = broker.log()
    place.feed(5)
    drive()
    broker.put_back(copy)
    with opened("p", "look") as context:
        context.broker.redis.hincrby(context.broker.keys.destination("a"), "words", 9)
    # When the pipeline is to run, then it ends with the error
    with pytest.raises(AssertionError, match="not quiet") as error:
        drive(most=3)
    assert "each know of something that the other does not" in str(error.value)
    # And what that says makes it run again: nothing is lost
    for mark in (quick / ".conduit/spool/p/checkpoint").glob("destinations.a-*"):
        mark.unlink()
    place.feed(1)
    drive()
    assert sorted({*place.got("a")}) == [*range(11)]
