"""Source connectors of a pipeline, as every step of a micro-batch opens them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from conduit_tasks.pipeline.topology import Processor
from conduit_tasks.record.record import Origin

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Slice
    from conduit_tasks.connectors.base import Source as Connector
    from conduit_tasks.pipeline.topology import Source

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conduit_tasks.pipeline.topology import Pipeline


def source_connector(pipeline: Pipeline, source_id: str) -> Connector:
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
        self._open: dict[str, Connector] = {}

    @contextmanager
    def asked(self, source_id: str) -> Iterator[Connector]:
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


def source_origins(
    pipeline: Pipeline, source: Source, slices: Sequence[Slice]
) -> tuple[list[Origin], tuple[Processor, ...]]:
    """Returns what the records of each slice share, and the source's processors.

    A setting `cloudevents.<attribute>` sets that attribute: a constant for all records, a template record by record.
    """
    connector = source_connector(pipeline, source.id)
    shared = {
        "opencdc.readAt": str(time.time_ns()),
        "conduit.source.connector.id": source.id,
        "conduit.source.plugin.name": source.plugin,
    }
    templated: list[Processor] = []
    for name, value in source.settings.items():
        if not name.startswith("cloudevents."):
            continue
        if "{{" in value:
            settings = {"field": f'.Metadata["{name}"]', "value": value}
            templated.append(Processor(f"{source.id}:{name}", "field.set", settings))
        else:
            shared[name] = value
    try:
        origins = [Origin(pipeline.id, source.id, s.partition, {**shared, **connector.metadata(s)}) for s in slices]
    finally:
        connector.close()
    return origins, (*templated, *source.processors)
