"""What has no bound of its own goes to Redis in portions, each of which may be repeated, and all of it arrives."""

from __future__ import annotations

import pytest

from conduit_tasks.broker.base import PORTION
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.redrive import REDRIVEN, Letter
from tests.broker.conftest import Feed

MANY = 4 * PORTION + 100


def letters(m: int = 1, count: int = MANY) -> list[Letter]:
    return [(0, m, seq, 0) for seq in range(count)]


def dead(broker: Broker, of: list[Letter], destination: str = "x") -> None:
    """In the index, as confirms put them there."""
    batch = broker.redis.pipeline(transaction=False)
    for epoch, m, seq, ordinal in of:
        batch.hset(broker.keys.dead(destination), f"{epoch}-{m}-{seq}-{ordinal}", "1700000000000:1:http 400")
    batch.execute()


def test_a_replay_of_any_number_of_portions_goes_on_where_it_was_left(feed: Feed) -> None:
    """Given a replay with more portions done than a Lua function can return values, when its task is tried again, then
    it is told of all of them."""
    broker, token = feed.broker, feed.lease("x").token
    broker.replay_begin("x", "r", token, "made", generation="1", retention=60.0)
    portions = {str(n): "0-9" for n in range(2 * MANY)}
    broker.redis.hset(broker.keys.replay("x", "r"), mapping=portions)
    share = broker.replay_begin("x", "r", token, "made", generation="1", retention=60.0)
    assert len(share.done) == 2 * MANY
    assert all(ranges.count == 10 for ranges in share.done.values())


@pytest.mark.usefixtures("twice")
def test_a_redrive_claims_and_gives_back_any_number_of_letters(feed: Feed) -> None:
    broker, of = feed.broker, letters()
    dead(broker, of)
    token = feed.lease("x").token
    epoch, claimed = broker.claim("x", token, "me", [*of, (0, 9, 9, 9)])
    assert (epoch, claimed) == (1, of), "one redrive, of all that are letters"
    assert broker.claimed("x") == set(of)
    broker.settle("x", token, 1, dict.fromkeys(of[:PORTION], REDRIVEN), {})
    broker.mark("x", token, [s.key for s in broker.settled("x")], over=True)
    assert broker.claimed("x") == set()
    assert not broker.redis.exists(broker.keys.redrive("x"))
    assert {(e.epoch, e.micro_batch, e.seq, e.ordinal) for e in broker.dead_letters("x")} == set(of[PORTION:])


def test_what_a_holder_that_died_had_claimed_is_open_again(feed: Feed) -> None:
    broker, of = feed.broker, letters()
    dead(broker, of)
    broker.claim("x", feed.lease("x").token, "me", of)
    broker.settle("x", feed.lease("x").token, 1, {of[0]: REDRIVEN}, {})
    epoch, claimed = broker.claim("x", feed.lease("x").token, "another", of[:10])
    assert (epoch, claimed) == (2, of[1:10])
    assert broker.claimed("x") == set(of[1:10])
    assert [s.key for s in broker.settled("x")] == of[:1], "until its store is marked"


def test_any_number_of_letters_is_purged_but_for_those_under_way(feed: Feed) -> None:
    broker, of = feed.broker, letters()
    dead(broker, of)
    broker.claim("x", feed.lease("x").token, "me", of[:3])
    assert broker.purge("x", of) == of[:3]
    assert broker.dead_count("x") == 3
