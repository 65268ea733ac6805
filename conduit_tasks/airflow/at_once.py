"""Start of a run of a DAG, asked for by a task: it is due at once, and nothing happens if that run exists."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any


def at_once() -> datetime:
    """Returns the `run_after` of such a run. Airflow starts due runs by its database's clock, and SQLite's
    `CURRENT_TIMESTAMP` has whole seconds: a run that is due now would wait for the next second."""
    return datetime.now(UTC) - timedelta(seconds=1)


def trigger(dag: str, run_id: str, conf: Mapping[str, Any], otherwise: str) -> None:
    """Starts a run of a DAG, from a task; does nothing if that run exists. Raises AirflowException if Airflow refuses;
    its message begins with `otherwise`.

    The request is that of `TriggerDagRunOperator`, but without its exception: that also decides the state of the task,
    and a retried task would end as skipped if its first try had already triggered the run.
    """
    from airflow.sdk.exceptions import AirflowException, ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

    # Before Airflow 3.2 a run starts when it is asked for, and has no such field.
    when: dict[str, Any] = {"run_after": at_once()} if "run_after" in TriggerDagRun.model_fields else {}
    asked = TriggerDagRun(dag_id=dag, run_id=run_id, conf=dict(conf), **when)
    answer = task_runner.SUPERVISOR_COMMS.send(asked)
    if isinstance(answer, ErrorResponse) and answer.error != ErrorType.DAGRUN_ALREADY_EXISTS:
        raise AirflowException(f"{otherwise}: {answer.error}: {answer.detail}")
