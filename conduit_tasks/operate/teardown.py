"""Removes what a source made in its system, before the pipeline or the connector is deleted."""

from __future__ import annotations

from typing import Any

from conduit_tasks.connectors.plugins import is_standalone
from conduit_tasks.connectors.registry import destination_class
from conduit_tasks.connectors.sources import source_connector
from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.spool.told import Told


def teardown(pipeline_id: str, connector_id: str) -> list[str]:
    """Returns what was removed, in words; [] if there was nothing. Raises ConfigError if the pipeline is not stopped or
    has no such source, nor such a destination that made something, and what the connector's `teardown` raises."""
    with opened(pipeline_id, "teardown") as context:
        pipeline = context.pipeline
        destinations = [d for d in pipeline.destinations if d.id == connector_id and is_standalone(d.plugin)]
        if not destinations and connector_id not in {source.id for source in pipeline.sources}:
            raise ConfigError(f"pipeline {pipeline_id} has no source {connector_id}")
        if context.broker.lifecycle.stored_status() != "stopped":
            raise ConfigError(f"pipeline {pipeline_id} is not stopped: first `conduit stop {pipeline_id}`")
        connector: Any
        if destinations:
            connector = destination_class(destinations[0].plugin)(destinations[0].settings)
            connector.pipeline, connector.connector = pipeline.id, connector_id
        else:
            connector = source_connector(pipeline, connector_id)
        node = destinations[0].node if destinations else pipeline.source(connector_id).node
        connector.told = Told(context.spool, pipeline.id, node)
        try:
            return list(connector.teardown())
        finally:
            connector.close()
