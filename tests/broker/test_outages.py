"""Why a destination does not take what it is sent: kept until it has delivered again, under its lease."""

from __future__ import annotations

import pytest

from conduit_tasks.broker.outages import ERROR, Outage
from conduit_tasks.errors import Fenced
from conduit_tasks.topology import Destination, Pipeline, Source
from tests.broker.conftest import Feed


def outages(feed: Feed) -> dict[str, Outage | None]:
    from conduit_tasks.broker.glances import glances
    from conduit_tasks.broker.looks import look

    pipeline = Pipeline("p", (Source("a", "file"),), tuple(Destination(id, "file") for id in ("x", "y")))
    found = {id: of.outage for id, of in look(feed.broker.access, pipeline, 20).destinations.items()}
    (seen,) = glances(feed.broker.access.redis, [pipeline])
    assert {of.id: of.down for of in seen.destinations} == {id: of is not None for id, of in found.items()}
    return found


def test_the_last_error_stands_until_something_is_confirmed(feed: Feed) -> None:
    # Given a destination that does not answer, twice
    feed.sealed()
    feed.sealed()
    note, token = feed.broker.outages.note, feed.lease("x").token
    note("x", token, "destinations.x of p is down: HTTP 502 from http://ann:hush@there", "one@host:1")
    (first, _) = outages(feed).values()
    assert first is not None
    assert first.since == first.at
    note("x", token, f"destinations.x: {'503 ' * ERROR}", "two@host:1")
    # Then the last error is told, without what stands beside it, and since when
    (found, other) = outages(feed).values()
    assert found is not None
    assert other is None
    assert (first.error, first.owner) == ("HTTP 502 from http://***@there", "one@host:1")
    assert (found.error[:7], len(found.error), found.owner) == ("503 503", ERROR, "two@host:1")
    assert first.since == found.since < found.at
    # When it has confirmed a part, then it is over, and the next one is a new one
    feed.confirm("x", 1, [(0, 3)])
    assert outages(feed)["x"] is None
    note("x", token, "no", "three@host:1")
    again = outages(feed)["x"]
    assert again is not None
    assert again.since > found.at
    # And nothing is told of one that has nothing left
    feed.confirm("x", 1, [(4, 9)])
    feed.confirm("x", 2, [(0, 9)])
    note("x", token, "no", "four@host:1")
    assert outages(feed)["x"] is None


def test_an_outage_is_over_once_a_replay_has_delivered(feed: Feed) -> None:
    feed.sealed()
    broker, token = feed.broker, feed.lease("x").token
    broker.outages.note("x", token, "no", "one@host:1")
    assert outages(feed)["x"] is not None
    broker.redrives.claim("x", token, "r", [])
    broker.replays.begin("x", "r", token, "made", generation="1", retention=60.0)
    assert outages(feed)["x"] is not None
    broker.replays.confirm("x", "r", token, 0, [(0, 1)], {"redelivered": 2})
    assert outages(feed)["x"] is None


def test_only_the_holder_of_the_lease_says_so(feed: Feed) -> None:
    feed.sealed()
    lease = feed.lease("x")
    lease.release()
    with feed.broker.leases.acquire("destinations.x", "next"), pytest.raises(Fenced):
        feed.broker.outages.note("x", lease.token, "no", "one@host:1")
    assert outages(feed)["x"] is None
