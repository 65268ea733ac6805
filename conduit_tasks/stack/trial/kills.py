"""What is killed while the demo runs, and when: while Spark's master says that an application of a node is at work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from conduit_tasks.stack.trial.engine import Engine, TrialError

EXECUTOR = "CoarseGrainedExecutorBackend"
WORKERS = ("spark-worker-1", "spark-worker-2")
APPLICATIONS = "conduit flights "
"""Names of Spark's applications begin with it; the node's name follows."""
BACK = 180.0
"""Seconds in which a killed part must be healthy again; two busy cores need one for the scheduler's start."""
LOOK = """\
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8080/json/", timeout=10).read().decode())
"""


@dataclass(frozen=True)
class Kill:
    """`service` dies while an application of a node that begins with `node` has executors, on `service` if it is a
    worker."""

    service: str
    node: str


PLAN = (
    Kill("spark-worker-2", "destinations."),
    Kill("redis", "sources."),
    Kill("airflow-scheduler", "destinations."),
)
"""In this order: sources that follow destinations are those of the next micro-batch."""


@dataclass(frozen=True)
class Done:
    """One kill: while which node was at work, and after how many seconds the part was healthy again."""

    service: str
    node: str
    seconds: float


def watch(engine: Engine, ended: Callable[[], bool], say: Callable[[str], None]) -> list[Done]:
    """Kills one after the other, each once the one before is back.

    Raises TrialError where a part does not come back, or the demo `ended` before everything was killed.
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
    where = [kill.service] if kill.service in WORKERS else list(WORKERS)
    while True:
        over = ended()
        for id, node in applications(engine):
            if node.startswith(kill.node) and any(_works(engine, worker, id) for worker in where):
                return node
        if over:
            raise TrialError(f"the demo ended before {kill.service} could be killed")
        time.sleep(0.5)


def applications(engine: Engine) -> list[tuple[str, str]]:
    """(id, node) of every application of the demo's pipeline that runs or waits for cores."""
    try:
        said = orjson.loads(engine.compose("exec", "-T", "spark-master", "python", "-c", LOOK, timeout=60))
    except TrialError:
        return []
    names = [(app["id"], app["name"]) for app in said["activeapps"]]
    return [(id, name.removeprefix(APPLICATIONS)) for id, name in names if name.startswith(APPLICATIONS)]


def _works(engine: Engine, worker: str, application: str) -> bool:
    """Whether the worker runs an executor for the application."""
    try:
        shown = engine.docker("top", engine.container(worker)["Id"], "-eo", "pid,args")
    except TrialError:
        return False  # it has only just been killed
    return any(EXECUTOR in line and application in line for line in shown.splitlines())
