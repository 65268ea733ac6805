"""Attempts at the shards of a divided micro-batch: their tokens, and who fences whom."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.broker.broker import Broker
from conduit_tasks.errors import Fenced
from tests.broker.conftest import Feed, make_broker
from tests.broker.test_shards import divide, tell
from tests.redis_server import RedisServer

NODE = "destinations.x"


def test_attempts_at_different_shards_go_on_beside_each_other_under_tokens_of_their_own(feed: Feed) -> None:
    m = feed.sealed()
    driver = feed.lease("x")
    divide(feed, m)
    one, two = (feed.broker.leases.attempt(NODE, "x", driver.token, shard) for shard in (0, 1))
    assert len({driver.token, one.token, two.token}) == 3
    tell(feed, m, 0, "0-3", token=one.token)
    tell(feed, m, 1, "0-3", token=two.token)
    one.release()
    # What has ended is not heard any more; the other one goes on.
    with pytest.raises(Fenced):
        tell(feed, m, 0, "4-4", token=one.token)
    tell(feed, m, 1, "4-4", token=two.token)


@pytest.mark.proves("I4")
@pytest.mark.parametrize("shards", [(0, None, 0), (None, 0, None), (1, None, 0, 1)])
def test_attempts_at_divided_micro_batches_and_at_whole_ones_have_tokens_of_their_own(
    feed: Feed, shards: tuple[int | None, ...]
) -> None:
    # Given a driver whose token is ahead of Redis' clock, which went back
    driver, key = feed.lease("x"), feed.broker.keys.lease(NODE)
    ahead = driver.token + 3_600_000_000
    feed.broker.redis.hset(key, "token", str(ahead))
    # When its executors try a micro-batch that is divided, one that is not, and the first one again
    tokens = []
    for shard in shards:
        attempt = feed.broker.leases.attempt(NODE, "x", ahead, shard)
        tokens.append(attempt.token)
        attempt.release()
    # Then each has a newer token
    assert tokens == sorted(set(tokens))
    # And a late word of an earlier one is none of a later one's
    last = feed.broker.leases.attempt(NODE, "x", ahead, shards[-1])
    for token in tokens:
        feed.broker.access.run(scripts.ATTEMPTED, {"lease": key}, token=token, error="")
    assert last.token not in tokens
    last.release()


def test_a_later_attempt_at_a_shard_fences_the_earlier_one_alone_once_that_has_lapsed(
    redis_server: RedisServer, broker: Broker
) -> None:
    """Given attempts at two shards, of which one falls silent, then its successor begins once a lease has lapsed; the
    silent one is not heard then, and the attempt at the other shard is."""
    feed = Feed(make_broker(redis_server, ttl=0.5, grace=0.1))
    m = feed.sealed()
    driver = feed.lease("x")
    divide(feed, m)
    silent, other = (feed.broker.leases.attempt(NODE, "x", driver.token, shard) for shard in (0, 1))
    successor = feed.broker.leases.attempt(NODE, "x", driver.token, 0)
    with pytest.raises(Fenced):
        tell(feed, m, 0, "0-0", token=silent.token)
    tell(feed, m, 0, "0-0", token=successor.token)
    tell(feed, m, 1, "0-0", token=other.token)


def test_an_attempt_at_a_shard_that_is_alive_holds_off_its_successor(redis_server: RedisServer, broker: Broker) -> None:
    feed = Feed(make_broker(redis_server, ttl=0.5, grace=0.1))
    m = feed.sealed()
    driver = feed.lease("x")
    divide(feed, m)
    alive = feed.broker.leases.attempt(NODE, "x", driver.token, 0)
    ended: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        successor = pool.submit(feed.broker.leases.attempt, NODE, "x", driver.token, 0)
        for number in range(10):
            # Its words keep it: the last comes two lease times after it began.
            time.sleep(0.1)
            tell(feed, m, 0, f"{number}-{number}", token=alive.token)
        ended.append("alive")
        alive.release()
        assert successor.result(60).token > alive.token
    assert ended == ["alive"]


def test_a_new_driver_fences_every_attempt_at_a_shard(feed: Feed) -> None:
    m = feed.sealed()
    driver = feed.lease("x")
    divide(feed, m)
    attempts = [feed.broker.leases.attempt(NODE, "x", driver.token, shard) for shard in range(2)]
    driver.release()
    successor = feed.broker.leases.acquire(NODE, "successor")
    assert successor.token > max(attempt.token for attempt in attempts)
    for shard, attempt in enumerate(attempts):
        with pytest.raises(Fenced):
            tell(feed, m, shard, "0-0", token=attempt.token)
    held = feed.broker.access.hash(feed.broker.keys.lease(NODE))
    assert not [name for name in held if ":" in name]


def test_an_attempt_at_a_shard_that_gives_up_holds_off_later_ones(feed: Feed) -> None:
    feed.sealed()
    driver = feed.lease("x")
    attempt = feed.broker.leases.attempt(NODE, "x", driver.token, 1)
    feed.broker.leases.give_up(NODE, attempt.token, "no answer")
    assert feed.broker.leases.gave_up(NODE) == "no answer"


# -- windows ------------------------------------------------------------------------------------------------------
