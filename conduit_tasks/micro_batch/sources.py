"""Source connectors of a pipeline, as every step of a micro-batch opens them."""

from __future__ import annotations

from conduit_tasks.connectors.base import Source
from conduit_tasks.pipeline.topology import Pipeline


def source_connector(pipeline: Pipeline, source_id: str) -> Source:
    """The source connector of a pipeline, built from its settings."""
    from conduit_tasks.connectors.registry import source_class

    source = pipeline.source(source_id)
    connector = source_class(source.plugin)(source.settings)
    connector.pipeline, connector.connector = pipeline.id, source.id
    return connector
