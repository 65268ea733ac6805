"""Latency from the event to its confirmation: the event times of records on their way, taken as their rows are read.

One number is held per record from the reading of its batch to its confirmation; counted per flush, by whole arrays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.chunks import Seqs
from conduit_tasks.delivery.reading import inside
from conduit_tasks.metrics.histogram import LATENCY, observed
from conduit_tasks.record.record import Origin
from conduit_tasks.record.times import UNKNOWN, Times, event_times, origin_times


@dataclass
class _Passed:
    """Records of one batch that are not confirmed: distinct seqs, their times, and the number of records left."""

    seqs: Seqs
    times: Times
    left: int


class Latencies:
    """Latencies of one destination in one micro-batch. `observed` may run beside `watch`.

    `confirmed`: ranges that are not confirmed again.
    """

    def __init__(self, node: str, origins: Sequence[Origin], confirmed: RangeSet) -> None:
        self._node, self._shared, self._confirmed = node, origin_times(origins), confirmed
        self._passed: list[_Passed] = []
        self._newest, self._lock = -1, threading.Lock()

    def watch(self, batches: Iterator[tuple[Seqs, pa.RecordBatch]]) -> Iterator[tuple[Seqs, pa.RecordBatch]]:
        """Yields the same batches, and notes the times of their records. Rows may be read several times, also side by
        side (handlers do this): the first reading counts."""
        for seqs, batch in batches:
            if len(seqs):
                with self._lock:
                    self._pass(seqs, batch)
            yield seqs, batch

    def _pass(self, seqs: Seqs, batch: pa.RecordBatch) -> None:
        if seqs[-1] <= self._newest:
            return
        # Derived records share a seq and count once.
        mine = (np.diff(seqs, prepend=-1) != 0) & (seqs > self._newest)
        if self._confirmed:
            mine &= ~inside(seqs, self._confirmed)
        self._newest = int(seqs[-1])
        times = event_times(batch, self._shared)
        left = int(np.count_nonzero(mine))
        if left == len(seqs):
            self._passed.append(_Passed(seqs, times, left))
        elif left:
            self._passed.append(_Passed(seqs[mine], times[mine], left))

    def observed(self, ranges: Sequence[tuple[int, int]]) -> dict[str, int]:
        """Returns fields for the broker: the latencies of the records in these ranges, which are confirmed now."""
        firsts, lasts = np.asarray(ranges, dtype=np.int64).reshape(-1, 2).T
        taken: list[Times] = []
        with self._lock:
            held = list(self._passed)
        for passed in held:
            starts = np.searchsorted(passed.seqs, firsts, side="left")
            ends = np.searchsorted(passed.seqs, lasts, side="right")
            for i in np.flatnonzero(ends > starts).tolist():
                taken.append(passed.times[starts[i] : ends[i]])
                passed.left -= int(ends[i] - starts[i])
        with self._lock:
            self._passed = [passed for passed in self._passed if passed.left]
        if not taken:
            return {}
        times = np.concatenate(taken)
        return observed(self._node, LATENCY, time.time() - times[times != UNKNOWN] / 1e6)
