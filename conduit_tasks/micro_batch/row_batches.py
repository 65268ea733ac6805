"""Numbering and cutting of rows: rows derived from one record are never separated."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from conduit_tasks.record.batches import cut, gathered, joined
from conduit_tasks.record.schema import SPOOL_SCHEMA

GATHERED_ROWS, GATHERED_BYTES = 8_192, 4 << 20
"""Rows and bytes below which batches of consecutive slices, also of small files, are numbered and worked on as one."""


def numbered(
    slices: Iterable[tuple[int, Iterable[pa.RecordBatch]]], counts: dict[int, int]
) -> Iterator[pa.RecordBatch]:
    """Numbers the rows of READ_SCHEMA batches of slices (number → batches) before any processor sees them; joins small
    batches. Counts into `counts`."""
    spans: deque[tuple[int, int, int]] = deque()

    def each() -> Iterator[pa.RecordBatch]:
        for number, batches in slices:
            n = 0
            for batch in batches:
                spans.append((number, n, batch.num_rows))
                n += batch.num_rows
                yield batch
            counts[number] = n

    for some in gathered(each(), GATHERED_ROWS, GATHERED_BYTES):
        numbers, firsts, rows = np.array([spans.popleft() for _ in some], np.int64).T
        whole, ends = joined(some), np.cumsum(rows)
        # A row's number: its place in the whole, minus that of its batch's first row, plus the first row's number.
        n = np.arange(whole.num_rows) - np.repeat(ends - rows - firsts, rows)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(np.repeat(numbers, rows).astype(np.int32)),
                pa.array(n),
                pa.array(np.zeros(whole.num_rows, np.int32)),
                *whole.columns,
            ],
            schema=SPOOL_SCHEMA,
        )


def bounded(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Yields the same rows in batches of at most `limit` bytes."""
    for batch in batches:
        yield from cut(batch, limit)


def unparted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the same rows, cut so that rows derived from one record never lie in two batches."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if held is not None:
            if all(held.column(c)[-1].equals(batch.column(c)[0]) for c in ("slice", "n")):
                start = int(np.searchsorted(row_keys(held), row_keys(held)[-1]))
                held, following = held.slice(0, start), joined([held.slice(start), batch])
            else:
                following = batch
            if held.num_rows:
                yield held
            held = following
        else:
            held = batch
    if held is not None:
        yield held


def in_blocks(batch: pa.RecordBatch, size: Callable[[], int]) -> Iterator[pa.RecordBatch]:
    """Yields the rows in blocks of about as many as `size` says before each, cut between records."""
    keys = row_keys(batch)
    start = 0
    while start < batch.num_rows:
        end = start + size()
        if end < batch.num_rows:
            end = int(np.searchsorted(keys, keys[end]))
            if end <= start:
                end = int(np.searchsorted(keys, keys[start], side="right"))
        block = batch.slice(start, end - start)
        yield block
        start += block.num_rows


def row_keys(batch: pa.RecordBatch) -> np.ndarray:
    """Returns one int64 per row, equal for rows derived from one record: rows are sorted, so it counts changes of
    (slice, n)."""
    slices, numbers = batch.column("slice").to_numpy(), batch.column("n").to_numpy()
    change = (slices[1:] != slices[:-1]) | (numbers[1:] != numbers[:-1])
    return np.concatenate([[0], np.cumsum(change)])


def records_of(batch: pa.RecordBatch) -> range:
    """Returns a range with as many items as there are distinct records (slice, n) in the batch."""
    return range(int(row_keys(batch)[-1]) + 1) if batch.num_rows else range(0)
