"""Source connectors of a pipeline, as every step of a micro-batch opens them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Source
    from conduit_tasks.pipeline.topology import Pipeline


def source_connector(pipeline: Pipeline, source_id: str) -> Source:
    """Builds a source connector of a pipeline from its settings."""
    from conduit_tasks.connectors.registry import source_class

    source = pipeline.source(source_id)
    connector = source_class(source.plugin)(source.settings)
    connector.pipeline, connector.connector = pipeline.id, source.id
    return connector


class OpenSources:
    """Source connectors for one step that plans and acks again and again. One that `stays_open` is asked again, with
    its connections, until a question fails; any other is built for each question. Closing leaves nothing open."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._open: dict[str, Source] = {}

    @contextmanager
    def asked(self, source_id: str) -> Iterator[Source]:
        """Yields the connector for one question. No other question uses it meanwhile."""
        connector = self._open.pop(source_id, None) or source_connector(self._pipeline, source_id)
        well = False
        try:
            yield connector
            well = True
        finally:
            if well and connector.stays_open and source_id not in self._open:
                self._open[source_id] = connector
            else:
                connector.close()

    def close(self) -> None:
        """Closes the connectors that are still open."""
        while self._open:
            self._open.popitem()[1].close()
