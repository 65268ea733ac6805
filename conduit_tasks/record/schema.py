"""Records as Arrow batches, the form for reading, spooling and delivery."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from conduit_tasks.errors import Oversize, RecordError, Unwritable
from conduit_tasks.record import batches, jsons
from conduit_tasks.record.batches import deep_rows
from conduit_tasks.record.faults import value_fault
from conduit_tasks.record.record import OPERATIONS, Data, Origin, Record

KEY_STRUCTURED, BEFORE_STRUCTURED, AFTER_STRUCTURED = 1, 2, 4
DATA = {"key": KEY_STRUCTURED, "before": BEFORE_STRUCTURED, "after": AFTER_STRUCTURED}
"""Data column → its bit in `shape`."""

RECORD_FIELDS = [
    pa.field("position", pa.binary()),
    pa.field("operation", pa.int8()),
    pa.field("metadata", pa.map_(pa.string(), pa.string())),
    pa.field("key", pa.binary()),
    pa.field("before", pa.binary()),
    pa.field("after", pa.binary()),
    pa.field("shape", pa.int8()),
]
"""`operation`: index into OPERATIONS. `metadata`: null if the record has none of its own.
`key`, `before`, `after`: raw bytes, or JSON text if the bit of `shape` says structured; null if absent."""

PARTS = tuple(f.name for f in RECORD_FIELDS[:-1])
"""The columns that are attributes of a record."""

READ_SCHEMA = pa.schema(RECORD_FIELDS)
"""Schema of the batches that a source yields: in order, the n-th row is number n of the slice."""

NUMBER_FIELDS = [pa.field("slice", pa.int32()), pa.field("n", pa.int64()), pa.field("ord", pa.int32())]
"""`slice`: number of the slice within its source's slices of the micro-batch. `n`: the record's number
within the slice, from 0, given before anything is processed. `ord`: ordinal of a derived record, else 0."""

SPOOL_SCHEMA = pa.schema(NUMBER_FIELDS + RECORD_FIELDS)
"""Schema of a spool file, which also has one boolean column `to.<destination>` per destination with filters.
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
    """Makes a READ_SCHEMA batch from columns; columns that are not given are null."""
    n = len(positions)
    absent = _nulls(n, RECORD_FIELDS[3].type)
    return pa.RecordBatch.from_arrays(
        [
            positions if positions.type == RECORD_FIELDS[0].type else positions.cast(RECORD_FIELDS[0].type),
            _all_of(n, operation),
            metadata if metadata is not None else _nulls(n, RECORD_FIELDS[2].type),
            key if key is not None else absent,
            absent,
            after if after is not None else absent,
            _all_of(n, shape),
        ],
        schema=READ_SCHEMA,
    )


SMALL = 256
"""Most rows of a constant column that is cached by its length: with a thousand files of a few records each, making such
columns takes most of the time."""


def _nulls(n: int, kind: pa.DataType) -> pa.Array:
    return _kept_nulls(n, kind) if n <= SMALL else pa.nulls(n, kind)


def _all_of(n: int, value: int) -> pa.Array:
    return _kept(n, value) if n <= SMALL else _kept.__wrapped__(n, value)


