"""The text that Prometheus scrapes: that of its own library, to the byte."""

from __future__ import annotations

import gzip
import urllib.request
from itertools import accumulate

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from conduit_tasks.metrics.definitions import GATEWAY, STATE, Metric, Sample, sample
from conduit_tasks.metrics.histogram import BOUNDS, Histogram
from conduit_tasks.metrics.prometheus import exposition, serving
from conduit_tasks.stack.ports import free_port

FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
BEFORE_AND_AFTER = Metric("odd_seconds", "histogram", "s", ("zone", "le_", "area"), 'a \\ and\na new line, and "')


def by_the_library(metrics: tuple[Metric, ...], samples: list[Sample]) -> bytes:
    class Of:
        def collect(self) -> list[object]:
            families = {m.name: FAMILIES[m.kind](f"conduit_{m.name}", m.meaning, labels=m.labels) for m in metrics}
            for each in samples:
                if isinstance(each.value, Histogram):
                    les = [*(f"{float(bound):g}" for bound in BOUNDS), "+Inf"]
                    buckets = list(zip(les, accumulate(each.value.counts)))
                    families[each.metric.name].add_metric(each.labels, buckets, each.value.sum)
                else:
                    families[each.metric.name].add_metric(each.labels, each.value)
            return list(families.values())

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Of())  # type: ignore[arg-type]
    return generate_latest(registry)


def test_it_is_what_the_library_writes() -> None:
    counts = tuple(range(len(BOUNDS) + 1))
    samples = [
        sample("broker_up", 1),
        *(sample("pipeline_status", on, "p", status) for status, on in (("running", True), ("stopped", False))),
        sample("spool_bytes", 123_456_789_012, "p"),
        sample("broker_memory_ratio", 0.1),
        sample("destination_lag_seconds", 1e-7, "p", "x"),
        sample("destination_records", 2**60, "p", 'quoted "x"', "back\\slash\nand line"),
        sample("stage_seconds", Histogram(counts, 1.25e9), "p", "sources.é", "read"),
        sample("destination_latency_seconds", Histogram((0,) * len(counts), 0.0), "p", "x"),
        Sample(BEFORE_AND_AFTER, ("z", "l", "a"), Histogram(counts, 0.5)),
    ]
    metrics = (*STATE, BEFORE_AND_AFTER)
    assert exposition(metrics, lambda: samples).decode() == by_the_library(metrics, samples).decode()


@pytest.mark.parametrize("encoding", ["identity", "gzip, deflate"])
def test_it_is_served_as_prometheus_asks_for_it(encoding: str) -> None:
    read = [sample("gateway_ready", 1)]
    with serving(lambda: exposition(GATEWAY, lambda: read), port := free_port()):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": encoding})
        with urllib.request.urlopen(request, timeout=20) as answer:
            body, headers = answer.read(), answer.headers
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        packed = headers["Content-Encoding"] == "gzip"
        assert packed == ("gzip" in encoding)
        assert (gzip.decompress(body) if packed else body) == exposition(GATEWAY, lambda: read)
        # Figures are read at each scrape
        read[0] = sample("gateway_ready", 0)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
            assert b"conduit_gateway_ready 0.0" in answer.read()
    with pytest.raises(OSError, match=r"refused|111"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)
