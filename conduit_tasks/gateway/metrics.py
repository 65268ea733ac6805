"""Metrics of this gateway process: on a port of its own, which producers do not see, and by OTLP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread

from conduit_tasks.gateway.app import Gateway
from conduit_tasks.metrics.definitions import GATEWAY, Sample, sample


def samples(gateway: Gateway) -> list[Sample]:
    """Returns the current values."""
    # Copies: the event loop goes on counting.
    found = [sample("gateway_requests", n, path, str(status)) for (path, status), n in dict(gateway.answers).items()]
    found += [sample("gateway_events", n, path) for path, n in dict(gateway.taken).items()]
    found.append(sample("gateway_in_flight_bytes", gateway.in_flight))
    found.append(sample("gateway_ready", not (gateway.health.away or gateway.stopping)))
    return found


@contextmanager
def told(gateway: Gateway, port: int, otlp_every: float) -> Iterator[None]:
    """Serves the metrics on a port of the loopback and sends them by OTLP every `otlp_every` seconds while the block
    runs; 0: does not.

    Raises OSError if the port is taken, ConfigError if OpenTelemetry is not installed.
    """

    def read() -> list[Sample]:
        return samples(gateway)

    with ExitStack() as stack:
        if port:
            from conduit_tasks.metrics.prometheus import exposition, serving

            stack.enter_context(serving(lambda: exposition(GATEWAY, read), port))
        if otlp_every:
            from conduit_tasks.metrics.otlp import Exporter

            stop = Event()
            sending = Thread(target=Exporter(read).until, args=(stop, otlp_every), name="otlp", daemon=True)
            sending.start()
            for end in (sending.join, stop.set):
                stack.callback(end)
        yield
