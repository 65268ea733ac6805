"""What is killed while the demo runs, and when: at the lines in which the demo says that a task began to run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from conduit_tasks.stack.trial.engine import Engine, TrialError, until

EXECUTOR = "CoarseGrainedExecutorBackend"
WORKERS = ("spark-worker-1", "spark-worker-2")
BACK = 180.0
"""Seconds in which a killed part must be healthy again; two busy cores need one for the scheduler's start."""
BUSY = 90.0
"""Seconds in which a task's executors come up."""


@dataclass(frozen=True)
class Kill:
    """`service` dies when a task that matches `task` runs; `mid_job`: not before executors work for it."""

    service: str
    task: str
    mid_job: bool = True


PLAN = (
    Kill("spark-worker-2", r"destinations\."),
    Kill("redis", r"sources\.", mid_job=False),
    Kill("airflow-scheduler", r"destinations\."),
)


@dataclass(frozen=True)
class Done:
    """One kill: while which task, and after how many seconds the part was healthy again."""

    service: str
    task: str
    seconds: float


def watch(
    engine: Engine, lines: Callable[[], list[str]], ended: Callable[[], bool], say: Callable[[str], None]
) -> list[Done]:
    """Kills one after the other, each in another run of the pipeline, until all are or the demo `ended`.

    Raises TrialError where a part does not come back, or the demo ended before everything was killed.
    """
    done: list[Done] = []
    begun = 0
    for kill in PLAN:
        task, begun = _await_task(kill, lines, begun, ended)
        if kill.mid_job:
            where = [kill.service] if kill.service in WORKERS else list(WORKERS)
            until(lambda where=where: any(_works(engine, w) for w in where), f"executors for {task}", BUSY, 0.5)  # type: ignore[misc]
        killed = engine.kill(kill.service)
        say(f"KILLED {kill.service}, while {task} ran")
        seconds = killed.await_back(BACK)
        say(f"{kill.service} is healthy again after {seconds:.0f} s")
        done.append(Done(kill.service, task, seconds))
    return done


def _await_task(kill: Kill, lines: Callable[[], list[str]], begun: int, ended: Callable[[], bool]) -> tuple[str, int]:
    """The first matching task that began after line `begun`, and the number of the line that follows."""
    pattern = re.compile(rf"\s*({kill.task}\S+)\s+running")
    while True:
        over, seen = ended(), lines()
        for number, line in enumerate(seen[begun:], begun):
            if found := pattern.match(line):
                return found[1], number + 1
        if over:
            raise TrialError(f"the demo ended before {kill.service} could be killed")
        begun = len(seen)
        time.sleep(0.2)


def _works(engine: Engine, worker: str) -> bool:
    try:
        return EXECUTOR in engine.docker("top", engine.container(worker)["Id"], "-eo", "pid,args")
    except TrialError:
        return False  # it has only just been killed
