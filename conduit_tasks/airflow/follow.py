"""Next run (`conduit__after_…`), started at once because the run before left work that need not wait
(docs/schedules.md)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from conduit_tasks.airflow.at_once import trigger
from conduit_tasks.pipeline.names import AFTER, dag_id

log = logging.getLogger(__name__)


def goes_on(ti: Any) -> bool:
    """Returns whether the task's run is still under way: no run follows one that somebody has marked as ended."""
    # An enum whose `str` is its name, but which is equal to its value.
    return bool(ti.get_dagrun_state(ti.dag_id, ti.run_id) == "running")


def name_of(run_id: str, began: float) -> str:
    """Returns the id of the run that follows. It is made of the id of the run before, so that only one run follows, and
    of that run's start time, so that another one follows if it is cleared."""
    return AFTER + hashlib.sha256(f"{run_id} {began}".encode()).hexdigest()[:16]


def follow(  # noqa: PLR0917 - the run before, and what the next one takes over from it
    ti: Any, pipeline_id: str, run_id: str, began: float, left: int | None, chosen: Sequence[str] | None, why: str
) -> None:
    """Triggers the run that follows this one; Airflow starts it once this one has ended. Does nothing if that run
    exists already, or if somebody has ended this one. `left`: new records that it may read, None: no limit; `chosen`:
    its destinations, if this run has chosen some. Raises AirflowException if Airflow refuses."""
    if ti is None or not goes_on(ti):
        return
    if ti.dag_id != dag_id(pipeline_id):
        log.info("no run follows in a DAG of another's making, although %s", why)
        return
    conf: dict[str, Any] = {} if left is None else {"max-records": left}
    if chosen:
        conf["destinations"] = list(chosen)
    log.info("a run follows at once: %s", why)
    trigger(dag_id(pipeline_id), name_of(run_id, began), conf, f"no run follows {run_id}")
