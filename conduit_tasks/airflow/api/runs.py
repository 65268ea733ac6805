"""Runs of Airflow that the API starts: one that drains, one that redrives."""

from __future__ import annotations

import uuid
from typing import Any

from conduit_tasks.errors import ConduitError


class NoRun(ConduitError):
    """Airflow cannot start the run; the message says why."""


def see_to_a_run(dag: str, user: str) -> str:
    """Starts a run that drains, where none is under way; says why where none can be."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.state import DagRunState

    if why := _unable(dag):
        return f"{why}, so nothing drains it"
    if any(DagRun.find(dag_id=dag, state=state) for state in (DagRunState.RUNNING, DagRunState.QUEUED)):
        return ""
    try:
        start(dag, f"drain__{uuid.uuid4()}", user)
    except NoRun as error:
        return f"no run could be started to drain it: {error}"
    return ""


def start(dag: str, run_id: str, user: str, conf: dict[str, Any] | None = None) -> None:
    """Triggers a run. Raises NoRun."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import AirflowException
    from airflow.utils.types import DagRunTriggeredByType

    if why := _unable(dag):
        raise NoRun(why)
    try:
        trigger_dag(
            dag, triggered_by=DagRunTriggeredByType.REST_API, triggering_user_name=user, run_id=run_id, conf=conf
        )
    except AirflowException as error:
        raise NoRun(f"{error}; trigger the DAG {dag}") from error


def _unable(dag: str) -> str:
    from airflow.models.dag import DagModel

    about = DagModel.get_current(dag)
    if about is None or about.is_paused:
        return f"the DAG {dag} is {'paused: unpause it' if about else 'not known to Airflow yet'}"
    return ""
