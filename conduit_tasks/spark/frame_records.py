"""Columns of the frames that Spark reads from our sources, and conversion of records to rows and of rows to records
(docs/spark.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from conduit_tasks.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.record.record import Record

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
"""Schema of every frame that is read. Data are raw bytes, or JSON text of an object."""


def shown(batch: pa.RecordBatch, shared: Mapping[str, str]) -> pa.RecordBatch:
    """Converts a READ_SCHEMA batch to the columns of SCHEMA."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from conduit_tasks.record.record import OPERATIONS

    target = to_arrow_schema(SCHEMA)
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


def records_of(batch: pa.RecordBatch, run: str) -> list[Record]:
    """Converts rows to records. Rows with columns of SCHEMA (`after` or `before` among them) are records: an object, or
    JSON text of one, becomes structured data, other data raw. A row of any other frame becomes the structured `after`
    of a record. Raises ConfigError for an unknown operation."""
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
    from conduit_tasks.record import jsons

    if value is None or isinstance(value, dict):
        return _plain(value)
    raw = _bytes(value) if isinstance(value, str | bytes) else jsons.dumps(_plain(value))
    if raw is not None and raw.startswith(b"{"):
        try:
            return jsons.loads(raw)
        except jsons.JSONDecodeError:
            return raw
    return raw


def _plain(value: Any) -> Any:
    """Converts Arrow's values to JSON values: decimals and bytes as text, dates as ISO 8601."""
    from conduit_tasks.record import jsons

    def text(other: Any) -> str:
        return other.decode("utf-8", "replace") if isinstance(other, bytes) else str(other)

    return jsons.loads(jsons.dumps(value, default=text))
