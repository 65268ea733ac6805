"""`conduit metrics`: metrics of all pipelines from the broker's state: printed, served for scraping, sent by OTLP."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from conduit_tasks.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conduit_tasks.metrics.definitions import Sample
    from conduit_tasks.topology import Pipeline


def metrics(
    serve: Annotated[
        int, typer.Option(min=0, max=65_535, help="Serve them on this port until told to stop; 0: print them once.")
    ] = 0,
    host: Annotated[str, typer.Option(help="Address to serve on.")] = "127.0.0.1",
    otlp: Annotated[
        bool, typer.Option("--otlp", help="Send them once by OTLP, to where OTEL_EXPORTER_OTLP_ENDPOINT says.")
    ] = False,
    otlp_every: Annotated[
        float, typer.Option(min=0, help="Send them by OTLP every so many seconds until told to stop.")
    ] = 0,
) -> None:
    """Print the metrics of all pipelines (Prometheus' text format), serve them, or send them by OTLP.

    Exit 1 if the broker, or for a single export the collector, does not answer.
    """
    from conduit_tasks.airflow.api.overview import brokers
    from conduit_tasks.metrics.prometheus import serving
    from conduit_tasks.operate.metrics import exposed, samples
    from conduit_tasks.pipeline.load import load_folder
    from conduit_tasks.settings import settings

    with brokers() as broker_of:

        def pipelines() -> Sequence[Pipeline]:
            return load_folder(settings().path(settings().pipelines)).pipelines

        def read() -> list[Sample]:
            return samples(pipelines(), broker_of)

        def text() -> bytes:
            return exposed(pipelines(), broker_of)

        if not (serve or otlp or otlp_every):
            sys.stdout.write(text().decode())
            return
        from conduit_tasks.logs import configure
        from conduit_tasks.metrics.otlp import Exporter

        configure()
        if otlp:
            Exporter(read, "broker").once()
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        signal.signal(signal.SIGINT, lambda *_: stop.set())
        with serving(text, serve, host) if serve else nullcontext():
            if serve:
                note(f"metrics on http://{host}:{serve}/metrics")
            if otlp_every:
                note(f"metrics by OTLP every {otlp_every:g} s")
                Exporter(read, "broker").until(stop, otlp_every)
            elif serve:
                stop.wait()
