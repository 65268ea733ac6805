"""Sources and destinations as Spark Python data sources, without a pipeline (docs/spark.md).

```python
register(spark)
frame = spark.read.format("conduit_file").option("path", "in/*.jsonl").option("format", "jsonl").load()
frame.write.format("conduit_http").mode("append").option("url", "http://localhost:9000/events").save()
```

A read is one plan without a limit, a partition per slice; nothing is acked. A stream acks what Spark has committed. A
write is at least once: Spark repeats a failed task from its beginning. Features of a pipeline (cursors, order, dead
letters) are missing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from conduit_tasks.connectors import options, registry
from conduit_tasks.connectors.base import Limit, Position, Slice, Source, Spec
from conduit_tasks.connectors.capabilities import Queue
from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import Settings, settings
from conduit_tasks.spark.datasource_write import RecordWriter
from conduit_tasks.spark.frame_records import SCHEMA, StructType, shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit


PREFIX = "conduit_"
STREAM_RECORDS = 500_000
"""Records at most of a stream's micro-batch, by default; option `max-records`."""


def register(spark: Any) -> list[str]:
    """Registers every connector that can be loaded as a format `conduit_<name>` of this session, except connectors that
    are formats of Spark's already; returns the names of the formats."""
    made = []
    for name, found in registry.known().items():
        if found.error or any(getattr(cls, "in_driver", False) for cls in (found.source, found.destination)):
            continue
        cls: Any = type(f"Conduit_{name}", (ConduitDataSource,), {"connector": name, "home": settings()})
        spark.dataSource.register(cls)
        made.append(cls.name())
    return made


class ConduitDataSource(DataSource):
    """Data source of one connector; `register` makes a subclass per connector."""

    connector: ClassVar[str]
    home: ClassVar[Settings]
    """Settings of the process that registered it: the environment of an executor is that of its worker."""

    @classmethod
    def name(cls) -> str:
        return PREFIX + cls.connector

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: Any) -> SliceReader:
        self.home.use()
        return SliceReader(self.connector, self._source_settings(self.options), self.home)

    def streamReader(self, schema: Any) -> SliceStream:
        if find_spec("pyspark.sql.streaming.datasource") is None:
            # A reader of Spark 4.1 is not told where the stream stands when it is asked how far it goes.
            raise ConfigError(f"{self.name()}: a stream needs Spark 4.2, this is {version('pyspark')}: use spark.read")
        self.home.use()
        given = dict(self.options)
        most = options.integer({"max-records": given.pop("max-records", str(STREAM_RECORDS))}, "max-records", least=1)
        return SliceStream(self.connector, self._source_settings(given), self.home, most)

    def _source_settings(self, given: Mapping[str, str]) -> dict[str, str]:
        cls = registry.source_class(self.connector)
        if issubclass(cls, Queue):
            raise ConfigError(f"{self.name()}: reading takes messages out of the queue, which only a pipeline settles")
        return as_settings(cls.spec, given)

    def writer(self, schema: Any, overwrite: bool) -> RecordWriter:
        self.home.use()
        if overwrite:
            raise ConfigError(f"{self.name()}: nothing is overwritten; write with mode('append')")
        cls = registry.destination_class(self.connector)
        return RecordWriter(self.connector, as_settings(cls.spec, self.options), self.home)


def as_settings(spec: Spec, options: Mapping[str, str]) -> dict[str, str]:
    """Restores the connector's spelling of its option names, which Spark hands over in lower case."""
    spelled = {name.lower(): name for option in spec.options for name in (option.name, option.conduit) if name}
    prefixes = {n[:-1].lower(): n[:-1] for n in spelled.values() if n.endswith("*")}
    out = {}
    for name, value in options.items():
        prefix = next((p for p in prefixes if name.startswith(p)), None)
        out[spelled.get(name) or (name if prefix is None else prefixes[prefix] + name[len(prefix) :])] = value
    return out


class SlicePartition(InputPartition):
    """Partition of one slice."""


@dataclass
class SliceReader(DataSourceReader):
    """Reader that plans in a process of the driver and reads in executors."""

    connector: str
    options: dict[str, str]
    home: Settings
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    """Name under which a source keeps a position by itself (a consumer group's). It is unique: otherwise records that
    one query has acked would be left out by all."""

    def __post_init__(self) -> None:
        self._source()

    def _source(self) -> Source:
        source = registry.source_class(self.connector)(self.options)
        if self.name:
            source.pipeline, source.connector = "spark", self.name
        return source

    def partitions(self) -> list[InputPartition]:
        return [SlicePartition(each) for each in self.plan({}, Limit())]

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        self.home.use()
        source = self._source()
        try:
            return source.plan(position, limit)
        finally:
            source.close()

    def ack(self, position: Position) -> None:
        self.home.use()
        source = self._source()
        try:
            source.ack(position)
        finally:
            source.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self.home.use()
        slice: Slice | None = partition.value
        if slice is None:
            return  # Spark calls this once if there is no partition.
        source = self._source()
        try:
            shared = source.metadata(slice)
            for batch in source.read(slice):
                yield shown(batch, shared)
        finally:
            source.close()


@dataclass
class SliceStream(DataSourceStreamReader):
    """Reader of a stream. An offset holds the position, the slices that lead to it, so that boundaries are durable in
    Spark's checkpoint before anything is read (invariant 3), and the query's own name (`SliceReader.name`; older
    checkpoints have none). The source is acked when Spark has committed the offset."""

    connector: str
    options: dict[str, str]
    home: Settings
    most: int

    def __post_init__(self) -> None:
        self._reader()

    def _reader(self, offset: Mapping[str, Any] | None = None) -> SliceReader:
        return SliceReader(self.connector, self.options, self.home, (offset or {}).get("reader", ""))

    def initialOffset(self) -> dict[str, Any]:
        return {"position": {}, "slices": [], "reader": secrets.token_hex(8)}

    def getDefaultReadLimit(self) -> ReadLimit:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self.most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        records = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", self.most)
        slices = self._reader(start).plan(start["position"], Limit(records=records))
        if any(each.open for each in slices):
            raise ConfigError(f"{PREFIX}{self.connector} finds its ends while it reads: use spark.read, or a pipeline")
        if not slices:
            return start
        position = {**start["position"], **{each.part: each.end for each in slices}}
        return {**start, "position": position, "slices": [asdict(each) for each in slices]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [] if start == end else [SlicePartition(Slice(**each)) for each in end["slices"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader().read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reader(end).ack(end["position"])
