"""Batches of records cut and joined by bytes, so that memory does not grow with the size of records (SEMANTICS C13);
the most bytes of a record and of what is derived from it, and which rows are larger or deeper.

An Arrow array of bytes holds at most 2 GiB. More bytes become another chunk, and are lost if only the first one is
taken: batches are joined here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.errors import InvariantBroken
from conduit_tasks.record.jsons import DEPTH, text_fault

RECORD_BYTES = 64 << 20
"""Most bytes of one record: its position, metadata, key and payloads as they are stored."""

DERIVED_BYTES = 4 * RECORD_BYTES
"""Most bytes of all records that processors derive from one: they are kept together up to the ack of their position.
Each counts `OBJECT_BYTES` beside its texts."""

OBJECT_BYTES = 1 << 10
"""Bytes that a small record has in memory while a processor sees it."""

ARRAY_BYTES = (1 << 31) - 1
"""Most bytes of one Arrow array of texts."""

FIXED_BYTES = 64
"""Bytes of a row beside its texts."""

Sizes = npt.NDArray[np.int64]
T = TypeVar("T")


def row_bytes(batch: pa.RecordBatch) -> Sizes:
    """Returns the approximate bytes of each row: its texts, and `FIXED_BYTES` for the rest."""
    sizes = np.full(batch.num_rows, FIXED_BYTES, np.int64)
    for column in batch.columns:
        if column.null_count < len(column):
            lengths = _lengths(column)
            if lengths is not None:
                sizes += lengths
    return sizes


def _lengths(column: pa.Array) -> Sizes | None:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return np.diff(_offsets(column)).astype(np.int64)
    if pa.types.is_map(kind):
        entries = np.zeros(len(column.keys) + 1, np.int64)
        for part in (column.keys, column.items):
            lengths = _lengths(part)
            if lengths is not None:
                entries[1 : len(lengths) + 1] += lengths
        return np.diff(np.cumsum(entries)[_offsets(column)])
    return None


def _offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def cut(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows in parts of at most `limit` bytes, at least one row each; a batch that fits is yielded as it
    is."""
    if batch.num_rows < 2 or batch.nbytes <= limit:
        yield batch
        return
    yield from cut_by(batch, row_bytes(batch), limit)


def cut_by(batch: pa.RecordBatch, sizes: Sizes, limit: int) -> Iterator[pa.RecordBatch]:
    """Yields the same parts as `cut`, by known sizes of the rows."""
    reached = np.cumsum(sizes)
    if batch.num_rows and reached[-1] <= limit:
        yield batch
        return
    start = 0
    while start < batch.num_rows:
        before = int(reached[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(reached, before + limit, "right")))
        yield batch.slice(start, end - start)
        start = end


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Joins batches into one with all rows, in order. Raises InvariantBroken if one batch cannot hold them all."""
    if len(batches) == 1:
        return batches[0]
    try:
        whole = pa.concat_batches(batches)
    except pa.ArrowInvalid as error:
        raise InvariantBroken(
            f"{len(batches)} batches are too large to be one: {error}; lower CONDUIT_BATCH_BYTES"
        ) from error
    rows = sum(batch.num_rows for batch in batches)
    if whole.num_rows != rows:
        raise InvariantBroken(f"invariant 10: {rows} rows became {whole.num_rows} when they were joined")
    return whole


def gathered(batches: Iterable[pa.RecordBatch], rows: int, limit: int) -> Iterator[list[pa.RecordBatch]]:
    """Yields lists of consecutive batches to be joined, each of about `rows` rows or `limit` bytes together: the cost
    per batch is the same for three rows as for thousands. A larger batch is alone in its list."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        own = batch.nbytes
        if held and (count + batch.num_rows > rows or size + own > limit or batch.schema != held[0].schema):
            yield held
            held, count, size = [], 0, 0
        held.append(batch)
        count, size = count + batch.num_rows, size + own
    if held:
        yield held


def in_lists(items: Iterable[T], size: Callable[[T], int], most: int | None, limit: int) -> Iterator[list[T]]:
    """Yields items in order, in lists of at most `most` items with at most `limit` bytes together, as `size` says; at
    least one each. One item more is held meanwhile."""
    part: list[T] = []
    used = 0
    for item in items:
        own = size(item)
        if part and (used + own > limit or len(part) == most):
            yield part
            part, used = [], 0
        part.append(item)
        used += own
    if part:
        yield part


def large_rows(batch: pa.RecordBatch) -> dict[int, str]:
    """Returns the rows that are larger than a record may be, each with an error message."""
    if batch.nbytes <= RECORD_BYTES:
        return {}
    sizes = row_bytes(batch)
    most = f"{RECORD_BYTES >> 20} MiB is the most that one may have"
    return {
        row: f"the record has {int(sizes[row])} bytes, {most}" for row in np.flatnonzero(sizes > RECORD_BYTES).tolist()
    }


def deep_rows(texts: pa.Array) -> dict[int, str]:
    """Returns the rows whose JSON text is nested deeper than can be written, each with an error message. Each level
    takes two bytes: shorter texts are not examined."""
    long = np.flatnonzero(np.diff(_offsets(texts)) > 2 * DEPTH)
    if not len(long):
        return {}
    rows = zip(long.tolist(), texts.take(pa.array(long)).to_pylist(), strict=True)
    return {row: why for row, text in rows if text is not None and (why := text_fault(text)) is not None}
