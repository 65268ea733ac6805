"""Stop of the embedded stack: pipelines first (C15), then Airflow, its scheduler before the rest, then Redis."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from conduit_tasks.errors import ConduitError
from conduit_tasks.stack import processes
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.environment import load_secrets
from conduit_tasks.stack.layout import Layout, Process, State
from conduit_tasks.stack.up import alone, end_left_behind

Say = Callable[[str], None]
DEADLINE = 60.0
"""Seconds at most for draining the pipelines."""
GRACE = {
    **{"gateway": 40.0, "scheduler": 120.0},
    **{"spark-connect": 60.0, "triggerer": 60.0, "dag-processor": 60.0, "api-server": 60.0, "redis": 60.0},
}
"""Seconds from SIGTERM to SIGKILL. The gateway answers the requests that it has taken, the scheduler waits for its
tasks; an idle triggerer takes ten. All usually end after a second or two; an overloaded machine may need longer."""
ORDER = (("gateway", "scheduler"), ("spark-connect", "triggerer", "dag-processor", "api-server"), ("redis",))
"""Groups that are stopped one after the other: the scheduler waits for its tasks, and tasks need the API and Redis."""

STATELESS = frozenset({"dag-processor"})
"""Components without work to lose. The DAG processor reads files and writes the result to Airflow's database, over and
over; it was seen to go on after a SIGTERM in the middle of that, so it gets another one. Killing it is no failure."""
AGAIN = 5.0
"""Seconds after which a component without work gets SIGTERM again."""


def down(layout: Layout, say: Say, *, deadline: float = DEADLINE) -> bool:
    """Stops everything. Returns False if a pipeline was not drained in time, or a component that holds work had to be
    killed; neither loses anything."""
    if not layout.root.exists():
        return True
    with alone(layout):
        state = State.load(layout)
        end_left_behind(state, say)
        if not any(processes.find(p) for p in state.processes.values()):
            state.processes.clear()
            _nowhere(state, layout)
            say("nothing runs")
            return True
        clean = _drain(layout, state, deadline, say)
        for group in ORDER:
            names = [name for name in group if name in state.processes]
            with ThreadPoolExecutor(len(group)) as pool:
                clean = all(pool.map(lambda name: _stop(state.processes[name], name, say), names)) and clean
            for name in names:
                del state.processes[name]
            state.save(layout)
        _nowhere(state, layout)
        return clean


def _nowhere(state: State, layout: Layout) -> None:
    """Forgets the addresses at which nobody answers: the next one there would get the stack's password. That of Redis
    stays, as commands would take another Redis for it."""
    state.api_url = state.gateway_url = ""
    state.save(layout)


def _stop(process: Process, name: str, say: Say) -> bool:
    ended = processes.stop(process, timeout=GRACE[name], again=AGAIN if name in STATELESS else None)
    say(f"stopped {name}" if ended else f"killed {name}: it did not end within {GRACE[name]:g} s of being asked")
    return ended or name in STATELESS


def _drain(layout: Layout, state: State, deadline: float, say: Say) -> bool:
    redis = "CONDUIT_REDIS_URL" in os.environ or processes.find(state.processes.get("redis"))
    if not redis or processes.find(state.processes.get("scheduler")) is None:
        say("pipelines are not drained: Redis or the scheduler is not running; the next start goes on from the cursors")
        return False
    from conduit_tasks.stack.drain import drain

    try:
        with Api(state.api_url, password=load_secrets(layout)["password"]) as api:
            stopped, left = drain(api, deadline, say)
    except ConduitError as error:
        say(f"pipelines are not drained: {error}")
        return False
    state.stopped_by_shutdown = sorted({*state.stopped_by_shutdown, *stopped})
    state.save(layout)
    return not left
