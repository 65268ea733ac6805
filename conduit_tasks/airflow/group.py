"""A pipeline as a task group (`ConduitPipeline`) inside a DAG that is written by hand; one that is `@continuous` is
refused."""

from __future__ import annotations

from typing import Any

from airflow.sdk import TaskGroup

from conduit_tasks.airflow.factory import RETRIES, RETRY_DELAY, add_tasks
from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.pipeline.names import safe_name
from conduit_tasks.pipeline.schedule import is_continuous


class ConduitPipeline(TaskGroup):
    """One run of a pipeline of `include/pipelines` as a group of tasks: `before >> ConduitPipeline("orders") >> after`.

    It succeeds if everything that was there is delivered or waits for a destination that is down, also if there was
    nothing to do; the tasks after it then run. It fails as the pipeline's own run would. Give the pipeline
    `schedule: none`, unless its own DAG is to run it, too: a pipeline has one run at a time, and of two that are
    started at once one leaves the work to the other. Arguments beyond `pipeline_id` are those of TaskGroup.

    Raises ConfigError if there is no such pipeline, or its file has an error, or it is scheduled `@continuous`.
    """

    def __init__(self, pipeline_id: str, *, group_id: str | None = None, **kwargs: Any) -> None:
        pipeline = get_pipeline(pipeline_id)
        if is_continuous(pipeline):
            raise ConfigError(
                f"ConduitPipeline: pipeline {pipeline_id} is scheduled @continuous, so its runs do not end when all is "
                "delivered; write `schedule: none` in its file"
            )
        given: Any = {"retries": RETRIES, "retry_delay": RETRY_DELAY, **(kwargs.pop("default_args", None) or {})}
        tooltip = kwargs.pop("tooltip", "") or f"Conduit pipeline {pipeline_id}"
        super().__init__(group_id or safe_name(pipeline_id), default_args=given, tooltip=tooltip, **kwargs)
        self.pipeline_id = pipeline_id
        with self:
            add_tasks(pipeline, among_others=True)
