"""`conduit status | start | stop PIPELINE`: shows the progress of every destination, also live; starts and stops a
pipeline or one destination, and a run that drains it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from conduit_tasks.broker.breakers import BreakerState
from conduit_tasks.cli.arguments import Pipeline
from conduit_tasks.cli.live import bottleneck
from conduit_tasks.cli.output import Format, note, print_json, print_table

PAUSE = 2.0
"""Seconds between two looks that are printed one below the other."""
LOOK = 1.0
"""Seconds between two looks that are drawn over each other."""


def status(
    pipeline: Pipeline,
    format: Annotated[Format, typer.Option(help="text or json")] = Format.text,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Look again and again, until interrupted: a bar per node where there is a terminal."
        ),
    ] = False,
) -> None:
    """Show the progress of each destination. Exit code 0, or 1 if the pipeline is degraded or its state
    is lost."""
    from conduit_tasks.operate.status import snapshot

    if watch and format is Format.text and sys.stdout.isatty():
        _view(pipeline)
        return
    while True:
        found = snapshot(pipeline)
        if format is Format.json:
            print_json(found)
        else:
            _print(found)
        if not watch:
            break
        sys.stdout.flush()
        time.sleep(PAUSE)
        print()
    if found["status"] == "degraded" or found["lost"]:
        raise typer.Exit(1)


def _view(pipeline: str) -> None:
    """Draws the pipeline, with a bar for each node, until interrupted; its last state stays on the terminal."""
    from rich.console import Console

    from conduit_tasks.cli.live import viewing
    from conduit_tasks.operate.status import snapshot

    stop = threading.Event()

    def interrupted(*_: object) -> None:
        # A KeyboardInterrupt that is raised within a destructor is lost; a second one ends a look that takes long.
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, interrupted)
    with viewing(Console(), stays=True) as view, suppress(KeyboardInterrupt):
        while not stop.is_set():
            view.show(snapshot(pipeline))
            stop.wait(LOOK)


def _print(found: dict[str, Any]) -> None:
    print(f"{found['pipeline']}: {found['status']}, {found['sealed']:,} micro-batches sealed")
    if found["error"]:
        e = found["error"]
        print(f"first error: {e['node']}: {e['error']}")
    if found["lost"]:
        print(found["lost"])
    for failing in found["recovering"]:
        print(f"{failing['node']} failed {failing['failures']} times in a row, tried again in {failing['wait']:.0f} s")
    for d in found["destinations"]:
        if d["breaker"] and d["breaker"]["opened"]:
            print(f"{d['id']} waits: {BreakerState(**d['breaker'])}")
        elif d["outage"]:
            print(f"{d['id']} does not answer {_of_outage(d['outage'])}")
    if found["overdue"]:
        print("the deadline of the graceful stop is missed; runs go on delivering")
    if found["unsealed"]:
        print(
            f"micro-batch {found['unsealed']['number']} is open, waiting for {', '.join(found['unsealed']['missing'])}"
        )
    if found["bottleneck"]:
        print(bottleneck(found))
    print()
    for s in found["sources"]:
        if s["skipped"]:
            print(f"{s['id']}: {s['skipped']:,} slices passed over, because what they hold was gone")
    print_table(
        ("source", "read", "partition or part", "planned", "acked"),
        [
            # A source's total is told once, beside the first of its parts.
            (*((s["id"], s["read"]) if not n else ("", "")), part, str(planned), str(s["acked"].get(part, "-")))
            for s in found["sources"]
            for n, (part, planned) in enumerate((s["planned"] or {"-": "-"}).items())
        ],
    )
    print()
    names = ("cursor", "behind", "matched", "delivered", "filtered", "completed", "parked", "dead", "retried", "status")
    print_table(("destination", *names), [(d["id"], *(d[name] for name in names)) for d in found["destinations"]])


def _of_outage(outage: dict[str, Any]) -> str:
    since, at = (datetime.fromtimestamp(outage[name], UTC) for name in ("since", "at"))
    run = outage["owner"].rpartition("@")[0]
    return f"since {since:%Y-%m-%d %H:%M:%S} UTC, last tried {at:%H:%M:%S} by run {run}: {outage['error']}"


def start(
    pipeline: Pipeline,
    destination: Annotated[str | None, typer.Option(help="Only this destination of an isolated pipeline.")] = None,
) -> None:
    """Start a stopped or degraded pipeline: clears its first error and its tripped nack windows (C6)."""
    from conduit_tasks.operate import control

    note(f"{pipeline}: {control.start(pipeline, destination)}")


def stop(
    pipeline: Pipeline,
    destination: Annotated[str | None, typer.Option(help="Only this one of an isolated pipeline, at once.")] = None,
    force: Annotated[bool, typer.Option("--force", help="At once: drop what is not sealed (C16).")] = False,
    deadline: Annotated[
        float, typer.Option(min=0, help="Seconds in which what is in flight should be delivered.")
    ] = 60.0,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is stopped.")] = True,
) -> None:
    """Stop a pipeline. Gracefully: only its sources stop, everything in flight is delivered and acked (C15).

    `--destination` stops only that destination: its cursor stays, the others go on until the lag budget is used up
    (X1). Exit code 1 if records were still in flight at the deadline; they are still delivered later.
    """
    from conduit_tasks.operate import control

    if destination:
        now = control.stop_destination(pipeline, destination)
        note(
            f"{pipeline}: {now}, {destination}: stopped; `conduit start {pipeline} --destination {destination}` goes on"
        )
        return
    if force:
        note(f"{pipeline}: {control.force_stop(pipeline).status}")
        return
    done = control.stop(pipeline, deadline=deadline, wait=wait, wake=wake)
    note(f"{pipeline}: {done.status}" + (f", in flight: {done.left}" if done.left else ""))
    if done.alone:
        note("nobody works on it: the next run delivers it, or `conduit stop --force` drops what is not sealed")
        raise typer.Exit(1)
    if done.overdue:
        note(f"the deadline of {deadline:g} s is missed; runs go on delivering, or `conduit stop --force`")
        raise typer.Exit(1)


def wake(pipeline: str) -> bool:
    """Starts a run that drains a pipeline if no run is active and Airflow can be reached; False if no run can be
    started."""
    from conduit_tasks.errors import ConduitError
    from conduit_tasks.settings import settings
    from conduit_tasks.stack.api import Api
    from conduit_tasks.stack.drain import see_to_a_run
    from conduit_tasks.stack.layout import Layout

    try:
        with Api.of(Layout(settings().home.resolve())) as api:
            return see_to_a_run(api, pipeline, note)
    except ConduitError as error:
        note(f"{pipeline}: no run could be started to drain it: {error}")
        return False
