"""Samples in the form of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from conduit_tasks.metrics.definitions import Metric, Sample
from conduit_tasks.metrics.histogram import BOUNDS, Histogram

Read = Callable[[], Iterable[Sample]]
"""Function that reads the present figures."""

_FAMILIES: dict[str, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Samples(Collector):
    """Collector that calls `read` at every scrape; `metrics` are listed even if they have no figure yet."""

    def __init__(self, metrics: Sequence[Metric], read: Read) -> None:
        self._metrics, self._read = metrics, read

    def describe(self) -> list[Any]:
        """Returns nothing, so that registering reads no figures."""
        return []

    def collect(self) -> Iterator[Any]:
        families = {m.name: _FAMILIES[m.kind](f"conduit_{m.name}", m.meaning, labels=m.labels) for m in self._metrics}
        for sample in self._read():
            family = families[sample.metric.name]
            if isinstance(sample.value, Histogram):
                family.add_metric(sample.labels, _buckets(sample.value), sample.value.sum)
            else:
                family.add_metric(sample.labels, sample.value)
        yield from families.values()


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return list(zip([*(f"{float(bound):g}" for bound in BOUNDS), "+Inf"], accumulate(histogram.counts)))


def registry(metrics: Sequence[Metric], read: Read) -> CollectorRegistry:
    """Returns a registry to be served."""
    made = CollectorRegistry(auto_describe=False)
    made.register(Samples(metrics, read))
    return made


def exposition(metrics: Sequence[Metric], read: Read) -> bytes:
    """Returns the text that Prometheus scrapes."""
    return generate_latest(registry(metrics, read))
