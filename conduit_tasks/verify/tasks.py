"""The tasks of a run, without Airflow and without a JVM; and the runs, with the DAG's trigger rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from conduit_tasks.errors import LeaseHeld, PipelineStopped, Unavailable
from conduit_tasks.topology import Node, Pipeline

RETRIES, RETRY_DELAY = 1, 1.0
"""Attempts that Airflow adds to the first, and the seconds before each."""


def here(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
    """Runs one piece after the other in this process, in place of Spark executors."""
    return [function(piece) for piece in pieces]


run_all: Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]] = here
"""The function that runs a driver's tasks; a world puts its own here."""


def plan_task(pipeline: str, run: str, by_hand: bool = False, drain_limit: float = 0.0) -> bool:
    """Runs `plan`; returns whether there is work. `drain_limit`: see `plan_run`; 0 from the second attempt on."""
    from conduit_tasks.micro_batch.plan import plan_run

    return plan_run(pipeline, run, by_hand=by_hand, drain_limit=drain_limit).work


def node_task(  # noqa: PLR0917 - what a command line holds
    pipeline: str, node: str, run: str, drain_limit: float, cleared: bool = False, starts: float = 0.0
) -> str:
    """Waits for work as the Airflow operator does, then runs the application of a node, which works through the run;
    `starts`: seconds that the application takes to start."""
    from conduit_tasks.micro_batch.at_work import at_work
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.work_needed import awaited
    from conduit_tasks.micro_batch.work_through import work_through

    with at_work(pipeline, run, node) as ends:
        try:
            work = awaited(pipeline, node, run, limit=drain_limit, cleared=cleared)
            ends.well, ends.worked = not (work.submit or work.over or work.recovering), work.done
            ends.again = work.reason if work.again else ""
            if not work.submit:
                return work.reason
            with opened(pipeline, run) as context:
                ended = work_through(
                    context, node, run, run_all, limit=drain_limit, cleared=cleared, warm=lambda: time.sleep(starts)
                )
            ends.well = ends.worked = True
            ends.again = ended.reason if ended.again else ""
            return ended.reason
        except Exception:
            ends.tried_again_in = RETRY_DELAY
            raise


def ack_task(pipeline: str, source: str, run: str) -> str:
    """Runs `acks.<source>`."""
    from conduit_tasks.micro_batch.acks import ack_along

    done = ack_along(pipeline, source, run, lambda: None)
    return f"acked; a run follows: {done['again']}" if done["again"] else "acked"


def gives_way(said: str) -> bool:
    """Returns whether a node with this answer ends because the same node of the next run goes on."""
    return "takes over" in said or said.endswith("left to the next run")


def outcome(error: BaseException | None, answer: Any) -> str:
    """Returns success, skipped or failed, as Airflow has it."""
    if error is None:
        return "success"
    return "skipped" if isinstance(error, Unavailable | PipelineStopped | LeaseHeld) else "failed"


@dataclass
class Run:
    """One run under way: the tasks that come next, and the outcomes of those before."""

    pipeline: Pipeline
    id: str
    drain_limit: float
    states: dict[str, str] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    by_hand: bool = False
    starts: float = 0.0
    """Seconds that an application takes to start."""
    began: float = 0.0
    errors: int = 0
    idle: bool = False
    """Whether `plan` found nothing to do."""

    @cached_property
    def nodes(self) -> list[str]:
        """Returns all tasks behind `plan`; they run side by side."""
        p = self.pipeline
        processors = ["processors"] if p.processors else []
        nodes = [*(s.node for s in p.sources), *processors, *(d.node for d in p.destinations)]
        return [*nodes, *(Node.ack(s.id) for s in p.sources)]

    def due(self) -> list[str]:
        """Returns tasks that may start now; [] while `plan` is under way, and at the end."""
        if "plan" not in self.states:
            return [] if "plan" in self.tries else ["plan"]
        if self.idle:
            return []
        # If `plan` has failed, acks run all the same.
        failed = self.states["plan"] == "failed"
        return [task for task in self.nodes if task not in self.tries and (not failed or Node(task).kind == "acks")]

    @property
    def over(self) -> bool:
        if self.idle:
            return True
        return "plan" in self.states and len(self.states) == len(self.tries) and not self.due()

    def function(self, task: str) -> Callable[[], Any]:
        """Returns the task as a function."""
        p = self.pipeline.id
        if task == "plan":
            limit = self.drain_limit if self.tries["plan"] == 1 else 0.0
            return lambda: plan_task(p, self.id, self.by_hand, limit)
        if Node(task).kind == "acks":
            return lambda: ack_task(p, Node(task).id, self.id)
        return lambda: node_task(p, task, self.id, self.drain_limit, starts=self.starts)

    def ended(self, task: str, error: BaseException | None, answer: Any) -> bool:
        """Notes the end of a task's attempt; returns whether it is tried again."""
        state = outcome(error, answer)
        if state == "failed" and self.tries[task] <= RETRIES:
            return True
        self.states[task] = state
        if task == "plan":
            # A plan that failed skips only the tasks before the acks: acks run whatever happened.
            self.idle = state != "failed" and not answer
        return False
