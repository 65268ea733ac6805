"""Runs a pipeline step by step in this process: what the tasks of one Airflow run do, without Airflow or a JVM."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conduit_tasks.broker.broker import Broker
from conduit_tasks.errors import ConduitError, LeaseHeld, PipelineStopped, Unavailable
from conduit_tasks.micro_batch.acks import ack_source
from conduit_tasks.micro_batch.context import open_broker, opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.process import process
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.micro_batch.work_needed import WorkNeeded, needed
from conduit_tasks.pipeline.load import get_pipeline


def here(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
    """In place of Spark executors: one after the other, in this process."""
    return [function(piece) for piece in pieces]


def write_pipeline(home: Path, name: str, text: str) -> None:
    """Puts a pipeline's file there as a whole: a node that begins meanwhile reads the one before or this one."""
    file = home / "include" / "pipelines" / f"{name}.yaml"
    side = file.with_suffix(".side")
    side.write_text(text)
    side.rename(file)


def run_once(pipeline_id: str, run: str = "run", run_all: Any = here, wait: float = 20.0) -> dict[str, Any]:
    """One run; node → what it said, or the error it ended with. Follows the DAG's trigger rules."""
    said: dict[str, Any] = {}
    pipeline = get_pipeline(pipeline_id)
    try:
        plan = plan_run(pipeline_id, run)
    except ConduitError as error:
        said["plan"] = error
        plan = None
    else:
        said["plan"] = plan.reason
    if plan is not None and not plan.work:
        return said
    if plan is not None:
        steps: list[tuple[str, Callable[[Any], str]]] = [
            (s.node, lambda c, s=s: read_source(c, s.id, run_all, wait)) for s in pipeline.sources
        ]
        if pipeline.processors:
            steps.append(("processors", lambda c: process(c, run_all, wait)))
        for node, step in steps:
            said[node] = _step(pipeline_id, node, run, step)
        if not any(isinstance(v, ConduitError) for v in said.values()):
            for d in pipeline.destinations:
                said[d.node] = _step(
                    pipeline_id,
                    d.node,
                    run,
                    lambda c, d=d: deliver_destination(
                        c,
                        d.id,
                        run_all,
                        run=run,
                        wait=wait,
                        cleared=False,
                        progress=lambda **_: None,
                    ),
                )
    for s in pipeline.sources:
        said[f"acks.{s.id}"] = ack_source(pipeline_id, s.id, run)
    return said


def look(pipeline_id: str, node: str, run: str, *, cleared: bool = False) -> WorkNeeded:
    """What a node has to do."""
    with opened(pipeline_id, run) as context:
        return needed(context, node, run, cleared=cleared)


def _step(pipeline_id: str, node: str, run: str, step: Callable[[Any], str]) -> Any:
    try:
        with opened(pipeline_id, run) as context:
            work = needed(context, node, run, cleared=False)
            return step(context) if work.submit else work.reason
    except (Unavailable, PipelineStopped, LeaseHeld) as error:
        return error


def deliver_again(pipeline_id: str, destination: str, run: str) -> Any:
    """What a destination's task does after it was cleared in Airflow."""

    def step(context: Any) -> str:
        return deliver_destination(
            context,
            destination,
            here,
            run=run,
            wait=5.0,
            cleared=True,
            progress=lambda **_: None,
        )

    if not (work := look(pipeline_id, f"destinations.{destination}", run, cleared=True)).submit:
        return work.reason
    with opened(pipeline_id, run) as context:
        return step(context)


def run_until_quiet(pipeline_id: str, most: int = 20, **kwargs: Any) -> list[dict[str, Any]]:
    """Runs until `plan` finds nothing new; the last answer is that one."""
    runs = []
    for number in range(most):
        runs.append(run_once(pipeline_id, f"run-{number}", **kwargs))
        if len(runs[-1]) == 1:
            return runs
    raise AssertionError(f"not quiet after {most} runs: {runs[-1]}")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def files_of(folder: Path) -> list[Path]:
    """All files below a folder, in which others add and remove some meanwhile."""
    return [Path(top, name) for top, _, names in os.walk(folder) for name in names]


def payloads(path: Path) -> list[Any]:
    return [json.loads(line) for line in lines(path)]


def state(pipeline_id: str) -> Broker:
    return open_broker(pipeline_id)
