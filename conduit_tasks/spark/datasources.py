"""Sources and destinations as Spark Python data sources, without a pipeline (docs/spark.md).

```python
register(spark)
frame = spark.read.format("conduit_file").option("path", "in/*.jsonl").option("format", "jsonl").load()
frame.write.format("conduit_http").mode("append").option("url", "http://localhost:9000/events").save()
```

A read is one plan without a limit, a partition per slice; nothing is acked. A write is at least once: Spark repeats a
task that failed from its beginning. What a pipeline adds (cursors, order, dead letters) is not there.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, InputPartition
from pyspark.sql.datasource import WriterCommitMessage as Message
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import BatchDestination, Limit, RecordDestination, Rows, Slice, Source, Spec
from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.pipeline.topology import Delivery
from conduit_tasks.settings import Settings, settings

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.record.record import Record

PREFIX = "conduit_"
SCHEMA = StructType(
    [
        StructField("position", BinaryType()),
        StructField("operation", StringType()),
        StructField("metadata", MapType(StringType(), StringType())),
        StructField("key", BinaryType()),
        StructField("before", BinaryType()),
        StructField("after", BinaryType()),
    ]
)
"""Of every frame that is read. Data are raw bytes, or JSON text of an object."""

SENDS = Delivery(retry=4, backoff_delay=0.2, timeout=30.0)
"""How records are sent: five attempts, then the task fails."""
AT_ONCE = 64
"""Sends on their way per task."""


def register(spark: Any) -> list[str]:
    """Makes every connector that can be loaded a format `conduit_<name>` of this session; returns their names."""
    made = []
    for name, found in registry.known().items():
        if found.error:
            continue
        cls: Any = type(f"Conduit_{name}", (ConduitDataSource,), {"connector": name, "home": settings()})
        spark.dataSource.register(cls)
        made.append(cls.name())
    return made


class ConduitDataSource(DataSource):
    """One connector; a subclass per name is made by `register`."""

    connector: ClassVar[str]
    home: ClassVar[Settings]
    """The settings of who registered it: an executor's environment is its worker's."""

    @classmethod
    def name(cls) -> str:
        return PREFIX + cls.connector

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: Any) -> SliceReader:
        self.home.use()
        cls = registry.source_class(self.connector)
        if cls.settles:
            raise ConfigError(f"{self.name()}: reading takes messages out of the queue, which only a pipeline settles")
        return SliceReader(self.connector, as_settings(cls.spec, self.options), self.home)

    def writer(self, schema: Any, overwrite: bool) -> RecordWriter:
        self.home.use()
        if overwrite:
            raise ConfigError(f"{self.name()}: nothing is overwritten; write with mode('append')")
        cls = registry.destination_class(self.connector)
        return RecordWriter(self.connector, as_settings(cls.spec, self.options), self.home)


def as_settings(spec: Spec, options: Mapping[str, str]) -> dict[str, str]:
    """Spark hands over option names in small letters; those of the connector get their own spelling back."""
    spelled = {option.name.lower(): option.name for option in spec.options}
    prefixes = {n[:-1].lower(): n[:-1] for n in spelled.values() if n.endswith("*")}
    out = {}
    for name, value in options.items():
        prefix = next((p for p in prefixes if name.startswith(p)), None)
        out[spelled.get(name) or (name if prefix is None else prefixes[prefix] + name[len(prefix) :])] = value
    return out


class _SlicePartition(InputPartition):
    """One slice."""


@dataclass
class SliceReader(DataSourceReader):
    """Plans in a process of the driver, reads in executors."""

    connector: str
    options: dict[str, str]
    home: Settings

    def __post_init__(self) -> None:
        self._source()

    def _source(self) -> Source:
        return registry.source_class(self.connector)(self.options)

    def partitions(self) -> list[InputPartition]:
        self.home.use()
        source = self._source()
        try:
            return [_SlicePartition(each) for each in source.plan({}, Limit())]
        finally:
            source.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self.home.use()
        slice: Slice | None = partition.value
        if slice is None:
            return  # Spark asks once where there is no partition.
        source = self._source()
        try:
            shared = source.metadata(slice)
            for batch in source.read(slice):
                yield _shown(batch, shared)
        finally:
            source.close()


def _shown(batch: pa.RecordBatch, shared: Mapping[str, str]) -> pa.RecordBatch:
    """A READ_SCHEMA batch with the columns of SCHEMA."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from conduit_tasks.record.record import OPERATIONS

    target = to_arrow_schema(SCHEMA, timezone="UTC")
    own = batch.column("metadata").to_pylist() if batch.column("metadata").null_count < batch.num_rows else None
    metadata = (
        [list({**shared, **dict(row or ())}.items()) for row in own] if own else [list(shared.items())] * batch.num_rows
    )
    columns = {
        **{name: batch.column(name) for name in ("position", "key", "before", "after")},
        "operation": pa.array(OPERATIONS).take(batch.column("operation")),
        "metadata": pa.array(metadata, target.field("metadata").type),
    }
    return pa.RecordBatch.from_arrays(
        [columns[name].cast(target.field(name).type) for name in target.names], schema=target
    )


