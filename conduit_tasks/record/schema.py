"""Records as Arrow batches: the form in which they are read, spooled and delivered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np
import orjson
import pyarrow as pa

from conduit_tasks.record.record import OPERATIONS, Data, Origin, Record

KEY_STRUCTURED, BEFORE_STRUCTURED, AFTER_STRUCTURED = 1, 2, 4

RECORD_FIELDS = [
    pa.field("position", pa.binary()),
    pa.field("operation", pa.int8()),
    pa.field("metadata", pa.map_(pa.string(), pa.string())),
    pa.field("key", pa.binary()),
    pa.field("before", pa.binary()),
    pa.field("after", pa.binary()),
    pa.field("shape", pa.int8()),
]
"""`operation`: index into OPERATIONS. `metadata`: null where the record has none of its own.
`key`, `before`, `after`: raw bytes, or JSON text where the bit of `shape` says structured; null where absent."""

READ_SCHEMA = pa.schema(RECORD_FIELDS)
"""What a source yields: in order, the n-th row is number n of the slice."""

NUMBER_FIELDS = [pa.field("slice", pa.int32()), pa.field("n", pa.int64()), pa.field("ord", pa.int32())]
"""`slice`: number of the slice within its source's slices of the micro-batch. `n`: the record's number
within the slice, from 0, given before anything is processed. `ord`: ordinal of a derived record, else 0."""

SPOOL_SCHEMA = pa.schema(NUMBER_FIELDS + RECORD_FIELDS)
"""What a spool file holds, plus one boolean column `to.<destination>` per destination with filters.
Rows are sorted by (slice, n, ord)."""


def read_batch(
    positions: pa.Array,
    *,
    after: pa.Array | None = None,
    key: pa.Array | None = None,
    metadata: pa.Array | None = None,
    operation: int = 0,
    shape: int = 0,
) -> pa.RecordBatch:
    """A READ_SCHEMA batch from columns; what is not given is null."""
    n = len(positions)
    return pa.RecordBatch.from_arrays(
        [
            positions.cast(pa.binary()),
            pa.array([operation], pa.int8()).take(pa.array([0] * n, pa.int8())) if n else pa.array([], pa.int8()),
            metadata if metadata is not None else pa.nulls(n, RECORD_FIELDS[2].type),
            key if key is not None else pa.nulls(n, pa.binary()),
            pa.nulls(n, pa.binary()),
            after if after is not None else pa.nulls(n, pa.binary()),
            pa.array([shape], pa.int8()).take(pa.array([0] * n, pa.int8())) if n else pa.array([], pa.int8()),
        ],
        schema=READ_SCHEMA,
    )


def _load(value: bytes | None, structured: bool) -> Data:
    return orjson.loads(value) if structured and value is not None else value


def to_records(batch: pa.RecordBatch, origin: Origin | Sequence[Origin]) -> list[Record]:
    """The rows of a batch as `Record`s.

    `origin` is one for all rows, or one per slice number (then the batch has a column `slice`).
    """
    rows = batch.num_rows
    names = batch.schema.names
    origins: Iterable[Origin]
    if isinstance(origin, Origin):
        origins = repeat(origin, rows)
    elif "slice" in names:
        origins = [origin[number] for number in batch.column("slice").to_pylist()]
    else:
        origins = repeat(origin[0], rows)
    shapes = batch.column("shape")
    return list(
        map(
            Record,
            batch.column("position").to_pylist(),
            [OPERATIONS[code] for code in batch.column("operation").to_pylist()],
            _metadata(batch.column("metadata")),
            _values(batch.column("key"), shapes, KEY_STRUCTURED),
            _values(batch.column("before"), shapes, BEFORE_STRUCTURED),
            _values(batch.column("after"), shapes, AFTER_STRUCTURED),
            batch.column("ord").to_pylist() if "ord" in names else repeat(0, rows),
            origins,
        )
    )


def _metadata(column: pa.MapArray) -> Iterable[dict[str, str]]:
    if column.null_count == len(column):
        return [{} for _ in range(len(column))]
    return [dict(entries) if entries else {} for entries in column.to_pylist()]


def _values(column: pa.Array, shapes: pa.Array, bit: int) -> Iterable[Data]:
    """One data column; the usual case, all rows structured or none, is decided once for the batch."""
    if column.null_count == len(column):
        return repeat(None, len(column))
    values = column.to_pylist()
    structured = [bool(shape & bit) for shape in shapes.unique().to_pylist()]
    if not any(structured):
        return values
    if all(structured) and not column.null_count:
        return map(orjson.loads, values)
    return [_load(value, bool(shape & bit)) for value, shape in zip(values, shapes.to_pylist())]


def _dump(value: Data) -> bytes | None:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS) if isinstance(value, dict) else value


_CODES = {name: code for code, name in enumerate(OPERATIONS)}


def record_columns(records: Iterable[Record]) -> list[pa.Array]:
    """The RECORD_FIELDS columns of these records, in that order."""
    rows = list(records)
    shape = np.zeros(len(rows), np.int8)
    data = []
    for values, bit in (
        ([r.key for r in rows], KEY_STRUCTURED),
        ([r.before for r in rows], BEFORE_STRUCTURED),
        ([r.after for r in rows], AFTER_STRUCTURED),
    ):
        kinds = set(map(type, values))
        if dict in kinds:
            structured = np.fromiter((isinstance(v, dict) for v in values), bool, len(values))
            shape[structured] |= bit
            data.append(pa.array(list(map(_dump, values)), pa.binary()))
        elif kinds == {type(None)}:
            data.append(pa.nulls(len(values), pa.binary()))
        else:
            data.append(pa.array(values, pa.binary()))
    return [
        pa.array([r.position for r in rows], pa.binary()),
        pa.array([_CODES[r.operation] for r in rows], pa.int8()),
        pa.array([list(r.metadata.items()) if r.metadata else None for r in rows], RECORD_FIELDS[2].type),
        *data,
        pa.array(shape),
    ]


def spool_batch(slices: Sequence[int], numbers: Sequence[int], records: Sequence[Record]) -> pa.RecordBatch:
    """A SPOOL_SCHEMA batch of these records; `ord` is each record's `ordinal`."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array(slices, pa.int32()),
            pa.array(numbers, pa.int64()),
            pa.array([r.ordinal for r in records], pa.int32()),
            *record_columns(records),
        ],
        schema=SPOOL_SCHEMA,
    )
