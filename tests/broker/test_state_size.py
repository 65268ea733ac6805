"""State follows open micro-batches, destinations and exceptions, never events; no key outlives its purpose."""

from __future__ import annotations

from typing import Any

from conduit_tasks.broker.broker import Broker
from tests.broker.conftest import DESTINATIONS, SOURCES, Feed, letter


def size(broker: Broker) -> int:
    """Bytes of all keys of the pipeline, as Redis counts them, but for the rolling series: they grow with time, up to a
    bound (`test_series`)."""
    sizes: list[Any] = [
        broker.redis.memory_usage(k, samples=0)
        for k in broker.redis.scan_iter(broker.keys.prefix + "*")
        if not k.startswith(broker.keys.series(""))
    ]
    return sum(sizes)


def through(feed: Feed, total: int, pieces: int) -> None:
    """One micro-batch from opening to collecting, confirmed in `pieces` calls per destination."""
    m = feed.sealed(total)
    step = total // pieces
    for destination in DESTINATIONS:
        token = feed.lease(destination).token
        feed.broker.deliveries.vote(destination, m, token, 0, [("a", total)], size=100, threshold=5)
        # from behind, so that ranges are kept apart until the last one
        for i in reversed(range(0, total, step)):
            feed.confirm(destination, m, [(i, i + step - 1)], run=f"run {m}", retention=1.0, state={"length": 10**9})
    ack = feed.broker.acks.begin("a", DESTINATIONS, "delivered")
    assert ack is not None
    feed.broker.acks.commit("a", ack)
    for n in feed.broker.collection.due(SOURCES, DESTINATIONS, 0):
        feed.broker.collection.begin(n)
        feed.broker.collection.end(n)
    for destination in DESTINATIONS:
        feed.broker.redis.delete(feed.broker.keys.run(destination, f"run {m}"))


def test_bytes_do_not_grow_with_delivered_events(feed: Feed) -> None:
    through(feed, 1_000_000, 10)
    first = size(feed.broker)
    for _ in range(5):
        through(feed, 1_000_000, 10)
    # positions and counters gain a digit, nothing else
    assert size(feed.broker) <= first + 64


def test_a_micro_batch_of_a_million_takes_no_more_than_one_of_ten(feed: Feed) -> None:
    feed.sealed(10)
    small = size(feed.broker)
    other = Feed(Broker("q", feed.broker.redis))
    other.broker.lifecycle.initialise()
    other.broker.lifecycle.register(SOURCES, DESTINATIONS)
    other.sealed(1_000_000)
    other.confirm("x", 1, [(0, 899_999)])
    assert size(other.broker) <= small + 512


def test_a_dead_letter_takes_less_than_200_bytes(feed: Feed) -> None:
    n = 5_000
    m = feed.sealed(n)
    before = size(feed.broker)
    for i in range(0, n, 100):
        letters = [letter(m, seq, error_class="psycopg2.errors.UniqueViolation") for seq in range(i, i + 100)]
        feed.confirm("x", m, [(i, i + 99)], dead=letters)
    assert feed.broker.dead_letters.count("x") == n
    assert (size(feed.broker) - before) / n < 200


def test_no_key_outlives_its_purpose(feed: Feed) -> None:
    through(feed, 100, 4)
    m = feed.sealed(100)
    feed.confirm("x", m, [(0, 99)], run="scheduled__2013-01-01", retention=60.0, dead=[letter(m, 1)])
    kinds: dict[str, int] = {}
    for key in feed.broker.redis.scan_iter("*"):
        assert key.startswith(feed.broker.keys.prefix), "every key carries the hash tag"
        kind = key.removeprefix(feed.broker.keys.prefix)
        kinds[kind] = feed.broker.redis.ttl(key)
    lasting = {
        *("schema", "pipeline", "sources", "destinations", "totals"),
        *("planned:a", "acked:a", "ack:a", "index:a"),
        *(f"lease:{n}" for n in ("sources.a", "seal", "destinations.x", "destinations.y")),
        *("destination:x", "destination:y", "window:x", "window:y"),
        *("series:", "series:x", "series:y"),
    }
    open_ones = {f"micro-batch:{m}", "dead:x"}
    passing = {"run:x|scheduled__2013-01-01"}
    assert set(kinds) == lasting | open_ones | passing
    assert all((kinds[k] > 0) == (k in passing) for k in kinds)
