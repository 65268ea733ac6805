"""What the broker holds of every pipeline, as Prometheus metrics: looked up when somebody asks, nothing is kept.

Counters are the broker's own, added exactly once per confirmed range, so that they survive restarts and never count a
retry of a task twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from conduit_tasks.errors import BrokerUnavailable, ConduitError

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.pipeline.topology import Pipeline

OUTCOMES = ("delivered", "filtered", "nacked", "completed", "parked")
STATUSES = ("running", "recovering", "stopping", "stopped", "degraded")

Family = GaugeMetricFamily | CounterMetricFamily
_FAMILIES: dict[str, tuple[type[Family], str, tuple[str, ...]]] = {
    "pipeline_status": (GaugeMetricFamily, "1 for the status that the pipeline has", ("pipeline", "status")),
    "sealed_micro_batches": (CounterMetricFamily, "Micro-batches sealed", ("pipeline",)),
    "spool_bytes": (GaugeMetricFamily, "Bytes of sealed micro-batches that are not collected", ("pipeline",)),
    "spool_micro_batches": (GaugeMetricFamily, "Sealed micro-batches that are not collected", ("pipeline",)),
    "source_records": (
        CounterMetricFamily,
        "Records read, and of them filtered or nacked",
        ("pipeline", "node", "what"),
    ),
    "destination_matched": (CounterMetricFamily, "Records its trigger matched", ("pipeline", "destination")),
    "destination_records": (CounterMetricFamily, "Records by outcome", ("pipeline", "destination", "outcome")),
    "destination_retries": (CounterMetricFamily, "Sends that were repeated", ("pipeline", "destination")),
    "destination_redelivered": (CounterMetricFamily, "Records sent again on request", ("pipeline", "destination")),
    "destination_lag_records": (GaugeMetricFamily, "Records sealed and not confirmed", ("pipeline", "destination")),
    "destination_lag_bytes": (GaugeMetricFamily, "Bytes of unconfirmed micro-batches", ("pipeline", "destination")),
    "destination_lag_seconds": (
        GaugeMetricFamily,
        "Age of the oldest unconfirmed micro-batch",
        ("pipeline", "destination"),
    ),
    "destination_stopped": (GaugeMetricFamily, "1 where the destination is stopped alone", ("pipeline", "destination")),
    "dead_letters": (
        GaugeMetricFamily,
        "Dead letters; no destination: before the fan-out",
        ("pipeline", "destination"),
    ),
    "parked_keys": (GaugeMetricFamily, "Keys whose records wait behind a dead letter", ("pipeline", "destination")),
    "attempts": (GaugeMetricFamily, "Attempts of a node without progress", ("pipeline", "node")),
}


class StateCollector(Collector):
    """`pipelines`: those to tell of. `broker_of`: the broker of one. A pipeline that never ran has no figures yet."""

    def __init__(self, pipelines: Callable[[], Iterable[Pipeline]], broker_of: Callable[[str], Broker]) -> None:
        self._pipelines, self._broker_of = pipelines, broker_of

    def describe(self) -> list[Family]:
        """Nothing: to be registered it need not ask the broker."""
        return []

    def collect(self) -> Iterator[Family]:
        made = {name: kind(f"conduit_{name}", help, labels=labels) for name, (kind, help, labels) in _FAMILIES.items()}
        up = GaugeMetricFamily("conduit_broker_up", "1 where the broker answers", value=1)
        try:
            for pipeline in self._pipelines():
                self._of(pipeline, made)
        except BrokerUnavailable:
            up = GaugeMetricFamily("conduit_broker_up", "1 where the broker answers", value=0)
            made = {}
        yield up
        yield from made.values()

    def _of(self, pipeline: Pipeline, made: dict[str, Family]) -> None:
        broker, id = self._broker_of(pipeline.id), pipeline.id

        def tell(name: str, value: float, *labels: str) -> None:
            made[name].add_metric([id, *labels], value)

        status = broker.status().status
        for each in STATUSES:
            tell("pipeline_status", each == status, each)
        sealed = broker.latest_sealed()
        tell("sealed_micro_batches", sealed)
        (collected,) = broker.numbers("collected")
        held = broker.read(*(("HGET", broker.keys.micro_batch(m), "bytes") for m in range(collected + 1, sealed + 1)))
        tell("spool_bytes", sum(int(size or 0) for size in held))
        tell("spool_micro_batches", len(held))
        for name, n in broker.totals().items():
            node, _, what = name.rpartition("/")
            if node:
                tell("source_records", n, node, what)
        for node, attempts in broker.attempts().items():
            tell("attempts", attempts, node)
        tell("dead_letters", broker.dead_count(""), "")
        now = broker.now()
        for destination in pipeline.destinations:
            try:
                self._destination(broker, destination.id, now, tell)
            except BrokerUnavailable:
                raise
            except ConduitError:
                continue  # it was never registered: the pipeline has not run since it is in the file

    def _destination(self, broker: Broker, id: str, now: float, tell: Callable[..., Any]) -> None:
        state = broker.delivery(id)
        backlog = broker.backlog([id])
        tell("destination_matched", state.counters["matched"], id)
        for outcome in OUTCOMES:
            tell("destination_records", state.counters[outcome], id, outcome)
        tell("destination_retries", state.counters["retried"], id)
        tell("destination_redelivered", state.counters["redelivered"] + state.counters["redriven"], id)
        tell("destination_lag_records", max(0, backlog.records - state.confirmed.count), id)
        tell("destination_lag_bytes", backlog.bytes, id)
        tell("destination_lag_seconds", backlog.age(now), id)
        tell("destination_stopped", state.status == "stopped", id)
        tell("dead_letters", broker.dead_count(id), id)
        tell("parked_keys", len(broker.parked(id)), id)


def exposition(pipelines: Iterable[Pipeline], broker_of: Callable[[str], Broker]) -> bytes:
    """The text that Prometheus scrapes."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(lambda: pipelines, broker_of))
    return generate_latest(registry)
