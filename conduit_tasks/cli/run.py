"""`conduit run PIPELINE`: starts an Airflow run and watches it, and the runs that follow it at once, until they end."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from conduit_tasks import topology
from conduit_tasks.cli.account import account
from conduit_tasks.cli.arguments import Pipeline
from conduit_tasks.cli.output import note
from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.settings import settings
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.layout import Layout

POLL = 0.5
ENDED = ("success", "failed")
SEEN_WITHIN = 60.0
"""Seconds within which Airflow should have parsed a new pipeline file."""

Draw = Callable[[Mapping[str, str]], None]
"""Draws the pipeline, with the state of each node's task."""


def run(
    pipeline: Pipeline,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Watch the run, and those that follow it at once.")
    ] = True,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait at most; the run goes on.")] = 3600.0,
    destination: Annotated[list[str] | None, typer.Option(help="Deliver only to these.")] = None,
    max_records: Annotated[int | None, typer.Option(min=1, help="Read at most this many new records.")] = None,
) -> None:
    """Run a pipeline now, until nothing is left. Exit code 0 if the run, and the runs that followed it at once,
    succeeded, 1 if one failed, 2 if they did not end in time."""
    from conduit_tasks.pipeline.load import get_pipeline
    from conduit_tasks.pipeline.names import AFTER, dag_id
    from conduit_tasks.pipeline.schedule import is_continuous

    found = get_pipeline(pipeline)
    unknown = set(destination or ()) - {d.id for d in found.destinations}
    if unknown:
        raise ConfigError(f"pipeline {pipeline} has no destination {', '.join(sorted(unknown))}")
    conf: dict[str, Any] = {"destinations": destination} if destination else {}
    if max_records:
        conf["max-records"] = max_records
    with Api.of(Layout(settings().home.resolve())) as api:
        name, run_id = dag_id(found.id), f"conduit__{uuid.uuid4()}"
        await_dag(api, name)
        before = look(pipeline) if wait else None
        api.trigger(name, run_id, conf)
        note(f"{pipeline}: run {run_id}, {api.url}/dags/{name}/runs/{run_id}")
        if not wait:
            return
        with _drawing(found) as draw:
            states, until = [watch(api, name, run_id, timeout, draw)], time.monotonic() + timeout
            # Under `@continuous` there is always a following run.
            while (
                states[-1] in ENDED
                and not is_continuous(found)
                and (following := [id for id in api.active_runs(name) if id.startswith(AFTER)])
            ):
                note(f"{pipeline}: run {following[0]} goes on with what is left")
                states.append(watch(api, name, following[0], until - time.monotonic(), draw))
    if before is not None and (after := look(pipeline)) is not None:
        account(found, before, after)
    if states[-1] not in ENDED:
        note(f"{pipeline}: still {states[-1]} after {timeout:g} s; the run goes on")
        raise typer.Exit(2)
    if "failed" in states:
        raise typer.Exit(1)


def look(pipeline: str) -> dict[str, Any] | None:
    """Returns the progress of the pipeline; None if its broker cannot be asked from here, as with an Airflow
    elsewhere."""
    from conduit_tasks.operate.status import snapshot

    try:
        return snapshot(pipeline)
    except ConduitError:
        return None


@contextmanager
def _drawing(pipeline: topology.Pipeline) -> Iterator[Draw | None]:
    """Yields what draws the run where there is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    from conduit_tasks.cli.live import viewing
    from conduit_tasks.pipeline.names import task_id

    every = [*(s.node for s in pipeline.sources), *(d.node for d in pipeline.destinations)]
    nodes = {task_id(node): str(node) for node in every}
    with viewing(Console(stderr=True)) as view:

        def draw(tasks: Mapping[str, str]) -> None:
            if (found := look(pipeline.id)) is not None:
                view.show(found, {nodes[task]: state for task, state in tasks.items() if task in nodes})

        yield draw


def await_dag(api: Api, dag_id: str, timeout: float = SEEN_WITHIN) -> None:
    """Waits until Airflow has the DAG. Raises ConfigError if it does not appear, or is paused: no run would start."""
    deadline = time.monotonic() + timeout
    while (about := api.dag(dag_id)) is None or about.get("is_stale"):
        if time.monotonic() > deadline:
            raise ConfigError(f"Airflow has no DAG {dag_id}; see its import errors, or `conduit validate`")
        time.sleep(POLL)
    if about["is_paused"]:
        raise ConfigError(f"the DAG {dag_id} is paused; unpause it in the UI, or `airflow dags unpause {dag_id}`")


def watch(api: Api, dag_id: str, run_id: str, timeout: float, draw: Draw | None = None) -> str:
    """Prints each task's changes of state until the run ends or `timeout` seconds are over; returns the run's state.
    `draw`: is called with the state of each node's task."""
    seen: dict[str, tuple[str, int]] = {}
    deadline = time.monotonic() + timeout
    while True:
        # The run is read before its tasks, so that the last changes of an ended run are still printed.
        state = str(api.run(dag_id, run_id)["state"])
        for task in sorted(api.tasks(dag_id, run_id), key=lambda t: t.get("start_date") or "~"):
            now = (task["state"] or "", task["try_number"])
            if now[0] and now[0] not in ("scheduled", "queued") and seen.get(task["task_id"]) != now:
                seen[task["task_id"]] = now
                note(describe(task))
        if state in ENDED or time.monotonic() > deadline:
            note(f"run {state}")
            return state
        if draw is not None:
            draw({task: of for task, (of, _) in seen.items()})
        time.sleep(POLL)


def describe(task: dict[str, Any]) -> str:
    """Returns a task's line: `  destinations.out    success   3.2 s`."""
    took = f"{task['duration']:8.1f} s" if task.get("duration") else ""
    again = f"  (try {task['try_number']})" if task["try_number"] > 1 else ""
    return f"  {task['task_id']:<40} {task['state']:<15} {took}{again}".rstrip()
