"""Decides of which of the broker's counters, histograms and figures each metric of a pipeline is made; they are read on
request, and nothing is kept.

Counters and histograms are the broker's own, added exactly once per confirmed range, so they survive restarts and never
count a retry of a task twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from conduit_tasks.broker.figures import figures
from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.metrics.definitions import STATE, Sample, sample
from conduit_tasks.metrics.histogram import LATENCY, Histogram
from conduit_tasks.metrics.prometheus import exposition

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.broker.figures import DestinationFigures, Figures
    from conduit_tasks.topology import Destination, Pipeline

OUTCOMES = ("delivered", "filtered", "nacked", "completed", "parked")
STATUSES = ("running", "recovering", "stopping", "stopped", "degraded")


def samples(pipelines: Sequence[Pipeline], broker_of: Callable[[str], Broker]) -> list[Sample]:
    """Reads the figures of these pipelines. `broker_of`: returns the broker of one; all are in the same Redis. A
    pipeline that never ran has no figures yet. If the broker does not answer, that is the only figure."""
    try:
        return [*_samples(pipelines, broker_of)]
    except BrokerUnavailable:
        return [sample("broker_up", 0)]


def exposed(pipelines: Sequence[Pipeline], broker_of: Callable[[str], Broker]) -> bytes:
    """Returns the same in Prometheus' text format. No figure is held longer than its text is made: with the figures of
    1,000 pipelines at once Python's cycle collector would take a third of the time."""
    try:
        return exposition(STATE, lambda: _samples(pipelines, broker_of))
    except BrokerUnavailable:
        return exposition(STATE, lambda: [sample("broker_up", 0)])


def _samples(pipelines: Sequence[Pipeline], broker_of: Callable[[str], Broker]) -> Iterator[Sample]:
    yield sample("broker_up", 1)
    if not pipelines:
        return
    access = broker_of(pipelines[0].id).access
    if used := access.used():
        yield sample("broker_memory_ratio", used)
    for pipeline, of in zip(pipelines, figures(access.redis, pipelines)):
        yield from _pipeline(pipeline, of)


def _pipeline(pipeline: Pipeline, of: Figures) -> Iterator[Sample]:
    id = pipeline.id
    for each in STATUSES:
        yield sample("pipeline_status", of.status == each, id, each)
    yield sample("sealed_micro_batches", of.sealed, id)
    yield sample("spool_bytes", of.held_bytes, id)
    yield sample("spool_micro_batches", of.held, id)
    for name, n in of.totals.items():
        node, _, what = name.rpartition("/")
        if node and what == "skipped":
            yield sample("source_skipped", n, id, node)
        elif node:
            yield sample("source_records", n, id, node, what)
    for node, attempts in of.attempts.items():
        yield sample("attempts", attempts, id, node)
    yield sample("dead_letters", of.dead, id, "")
    for (node, what), histogram in of.histograms.items():
        if what != LATENCY:
            yield sample("stage_seconds", histogram, id, node, what)
    for destination in pipeline.destinations:
        # One that was never registered has no figures: the pipeline has not run since it was added to the file.
        if (found := of.destinations.get(destination.id)) is not None:
            latency = of.histograms.get((destination.node, LATENCY))
            yield from _destination(destination, found, (id, destination.id), of.at, latency)


def _destination(
    destination: Destination, figures: DestinationFigures, of: tuple[str, str], now: float, latency: Histogram | None
) -> Iterator[Sample]:
    counters, backlog = figures.counters, figures.backlog
    yield sample("destination_matched", counters["matched"], *of)
    for outcome in OUTCOMES:
        yield sample("destination_records", counters[outcome], *of, outcome)
    yield sample("destination_retries", counters["retried"], *of)
    yield sample("destination_redelivered", counters["redelivered"] + counters["redriven"], *of)
    yield sample("destination_lag_records", max(0, backlog.records - figures.confirmed), *of)
    yield sample("destination_lag_bytes", backlog.bytes, *of)
    yield sample("destination_lag_seconds", backlog.age(now), *of)
    yield sample("destination_waiting_seconds", figures.waiting, *of)
    if destination.deadline is not None:
        yield sample("destination_deadline_seconds", destination.deadline, *of)
    yield sample("destination_stopped", figures.stopped, *of)
    if destination.delivery.breaker is not None:
        yield sample("destination_breaker_open", figures.open, *of)
    yield sample("dead_letters", figures.dead, *of)
    yield sample("parked_keys", figures.parked, *of)
    if latency is not None:
        yield sample("destination_latency_seconds", latency, *of)
