"""Drain of pipelines before a shutdown (C15), and a new start of the pipelines that only the shutdown stopped.

After a stop nothing new is read; records in flight go on until every destination has them and they are acked. Runs do
that; a pipeline without a run under way gets one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch.context import open_broker, opened
from conduit_tasks.micro_batch.plan import in_flight
from conduit_tasks.pipeline.load import load_folder
from conduit_tasks.pipeline.names import dag_id
from conduit_tasks.settings import settings
from conduit_tasks.stack.api import Api

Say = Callable[[str], None]
POLL, WAKE = 0.5, 5.0
"""Seconds between two checks of the rest in flight, and between two checks for a run under way."""


def drain(api: Api, deadline: float, say: Say) -> tuple[list[str], list[str]]:
    """Stops every running pipeline gracefully and waits up to `deadline` seconds.

    Returns (the pipelines that it stopped, those among them that were not drained in time). Does not wait for a
    pipeline whose broker cannot be reached, or whose DAG is paused, and says so.
    """
    stopped = []
    for pipeline in load_folder(settings().path(settings().pipelines)).pipelines:
        try:
            if _stop(pipeline.id, deadline):
                stopped.append(pipeline.id)
        except ConduitError as error:
            say(f"{pipeline.id}: cannot be stopped gracefully: {error}")
    until = time.monotonic() + deadline
    left = {id: what for id in stopped if (what := _left(id))}
    for id, what in left.items():
        say(f"{id}: draining ({what})")
    woken, hopeless = -WAKE, list[str]()
    while left and time.monotonic() < until:
        # Repeatedly: a run may end and have skipped a destination that was down at the moment.
        if time.monotonic() - woken >= WAKE:
            woken = time.monotonic()
            hopeless += [id for id in left if not see_to_a_run(api, id, say)]
            left = {id: what for id, what in left.items() if id not in hopeless}
        time.sleep(POLL)
        left = {id: what for id in left if (what := _left(id))}
    for id, what in left.items():
        say(f"{id}: not drained within {deadline:g} s ({what}); the next start goes on from its cursors")
    return stopped, [*left, *hopeless]


def resume(ids: list[str], say: Say) -> None:
    """Starts pipelines that the last shutdown stopped, if they are still stopping or stopped."""
    for id in ids:
        broker = open_broker(id)
        try:
            if broker.lifecycle.stored_status() in ("stopping", "stopped"):
                broker.lifecycle.start(destinations=False)
                say(f"{id}: running again")
        finally:
            broker.close()


def _left(id: str) -> str:
    with opened(id, "shutdown") as context:
        return in_flight(context)


def _stop(id: str, deadline: float) -> bool:
    """Stops a running pipeline; returns whether it was running and is stopping now."""
    broker = open_broker(id)
    try:
        if broker.lifecycle.stored_status() != "running":
            return False
        broker.lifecycle.stop(deadline)
        return True
    finally:
        broker.close()


def see_to_a_run(api: Api, id: str, say: Say) -> bool:
    """Starts a run that drains a stopping pipeline, if none is under way. Returns False, and says why, if Airflow does
    not know its DAG or the DAG is paused."""
    name = dag_id(id)
    try:
        about = api.dag(name)
        if about is None or about["is_paused"]:
            say(f"{id}: its DAG is {'paused' if about else 'unknown to Airflow'}, so nothing drains it")
            return False
        if not api.active_runs(name):
            api.trigger(name, f"drain__{uuid.uuid4()}", {})
    except ConduitError as error:
        say(f"{id}: no run could be started to drain it: {error}")
    return True
