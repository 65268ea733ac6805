"""`conduit broker`: checks that the Redis server is fit to hold delivery state, and restores lost state.

`check`: exit 0: fit; 1: findings; 2: the server cannot be asked. The password is never shown.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from conduit_tasks.cli.arguments import Pipeline
from conduit_tasks.errors import BrokerUnavailable, ConfigError, NotDurable
from conduit_tasks.settings import settings
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.redis_client.connection import Client

app = typer.Typer(help="The Redis broker.", no_args_is_help=True)

_PINGS = 20


@app.callback()
def broker() -> None:
    """The Redis broker."""


@app.command()
def check() -> None:
    """Ask the server for version, persistence, eviction, latency and the pipelines it holds (SEMANTICS T1)."""
    from conduit_tasks.redis_client.connection import address, check_durability, connect

    config = settings()
    try:
        client = connect(config)
        try:
            report = check_durability(client, "unsafe")
            latency = _latency(client)
            pipelines = _pipelines(client)
            findings = _findings(client, config.redis_durability, pipelines)
        finally:
            client.close()
    except (BrokerUnavailable, ConfigError) as e:
        typer.echo(f"broker: {e}", err=True)
        raise typer.Exit(2) from None
    rows = [
        ("server", address(config.redis_url)),
        ("version", f"Redis {report.version}"),
        ("append-only file", "on" if report.append_only else "off"),
        ("appendfsync", report.append_fsync or "not told"),
        ("eviction", report.eviction),
        ("memory limit", f"{report.max_memory:,} bytes" if report.max_memory else "none"),
        ("durability", config.redis_durability),
        ("latency", f"{statistics.median(latency):.2f} ms, at most {max(latency):.2f} ms in {_PINGS} pings"),
        *((f"pipeline {name}", f"schema {version}, {status}") for name, version, status in pipelines),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")
    for finding in findings:
        typer.echo(f"broker: {finding}", err=True)
    if findings:
        raise typer.Exit(1)


@app.command()
def rebuild(
    pipeline: Pipeline,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would be.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Even where Redis holds state of it.")] = False,
) -> None:
    """Bring the state of PIPELINE back from its spool, after Redis lost it (SEMANTICS X7).

    Nothing is lost: records that are not proved delivered are sent again, in order, and unsealed micro-batches are read
    again.
    """
    from conduit_tasks.cli.output import note, print_table
    from conduit_tasks.micro_batch import rebuild as rebuilding
    from conduit_tasks.micro_batch.context import open_spool, opened
    from conduit_tasks.pipeline.load import get_pipeline

    found = get_pipeline(pipeline)
    spool = open_spool(found)
    with opened(found, "rebuild") as context:
        if rebuilding.holds_state(context.broker) and not (replace or dry_run):
            raise rebuilding.has_state(found.id)
        build = partial(rebuilding.from_spool, found, spool, context.broker)
        state = build()
        if not state.sealed:
            note(f"the spool of {found.id} has no sealed micro-batch: there is nothing to rebuild, it begins again")
            return
        print_table(
            ("node", "up to micro-batch"),
            [(Node.destination(id), said) for id, said in state.delivered.items()]
            + [(Node.ack(id), str(number)) for id, number in state.acked.items()],
        )
        kept = f"micro-batches {state.collected + 1} to {state.sealed}, {state.records:,} records"
        again = f"; not sealed, and read again: {', '.join(map(str, state.dropped))}" if state.dropped else ""
        note(f"{found.id}: in the spool are {kept if state.collected < state.sealed else 'no micro-batches'}{again}")
        if dry_run:
            note("nothing was changed (--dry-run)")
            return
        rebuilding.apply(context.broker, state, replace=replace, again=build)
        note(f"{found.id}: rebuilt; the next run goes on")


def _latency(client: Client) -> list[float]:
    from conduit_tasks.redis_client.connection import reaching

    out = []
    with reaching(client):
        for _ in range(_PINGS):
            began = time.perf_counter()
            client.ping()
            out.append((time.perf_counter() - began) * 1000)
    return out


def _pipelines(client: Client) -> list[tuple[str, str, str]]:
    """Returns (pipeline, schema, status) of every pipeline that the server holds."""
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.broker.keys import SCHEMA_PATTERN
    from conduit_tasks.redis_client.connection import reaching

    with reaching(client):
        found = sorted(client.scan_iter(match=SCHEMA_PATTERN))
        names = [key.removeprefix("{conduit:").removesuffix("}:schema") for key in found]
        return [
            (name, str(client.get(key)), Broker(name, client).lifecycle.status().status)
            for name, key in zip(names, found)
        ]


def _findings(client: Client, mode: str, pipelines: list[tuple[str, str, str]]) -> list[str]:
    from conduit_tasks.broker.lifecycle import SCHEMA
    from conduit_tasks.redis_client.connection import check_durability

    out = [
        f"pipeline {name} has schema {version}, this version knows {SCHEMA}: upgrade conduit-tasks"
        for name, version, _ in pipelines
        if int(version) > SCHEMA
    ]
    try:
        check_durability(client, mode)
    except NotDurable as e:
        out.insert(0, str(e))
    return out
