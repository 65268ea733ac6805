"""Which stops end a process in the middle of its work, and which let it come to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.delivery.isolated import in_child
from conduit_tasks.micro_batch import halting
from tests.broker.conftest import broker, make_broker  # noqa: F401 - a fixture
from tests.redis_server import RedisServer

PROMISED = 2.0
"""Seconds within which a forceful stop ends what is in progress (C16)."""
TAKES = 2 * halting.LOOK + halting.GRACE
"""Until it is seen, until its grace is over, and until that is seen."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halting, "LOOK", 0.01)
    monkeypatch.setattr(halting, "GRACE", 0.02)


def ended(broker: Broker, node: str, *, looks: int = 20, call: bool = False) -> list[str]:  # noqa: F811
    """Why the node, or a `call` of it, was ended, if so many looks later it was."""
    said: list[str] = []
    over, looked = threading.Event(), 0
    read = broker.access.read

    def counted(*commands: tuple[Any, ...]) -> list[Any]:
        nonlocal looked
        looked += 1
        if looked > looks:
            over.set()
        return read(*commands)

    def end(why: str) -> None:
        said.append(why)
        over.set()

    watched: Any = SimpleNamespace(access=SimpleNamespace(read=counted), keys=broker.keys)
    watching = halting.halting_call(watched, node) if call else halting.halting(watched, node, end)
    with halting.ended_by_force(end), watching:
        assert over.wait(240)
    return said


def watched_calls() -> int:
    """How many threads watch a call of `acks.a`."""
    return sum(thread.name == "stops of acks.a" for thread in threading.enumerate())


def by_force(broker: Broker) -> None:  # noqa: F811
    broker.lifecycle.force_stop()


def by_an_error(broker: Broker) -> None:  # noqa: F811
    broker.lifecycle.fail("sources.a", "broken", "Test")


def by_an_error_and_then_by_hand(broker: Broker) -> None:  # noqa: F811
    broker.lifecycle.fail("sources.a", "broken", "Test")
    broker.lifecycle.stop(60)


def in_order(broker: Broker) -> None:  # noqa: F811
    broker.lifecycle.stop(60)
    assert broker.lifecycle.stopped()


def begun(broker: Broker) -> None:  # noqa: F811
    broker.lifecycle.stop(60)


def to_rebuild(broker: Broker) -> None:  # noqa: F811
    broker.redis.hset(broker.keys.pipeline, "rebuilding", "somebody")


@pytest.mark.proves("C16")
@pytest.mark.parametrize("stop", [by_force, by_an_error, by_an_error_and_then_by_hand])
def test_a_stop_by_force_ends_a_node_that_goes_on(broker: Broker, stop: Callable[[Broker], None]) -> None:  # noqa: F811
    stop(broker)
    assert ended(broker, "sources.a")
    assert ended(broker, "destinations.x")
    broker.lifecycle.start()
    assert not ended(broker, "destinations.x")


@pytest.mark.proves("X1")
def test_a_destination_that_is_stopped_alone_ends_only_its_own_node(broker: Broker) -> None:  # noqa: F811
    broker.lifecycle.halt_destination("x")
    assert ended(broker, "destinations.x")
    assert not ended(broker, "destinations.y")
    assert not ended(broker, "sources.a")


@pytest.mark.proves("C15")
def test_a_graceful_stop_that_is_done_ends_no_node(broker: Broker) -> None:  # noqa: F811
    """Given a pipeline that a graceful stop has emptied, then a driver that still writes its ledger and its marks is
    left alone, however long that takes."""
    broker.lifecycle.stop(60)
    assert broker.lifecycle.stopped()
    assert broker.lifecycle.status().status == "stopped"
    assert not ended(broker, "destinations.x")
    # Then nor does a word of force that comes later: there is nothing left that it could stop
    broker.lifecycle.force_stop()
    assert not ended(broker, "destinations.x")


@pytest.mark.proves("C16")
@pytest.mark.parametrize("stop", [by_force, by_an_error_and_then_by_hand])
def test_a_stop_by_the_users_word_ends_a_call(broker: Broker, stop: Callable[[Broker], None]) -> None:  # noqa: F811
    stop(broker)
    assert ended(broker, "acks.a", call=True)
    broker.lifecycle.start()
    assert not ended(broker, "acks.a", call=True)


@pytest.mark.proves("C15")
@pytest.mark.parametrize("stop", [by_an_error, begun, in_order, to_rebuild])
def test_no_other_stop_ends_a_call(broker: Broker, stop: Callable[[Broker], None]) -> None:  # noqa: F811
    """Acks go on in a degraded pipeline, and after a graceful stop what is left is written down."""
    stop(broker)
    assert not ended(broker, "acks.a", call=True)


@pytest.mark.proves("C16")
def test_a_stop_of_another_pipeline_or_destination_ends_no_call(
    broker: Broker,  # noqa: F811
    redis_server: RedisServer,
) -> None:
    other = make_broker(redis_server, "other")
    other.lifecycle.force_stop()
    broker.lifecycle.halt_destination("x")
    assert not ended(broker, "acks.a", call=True)
    assert not ended(broker, "destinations.y", call=True)
    assert ended(broker, "destinations.x", call=True)
    assert ended(other, "destinations.y", call=True)
    other.close()


@pytest.mark.proves("C16")
def test_only_a_process_that_says_how_it_ends_is_watched(broker: Broker) -> None:  # noqa: F811
    """`conduit verify` and the triggerer work on several pipelines in one process; a child that is forked for a record
    that may kill it ends with its parent, and must not look as if the record had killed it."""

    def called() -> int:
        with halting.halting_call(broker, "acks.a"):
            return watched_calls()

    assert called() == 0
    with halting.ended_by_force(lambda _: None):
        assert called() == 1
        assert in_child(called) == 0
    assert called() == 0


@pytest.mark.proves("C16")
def test_looks_and_grace_leave_room_in_the_seconds_that_are_promised() -> None:
    assert TAKES < PROMISED
