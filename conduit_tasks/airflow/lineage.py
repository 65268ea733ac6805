"""OpenLineage's datasets of a node's work, with the records of this run and their fields (docs/lineage.md).

The provider of OpenLineage asks an operator for it when the task has ended; it says the rest itself: job, run, their
parents, owners. Nothing here may fail a task.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from conduit_tasks.pipeline.assets import inlets, outlets, read, written
from conduit_tasks.pipeline.datasets import Dataset, dataset
from conduit_tasks.topology import Destination, Node, Pipeline, Source

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.record.record import Record
    from conduit_tasks.spool.spool import Spool

log = logging.getLogger(__name__)

Fields = tuple[tuple[str, str], ...]
"""Names and types."""
ROWS, BYTES = 100, 8 << 20
"""Records that are looked at for their fields, and bytes that are read for it at most."""
FIELDS, LONGEST = 500, 256
"""Fields of a dataset at most, and characters of their names: an object may be used as a map, with any number."""
MICRO_BATCHES = 500
"""Micro-batches of a run whose records are counted by source at most; of more, no number is given."""


@dataclass(frozen=True)
class End:
    """One end of a node's work. `rows`: records of this run, None: not known."""

    datasets: tuple[Dataset, ...]
    rows: int | None = None
    fields: Fields = ()


@dataclass(frozen=True)
class Lineage:
    """A node's work."""

    inputs: list[End] = field(default_factory=list)
    outputs: list[End] = field(default_factory=list)


def is_wanted() -> bool:
    """Returns whether OpenLineage's provider is there and has somewhere to send its events."""
    try:
        from airflow.providers.openlineage import conf

        return not conf.is_disabled()
    except ImportError:
        return False
    except Exception as error:  # noqa: BLE001 - a wrong setting of the provider's must not fail the task
        log.warning("OpenLineage hears nothing: its settings cannot be read (%s)", type(error).__name__)
        return False


def of_node(pipeline_id: str, node: str, run: str, *, skipped: bool = False) -> Lineage | None:
    """Returns what a node has read and written in a run; None, and a line in the log, if that cannot be said.
    `skipped`: its task ends as skipped, so it has read nothing, and written only what it delivered before that."""
    from conduit_tasks.pipeline.load import get_pipeline

    try:
        pipeline, kind, id = get_pipeline(pipeline_id), Node(node).kind, Node(node).id
        if kind == "sources":
            if skipped:
                return Lineage()
            return Lineage([End(_read(next(s for s in pipeline.sources if s.id == id)))])
        if kind != "destinations":
            return Lineage()
        return _of_destination(pipeline, pipeline.destination(id), run, skipped=skipped)
    except Exception as error:  # noqa: BLE001 - an event is worth less than the task
        # Its message may hold an address.
        log.warning("OpenLineage hears nothing of %s: %s", node, type(error).__name__)
        return None


def _of_destination(pipeline: Pipeline, destination: Destination, run: str, *, skipped: bool) -> Lineage:
    from conduit_tasks.micro_batch.context import open_broker, open_spool

    with closing(open_broker(pipeline.id, initialise=False)) as broker:
        counts, numbers = broker.redeliveries.delivered_by(destination.id, run)
        if skipped and not numbers:
            return Lineage()
        came = _by_source(broker, pipeline, numbers)
    spool = open_spool(pipeline)
    inputs = []
    for source in pipeline.sources:
        if numbers and came is not None and not came[source.id]:
            continue
        seen = () if source.processors else _fields(spool, pipeline, source.node, numbers)
        inputs.append(End(_read(source), None if came is None else came[source.id], seen))
    seen = () if destination.processors else _fields(spool, pipeline, destination.node, numbers)
    rows = counts.get("delivered", 0) + counts.get("redelivered", 0)
    return Lineage(inputs, [End(_written(destination), rows, seen)])


def _read(source: Source) -> tuple[Dataset, ...]:
    if source.assets is not None:
        return _datasets(inlets(source))
    return _without_paths(source, _datasets(read(source.plugin, _settings(source, "source_class"))))


def _written(destination: Destination) -> tuple[Dataset, ...]:
    if destination.assets is not None:
        return _datasets(destination.assets)
    uris = outlets(destination) or written(destination.plugin, _settings(destination, "destination_class"))
    return _without_paths(destination, _datasets(uris))


def _without_paths(connector: Source | Destination, found: tuple[Dataset, ...]) -> tuple[Dataset, ...]:
    """Returns the datasets without the paths of HTTP addresses that a connection holds: chats, say, have a secret in
    the path."""
    if "connection" not in connector.settings:
        return found
    return tuple(replace(each, name="/") if each.namespace.startswith("http") else each for each in found)


def _settings(connector: Source | Destination, find: str) -> Mapping[str, str]:
    """Returns the settings with what their connection gives; a URI that is made from them has no secret of it."""
    from conduit_tasks.connectors import registry
    from conduit_tasks.connectors.connection import resolved

    if "connection" not in connector.settings:
        return connector.settings
    return resolved(getattr(registry, find)(connector.plugin).spec, connector.settings)


