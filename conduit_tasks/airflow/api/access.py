"""Who may do what: Airflow's own users and permissions, asked for the DAG of the pipeline.

A plugin's routes are open unless each of them says otherwise. Whoever may see a DAG's runs sees its pipeline; its
records (dead letters, and what the targets answered to each) are shown to whoever may read its tasks' logs; whoever may
start its runs may change it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, HTTPException, Path, Request

from conduit_tasks.airflow.api.files import pipelines
from conduit_tasks.pipeline.names import dag_id
from conduit_tasks.pipeline.topology import Pipeline

PipelineId = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9_:.\-]{1,128}$", description="The pipeline's id, as in its file.")
]
Shown = Callable[[str, Any], Any]
"""Pipeline's id and an answer → the answer as this user may see it."""
HEADER = "X-Conduit-Request"
"""What no other site's form can send, and no script without this server's leave."""


def _pipeline(method: str, entity: DagAccessEntity) -> Callable[..., Pipeline]:
    def allowed(pipeline_id: PipelineId, request: Request, user: GetUserDep) -> Pipeline:
        # Before it is looked for, so that nobody learns which ids exist.
        check = requires_access_dag(method=method, access_entity=entity, param_dag_id=dag_id(pipeline_id))  # type: ignore[arg-type]
        check(request, user)
        return find(pipeline_id)

    return allowed


def find(pipeline_id: str) -> Pipeline:
    """404 where no file has it."""
    for pipeline in pipelines():
        if pipeline.id == pipeline_id:
            return pipeline
    raise HTTPException(
        404, f"no pipeline {pipeline_id} loads; see the list of pipelines, or `conduit validate` for files with errors"
    )


def same_site(request: Request) -> None:
    """Refuses a change that another site may have made this browser ask for: a cookie alone is no consent."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "a change asked for by another site is refused; use the pages, or a bearer token")
    bearer = request.headers.get("Authorization", "").lower().startswith("bearer ")
    if not bearer and HEADER not in request.headers:
        raise HTTPException(403, f"send the header {HEADER}: 1, or a bearer token instead of the cookie")


def visible(user: BaseUser) -> set[str]:
    """The ids of the DAGs that this user may see."""
    return get_auth_manager().get_authorized_dag_ids(user=user)


WITHHELD = "what it says is shown to whoever may read the logs of the pipeline's tasks"


def shown(request: Request, user: GetUserDep) -> Shown:
    """Takes errors out of what is answered of a pipeline, for a user who may not read its tasks' logs: an error may
    quote what a target answered, or a record. Which node failed, by what class of error and when is left."""

    def show(pipeline_id: str, answer: Any) -> Any:
        dag = dag_id(pipeline_id)
        check = requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_LOGS, param_dag_id=dag)
        try:
            check(request, user)
        except HTTPException:
            return _without_errors(answer)
        return answer

    return show


def _without_errors(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_without_errors(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    hidden = {"error": WITHHELD} if "error_class" in answer and "error" in answer else {}
    return {name: _without_errors(value) for name, value in answer.items()} | hidden


Show = Annotated[Shown, Depends(shown)]
Seen = Annotated[Pipeline, Depends(_pipeline("GET", DagAccessEntity.RUN))]
SeenRecords = Annotated[Pipeline, Depends(_pipeline("GET", DagAccessEntity.TASK_LOGS))]
Changed = Annotated[Pipeline, Depends(_pipeline("POST", DagAccessEntity.RUN))]
