"""Who may do what: Airflow's own users and permissions, asked for the DAG of the pipeline.

A plugin's routes are open unless each of them says otherwise. Whoever may see a DAG's runs sees its pipeline; its
records (dead letters, and what the targets answered to each) are shown to whoever may read its tasks' logs; whoever may
start its runs may change it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

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


Seen = Annotated[Pipeline, Depends(_pipeline("GET", DagAccessEntity.RUN))]
SeenRecords = Annotated[Pipeline, Depends(_pipeline("GET", DagAccessEntity.TASK_LOGS))]
Changed = Annotated[Pipeline, Depends(_pipeline("POST", DagAccessEntity.RUN))]
