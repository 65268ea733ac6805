"""Removes what a source made in its system, before the pipeline or the connector is deleted."""

from __future__ import annotations

from conduit_tasks.connectors.sources import source_connector
from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.context import opened


def teardown(pipeline_id: str, source_id: str) -> list[str]:
    """Returns what was removed, in words; [] if there was nothing. Raises ConfigError if the pipeline is not stopped or
    has no such source, and what the source's `teardown` raises."""
    with opened(pipeline_id, "teardown") as context:
        if source_id not in {source.id for source in context.pipeline.sources}:
            raise ConfigError(f"pipeline {pipeline_id} has no source {source_id}")
        if context.broker.lifecycle.stored_status() != "stopped":
            raise ConfigError(f"pipeline {pipeline_id} is not stopped: first `conduit stop {pipeline_id}`")
        connector = source_connector(context.pipeline, source_id)
        try:
            return connector.teardown()
        finally:
            connector.close()
