"""The broker's state of every pipeline as metrics, read on request; nothing is kept.

Counters and histograms are the broker's own, added exactly once per confirmed range, so they survive restarts and never
count a retry of a task twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from conduit_tasks.errors import BrokerUnavailable, ConduitError
from conduit_tasks.metrics.definitions import Sample, sample
from conduit_tasks.metrics.histogram import LATENCY, Histogram

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.topology import Destination, Pipeline

OUTCOMES = ("delivered", "filtered", "nacked", "completed", "parked")
STATUSES = ("running", "recovering", "stopping", "stopped", "degraded")


def samples(pipelines: Iterable[Pipeline], broker_of: Callable[[str], Broker]) -> list[Sample]:
    """Reads the figures of these pipelines. `broker_of`: returns the broker of one. A pipeline that never ran has no
    figures yet. If the broker does not answer, that is the only figure."""
    found: list[Sample] = [sample("broker_up", 1)]
    try:
        for number, pipeline in enumerate(pipelines):
            broker = broker_of(pipeline.id)
            if not number and (used := broker.access.used()):
                found.append(sample("broker_memory_ratio", used))
            found.extend(_pipeline(broker, pipeline))
    except BrokerUnavailable:
        return [sample("broker_up", 0)]
    return found


def _pipeline(broker: Broker, pipeline: Pipeline) -> Iterator[Sample]:
    id = pipeline.id
    status = broker.lifecycle.status().status
    for each in STATUSES:
        yield sample("pipeline_status", each == status, id, each)
    sealed = broker.micro_batches.latest_sealed()
    yield sample("sealed_micro_batches", sealed, id)
    (collected,) = broker.access.numbers("collected")
    held = broker.access.read(
        *(("HGET", broker.keys.micro_batch(m), "bytes") for m in range(collected + 1, sealed + 1))
    )
    yield sample("spool_bytes", sum(int(size or 0) for size in held), id)
    yield sample("spool_micro_batches", len(held), id)
    for name, n in broker.micro_batches.totals().items():
        node, _, what = name.rpartition("/")
        if node and what == "skipped":
            yield sample("source_skipped", n, id, node)
        elif node:
            yield sample("source_records", n, id, node, what)
    for node, attempts in broker.lifecycle.attempts().items():
        yield sample("attempts", attempts, id, node)
    yield sample("dead_letters", broker.dead_letters.count(""), id, "")
    found = broker.micro_batches.histograms()
    for (node, what), histogram in found.items():
        if what != LATENCY:
            yield sample("stage_seconds", histogram, id, node, what)
    now = broker.access.now()
    for destination in pipeline.destinations:
        try:
            yield from _destination(broker, destination, now, found.get((destination.node, LATENCY)))
        except BrokerUnavailable:
            raise
        except ConduitError:
            continue  # it was never registered: the pipeline has not run since it was added to the file


def _destination(broker: Broker, destination: Destination, now: float, latency: Histogram | None) -> Iterator[Sample]:
    id = destination.id
    state, backlog, of = broker.deliveries.get(id), broker.deliveries.backlog([id]), (broker.pipeline, id)
    yield sample("destination_matched", state.counters["matched"], *of)
    for outcome in OUTCOMES:
        yield sample("destination_records", state.counters[outcome], *of, outcome)
    yield sample("destination_retries", state.counters["retried"], *of)
    yield sample("destination_redelivered", state.counters["redelivered"] + state.counters["redriven"], *of)
    yield sample("destination_lag_records", max(0, backlog.records - state.confirmed.count), *of)
    yield sample("destination_lag_bytes", backlog.bytes, *of)
    yield sample("destination_lag_seconds", backlog.age(now), *of)
    yield sample("destination_waiting_seconds", broker.deliveries.waiting_for(id), *of)
    if destination.deadline is not None:
        yield sample("destination_deadline_seconds", destination.deadline, *of)
    yield sample("destination_stopped", state.status == "stopped", *of)
    if destination.delivery.breaker is not None:
        breaker = broker.breakers.get(id, destination.delivery.breaker)
        yield sample("destination_breaker_open", breaker is not None and breaker.opened > 0, *of)
    yield sample("dead_letters", broker.dead_letters.count(id), *of)
    yield sample("parked_keys", len(broker.redrives.parked(id)), *of)
    if latency is not None:
        yield sample("destination_latency_seconds", latency, *of)
