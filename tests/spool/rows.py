"""Rows for spool files."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa

from conduit_tasks.record.schema import SPOOL_SCHEMA, read_batch


def rows(count: int, *, slice: int = 0, start: int = 0, payload: bytes | None = None) -> pa.RecordBatch:
    """Rows (slice, start … start+count-1); payloads name their row, or are `payload`."""
    numbers = range(start, start + count)
    values = [payload or b"row %d" % n for n in numbers]
    batch = read_batch(pa.array([b"p:%d" % n for n in numbers], pa.binary()), after=pa.array(values, pa.binary()))
    counted = [
        pa.array(np.full(count, slice, np.int32)),
        pa.array(np.array(numbers, np.int64)),
        pa.array(np.zeros(count, np.int32)),
    ]
    return pa.RecordBatch.from_arrays([*counted, *batch.columns], schema=SPOOL_SCHEMA)


def incompressible(count: int) -> pa.RecordBatch:
    """Rows of 10 kB that no codec makes smaller."""
    batch = rows(count)
    values = pa.array([os.urandom(10_000) for _ in range(count)], pa.binary())
    columns = [values if name == "after" else batch.column(name) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
