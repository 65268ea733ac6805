"""`conduit metrics`: what the broker holds of every pipeline, in Prometheus' text format; or served to be scraped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from conduit_tasks.cli.output import note

if TYPE_CHECKING:
    from conduit_tasks.pipeline.topology import Pipeline


def metrics(
    serve: Annotated[int, typer.Option(help="Serve them on this port until told to stop; 0: print them once.")] = 0,
    host: Annotated[str, typer.Option(help="Address to serve on.")] = "127.0.0.1",
) -> None:
    """Print the metrics of all pipelines (Prometheus' text format), or serve them: lag, outcomes, dead letters, spool.

    Exit 1 where the broker does not answer.
    """
    from conduit_tasks.airflow.api.overview import brokers
    from conduit_tasks.metrics.state import StateCollector, exposition
    from conduit_tasks.pipeline.load import load_folder
    from conduit_tasks.settings import settings

    def pipelines() -> list[Pipeline]:
        return list(load_folder(settings().path(settings().pipelines)).pipelines)

    with brokers() as broker_of:
        if not serve:
            sys.stdout.write(exposition(pipelines(), broker_of).decode())
            return
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry(auto_describe=False)
        registry.register(StateCollector(pipelines, broker_of))
        server, thread = start_http_server(serve, host, registry)
        note(f"metrics on http://{host}:{serve}/metrics")
        try:
            thread.join()
        finally:
            server.shutdown()
