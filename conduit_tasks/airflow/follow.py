"""The run that follows another one at once, because that left something that need not wait (docs/schedules.md)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowException

from conduit_tasks.airflow.at_once import at_once
from conduit_tasks.pipeline.names import AFTER, dag_id

log = logging.getLogger(__name__)


def goes_on(ti: Any) -> bool:
    """Whether the task's run is under way still: one that somebody has marked as ended is followed by none."""
    # An enum whose `str` is its name, but which is equal to its value.
    return bool(ti.get_dagrun_state(ti.dag_id, ti.run_id) == "running")


def name_of(run_id: str, began: float) -> str:
    """The id of the run that follows: made of the one before, so that there is only one, and of its beginning, as a run
    that is cleared is followed anew."""
    return AFTER + hashlib.sha256(f"{run_id} {began}".encode()).hexdigest()[:16]


def follow(  # noqa: PLR0917 - the run before, and what the next one takes over from it
    ti: Any, pipeline_id: str, run_id: str, began: float, left: int | None, chosen: Sequence[str] | None, why: str
) -> None:
    """Has a run follow this one, which Airflow starts once this one has ended; nothing where there is one already, or
    where somebody has ended this one. `left`: new records that it may read, None: no limit; `chosen`: its destinations,
    where this run has chosen some.

    Asks as `TriggerDagRunOperator` does, but not by its exception: that decides the state of the task as well, and a
    task that was tried again, whose run is followed already, would end skipped.
    """
    if ti is None or not goes_on(ti):
        return
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

    conf: dict[str, Any] = {} if left is None else {"max-records": left}
    if chosen:
        conf["destinations"] = list(chosen)
    log.info("a run follows at once: %s", why)
    asked = TriggerDagRun(dag_id=dag_id(pipeline_id), run_id=name_of(run_id, began), run_after=at_once(), conf=conf)
    answer = task_runner.SUPERVISOR_COMMS.send(asked)
    if isinstance(answer, ErrorResponse) and answer.error != ErrorType.DAGRUN_ALREADY_EXISTS:
        raise AirflowException(f"no run follows {run_id}: {answer.error}: {answer.detail}")
