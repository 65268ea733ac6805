"""`conduit gateway`: options and limits of the process that takes events over HTTP for every source with
`plugin: gateway`.

Exit 0: it was asked to stop, and every accepted request is answered; 1: it cannot start (a file, Redis, the port).
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Annotated

import typer

from conduit_tasks.cli.output import note
from conduit_tasks.errors import ConfigError
from conduit_tasks.logs import configure


class Fsync(StrEnum):
    """Values of `--fsync`."""

    check = "check"
    always = "always"
    everysec = "everysec"


def gateway(  # noqa: PLR0917 - options of a command, all given by name
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: a free one.", envvar="CONDUIT_GATEWAY_PORT")
    ] = 8090,
    fsync: Annotated[
        Fsync,
        typer.Option(
            help="check: Redis must fsync before it answers (appendfsync always, or WAITAOF). always: it does, on your "
            "word, where it does not tell. everysec: a second of answered events may be lost with the machine.",
            envvar="CONDUIT_GATEWAY_FSYNC",
        ),
    ] = Fsync.check,
    tls_certificate: Annotated[str, typer.Option(help="PEM file; with --tls-key, HTTPS is served.")] = "",
    tls_key: Annotated[str, typer.Option(help="PEM file of the certificate's key.")] = "",
    grace: Annotated[float, typer.Option(min=0, help="Seconds in which a stop answers what was taken.")] = 30.0,
    metrics_port: Annotated[
        int,
        typer.Option(
            min=0, max=65_535, help="Serve metrics on this port of the loopback (Prometheus' text format); 0: not."
        ),
    ] = 0,
    otlp_every: Annotated[
        float,
        typer.Option(min=0, help="Send metrics by OTLP every so many seconds (OTEL_EXPORTER_OTLP_ENDPOINT); 0: not."),
    ] = 0,
    head_size: Annotated[
        str,
        typer.Option(
            help="Bytes beside a request's body: first line, headers, trailers.", envvar="CONDUIT_GATEWAY_HEAD_SIZE"
        ),
    ] = "64KiB",
    head_timeout: Annotated[
        str,
        typer.Option(
            help="In which a TLS handshake, and a head, has to arrive.", envvar="CONDUIT_GATEWAY_HEAD_TIMEOUT"
        ),
    ] = "10s",
    body_timeout: Annotated[
        str,
        typer.Option(help="In which a body and its trailers have to arrive.", envvar="CONDUIT_GATEWAY_BODY_TIMEOUT"),
    ] = "30s",
    answer_timeout: Annotated[
        str,
        typer.Option(
            help="In which a client has to read the answers that wait for it.", envvar="CONDUIT_GATEWAY_ANSWER_TIMEOUT"
        ),
    ] = "30s",
    connections: Annotated[
        str, typer.Option(help="Open connections at most.", envvar="CONDUIT_GATEWAY_CONNECTIONS")
    ] = "4096",
    connections_per_peer: Annotated[
        str,
        typer.Option(help="The same from one address; a proxy is one.", envvar="CONDUIT_GATEWAY_CONNECTIONS_PER_PEER"),
    ] = "1024",
    memory: Annotated[
        str,
        typer.Option(
            help="Bytes of requests that were received and not answered. Half of it is parted among the pipelines, so "
            "that one's producers leave room for another's.",
            envvar="CONDUIT_GATEWAY_MEMORY",
        ),
    ] = "256MiB",
    wait_for_sources: Annotated[
        bool, typer.Option("--wait-for-sources", help="Begin also where no pipeline has a gateway source yet.")
    ] = False,
) -> None:
    """Take events over HTTP and answer when they are stored: POST /ingest/PIPELINE/CONNECTOR.

    CloudEvents (binary, structured, batched) and JSON webhooks. GET /healthz and /readyz return its health. It reads
    the pipeline files again when they change. SIGTERM stops it after every accepted request is answered.
    """
    from conduit_tasks.gateway.limits import Limits
    from conduit_tasks.gateway.serve import Options, Service
    from conduit_tasks.settings import settings

    if bool(tls_certificate) != bool(tls_key):
        raise ConfigError("conduit gateway: --tls-certificate and --tls-key belong together; give both")
    configure(others=logging.INFO)
    tls = (tls_certificate, tls_key) if tls_certificate else None
    limits = Limits.of(
        head_size=head_size,
        head_timeout=head_timeout,
        body_timeout=body_timeout,
        answer_timeout=answer_timeout,
        connections=connections,
        connections_per_peer=connections_per_peer,
        memory=memory,
    )
    options = Options(host, port, fsync.value, tls, grace, wait_for_sources, metrics_port, otlp_every, limits)
    service = Service(settings(), options)
    note(f"events are durable in Redis: {service.mode}")

    def listening(url: str, paths: list[str]) -> None:
        for path in paths or [" (no source yet)"]:
            # Flushed: a starting process waits for this line to know the port.
            print(f"listening on {url}{path}", flush=True)

    service.run(listening)