@dataclass
class RecordWriter(DataSourceArrowWriter):
    """Writes one task's rows: see `records_of` for what they become."""

    connector: str
    options: dict[str, str]
    home: Settings
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    """Of one write, the same in every attempt of its tasks: a part of the records' ids."""

    def __post_init__(self) -> None:
        registry.destination_class(self.connector)(self.options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        from pyspark import TaskContext

        self.home.use()
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        batches = self._records(iterator, partition)
        first = next(batches, None)
        if first is None:
            return Message()
        batches = chain([first], batches)
        destination = registry.destination_class(self.connector)(self.options)
        if isinstance(destination, RecordDestination):
            asyncio.run(_send_all(destination, batches))
            return Message()
        if partition and destination.effectively_once and not destination.keeps_index:
            # It goes back to its state: a second writer would cut away what the first one wrote.
            raise ConfigError(f"{PREFIX}{self.connector} is written by one task: use frame.coalesce(1)")
        _write_all(destination, batches)
        return Message()

    def _records(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[list[Record]]:
        """Without empty ones; rows that have no position are numbered."""
        n = 0
        for batch in batches:
            records = records_of(batch, self.run)
            for record in records:
                record.position = record.position or f"{partition}.{n}".encode()
                n += 1
            if records:
                yield records


def records_of(batch: pa.RecordBatch, run: str) -> list[Record]:
    """Rows with columns of SCHEMA (`after` or `before` among them) are records: data that are an object, or JSON text
    of one, are structured, the rest raw. Rows of any other frame become the structured `after` of a record each."""
    from conduit_tasks.record.record import OPERATIONS, Origin, Record

    known = SCHEMA.names
    names = batch.schema.names
    origin = Origin("spark", "spark", run)
    if not set(names) <= set(known) or not {"before", "after"} & set(names):
        return [Record(b"", after=_plain(row), origin=origin) for row in batch.to_pylist()]
    columns = {name: batch.column(name).to_pylist() for name in names}
    missing = [None] * batch.num_rows
    if columns.get("operation") and (wrong := {o for o in columns["operation"] if o is not None} - set(OPERATIONS)):
        raise ConfigError(f"operation must be one of {', '.join(OPERATIONS)}, not {min(wrong)}")
    return [
        Record(
            _bytes(position) or b"",
            operation or "create",
            {k: str(v) for k, v in (metadata or ()) if v is not None},
            _data(key),
            _data(before),
            _data(after),
            origin=origin,
        )
        for position, operation, metadata, key, before, after in zip(*(columns.get(name, missing) for name in known))
    ]


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _data(value: Any) -> Any:
    import orjson

    if value is None or isinstance(value, dict):
        return _plain(value)
    raw = _bytes(value) if isinstance(value, str | bytes) else orjson.dumps(_plain(value))
    if raw is not None and raw.startswith(b"{"):
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            return raw
    return raw


def _plain(value: Any) -> Any:
    """JSON values of what Arrow gives: decimals and bytes as text, dates as ISO 8601."""
    import orjson

    def text(other: Any) -> str:
        return other.decode("utf-8", "replace") if isinstance(other, bytes) else str(other)

    return orjson.loads(orjson.dumps(value, default=text, option=orjson.OPT_NON_STR_KEYS))


async def _send_all(destination: RecordDestination, batches: Iterator[list[Record]]) -> None:
    from conduit_tasks.delivery.retry import RetryPolicy
    from conduit_tasks.delivery.single import send

    policy = RetryPolicy(SENDS)
    room = asyncio.Semaphore(AT_ONCE)

    async def one(record: Record) -> None:
        async with room:
            outcome, attempts = await send(destination, record, policy, SENDS.timeout)
        if outcome.kind != "delivered":
            kind = Refused if outcome.kind == "refused" else Unavailable
            raise kind(f"{record.position!r} was {outcome.kind} in {attempts} attempt(s): {outcome.message}")

    await destination.open(SENDS.timeout)
    try:
        for records in batches:
            async with asyncio.TaskGroup() as group:
                for record in records:
                    group.create_task(one(record))
    except* (Refused, Unavailable) as several:
        raise several.exceptions[0] from None
    finally:
        await destination.close()


def _write_all(destination: BatchDestination, batches: Iterator[list[Record]]) -> None:
    from conduit_tasks.record.schema import spool_batch

    first, state = 0, None
    destination.open(None)
    try:
        for records in batches:
            for at in range(0, len(records), destination.chunk):
                part = records[at : at + destination.chunk]
                seqs = range(first, first + len(part))
                rows = Rows(
                    spool_batch([0] * len(part), seqs, part), [part[0].origin], first=first, last=first + len(part) - 1
                )
                state = destination.write(rows)
                first += len(part)
        if first:
            # What the engine does once the state is confirmed: from now on it is not cut back.
            destination.open(state)
    finally:
        destination.close()
