"""The sender's side of the index pipes (SEMANTICS O5–O6r) and of effectively-once (B8): a number for every record.

Numbers are consecutive per destination, lane and epoch. They need no call per record: the broker keeps the last number
of each lane before this micro-batch, stored before any of its records is sent, and the place of a record in its lane of
the sealed micro-batch is added to it. A record that is sent again keeps its number.

One record of a lane is on its way at a time, so when one is sent, everything before it in its lane is settled:
delivered, filtered, or its dead letter stored. `after` tells the receiver: the numbers between `after` and the record's
own will not come, or not again. So a dead-lettered number is announced with the next record that is sent.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from conduit_tasks.connectors.rows import RowNumbers
from conduit_tasks.delivery.chunks import Seqs
from conduit_tasks.delivery.lanes import KEY_LANES
from conduit_tasks.errors import ConfigError
from conduit_tasks.pipes.base import AFTER, EPOCH, INDEX, LANE
from conduit_tasks.record.record import Origin

if TYPE_CHECKING:
    from conduit_tasks.broker.sending import Numbered
    from conduit_tasks.delivery.work import Entry

Batches = Iterator[tuple[Seqs, pa.RecordBatch]]
_ORD_BITS = 31


class LaneOf:
    """Lane of each row as it was sealed: processors of the destination do not change it."""

    def __init__(self, order_by: str, origins: Sequence[Origin]) -> None:
        self.by_key = order_by == "key"
        self.columns = ["key" if self.by_key else "slice"]
        """Columns of a row that determine its lane."""
        names = [quote(f"{o.connector}/{o.partition}" if o.partition else o.connector) for o in origins]
        self._names = [f"key-{n}" for n in range(KEY_LANES)] if self.by_key else sorted(set(names))
        self._of_slice = np.array([self._names.index(n) for n in names], np.int64) if not self.by_key else None

    def name(self, lane: int) -> str:
        return self._names[lane]

    def of(self, batch: pa.RecordBatch) -> Seqs:
        """Returns the number of each row's lane."""
        if self._of_slice is not None:
            return self._of_slice[batch.column("slice").to_numpy()]
        keys = batch.column("key").to_pylist()
        return np.fromiter((zlib.crc32(key or b"") % KEY_LANES for key in keys), np.int64, len(keys))


def count_lanes(batches: Iterable[pa.RecordBatch], lanes: LaneOf) -> dict[str, int]:
    """Returns lane → number of rows of a whole micro-batch; the batches need only `lanes.columns`."""
    counts: dict[str, int] = {}
    for batch in batches:
        for lane, count in zip(*np.unique(lanes.of(batch), return_counts=True)):
            name = lanes.name(int(lane))
            counts[name] = counts.get(name, 0) + int(count)
    return counts


