"""Runs of Airflow that the API starts, to drain, redrive or replay, and their results."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from conduit_tasks.airflow.at_once import at_once
from conduit_tasks.errors import ConduitError

LOOKED_AT = 500
"""Runs of a DAG that are looked at for those of one kind."""


class NoRun(ConduitError):
    """A run that Airflow cannot start; the message says why."""


def see_to_a_run(dag: str, user: str) -> str:
    """Starts a run that drains, if none is under way. Returns "", or the reason if none can be started."""
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
    """Triggers a run. Raises NoRun if Airflow cannot start it."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import AirflowException
    from airflow.utils.types import DagRunTriggeredByType

    if why := _unable(dag):
        raise NoRun(why)
    try:
        trigger_dag(
            dag,
            triggered_by=DagRunTriggeredByType.REST_API,
            triggering_user_name=user,
            run_id=run_id,
            conf=conf,
            run_after=at_once(),
        )
    except AirflowException as error:
        raise NoRun(f"{error}; trigger the DAG {dag}") from error


def results(dags: Sequence[str], limit: int, wanted: Callable[[dict[str, Any], str], bool]) -> list[dict[str, Any]]:
    """Returns the last runs of these DAGs, newest first: id, state, conf, data interval, and the return value of each
    task. `wanted`: of a run's conf and type. Looks at `LOOKED_AT` runs at most."""
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        newest = select(DagRun).where(DagRun.dag_id.in_(dags)).order_by(DagRun.run_after.desc(), DagRun.id.desc())
        found = session.scalars(newest.limit(LOOKED_AT))
        runs = list(islice((run for run in found if wanted(run.conf or {}, str(run.run_type))), limit))
        returned = select(XComModel).where(
            XComModel.dag_id.in_(dags),
            XComModel.run_id.in_([run.run_id for run in runs]),
            XComModel.key == "return_value",
        )
        told: dict[tuple[str, str], dict[str, Any]] = {}
        for one in session.scalars(returned):
            told.setdefault((one.dag_id, one.run_id), {})[one.task_id] = XComModel.deserialize_value(one)
        return [
            {
                "dag_id": run.dag_id,
                "run_id": run.run_id,
                "state": str(run.state),
                "conf": run.conf or {},
                "interval": [at and at.isoformat() for at in (run.data_interval_start, run.data_interval_end)],
                "results": told.get((run.dag_id, run.run_id), {}),
            }
            for run in runs
        ]


def _unable(dag: str) -> str:
    from airflow.models.dag import DagModel

    about = DagModel.get_current(dag)
    if about is None or about.is_paused:
        return f"the DAG {dag} is {'paused: unpause it' if about else 'not known to Airflow yet'}"
    return ""
