"""The text of pipelines in every state: to the byte what the parts of the broker say one by one, as Prometheus' own
library writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.metrics.definitions import STATE, Sample, sample
from conduit_tasks.metrics.histogram import observed
from conduit_tasks.metrics.prometheus import exposition
from conduit_tasks.operate.metrics import OUTCOMES, STATUSES, exposed, samples
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.settings import Settings
from conduit_tasks.topology import Breaker, Delivery, Destination, Pipeline, Recovery, Source
from tests.broker import test_together
from tests.broker.conftest import DESTINATIONS, Feed, letter, make_broker
from tests.broker.test_shards import divide, tell
from tests.metrics.test_prometheus import by_the_library
from tests.redis_server import RedisServer

BREAKER = Breaker(failures=1, pause=60.0)
FILE = (
    Destination("x", "http", delivery=Delivery(breaker=BREAKER), deadline=60.0),
    Destination("y", "file"),
    Destination("never-registered", "file"),
)
PIPELINES = {
    id: Pipeline(id, (Source("a", "file"),), FILE)
    for id in (
        *("idle", "delivered", "behind", "open", "divided", "grouped", "merged"),
        *("failing", "degraded", "earlier", "left", "never-ran"),
    )
}


@pytest.fixture
def feeds(redis_server: RedisServer) -> Iterator[dict[str, Feed]]:
    brokers = [make_broker(redis_server, id) for id in PIPELINES if id != "never-ran"]
    yield {broker.pipeline: Feed(broker) for broker in brokers}
    for broker in brokers:
        broker.close()


def test_it_is_what_the_parts_of_the_broker_say(redis_server: RedisServer, feeds: dict[str, Feed]) -> None:
    # Given pipelines in which each figure is told by something else
    feeds["delivered"].sealed(10)
    took = {**observed("destinations.x", "latency", [0.2, 3.0, 1e6]), **observed("destinations.x", "deliver", 0.2)}
    feeds["delivered"].confirm("x", 1, [(0, 9)], observed=took)
    feeds["delivered"].confirm("y", 1, [(0, 4)], dead=[letter(1, 3, "destinations.y")])
    behind = feeds["behind"]
    for total in (10, 0, 7_000_000):
        behind.sealed(total)
    behind.delivered(1, destinations=["x"])
    behind.confirm("y", 1, [(0, 3), (6, 7)])
    options = {"fresh": False, "probe": False, "tried": 0, "retry_after": 0.0, "error": "503"}
    behind.broker.breakers.trip("x", behind.lease("x").token, "1", BREAKER, failures=1, **options)  # type: ignore[arg-type]
    behind.broker.redis.hset(behind.broker.keys.parked("x"), "key", "1")
    behind.broker.lifecycle.halt_destination("y")
    feeds["open"].sealed()
    feeds["open"].delivered(1)
    _long_ago(feeds["open"], feeds["open"].open(), "opened_at")
    _long_ago(behind, 2, "opened_at", "sealed_at")
    divide(feeds["divided"], feeds["divided"].sealed())
    tell(feeds["divided"], 1, 0, "0-3")
    first, second = test_together.sealed(feeds["grouped"], 10, 10)
    assert test_together.together(feeds["grouped"], first, [test_together.HALVES] * 2)
    tell(feeds["grouped"], second, 1, "0-2")
    first, second = test_together.sealed(feeds["merged"], 10, 10)
    assert test_together.together(feeds["merged"], first, [test_together.HALVES] * 2)
    test_together.deliver(feeds["merged"], second, 1, 5)
    feeds["merged"].broker.shards.merge("x", first, feeds["merged"].lease("x").token, RangeSet.parse("0-2"), RangeSet())
    for id, retries in (("failing", -1), ("degraded", 0)):
        feeds[id].sealed()
        feeds[id].broker.failures.note("sources.a", "1", "no such host", "OSError", Recovery(max_retries=retries))
        feeds[id].broker.redis.hset(feeds[id].broker.keys.lease("sources.a"), "attempts", "3")
    for _ in range(3):
        feeds["earlier"].sealed()
    keys, redis = feeds["earlier"].broker.keys, feeds["earlier"].broker.redis
    redis.hdel(keys.pipeline, "held", "held_from")
    for m in (1, 2, 3):
        redis.hdel(keys.micro_batch(m), "upto", "upto_bytes")
    feeds["left"].broker.lifecycle.register(("a", "b"), (*DESTINATIONS, "gone"))
    feeds["left"].broker.failures.note("destinations.gone", "1", "it is gone", "OSError", Recovery())
    # When
    client = connect(Settings(redis_url=redis_server.url))
    pipelines = [*PIPELINES.values()]
    text = exposed(pipelines, lambda id: Broker(id, client)).decode()
    held = exposition(STATE, lambda: samples(pipelines, lambda id: Broker(id, client))).decode()
    # Then
    found = [sample("broker_up", 1)]
    if used := Broker("idle", client).access.used():
        found.append(sample("broker_memory_ratio", used))
    for pipeline in pipelines:
        found += said(pipeline, Broker(pipeline.id, client))
    expected = by_the_library(STATE, found).decode()
    client.close()
    passing = re.compile(
        r"^(conduit_destination_(?:lag|waiting)_seconds\{.*) (\S+)$|^(conduit_broker_memory_ratio) .*$", re.MULTILINE
    )
    assert passing.sub(r"\1\3", text) == passing.sub(r"\1\3", expected)
    assert passing.sub(r"\1\3", held) == passing.sub(r"\1\3", text)
    ours, theirs = ([float(n or 0) for _, n, _ in passing.findall(each)] for each in (text, expected))
    assert ours == pytest.approx(theirs, abs=20)
    for status in ("running", "recovering", "degraded"):
        assert re.search(rf'status="{status}"\}} 1.0', text), "each is there"


def _long_ago(feed: Feed, m: int, *fields: str) -> None:
    feed.broker.redis.hset(feed.broker.keys.micro_batch(m), mapping=dict.fromkeys(fields, "1000000"))


def said(pipeline: Pipeline, broker: Broker) -> list[Sample]:
    """The figures of one pipeline, asked for one by one."""
    id, status, sealed = pipeline.id, broker.lifecycle.status().status, broker.micro_batches.latest_sealed()
    out = [sample("pipeline_status", status == each, id, each) for each in STATUSES]
    out.append(sample("sealed_micro_batches", sealed, id))
    held = range(int(broker.access.numbers("collected")[0]) + 1, sealed + 1)
    sizes = [broker.access.field(broker.keys.micro_batch(m), "bytes") for m in held]
    out += [sample("spool_bytes", sum(int(n or 0) for n in sizes), id), sample("spool_micro_batches", len(held), id)]
    for name, n in broker.micro_batches.totals().items():
        node, _, what = name.rpartition("/")
        if node:
            out.append(sample("source_records", n, id, node, what))
    out += [sample("attempts", n, id, node) for node, n in broker.lifecycle.attempts().items()]
    out.append(sample("dead_letters", broker.dead_letters.count(""), id, ""))
    histograms = broker.micro_batches.histograms()
    out += [sample("stage_seconds", of, id, *key) for key, of in histograms.items() if key[1] != "latency"]
    for destination in pipeline.destinations:
        if destination.id in broker.lifecycle.registered()[1]:
            out += said_of(destination, (id, destination.id), broker)
            if latency := histograms.get((destination.node, "latency")):
                out.append(sample("destination_latency_seconds", latency, id, destination.id))
    return out


def said_of(destination: Destination, of: tuple[str, str], broker: Broker) -> list[Sample]:
    """The figures of one destination."""
    state, backlog = broker.deliveries.get(destination.id), broker.deliveries.backlog([destination.id])
    counters = state.counters
    opened = broker.access.field(broker.keys.destination(destination.id), "breaker")
    return [
        sample("destination_matched", counters["matched"], *of),
        *(sample("destination_records", counters[outcome], *of, outcome) for outcome in OUTCOMES),
        sample("destination_retries", counters["retried"], *of),
        sample("destination_redelivered", counters["redelivered"] + counters["redriven"], *of),
        sample("destination_lag_records", backlog.records - state.confirmed_beyond, *of),
        sample("destination_lag_bytes", backlog.bytes, *of),
        sample("destination_lag_seconds", backlog.age(broker.access.now()), *of),
        sample("destination_waiting_seconds", broker.deliveries.waiting_for(destination.id), *of),
        *([sample("destination_deadline_seconds", destination.deadline, *of)] if destination.deadline else []),
        sample("destination_stopped", state.status == "stopped", *of),
        *([sample("destination_breaker_open", opened is not None, *of)] if destination.delivery.breaker else []),
        sample("dead_letters", broker.dead_letters.count(destination.id), *of),
        sample("parked_keys", broker.access.read(("HLEN", broker.keys.parked(destination.id)))[0], *of),
    ]
