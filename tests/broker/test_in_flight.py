"""Records that one destination still has to get."""

from __future__ import annotations

from conduit_tasks.broker.in_flight import InFlight, in_flight
from tests.broker.conftest import Feed
from tests.broker.test_together import HALVES, deliver, sealed, tell, together


def test_what_is_confirmed_of_the_next_micro_batch_is_not_left(feed: Feed) -> None:
    sealed(feed, 10, 10)
    feed.confirm("x", 1, [(0, 3)])
    assert in_flight(feed.broker, "x").records == 16
    assert in_flight(feed.broker, "y").records == 20
    assert in_flight(feed.broker, "nobody") == InFlight()


def test_what_tasks_have_confirmed_of_micro_batches_under_way_is_not_left(feed: Feed) -> None:
    """Given three micro-batches under way: of the first a part is confirmed, of the second everything."""
    first, second, _ = sealed(feed, 10, 10, 10)
    together(feed, first, [HALVES] * 3)
    tell(feed, first, 0, "0-2")
    for shard in (0, 1):
        deliver(feed, second, shard, 5)
    found = in_flight(feed.broker, "x")
    assert (found.records, found.micro_batches) == (17, 2)
