"""What the tasks of a run do, without Airflow and without a JVM; and the runs, with the DAG's trigger rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from conduit_tasks.errors import LeaseHeld, PipelineStopped, Unavailable
from conduit_tasks.pipeline.topology import Pipeline

RETRIES = 1
"""Attempts that Airflow adds to the first."""


def here(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
    """In place of Spark executors: one piece after the other, in this process."""
    return [function(piece) for piece in pieces]


run_all: Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]] = here
"""Where a driver's tasks run; a world puts its own here."""


def plan_task(pipeline: str, run: str) -> bool:
    """`plan`; whether there is work."""
    from conduit_tasks.micro_batch.plan import plan_run

    return plan_run(pipeline, run).work


def node_task(pipeline: str, node: str, run: str, drain_limit: float, cleared: bool = False) -> str:
    """The operator's look, then the application of a node."""
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.deliver import deliver_destination
    from conduit_tasks.micro_batch.process import process
    from conduit_tasks.micro_batch.read import read_source
    from conduit_tasks.micro_batch.work import needed

    work = needed(pipeline, node, run, cleared=cleared)
    if not work.submit:
        return work.reason
    kind, _, name = node.partition(".")
    with opened(pipeline, run) as context:
        wait = context.settings.lease_ttl + context.settings.lease_grace + 1
        if kind == "sources":
            return read_source(context, name, run_all, wait)
        if kind == "processors":
            return process(context, run_all, wait)
        return deliver_destination(
            context,
            name,
            run_all,
            run=run,
            wait=wait,
            drain_limit=drain_limit,
            cleared=cleared,
            progress=lambda **_: None,
        )


def ack_task(pipeline: str, source: str, run: str) -> str:
    """`acks.<source>`."""
    from conduit_tasks.micro_batch.acks import ack_source

    ack_source(pipeline, source, run)
    return "acked"


def outcome(error: BaseException | None, answer: Any) -> str:
    """success, skipped or failed, as Airflow has it."""
    if error is None:
        return "success"
    return "skipped" if isinstance(error, Unavailable | PipelineStopped | LeaseHeld) else "failed"


@dataclass
class Run:
    """One run under way: which tasks come next, and what became of those before."""

    pipeline: Pipeline
    id: str
    drain_limit: float
    states: dict[str, str] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    idle: bool = False
    """`plan` found nothing to do."""

    def groups(self) -> list[list[str]]:
        p = self.pipeline
        return [
            ["plan"],
            [s.node for s in p.sources],
            ["processors"] if p.processors else [],
            [d.node for d in p.destinations],
            [f"acks.{s.id}" for s in p.sources],
        ]

    def due(self) -> list[str]:
        """Tasks that may start now; [] while others are under way, and at the end."""
        failed = False
        for group in self.groups():
            if self.idle and group != ["plan"]:
                return []
            acks = bool(group) and group[0].startswith("acks.")
            if failed and not acks:
                continue
            waiting = [t for t in group if t not in self.states]
            if waiting:
                return [t for t in waiting if t not in self.tries]
            failed = failed or any(self.states[t] == "failed" for t in group)
        return []

    @property
    def over(self) -> bool:
        if self.idle:
            return True
        return all(t in self.states for t in self.groups()[-1])

    def function(self, task: str) -> Callable[[], Any]:
        """What the task does."""
        p = self.pipeline.id
        if task == "plan":
            return lambda: plan_task(p, self.id)
        if task.startswith("acks."):
            return lambda: ack_task(p, task.removeprefix("acks."), self.id)
        return lambda: node_task(p, task, self.id, self.drain_limit)

    def ended(self, task: str, error: BaseException | None, answer: Any) -> bool:
        """A task's attempt has ended; whether it is tried again."""
        state = outcome(error, answer)
        if state == "failed" and self.tries[task] <= RETRIES:
            return True
        self.states[task] = state
        if task == "plan":
            # A plan that failed skips nothing but the acks' upstream: acks run whatever happened.
            self.idle = state != "failed" and not answer
        return False
