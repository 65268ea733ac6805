"""The gateway's own figures, of this process, for Prometheus: on a port of its own, which producers do not see."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from conduit_tasks.gateway.app import Gateway


class _Figures(Collector):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        gateway = self._gateway
        answers = CounterMetricFamily(
            "conduit_gateway_requests", "Requests by source and status", labels=("path", "status")
        )
        # Copies: the event loop goes on counting.
        for (path, status), n in dict(gateway.answers).items():
            answers.add_metric([path, str(status)], n)
        taken = CounterMetricFamily("conduit_gateway_events", "Events stored and answered", labels=("path",))
        for path, n in dict(gateway.taken).items():
            taken.add_metric([path], n)
        yield answers
        yield taken
        yield GaugeMetricFamily("conduit_gateway_in_flight_bytes", "Bodies not answered yet", value=gateway.in_flight)
        ready = not (gateway.health.away or gateway.stopping)
        yield GaugeMetricFamily("conduit_gateway_ready", "1 where events are taken", value=ready)


class Served:
    """Serving, until `close`."""

    def __init__(self, server: Any, thread: Thread) -> None:
        self._server, self._thread = server, thread

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def serve_metrics(gateway: Gateway, port: int) -> Served:
    """On the loopback. Raises OSError where the port is taken."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(gateway))
    return Served(*start_http_server(port, "127.0.0.1", registry))
