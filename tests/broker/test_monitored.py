"""Figures of many pipelines at once: those that the parts of the broker return one by one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from redis.client import Pipeline as Batch

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.figures import Figures, figures
from conduit_tasks.topology import Breaker, Recovery
from tests.broker.conftest import DESTINATIONS, SOURCES, Feed, letter, make_broker
from tests.broker.test_acks import acked
from tests.broker.test_shards import divide, end, tell
from tests.redis_server import RedisServer


def pipeline(id: str, destinations: Sequence[str] = DESTINATIONS) -> Any:
    return SimpleNamespace(
        id=id,
        sources=[SimpleNamespace(id=s) for s in SOURCES],
        destinations=[SimpleNamespace(id=d) for d in destinations],
    )


def of(broker: Broker, destinations: Sequence[str] = DESTINATIONS) -> Figures:
    (found,) = figures(broker.redis, [pipeline(broker.pipeline, destinations)])
    return found


def collect(feed: Feed, m: int) -> None:
    acked(feed, m)
    feed.broker.collection.begin(m)
    feed.broker.collection.end(m)


def test_they_are_those_that_the_parts_return(feed: Feed) -> None:
    # Given a pipeline of which x is behind, with dead letters and an open breaker, and whose source fails
    broker = feed.broker
    for _ in range(3):
        feed.sealed()
    feed.delivered(1)
    feed.delivered(2, destinations=["y"])
    feed.confirm("x", 2, [(0, 3)], dead=[letter(2, 1), letter(2, 3)])
    lease, breaker = feed.lease("x"), Breaker(failures=1, pause=60.0)
    options: dict[str, Any] = {"fresh": False, "probe": False, "tried": 0, "retry_after": 0.0, "error": "503"}
    broker.breakers.trip("x", lease.token, "1", breaker, failures=1, **options)
    broker.failures.note("sources.a", "1", "no such host", "OSError", Recovery())
    open_ = feed.open()
    # When
    found = of(broker, [*DESTINATIONS, "never registered"])
    # Then
    assert (found.status, found.sealed, found.held, found.dead) == ("recovering", 3, 3, 0)
    assert found.status == broker.lifecycle.status().status
    assert found.attempts == broker.lifecycle.attempts()
    assert found.totals == broker.micro_batches.totals()
    assert found.histograms == broker.micro_batches.histograms()
    assert set(found.destinations) == set(DESTINATIONS)
    for id, each in found.destinations.items():
        state = broker.deliveries.get(id)
        assert (each.counters, each.confirmed) == (state.counters, state.confirmed_records)
        assert each.stopped == (state.status == "stopped")
        assert each.backlog == broker.deliveries.backlog([id])
        assert each.waiting == pytest.approx(broker.deliveries.waiting_for(id), abs=1)
        assert each.dead == broker.dead_letters.count(id)
        assert each.open == (id == "x")
        assert each.parked == 0
    assert found.destinations["x"].backlog.micro_batches == 2
    # What is open waits, too
    feed.delivered(3, destinations=["y"])
    broker.redis.hset(broker.keys.micro_batch(open_), "opened_at", "1000000")
    assert of(broker).destinations["y"].waiting > 1_000_000


def test_a_pipeline_that_never_ran_has_no_figures(redis_server: RedisServer) -> None:
    broker = make_broker(redis_server, "another")
    broker.redis.flushdb()
    found = of(broker)
    assert (found.status, found.sealed, found.held_bytes, found.destinations) == ("running", 0, 0, {})
    broker.close()


def test_a_divided_micro_batch_and_what_has_left_the_file_are_read_beside(feed: Feed) -> None:
    # Given x, whose micro-batch is divided and one shard of which is whole, and y, which has left the file and fails
    broker = feed.broker
    m = feed.sealed()
    divide(feed, m)
    tell(feed, m, 0, "0-3")
    end(feed, m, 0, 4)
    tell(feed, m, 1, "0-1")
    broker.failures.note("destinations.y", "1", "it is away", "OSError", Recovery())
    found = of(broker, ["x"])
    # Then
    assert found.destinations["x"].confirmed == broker.deliveries.get("x").confirmed_records == 6
    assert found.attempts == broker.lifecycle.attempts()
    assert "destinations.y" in found.attempts
    assert found.status == broker.lifecycle.status().status == "recovering"
    # Stopped alone
    broker.lifecycle.halt_destination("x")
    assert of(broker).destinations["x"].stopped


@pytest.mark.usefixtures("twice")
@pytest.mark.proves("I5")
def test_the_size_in_the_spool_is_counted_once_whatever_is_repeated(feed: Feed) -> None:
    for total in (10, 0, 20, 30):
        feed.sealed(total)
    assert of(feed.broker).held_bytes == 6_000
    feed.delivered(1)
    collect(feed, 1)
    for destination in DESTINATIONS:
        feed.leases.pop(destination).release()
        feed.broker.deliveries.complete_unmatched(destination)
    # One without a record, and without a byte
    collect(feed, 2)
    found = of(feed.broker)
    assert (found.held, found.held_bytes) == (2, 5_000)


def test_what_an_earlier_version_sealed_is_part_of_the_size_until_it_is_collected(feed: Feed) -> None:
    # Given two micro-batches that were sealed when their size was not counted
    feed.sealed(10)
    feed.sealed(20)
    feed.broker.redis.hdel(feed.broker.keys.pipeline, "held", "held_from")
    assert of(feed.broker).held_bytes == 3_000
    # When one more is sealed, and the first is collected
    feed.sealed(40)
    assert of(feed.broker).held_bytes == 7_000
    feed.delivered(1)
    collect(feed, 1)
    # Then
    assert of(feed.broker).held_bytes == 6_000
    feed.delivered(2, 20)
    collect(feed, 2)
    assert of(feed.broker).held_bytes == 4_000


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of commands of each round trip."""
    found: list[int] = []
    execute = Batch.execute

    def counted(self: Batch, *args: Any, **more: Any) -> Any:
        found.append(len(self.command_stack))
        return execute(self, *args, **more)

    monkeypatch.setattr(Batch, "execute", counted)
    return found


