"""Kills of services during the demo, each while a node's task is at work."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from conduit_tasks.trial.engine import Engine, TrialError

SCHEDULER = "airflow-scheduler"
WORKERS = ("spark-worker-1", "spark-worker-2")
PIPELINE = "flights"
NODE = re.compile(rf"--pipeline {PIPELINE} --node (\S+)")
"""Pattern of the command line of a node's driver, wherever Spark is."""
BACK = 180.0
"""Seconds in which a killed service must be healthy again; two busy cores need one for the scheduler's start."""


@dataclass(frozen=True)
class Kill:
    """A planned kill of `service`, while the driver of a node whose name begins with `node` is at work."""

    service: str
    node: str


PLAN = (
    Kill("spark-worker-2", "destinations."),
    Kill("redis", "sources."),
    Kill("spark-connect", "destinations."),
    Kill(SCHEDULER, "destinations."),
)
"""Kills in their order: sources after destinations are those of the next micro-batch."""


@dataclass(frozen=True)
class Done:
    """One kill that was done: the node that was at work, and the seconds until the service was healthy again."""

    service: str
    node: str
    seconds: float


def watch(engine: Engine, ended: Callable[[], bool], say: Callable[[str], None]) -> list[Done]:
    """Does the kills one after the other, each once the service killed before is back.

    Raises TrialError if a service does not come back, or the demo `ended` before all kills were done.
    """
    done = []
    for kill in PLAN:
        node = _await_work(engine, kill, ended)
        killed = engine.kill(kill.service)
        say(f"KILLED {kill.service}, while {node} worked")
        seconds = killed.await_back(BACK)
        say(f"{kill.service} is healthy again after {seconds:.0f} s")
        done.append(Done(kill.service, node, seconds))
    return done


def _await_work(engine: Engine, kill: Kill, ended: Callable[[], bool]) -> str:
    while True:
        over = ended()
        if node := next((node for node in at_work(engine) if node.startswith(kill.node)), None):
            return node
        if over:
            raise TrialError(f"the demo ended before {kill.service} could be killed")
        time.sleep(0.5)


def at_work(engine: Engine) -> list[str]:
    """Returns the nodes of the demo's pipeline that have a driver."""
    try:
        shown = engine.docker("top", engine.container(SCHEDULER)["Id"], "-eo", "pid,args")
    except TrialError:
        return []  # the scheduler has only just been killed
    return sorted(set(NODE.findall(shown)))