@lru_cache(maxsize=4 * SMALL)
def _kept_nulls(n: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(n, kind)


@lru_cache(maxsize=4 * SMALL)
def _kept(n: int, value: int) -> pa.Array:
    return pa.array(np.full(n, value, np.int8))


def _load(value: bytes | None, structured: bool) -> Data:
    return jsons.exact(value) if structured and value is not None else value


def part_values(batch: pa.RecordBatch, part: str) -> Iterable[Any]:
    """Returns one attribute, an element of `fields.EVERYTHING`, of the rows' records; parsed as it is iterated."""
    column = batch.column(part)
    if part in DATA:
        return _values(column, batch.column("shape"), DATA[part])
    if part == "metadata":
        return _metadata(column)
    return map(OPERATIONS.__getitem__, column.to_pylist()) if part == "operation" else column.to_pylist()


Bits = npt.NDArray[np.int8]


def part_column(part: str, values: Sequence[Any], bad: dict[int, str] | None = None) -> tuple[pa.Array, Bits | None]:
    """Returns the column of one attribute's values; for data also the bits of `shape`: this part's bit in rows whose
    value is structured.

    Values that cannot be written are left out, and `bad` gets the reason by row number. Raises Unwritable without
    `bad`, and Oversize if the values have more bytes than an array holds.
    """
    try:
        made = _part_column(part, values)
        bits = made[1]
        # Raw data may have any depth.
        deep = deep_rows(made[0]) if bits is not None and bits.any() else {}
        found = {n: why for n, why in deep.items() if bits is not None and bits[n]}
        if not found:
            return made
    except (TypeError, ValueError, KeyError, AttributeError, pa.ArrowException, RecordError):
        found = {n: why for n, value in enumerate(values) if (why := value_fault(part, value)) is not None}
        if not found:
            raise
    found = {n: f"{part}: {why}" for n, why in found.items()}
    if bad is None:
        raise Unwritable(next(iter(found.values())))
    bad.update(found)
    return _part_column(part, [_NOTHING[part] if n in found else value for n, value in enumerate(values)])


def _part_column(part: str, values: Sequence[Any]) -> tuple[pa.Array, Bits | None]:
    try:
        made = _any_column(part, values)
    except pa.lib.ArrowCapacityError as error:
        raise Oversize(f"{part} of {len(values)} records: {error}") from None
    # Beyond 2 GiB Arrow makes several arrays.
    if isinstance(made[0], pa.ChunkedArray) or made[0].nbytes > batches.ARRAY_BYTES:
        raise Oversize(f"{part} of {len(values)} records has {made[0].nbytes} bytes")
    return made


def _any_column(part: str, values: Sequence[Any]) -> tuple[pa.Array, Bits | None]:
    if part in DATA:
        return _data_column(values, DATA[part])
    if part == "metadata":
        return pa.array([list(v.items()) if v else None for v in values], RECORD_FIELDS[2].type), None
    if part == "operation":
        return pa.array([_CODES[v] for v in values], pa.int8()), None
    return pa.array(values, pa.binary()), None


def to_records(batch: pa.RecordBatch, origin: Origin | Sequence[Origin]) -> list[Record]:
    """Returns the rows of a batch as `Record`s.

    `origin` is one for all rows, or one per slice number, by the batch's column `slice`; a batch without this column
    takes the first.
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
    """Returns the values of one data column; the usual case, all rows structured or none, is decided once per batch."""
    if column.null_count == len(column):
        return repeat(None, len(column))
    values = column.to_pylist()
    structured = [bool(shape & bit) for shape in shapes.unique().to_pylist()]
    if not any(structured):
        return values
    if all(structured) and not column.null_count:
        return map(jsons.exact if _numbers(column) else orjson.loads, values)
    return [_load(value, bool(shape & bit)) for value, shape in zip(values, shapes.to_pylist())]


def _numbers(column: pa.Array) -> bool:
    """Returns whether any of the texts has so many digits in a row that a number may be beyond 64 bits."""
    data = column.buffers()[2]
    if data is None:
        return False
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return jsons.many_digits(bytes(memoryview(data)[offsets[column.offset] : offsets[column.offset + len(column)]]))


def _dumped(values: Sequence[Data]) -> list[bytes | None]:
    """Returns structured values as JSON text, the others as they are."""
    try:
        return [orjson.dumps(v) if v.__class__ is dict else v for v in values]  # type: ignore[misc]
    except TypeError:
        return [jsons.dumps(v) if isinstance(v, dict) else v for v in values]


def _data_column(values: Sequence[Data], bit: int) -> tuple[pa.Array, npt.NDArray[np.int8]]:
    shape = np.zeros(len(values), np.int8)
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return pa.nulls(len(values), pa.binary()), shape
    if kinds == {dict}:
        shape |= bit
    elif dict in kinds:
        shape[[v.__class__ is dict for v in values]] |= bit
    return pa.array(_dumped(values) if dict in kinds else values, pa.binary()), shape


_NOTHING: dict[str, Any] = {"position": b"", "operation": OPERATIONS[0], "metadata": {}, **dict.fromkeys(DATA)}
"""Replacements for values that cannot be stored, by part."""

_CODES = {name: code for code, name in enumerate(OPERATIONS)}


def record_columns(records: Iterable[Record]) -> list[pa.Array]:
    """Returns the RECORD_FIELDS columns of these records, in that order."""
    rows = list(records)
    shape = np.zeros(len(rows), np.int8)
    columns = []
    for part in PARTS:
        column, bits = part_column(part, [getattr(r, part) for r in rows])
        columns.append(column)
        if bits is not None:
            shape |= bits
    return [*columns, pa.array(shape)]


def read_columns(records: Sequence[Record]) -> list[pa.Array]:
    """Returns columns as `record_columns` does, for records that a source made from parsed data: a value that no record
    may have becomes raw, with the error in the record's metadata, so that it is nacked alone."""
    try:
        return record_columns(records)
    except Unwritable:
        for record in records:
            for part in DATA:
                value = getattr(record, part)
                if (why := value_fault(part, value)) is not None:
                    setattr(record, part, jsons.raw(value))
                    record.metadata = {**record.metadata, "conduit.error": f"{part}: {why}"}
        return record_columns(records)


def spool_batch(slices: Sequence[int], numbers: Sequence[int], records: Sequence[Record]) -> pa.RecordBatch:
    """Makes a SPOOL_SCHEMA batch of these records; `ord` is each record's `ordinal`."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array(slices, pa.int32()),
            pa.array(numbers, pa.int64()),
            pa.array([r.ordinal for r in records], pa.int32()),
            *record_columns(records),
        ],
        schema=SPOOL_SCHEMA,
    )
