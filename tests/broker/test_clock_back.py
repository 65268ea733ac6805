"""Redis' clock goes back: nothing that it said before lasts longer for that than it can from now on (C11, I4, I6).

What was written by a clock that was an hour ahead is what a test finds by moving the times that are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.redis_client.portions import PORTION
from tests.broker.conftest import DESTINATIONS, SOURCES, Feed
from tests.waiting import until

JUMP = 3_600.0
RUN: dict[str, Any] = {"records": None, "base": 0, "moved": 0, "lasts": True}


def ahead(broker: Broker, key: str, *names: str, by: float = JUMP) -> None:
    """These times of a hash, as they are once the clock has gone back by so many seconds."""
    for name in names:
        at = broker.access.field(key, name)
        assert at is not None, name
        broker.redis.hset(key, name, str(int(at) + int(by * 1e6)))


def left(broker: Broker, node: str) -> float:
    """Seconds that a node of the run is at work still."""
    course = broker.runs.under_way("r")
    assert course is not None
    return course.nodes[node] - course.now


@pytest.mark.proves("C1")
def test_a_node_that_was_killed_is_at_work_no_longer_than_it_said(broker: Broker) -> None:
    # Given a run with a node that said so of the next 15 seconds, one that is tried again in ten minutes, and two that
    # have ended; then the clock goes back
    broker.runs.begin("r", **RUN)
    for node, seconds in {"sources.a": 15.0, "sources.b": 615.0, "processors": 0.0, "destinations.x": -1.0}.items():
        broker.runs.tell_at_work("r", node, seconds)
    assert broker.runs.go_on("r")
    key = broker.keys.under_way
    ahead(broker, key, "node:sources.a", "node:sources.b", "ended", "began", "since", "counted")
    # When somebody looks, then each is believed for as long as it said, from now on, and the run has begun just now
    assert left(broker, "sources.a") <= 15.0
    assert 15.0 < left(broker, "sources.b") <= 615.0
    course = broker.runs.under_way("r")
    assert course is not None
    assert course.since <= course.now
    assert course.counted <= course.now
    assert course.ended <= course.now
    assert (course.at_work("processors"), course.waits("destinations.x")) == (False, True)
    # And time goes on from there: whoever looks again grants it no more
    stored = broker.access.hash(key)
    broker.runs.under_way("r")
    assert broker.access.hash(key) == stored


@pytest.mark.proves("C1")
def test_a_run_that_is_taken_over_from_is_believed_no_longer_either(broker: Broker) -> None:
    broker.runs.begin("q", **RUN)
    broker.runs.tell_at_work("q", "sources.a", 15.0)
    broker.runs.begin("r", **RUN)
    ahead(broker, broker.keys.before, "node:sources.a")
    course = broker.runs.under_way("r")
    assert course is not None
    assert course.before is not None
    assert course.before.nodes["sources.a"] <= course.now + 15.0


def test_the_run_that_began_later_is_known_by_that_also_where_the_clock_went_back(broker: Broker) -> None:
    # Given a run, and one that began after the clock went back
    broker.runs.begin("q", **RUN)
    ahead(broker, broker.keys.under_way, "began", "since")
    earlier = broker.runs.under_way("q")
    assert earlier is not None
    broker.runs.begin("r", **RUN)
    # Then Redis has forgotten nothing, and the later one is new, not an hour ahead
    assert not broker.runs.has_forgotten(earlier)
    course = broker.runs.under_way("r")
    assert course is not None
    assert earlier.began < course.began
    assert course.since <= course.now


def test_what_an_earlier_version_said_is_left_as_it_is(broker: Broker) -> None:
    broker.runs.begin("r", **RUN)
    broker.runs.tell_at_work("r", "sources.a", 15.0)
    broker.redis.hdel(broker.keys.under_way, "for:sources.a", "since")
    ahead(broker, broker.keys.under_way, "node:sources.a")
    course = broker.runs.under_way("r")
    assert course is not None
    assert course.at_work("sources.a")
    assert course.since == course.began


def done_with(feed: Feed, count: int) -> list[int]:
    """Micro-batches that everybody has, sealed by a clock that was ahead."""
    numbers = [feed.sealed() for _ in range(count)]
    for m in numbers:
        feed.delivered(m)
        ahead(feed.broker, feed.broker.keys.micro_batch(m), "sealed_at", "opened_at")
    while ack := feed.broker.acks.begin("a", DESTINATIONS, "delivered"):
        feed.broker.acks.commit("a", ack)
    return numbers


@pytest.mark.proves("C11", "I6")
def test_collection_is_not_held_up_for_as_long_as_the_clock_went_back(feed: Feed) -> None:
    # Given micro-batches that nobody needs, sealed in times to come
    broker, numbers = feed.broker, done_with(feed, 3)
    # Then one that is not kept is removed at once
    assert broker.collection.due(SOURCES, DESTINATIONS, 0) == numbers
    # And where they are kept, all of them count from now on, those that were not looked at, too
    for m in numbers:
        ahead(broker, broker.keys.micro_batch(m), "sealed_at")
    assert broker.collection.due(SOURCES, DESTINATIONS, 60.0) == []
    now = broker.access.now() * 1e6
    assert all(int(broker.access.field(broker.keys.micro_batch(m), "sealed_at") or 0) <= now for m in numbers)
    broker.collection.slim(SOURCES, DESTINATIONS, 0)
    assert broker.access.numbers("slim")[0] == numbers[-1]


def test_more_than_one_command_takes_are_set_right(feed: Feed) -> None:
    broker = feed.broker
    keys = [f"{broker.keys.prefix}many:{n}" for n in range(PORTION + 1)]
    far = str(int((broker.access.now() + JUMP) * 1e6))
    for key in keys:
        broker.redis.hset(key, "at", far)
    broker.access.not_ahead(*((key, "at", "") for key in keys))
    assert all(int(broker.access.field(key, "at") or 0) < int(far) for key in (keys[0], keys[-1]))


def opened(feed: Feed) -> Callable[[], float]:
    m = feed.sealed()
    ahead(feed.broker, feed.broker.keys.micro_batch(m), "opened_at")
    return lambda: feed.broker.deliveries.waiting_for("x")


def waiting(feed: Feed) -> Callable[[], float]:
    m = feed.sealed()
    ahead(feed.broker, feed.broker.keys.micro_batch(m), "sealed_at")
    return lambda: feed.broker.deliveries.backlog(DESTINATIONS).age(feed.broker.access.now())


def sent(feed: Feed) -> Callable[[], float]:
    m = feed.sealed()
    feed.confirm("x", m, [(0, 1)])
    ahead(feed.broker, feed.broker.keys.destination("x"), "sent_at")
    return lambda: feed.broker.deliveries.rested("x") or 0.0


@pytest.mark.parametrize("what", [opened, waiting, sent])
def test_an_age_grows_from_the_moment_on_at_which_somebody_asks(
    feed: Feed, what: Callable[[Feed], Callable[[], float]]
) -> None:
    """Given what was stored by a clock that was ahead, then its age is not 0 for as long as that."""
    age = what(feed)
    assert age() < JUMP
    until(lambda: age() > 0.0)


@pytest.mark.proves("I6")
def test_a_redelivery_that_nobody_goes_on_with_is_given_up_in_its_time(feed: Feed) -> None:
    # Given a redelivery whose driver died, by a clock that was ahead
    broker, m = feed.broker, feed.sealed()
    feed.confirm("x", m, [(0, 9)], run="one", retention=60.0)
    broker.redeliveries.begin("x", "one", feed.lease("x").token)
    ahead(broker, broker.keys.redo("x"), "at")
    ahead(broker, broker.keys.lease("destinations.x"), "until")
    # Then neither its lease nor its age holds it up
    assert broker.redeliveries.lapse("x", 60.0) is None
    assert broker.redeliveries.lapse("x", 0.0) == ("one", 1)


def test_a_part_that_is_gone_is_forgotten_in_its_time(feed: Feed) -> None:
    # Given a part that is gone, by a clock that was ahead
    broker = feed.broker
    done_with(feed, 1)
    assert broker.positions.note_gone("a", {"file"}, 3_600.0) == 0
    ahead(broker, broker.keys.gone("a"), "file")
    # Then it is forgotten as if it were gone from the next look on
    assert broker.positions.note_gone("a", {"file"}, 3_600.0) == 0
    assert broker.positions.note_gone("a", {"file"}, 0.0) == 1
    assert broker.positions.planned("a") == {}
