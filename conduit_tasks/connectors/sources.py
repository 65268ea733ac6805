"""Sources of a pipeline as its steps open them: connections kept between two questions, the metadata that the records
of a slice share, `cloudevents.*` of the settings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from conduit_tasks.connectors.connection import made
from conduit_tasks.record.record import Origin
from conduit_tasks.topology import Processor

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Slice
    from conduit_tasks.connectors.base import Source as Connector
    from conduit_tasks.topology import Pipeline, Source

IDLE = 60.0
"""Seconds after which a connection is not trusted any more: whatever is between may have dropped it in silence."""


def source_connector(pipeline: Pipeline, source_id: str) -> Connector:
    """Builds a source connector of a pipeline from its settings."""
    from conduit_tasks.connectors.registry import source_class

    source = pipeline.source(source_id)
    connector = made(source_class(source.plugin), source.settings)
    connector.pipeline, connector.connector = pipeline.id, source.id
    return connector


class OpenSources:
    """Source connectors for one step that plans and acks again and again. A connector that `stays_open` is asked again,
    with its connections, until a question fails or IDLE seconds pass between two; any other is built for each question.
    `close` leaves nothing open."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._open: dict[str, tuple[Connector, float]] = {}

    @contextmanager
    def asked(self, source_id: str) -> Iterator[Connector]:
        """The connector for one question. Nobody else has it meanwhile."""
        connector, until = self._open.pop(source_id, (None, 0.0))
        if connector is not None and time.monotonic() > until:
            connector.close()
            connector = None
        connector = connector or source_connector(self._pipeline, source_id)
        well = False
        try:
            yield connector
            well = True
        finally:
            if well and connector.stays_open and source_id not in self._open:
                self._open[source_id] = connector, time.monotonic() + IDLE
            else:
                connector.close()

    def close(self) -> None:
        """Closes those that are open still."""
        with ExitStack() as stack:
            while self._open:
                stack.callback(self._open.popitem()[1][0].close)


def source_origins(
    pipeline: Pipeline, source: Source, slices: Sequence[Slice]
) -> tuple[list[Origin], tuple[Processor, ...]]:
    """Returns what the records of each slice share, and the source's processors.

    A setting `cloudevents.<attribute>` sets that attribute: a constant for all records, a template record by record.
    """
    connector = source_connector(pipeline, source.id)
    constant, templated = attributes(source)
    shared = {
        "opencdc.readAt": str(time.time_ns()),
        "conduit.source.connector.id": source.id,
        "conduit.source.plugin.name": source.plugin,
        **constant,
    }
    try:
        origins = [Origin(pipeline.id, source.id, s.partition, {**shared, **connector.metadata(s)}) for s in slices]
    finally:
        connector.close()
    return origins, (*templated, *source.processors)


def attributes(source: Source) -> tuple[dict[str, str], list[Processor]]:
    """Returns the CloudEvents attributes that the settings give to all records of a source, and processors for those
    that are templates."""
    constant: dict[str, str] = {}
    templated: list[Processor] = []
    for name, value in source.settings.items():
        if not name.startswith("cloudevents."):
            continue
        if "{{" in value:
            settings = {"field": f'.Metadata["{name}"]', "value": value}
            templated.append(Processor(f"{source.id}:{name}", "field.set", settings))
        else:
            constant[name] = value
    return constant, templated
