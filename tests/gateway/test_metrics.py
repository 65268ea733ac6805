"""The gateway's own figures, on a port that its producers do not see."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_tasks.stack.ports import free_port
from tests.gateway.conftest import GatewayProcess, write_pipeline
from tests.metrics.test_otlp import collecting, labels
from tests.metrics.test_state import figures
from tests.waiting import until


def test_requests_and_events_are_counted_apart_from_what_producers_see(
    gateway_home: Path, serving: Callable[..., GatewayProcess]
) -> None:
    write_pipeline(gateway_home)
    port = free_port()
    gateway = serving("--metrics-port", str(port))
    assert gateway.post({"n": 1}).status == 202
    assert gateway.post(b"no event", type="application/cloudevents+json").status == 400
    assert gateway.request("GET", "/metrics").status == 404
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        found = figures(answer.read().decode())
    assert found["conduit_gateway_requests_total", ("/ingest/p/web", "202")] == 1
    assert found["conduit_gateway_requests_total", ("/ingest/p/web", "400")] == 1
    assert found["conduit_gateway_requests_total", ("", "404")] == 1
    assert found["conduit_gateway_events_total", ("/ingest/p/web",)] == 1
    assert found["conduit_gateway_in_flight_bytes", ()] == 0
    assert found["conduit_gateway_ready", ()] == 1
    assert gateway.stop() == 0


def test_the_same_figures_are_sent_by_otlp_and_a_last_time_when_it_stops(
    gateway_home: Path, serving: Callable[..., GatewayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(gateway_home)
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        gateway = serving("--otlp-every", "0.2")
        until(lambda: collector.bodies)
        assert collector.read()["conduit.gateway_ready"].gauge.data_points[0].as_double == 1
        assert gateway.post({"n": 1}).status == 202
        assert gateway.stop() == 0
        found = collector.read()
    assert {labels(p): p.as_double for p in found["conduit.gateway_requests"].sum.data_points} == {
        ("/ingest/p/web", "202"): 1
    }
    assert found["conduit.gateway_ready"].gauge.data_points[0].as_double == 0
