"""The gateway's own figures, on a port that its producers do not see."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.connectors.receiving import free_port
from tests.gateway.conftest import GatewayProcess, write_pipeline
from tests.metrics.test_state import figures


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