def _datasets(uris: Iterable[str]) -> tuple[Dataset, ...]:
    return tuple(found for uri in uris if (found := dataset(uri)) is not None)


def _by_source(broker: Broker, pipeline: Pipeline, numbers: Sequence[int]) -> Counter[str] | None:
    """Returns the records that each source has brought into these micro-batches, by Redis: a spool on S3 takes some
    tenths of a second for each. None if they are too many, or Redis does not know it of one any more."""
    if len(numbers) > MICRO_BATCHES:
        return None
    nodes = [f"stage:{source.node}" for source in pipeline.sources]
    keys = [broker.access.keys.micro_batch(number) for number in numbers]
    found: Counter[str] = Counter()
    for total, came, *stages in broker.access.read(*(("HMGET", key, "total", "came", *nodes) for key in keys)):
        if came is not None:  # kept small by now
            read = [json.loads(came).get(source.id, 0) for source in pipeline.sources]
        else:
            read = [json.loads(stage)["read"] if stage else 0 for stage in stages]
        if total is not None and len(read) == 1:
            read = [int(total)]
        if total is None or sum(read) != int(total):
            return None
        found.update({source.id: n for source, n in zip(pipeline.sources, read, strict=True)})
    return found


def _fields(spool: Spool, pipeline: Pipeline, node: Node, numbers: Sequence[int]) -> Fields:
    """Returns the fields of the last records of a stage: those of the schema that a record names, or what the records
    themselves have."""
    from conduit_tasks.operate.stages import stage_of
    from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
    from conduit_tasks.spool.tail import Budget, last_rows

    stage = stage_of(spool, pipeline, node, numbers[-1]) if numbers else None
    if stage is None or not stage.files:
        return ()
    rows = last_rows(
        spool, stage.files[-1], ROWS, columns=SPOOL_SCHEMA.names, budget=Budget(BYTES), row_filter=stage.row_filter
    )
    records = [record for batch in rows for record in to_records(batch, stage.origins)]
    return tuple(each for each in _registered(records) or _structure(records) if len(each[0]) <= LONGEST)[:FIELDS]


def _registered(records: Sequence[Record]) -> Fields:
    """Returns the fields of the Avro schema that the last record names, if the built-in registry has it."""
    from conduit_tasks.errors import ConfigError
    from conduit_tasks.schemas.avro import parsed_schema
    from conduit_tasks.schemas.registry import RedisRegistry

    meta = records[-1].meta() if records else {}
    subject, version = (meta.get(f"opencdc.payload.schema.{name}", "") for name in ("subject", "version"))
    if not subject or not version.isdigit():
        return ()
    with closing(RedisRegistry()) as registry:
        try:
            _, text = registry.by_version(subject, int(version))
        except ConfigError:
            return ()
    schema: Any = parsed_schema(text)
    return tuple((str(each["name"]), _avro(each["type"])) for each in schema.get("fields", ()))


def _avro(kind: Any) -> str:
    if isinstance(kind, list):
        return "|".join(_avro(each) for each in kind)
    return str(kind.get("logicalType") or kind["type"]) if isinstance(kind, dict) else str(kind)


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}


def _structure(records: Iterable[Record]) -> Fields:
    """Returns the fields of objects and their JSON types; none if they are not objects."""
    found: dict[str, str] = {}
    for record in records:
        after = record.to_opencdc()["payload"]["after"]
        for name, value in after.items() if isinstance(after, dict) else ():
            if value is not None or name not in found:
                kind = "" if value is None else _TYPES.get(type(value), "string")
                found[name] = kind or found.get(name, "")
    return tuple(found.items())


def as_openlineage(found: Lineage) -> Any:
    """Returns the provider's `OperatorLineage`."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import (
        input_statistics_input_dataset,
        output_statistics_output_dataset,
        schema_dataset,
    )

    def facets(end: End) -> dict[str, Any]:
        fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=kind or None) for name, kind in end.fields]
        return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)} if fields else {}

    inputs, outputs = [], []
    for end in found.inputs:
        # Of several topics or tables, nobody knows which record came from which.
        alone = end.rows is not None and len(end.datasets) == 1
        counted = input_statistics_input_dataset.InputStatisticsInputDatasetFacet
        stats: dict[str, Any] = {"inputStatistics": counted(rowCount=end.rows)} if alone else {}
        own = facets(end) if len(end.datasets) == 1 else {}
        inputs += [InputDataset(each.namespace, each.name, facets=own, inputFacets=stats) for each in end.datasets]
    for end in found.outputs:
        wrote = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        done: dict[str, Any] = {"outputStatistics": wrote(rowCount=end.rows)} if end.rows is not None else {}
        went = facets(end)
        outputs += [OutputDataset(each.namespace, each.name, facets=went, outputFacets=done) for each in end.datasets]
    return OperatorLineage(inputs=inputs, outputs=outputs)
