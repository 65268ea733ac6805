"""From the event to its confirmation: the times of the records on their way, taken as their rows pass by.

One number per record from when its batch is read until it is confirmed; counted per flush, by whole arrays.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.chunks import Seqs
from conduit_tasks.delivery.work import inside
from conduit_tasks.metrics.histogram import LATENCY, observed
from conduit_tasks.record.record import Origin
from conduit_tasks.record.times import UNKNOWN, Times, event_times, origin_times


@dataclass
class _Passed:
    """The records of one batch that are not confirmed: distinct seqs, their times, how many are left."""

    seqs: Seqs
    times: Times
    left: int


class Latencies:
    """Of one destination in one micro-batch. `watch` and `observed` may run in two threads.

    `confirmed`: what is not confirmed again.
    """

    def __init__(self, node: str, origins: Sequence[Origin], confirmed: RangeSet) -> None:
        self._node, self._shared, self._confirmed = node, origin_times(origins), confirmed
        self._passed: list[_Passed] = []

    def watch(self, batches: Iterator[tuple[Seqs, pa.RecordBatch]]) -> Iterator[tuple[Seqs, pa.RecordBatch]]:
        """The same batches; a fresh reading begins anew."""
        self._passed = []
        newest = -1
        for seqs, batch in batches:
            if len(seqs):
                # Derived records share a seq and count once.
                first = np.diff(seqs, prepend=newest) != 0
                newest = int(seqs[-1])
                if self._confirmed:
                    first &= ~inside(seqs, self._confirmed)
                times = event_times(batch, self._shared)
                left = int(np.count_nonzero(first))
                if left == len(seqs):
                    self._passed.append(_Passed(seqs, times, left))
                elif left:
                    self._passed.append(_Passed(seqs[first], times[first], left))
            yield seqs, batch

    def observed(self, ranges: Sequence[tuple[int, int]]) -> dict[str, int]:
        """Fields for the broker: what the records in these ranges, confirmed now, have taken."""
        firsts, lasts = np.asarray(ranges, dtype=np.int64).reshape(-1, 2).T
        taken: list[Times] = []
        for passed in list(self._passed):
            starts = np.searchsorted(passed.seqs, firsts, side="left")
            ends = np.searchsorted(passed.seqs, lasts, side="right")
            for i in np.flatnonzero(ends > starts).tolist():
                taken.append(passed.times[starts[i] : ends[i]])
                passed.left -= int(ends[i] - starts[i])
            if not passed.left:
                self._passed.remove(passed)
        if not taken:
            return {}
        times = np.concatenate(taken)
        return observed(self._node, LATENCY, time.time() - times[times != UNKNOWN] / 1e6)
