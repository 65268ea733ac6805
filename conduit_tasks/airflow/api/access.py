"""Access to the API by Airflow's own users and their permissions for the pipeline's DAG: who sees and changes what,
error texts only for who may read its logs, no change that another site asks for.

A plugin's routes are open unless each of them asks for a permission. Users who may see a DAG's runs see its pipeline;
users who may read its tasks' logs see its records (the last ones, dead letters, and the targets' answers to each), and
may try one; users who may start its runs may change it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path as FilePath
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, HTTPException, Path, Request

from conduit_tasks.airflow.api.files import pipelines
from conduit_tasks.airflow.api.holders import TASK
from conduit_tasks.pipeline.load import load_file
from conduit_tasks.pipeline.names import dag_id
from conduit_tasks.topology import Pipeline

PipelineId = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9_:.\-]{1,128}$", description="The pipeline's id, as in its file.")
]
Shown = Callable[[str, Any], Any]
"""Function from a pipeline's id and an answer to the answer as this user may see it."""
HEADER = "X-Conduit-Request"
"""Header that no form of another site can send, and no script without this server's permission."""


def _pipeline(method: str, entity: DagAccessEntity) -> Callable[..., Pipeline]:
    def allowed(pipeline_id: PipelineId, request: Request, user: GetUserDep) -> Pipeline:
        # Checked before the pipeline is looked up, so that nobody learns which ids exist.
        check = requires_access_dag(method=method, access_entity=entity, param_dag_id=dag_id(pipeline_id))  # type: ignore[arg-type]
        check(request, user)
        return find(pipeline_id)

    return allowed


def find(pipeline_id: str) -> Pipeline:
    """Returns the pipeline; raises HTTPException 404 if no file has it."""
    for pipeline in pipelines():
        if pipeline.id == pipeline_id:
            return pipeline
    raise HTTPException(
        404, f"no pipeline {pipeline_id} loads; see the list of pipelines, or `conduit validate` for files with errors"
    )


def may_read_file(file: FilePath, request: Request, user: BaseUser) -> None:
    """Raises HTTPException 403 unless this user may read the code of the DAGs of all pipelines in a file."""
    for id in {declared.id for declared in load_file(file, check_ids=False).declared}:
        check = requires_access_dag(method="GET", access_entity=DagAccessEntity.CODE, param_dag_id=dag_id(id))
        check(request, user)


def same_site(request: Request) -> None:
    """Refuses a change that another site may have made this browser send: a cookie alone is no consent."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "a change asked for by another site is refused; use the pages, or a bearer token")
    bearer = request.headers.get("Authorization", "").lower().startswith("bearer ")
    if not bearer and HEADER not in request.headers:
        raise HTTPException(403, f"send the header {HEADER}: 1, or a bearer token instead of the cookie")


def visible(user: BaseUser) -> set[str]:
    """Returns the ids of the DAGs that this user may see."""
    return get_auth_manager().get_authorized_dag_ids(user=user)


WITHHELD = "what it says is shown to whoever may read the logs of the pipeline's tasks"


def asker(request: Request, user: GetUserDep) -> Callable[[DagAccessEntity, str], bool]:
    """Returns the function that says whether this user may see something of a DAG; it asks once about each."""

    @cache
    def may(entity: DagAccessEntity, dag: str) -> bool:
        try:
            requires_access_dag(method="GET", access_entity=entity, param_dag_id=dag)(request, user)
        except HTTPException:
            return False
        return True

    return may


May = Annotated[Callable[[DagAccessEntity, str], bool], Depends(asker)]


def of_records(may: May) -> Callable[[str], bool]:
    """Returns the function that says whether this user may see the records of a pipeline, as `SeenRecords` does."""
    return lambda pipeline_id: may(DagAccessEntity.TASK_LOGS, dag_id(pipeline_id))


def shown(may: May) -> Shown:
    """Returns the function that removes error texts from answers for users who may not read the logs of the pipeline's
    tasks: an error may quote a target's answer, or a record. The failed node, the class of error and the time stay.
    Of leases that a run of another DAG holds, and of outages that it met, it removes the names of those that the user
    may not see."""

    def show(pipeline_id: str, answer: Any) -> Any:
        dag = dag_id(pipeline_id)
        if not may(DagAccessEntity.TASK_LOGS, dag):
            answer = _without_errors(answer)
        if "holders" not in answer:
            return answer

        def named(task: dict[str, Any]) -> dict[str, Any]:
            known = task["dag_id"] in (None, dag) or may(DagAccessEntity.RUN, task["dag_id"])
            return task if known else {**task, **dict.fromkeys(TASK)}

        holders = {node: named(of) for node, of in answer["holders"].items()}
        destinations = [{**d, "outage": d["outage"] and named(d["outage"])} for d in answer["destinations"]]
        return {**answer, "holders": holders, "destinations": destinations}

    return show


def _without_errors(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_without_errors(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    hidden = {"error": WITHHELD} if isinstance(answer.get("error"), str) else {}
    return {name: _without_errors(value) for name, value in answer.items()} | hidden


MayRecords = Annotated[Callable[[str], bool], Depends(of_records)]
Show = Annotated[Shown, Depends(shown)]
Seen = Annotated[Pipeline, Depends(_pipeline("GET", DagAccessEntity.RUN))]
SeenRecords = Annotated[Pipeline, Depends(_pipeline("GET", DagAccessEntity.TASK_LOGS))]
Changed = Annotated[Pipeline, Depends(_pipeline("POST", DagAccessEntity.RUN))]