class LaneNumbers:
    """Numbers of the rows of one micro-batch, for record-wise delivery. They take about 30 bytes per row that was
    read."""

    def __init__(self, numbered: Numbered, lanes: LaneOf, node: str) -> None:
        self._epoch, self._before = numbered.epoch, numbered.before
        self._lanes, self._node = lanes, node
        self._starts: list[int] = []
        self._blocks: list[tuple[Seqs, Seqs, Seqs]] = []
        self._sent: dict[int, int] = {}

    def watch(self, batches: Batches) -> Iterator[tuple[Seqs, pa.RecordBatch]]:
        """Yields the same batches, and numbers every row, confirmed ones too."""
        self._starts, self._blocks = [], []
        following: dict[int, int] = {}
        for seqs, batch in batches:
            if len(seqs):
                self._number(seqs, batch, following)
            yield seqs, batch

    def _number(self, seqs: Seqs, batch: pa.RecordBatch, following: dict[int, int]) -> None:
        lanes = self._lanes.of(batch)
        numbers = np.empty(len(lanes), np.int64)
        for lane in np.unique(lanes).tolist():
            rows = np.flatnonzero(lanes == lane)
            first = following.get(lane) or self._before.get(self._lanes.name(lane), 0) + 1
            numbers[rows] = first + np.arange(len(rows))
            following[lane] = first + len(rows)
        keys = (seqs.astype(np.int64) << _ORD_BITS) | batch.column("ord").to_numpy().astype(np.int64)
        self._blocks.append((keys, lanes, numbers))
        # Set last: a block that can be found is complete then.
        self._starts.append(int(keys[0]))

    def _find(self, entry: Entry) -> tuple[int, int]:
        key = (entry.seq << _ORD_BITS) | entry.record.ordinal
        keys, lanes, numbers = self._blocks[bisect_right(self._starts, key) - 1]
        at = int(np.searchsorted(keys, key))
        if at == len(keys) or keys[at] != key:
            raise ConfigError(
                f"{self._node}: a processor of this destination makes several records of one, which an index pipe "
                "cannot number; move it to the source or to the pipeline's processors, or write pipe: stream"
            )
        return int(lanes[at]), int(numbers[at])

    def lane(self, entry: Entry) -> int:
        """Returns the lane of an entry. Raises ConfigError for a record that a processor of this destination
        derived."""
        return self._find(entry)[0]

    def stamp(self, entry: Entry) -> None:
        """Gives the record its number, before it is sent for the first time."""
        lane, number = self._find(entry)
        last = self._sent.get(lane, 0)
        numbered = {LANE: self._lanes.name(lane), EPOCH: str(self._epoch), INDEX: str(number)}
        if last != number - 1:
            numbered[AFTER] = str(last)
        entry.record.metadata = {**entry.record.metadata, **numbered}

    def delivered(self, entry: Entry) -> None:
        """Notes that the target confirmed the record: the next number to be sent in its lane follows this one."""
        lane, number = self._find(entry)
        self._sent[lane] = number


class RowNumbering:
    """Numbers for batch-wise delivery, which is in order as a whole: one lane, a number per position."""

    def __init__(self, numbered: Numbered, pipeline: str, destination: str) -> None:
        self._epoch, self._first = numbered.epoch, numbered.before.get("", 0) + 1
        self._of = (pipeline, destination)

    def rows(self, ordinals: Seqs, seqs: Seqs) -> RowNumbers:
        """Returns the numbers of rows. `ordinals`: places of their positions among the matched ones of the
        micro-batch; `seqs`: their own."""
        return RowNumbers(*self._of, self._epoch, ordinals + self._first)


class SeqNumbering(RowNumbering):
    """Numbers by seq, if each attempt may leave out different rows. `seqs`: of the rows that are not left out."""

    def __init__(self, epoch: int, pipeline: str, destination: str, seqs: Sequence[int]) -> None:
        self._epoch, self._of = epoch, (pipeline, destination)
        self._seqs = np.array(seqs, np.int64)

    def rows(self, ordinals: Seqs, seqs: Seqs) -> RowNumbers:
        """See `RowNumbering`."""
        return RowNumbers(*self._of, self._epoch, self._seqs[ordinals] + 1)


class ShardNumbering(RowNumbering):
    """Numbers of a shard's rows (ADR 48): their seqs, which grow within its micro-batch. Nothing is stored: the
    micro-batch and its division say which rows they are of."""

    def __init__(self, seal: int, pipeline: str, destination: str) -> None:
        self._epoch, self._of = seal, (pipeline, destination)

    def rows(self, ordinals: Seqs, seqs: Seqs) -> RowNumbers:
        """See `RowNumbering`."""
        return RowNumbers(*self._of, self._epoch, seqs + 1)


Numbering = LaneNumbers | RowNumbering
"""Numbering of either kind of delivery."""


def watched(numbering: Numbering | None, batches: Batches) -> Batches:
    """Returns the same batches, passed through the numbering if it has to see them."""
    return numbering.watch(batches) if isinstance(numbering, LaneNumbers) else batches
