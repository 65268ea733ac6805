"""Event times of the records of a batch, for whole batches: their own time, else the time at which they were read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.record.cloudevents import TIMES
from conduit_tasks.record.record import Origin

UNKNOWN = -1
Times = npt.NDArray[np.int64]
"""Microseconds since the epoch, or UNKNOWN."""


def origin_times(origins: Sequence[Origin]) -> Times:
    """Returns the time of each slice that its records share."""
    out = np.full(len(origins), UNKNOWN, np.int64)
    for i, origin in enumerate(origins):
        for name in reversed(TIMES):
            with suppress(ValueError, KeyError):
                out[i] = int(origin.metadata[name]) // 1000
    return out


def event_times(batch: pa.RecordBatch, shared: Times) -> Times:
    """Returns the event time of each row of a SPOOL_SCHEMA batch; `shared`: result of `origin_times`. A time that is no
    number counts as missing."""
    times = shared[batch.column("slice").to_numpy()]
    metadata = batch.column("metadata")
    if metadata.null_count == batch.num_rows:
        return times
    ends = metadata.offsets.to_numpy()
    keys, values = (a.slice(ends[0], ends[-1] - ends[0]) for a in (metadata.keys, metadata.items))
    found = np.flatnonzero(pc.equal(keys, TIMES[0]).to_numpy(zero_copy_only=False))
    if not len(found):
        return times
    rows = np.searchsorted(ends - ends[0], found, side="right") - 1
    texts = values.take(pa.array(found))
    try:
        times[rows] = texts.cast(pa.int64()).to_numpy() // 1000
    except pa.ArrowInvalid:
        for row, text in zip(rows.tolist(), texts.to_pylist()):
            with suppress(ValueError, TypeError):
                times[row] = int(text) // 1000
    return times
