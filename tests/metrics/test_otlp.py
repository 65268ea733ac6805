"""Metrics sent by OTLP, taken by a real HTTP server and read with OpenTelemetry's own protocol buffers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.metrics.histogram import BOUNDS
from tests.forked import CONDUIT, Program
from tests.metrics.test_state import ran  # noqa: F401 - a fixture
from tests.waiting import until


def metrics(log: Path, *options: str) -> Program:
    """`conduit metrics`; what it says goes to `log`."""
    return Program([CONDUIT, "metrics", *options], os.environ, log.parent, log)


class Collector:
    """What a collector was sent; `status`: what it answers."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.status = 200
        self.url = ""

    def read(self) -> dict[str, Any]:
        """Name → metric, of the last export."""
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        request = ExportMetricsServiceRequest.FromString(self.bodies[-1])
        (resource,) = request.resource_metrics
        self.resource = {a.key: a.value.string_value for a in resource.resource.attributes}
        return {m.name: m for scope in resource.scope_metrics for m in scope.metrics}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.headers = dict(self.headers)
            collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(collector.status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
        yield found


def labels(point: Any) -> tuple[str, ...]:
    return tuple(a.value.string_value for a in point.attributes)


def test_one_export_holds_what_the_broker_holds(ran: Path, collector: Collector, tmp_path: Path) -> None:  # noqa: F811
    # When
    assert metrics(tmp_path / "said.log", "--otlp").wait(240) == 0
    # Then
    found = collector.read()
    assert collector.headers["x-key"] == "abc"
    assert (collector.resource["service.name"], collector.resource["service.instance.id"]) == ("conduit", "broker")
    lag = {labels(p): p.as_double for p in found["conduit.destination_lag_records"].gauge.data_points}
    assert lag == {("p", "file"): 0, ("p", "away"): 6}
    records = found["conduit.destination_records"]
    assert {labels(p): p.as_double for p in records.sum.data_points}["p", "file", "delivered"] == 6
    assert records.sum.is_monotonic
    assert records.sum.aggregation_temporality == 2  # cumulative
    assert (found["conduit.spool_bytes"].unit, records.unit) == ("By", "{record}")
    (latency,) = found["conduit.destination_latency_seconds"].histogram.data_points
    assert labels(latency) == ("p", "file")
    assert latency.count == sum(latency.bucket_counts) == 6
    assert list(latency.explicit_bounds) == list(BOUNDS)
    assert not latency.HasField("min")


def test_they_are_sent_again_and_again_and_a_last_time_when_told_to_stop(
    ran: Path,  # noqa: F811
    collector: Collector,
    tmp_path: Path,
) -> None:
    collector.status = 400
    sending = metrics(tmp_path / "said.log", "--otlp-every", "0.2")
    try:
        until(lambda: len(collector.bodies) >= 2 or sending.poll() is not None)
        assert sending.poll() is None
        # What a collector refuses once is made up for: counts are cumulative
        collector.status = 200
        before = len(collector.bodies)
        sending.send_signal(signal.SIGTERM)
        assert sending.wait(240) == 0
        assert len(collector.bodies) > before
        assert collector.read()["conduit.broker_up"].gauge.data_points[0].as_double == 1
    finally:
        sending.kill()


def test_a_collector_that_is_away_fails_a_single_export(
    ran: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    assert metrics(tmp_path / "said.log", "--otlp").wait(240) == 1
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in (tmp_path / "said.log").read_text()
