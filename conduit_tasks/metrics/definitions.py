"""All metrics: name, unit, labels and meaning, for Prometheus, OTLP and docs/metrics.md alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from conduit_tasks.metrics.histogram import Histogram

_EACH, _NODE = ("pipeline", "destination"), ("pipeline", "node")


@dataclass(frozen=True)
class Metric:
    """One metric. `name`: without the prefix; `unit`: as OpenTelemetry writes it (UCUM), 1 if it has none."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    unit: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus."""
        return f"conduit_{self.name}{'_total' if self.kind == 'counter' else ''}"

    @property
    def otlp(self) -> str:
        """Its name in OTLP: of the same words, so that a collector's translation gives the Prometheus name."""
        return f"conduit.{self.name}"


class Sample(NamedTuple):
    """One figure, with its values of the metric's labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram


STATE = (
    Metric("broker_up", "gauge", "1", (), "1 where Redis answers; without it nothing else is told"),
    Metric(
        "broker_memory_ratio",
        "gauge",
        "1",
        (),
        "share of its maxmemory that Redis uses; absent without one. From CONDUIT_REDIS_SHARE on nothing new is read",
    ),
    Metric(
        "pipeline_status",
        "gauge",
        "1",
        ("pipeline", "status"),
        "1 for the one it has: running, recovering, stopping, stopped, degraded",
    ),
    Metric(
        "sealed_micro_batches",
        "counter",
        "{micro-batch}",
        ("pipeline",),
        "micro-batches that stand for their sources",
    ),
    Metric(
        "spool_micro_batches",
        "gauge",
        "{micro-batch}",
        ("pipeline",),
        "micro-batches of the spool that are not collected",
    ),
    Metric("spool_bytes", "gauge", "By", ("pipeline",), "their size in the spool"),
    Metric(
        "source_records",
        "counter",
        "{record}",
        ("pipeline", "node", "what"),
        "read, filtered, nacked by each source and by `processors`",
    ),
    Metric(
        "source_skipped",
        "counter",
        "{slice}",
        ("pipeline", "node"),
        "slices that were passed over because what they hold was gone (`missing: skip`, `on-lost: skip`)",
    ),
    Metric(
        "stage_seconds",
        "histogram",
        "s",
        ("pipeline", "node", "stage"),
        "work on one micro-batch: read, process and spool (summed over its tasks), deliver (the attempt that completed "
        "it), ack (the source's answer)",
    ),
    Metric(
        "destination_matched", "counter", "{record}", _EACH, "records that its trigger matched, of what is confirmed"
    ),
    Metric(
        "destination_records",
        "counter",
        "{record}",
        (*_EACH, "outcome"),
        "delivered, filtered, nacked, completed, parked",
    ),
    Metric("destination_retries", "counter", "{send}", _EACH, "sends that were repeated"),
    Metric(
        "destination_redelivered", "counter", "{record}", _EACH, "records sent again by a cleared task or a redrive"
    ),
    Metric(
        "destination_latency_seconds",
        "histogram",
        "s",
        _EACH,
        "from the event to its confirmation, of every matched record",
    ),
    Metric("destination_lag_records", "gauge", "{record}", _EACH, "sealed and not confirmed"),
    Metric("destination_lag_bytes", "gauge", "By", _EACH, "size of the micro-batches that are not confirmed"),
    Metric("destination_lag_seconds", "gauge", "s", _EACH, "age of the oldest micro-batch that is not confirmed"),
    Metric(
        "destination_waiting_seconds",
        "gauge",
        "s",
        _EACH,
        "since the oldest micro-batch that it has not confirmed was planned, sealed or not: what its `deadline` is for",
    ),
    Metric("destination_deadline_seconds", "gauge", "s", _EACH, "its `deadline`, if it has one"),
    Metric("destination_stopped", "gauge", "1", _EACH, "1 if it is stopped alone"),
    Metric("destination_breaker_open", "gauge", "1", _EACH, "1 if its breaker is open (delivery.breaker)"),
    Metric(
        "dead_letters",
        "gauge",
        "{record}",
        _EACH,
        "dead letters that are open; no destination: from before the fan-out",
    ),
    Metric("parked_keys", "gauge", "{key}", _EACH, "keys whose records wait behind a dead letter"),
    Metric("attempts", "gauge", "{attempt}", _NODE, "attempts without progress"),
)
"""Metrics of all pipelines, from the broker's state."""

GATEWAY = (
    Metric("gateway_requests", "counter", "{request}", ("path", "status"), "requests; an empty path is no source"),
    Metric("gateway_events", "counter", "{event}", ("path",), "events that were stored and answered"),
    Metric("gateway_in_flight_bytes", "gauge", "By", (), "bodies not answered yet"),
    Metric("gateway_ready", "gauge", "1", (), "1 where events are taken"),
)
"""Metrics that one gateway process counts."""

METRICS = {metric.name: metric for metric in (*STATE, *GATEWAY)}


def sample(name: str, value: float | Histogram, *labels: str) -> Sample:
    """Returns one figure of the metric of that name."""
    return Sample(METRICS[name], labels, value)
