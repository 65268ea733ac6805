"""`GET /conduit/dags/{dag_id}`: status, first error (C16) and cursors of a pipeline, for those who may see its DAG."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException

from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.pipeline.load import load_folder
from conduit_tasks.pipeline.names import dag_id as dag_id_of
from conduit_tasks.settings import settings

app = FastAPI(title="Conduit", description="How far each pipeline is.")


@app.get(
    "/dags/{dag_id}",
    # A plugin's routes are open unless each of them says otherwise.
    dependencies=[Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.RUN))],
)
def pipeline_status(dag_id: str) -> dict[str, Any]:
    """404 for a DAG that is no pipeline's, 503 where the broker cannot be reached."""
    found = load_folder(settings().path(settings().pipelines)).pipelines
    pipeline = next((p for p in found if dag_id_of(p.id) == dag_id), None)
    if pipeline is None:
        raise HTTPException(404, f"{dag_id} is not the DAG of a pipeline")
    try:
        return describe(pipeline.id)
    except ConduitError as error:
        raise HTTPException(503, str(error)) from error


def describe(pipeline_id: str) -> dict[str, Any]:
    """The pipeline's state as the broker knows it, as JSON types. Raises ConduitError."""
    with opened(pipeline_id, "status") as context:
        status, pipeline, broker = context.broker.status(), context.pipeline, context.broker
        destinations = {d.id: broker.delivery(d.id) for d in pipeline.destinations}
        return {
            "pipeline": pipeline.id,
            "status": status.status,
            "error": asdict(status.error) if status.error else None,
            "sealed": broker.latest_sealed(),
            "sources": {s.id: {"acked": broker.acked_position(s.id)} for s in pipeline.sources},
            "destinations": {
                id: {
                    "status": state.status,
                    "cursor": state.cursor,
                    "counters": state.counters,
                    "error": asdict(state.error) if state.error else None,
                }
                for id, state in destinations.items()
            },
        }
