"""Sends the figures by OTLP over HTTP, again and again; the next time makes up for one that failed. OpenTelemetry's own
variables set the endpoint, the headers and the names (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`,
`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`).

Counters and histograms are cumulative. Their start time is sent as 0 (unknown): they are the broker's, and older than
this process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.metrics.definitions import Metric, Sample
from conduit_tasks.metrics.histogram import BOUNDS, Histogram

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

    from conduit_tasks.metrics.prometheus import Read

log = logging.getLogger(__name__)

UNKNOWN = 0


class Exporter:
    """Exporter of the samples that `read` returns. `instance`: name of the thing that the figures describe, if it
    outlives this process, so that they stay the same series. Raises ConfigError if OpenTelemetry is not installed."""

    def __init__(self, read: Read, instance: str = "") -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise ConfigError(
                f"metrics by OTLP need OpenTelemetry ({error}): pip install 'conduit-tasks[otel]'"
            ) from None
        own = {"service.name": "conduit", **({"service.instance.id": instance} if instance else {})}
        self._read, self._sender, self._resource = read, OTLPMetricExporter(), Resource.create(own)

    def once(self) -> None:
        """Does one export. Raises ConduitError if it was not accepted; OpenTelemetry has logged the reason."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        if self._sender.export(metrics_data(self._read(), self._resource)) is not MetricExportResult.SUCCESS:
            raise ConduitError(
                "the metrics were not taken by OTLP: look at OTEL_EXPORTER_OTLP_ENDPOINT and the collector's log"
            )

    def until(self, stop: threading.Event, every: float) -> None:
        """Exports every `every` seconds, and once more when told to stop. An export that fails is logged: the figures
        are cumulative, so the next one makes up for it."""
        while True:
            ended = stop.wait(every)
            try:
                self.once()
            except Exception as error:  # noqa: BLE001 - figures are bookkeeping: nothing else may fail because of them
                log.warning("%s", error)
            if ended:
                self._sender.shutdown()
                return


def metrics_data(samples: Iterable[Sample], resource: Any) -> MetricsData:
    """Converts the samples to OpenTelemetry's own types, as of now."""
    from opentelemetry.sdk.metrics import export as types
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    from conduit_tasks import __version__

    now = time.time_ns()
    points: dict[Metric, list[Any]] = {}
    for sample in samples:
        labels = dict(zip(sample.metric.labels, sample.labels))
        points.setdefault(sample.metric, []).append(_point(sample.value, labels, now))
    metrics = [
        types.Metric(metric.otlp, metric.meaning, metric.unit, _data(metric, found)) for metric, found in points.items()
    ]
    scope = types.ScopeMetrics(InstrumentationScope("conduit_tasks", __version__), metrics, "")
    return types.MetricsData([types.ResourceMetrics(resource, [scope], "")])


def _point(value: float | Histogram, labels: dict[str, str], now: int) -> Any:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, NumberDataPoint

    if not isinstance(value, Histogram):
        return NumberDataPoint(labels, UNKNOWN, now, float(value))
    nothing: Any = None  # minimum and maximum are not kept, and are optional
    return HistogramDataPoint(
        labels, UNKNOWN, now, value.count, value.sum, value.counts, [float(b) for b in BOUNDS], nothing, nothing
    )


def _data(metric: Metric, points: list[Any]) -> Any:
    from opentelemetry.sdk.metrics import export as types

    if metric.kind == "gauge":
        return types.Gauge(points)
    if metric.kind == "counter":
        return types.Sum(points, types.AggregationTemporality.CUMULATIVE, True)
    return types.Histogram(points, types.AggregationTemporality.CUMULATIVE)
