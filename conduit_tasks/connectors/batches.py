"""Records as batches of bounded size, for sources that make them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS, BATCH_BYTES = 5_000, 16 << 20
"""Limits of a batch: its largest number of rows, and the bytes at which it is given."""

Sized = tuple[Record, int]
"""A record and its approximate size in bytes."""


def batches(records: Iterator[Sized]) -> Iterator[pa.RecordBatch]:
    """Yields READ_SCHEMA batches of bounded size."""
    import pyarrow as pa

    from conduit_tasks.record.schema import READ_SCHEMA, read_columns

    group: list[Record] = []
    size = 0
    for record, bytes_ in records:
        group.append(record)
        size += bytes_
        if len(group) == BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.RecordBatch.from_arrays(read_columns(group), schema=READ_SCHEMA)
            group, size = [], 0
    if group:
        yield pa.RecordBatch.from_arrays(read_columns(group), schema=READ_SCHEMA)