def test_a_destination_that_is_far_behind_is_read_by_as_many_commands(feed: Feed, sent: list[int]) -> None:
    """Given one that is 40 micro-batches behind, then it costs what one that is 2 behind does."""
    of(feed.broker)  # a new Redis has to be given the scripts, which takes more commands
    counts = []
    for more in (2, 38):
        for _ in range(more):
            feed.sealed(10)
        sent.clear()
        found = of(feed.broker)
        counts.append(sum(sent))
    assert found.destinations["x"].backlog == feed.broker.deliveries.backlog(["x"])
    assert (found.destinations["x"].backlog.micro_batches, found.destinations["x"].backlog.records) == (40, 400)
    assert counts[0] == counts[1]


def test_what_an_earlier_version_sealed_has_no_sums_and_is_counted_all_the_same(feed: Feed) -> None:
    broker = feed.broker
    for _ in range(4):
        feed.sealed(10)
    feed.delivered(1, 10, destinations=["y"])
    for m in (1, 2):
        broker.redis.hdel(broker.keys.micro_batch(m), "upto", "upto_bytes")
    found = of(broker).destinations
    for id, count in {"x": 4, "y": 3}.items():
        assert (found[id].backlog.micro_batches, found[id].backlog.records) == (count, 10 * count)
        assert found[id].backlog == broker.deliveries.backlog([id])


def test_a_hundred_pipelines_are_read_in_a_few_round_trips(redis_server: RedisServer, sent: list[int]) -> None:
    brokers = [make_broker(redis_server, f"p{n}") for n in range(100)]
    for broker in brokers[:20]:
        Feed(broker).sealed()
    # A server that has not had the script yet is sent it, and all of it again
    list(figures(brokers[0].redis, [pipeline("p0")]))
    sent.clear()
    found = list(figures(brokers[0].redis, [pipeline(b.pipeline) for b in brokers]))
    assert [f.sealed for f in found] == [1] * 20 + [0] * 80
    assert len(sent) <= 3
    # A call of the script and four hashes and sets of each, and the micro-batches of those that are behind
    assert sum(sent) <= 5 * 100 + 20 * 3
    assert max(sent) <= 1_000, "no other client waits for a large portion"
    for broker in brokers:
        broker.close()
