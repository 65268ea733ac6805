"""Link from a task of a pipeline's DAG to the pipeline's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class PipelineLink(BaseOperatorLink):
    """A button on the task that opens its pipeline's page, with the progress of each destination."""

    name = "Conduit pipeline"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        return f"/dags/{ti_key.dag_id}/plugin/conduit-pipeline"
