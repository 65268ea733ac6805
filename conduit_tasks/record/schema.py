"""Records as Arrow batches: the form in which they are read, spooled and delivered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    cols = {name: batch.column(name).to_pylist() for name in batch.schema.names if not name.startswith("to.")}
    slices = cols.get("slice")
    ordinals = cols.get("ord") or [0] * batch.num_rows
    out = []
    rows = zip(
        cols["position"], cols["operation"], cols["metadata"], cols["key"], cols["before"], cols["after"], cols["shape"]
    )
    for i, (position, op, meta, key, before, after, shape) in enumerate(rows):
        out.append(
            Record(
                position,
                OPERATIONS[op],
                dict(meta) if meta else {},
                _load(key, bool(shape & KEY_STRUCTURED)),
                _load(before, bool(shape & BEFORE_STRUCTURED)),
                _load(after, bool(shape & AFTER_STRUCTURED)),
                ordinals[i],
                origin if isinstance(origin, Origin) else origin[slices[i]] if slices else origin[0],
            )
        )
    return out


def _dump(value: Data) -> bytes | None:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS) if isinstance(value, dict) else value


def record_columns(records: Iterable[Record]) -> list[pa.Array]:
    """The RECORD_FIELDS columns of these records, in that order."""
    rows = list(records)
    shapes = [
        (KEY_STRUCTURED if isinstance(r.key, dict) else 0)
        | (BEFORE_STRUCTURED if isinstance(r.before, dict) else 0)
        | (AFTER_STRUCTURED if isinstance(r.after, dict) else 0)
        for r in rows
    ]
    codes = {name: i for i, name in enumerate(OPERATIONS)}
    return [
        pa.array([r.position for r in rows], pa.binary()),
        pa.array([codes[r.operation] for r in rows], pa.int8()),
        pa.array([list(r.metadata.items()) if r.metadata else None for r in rows], RECORD_FIELDS[2].type),
        pa.array([_dump(r.key) for r in rows], pa.binary()),
        pa.array([_dump(r.before) for r in rows], pa.binary()),
        pa.array([_dump(r.after) for r in rows], pa.binary()),
        pa.array(shapes, pa.int8()),
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
