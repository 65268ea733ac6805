"""Lanes: records of one lane do not overtake each other on the way to a destination (SEMANTICS C9, `order-by`).

`partition`: a lane per (source connector, partition). `key`: `KEY_LANES` lanes by hash of the key's bytes; records
without a key share one. `none`: no lanes, every record may go. A lane hands out its next record only when the one
before it is released, so at most one record of a lane is unconfirmed by the target. An index pipe uses the lanes of its
numbering: they are the same, by the record as it was sealed.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from conduit_tasks.delivery.work import Entry
from conduit_tasks.record.record import Record, data_bytes

if TYPE_CHECKING:
    from conduit_tasks.delivery.numbering import LaneNumbers

KEY_LANES = 64


class Lane:
    """Queue of the records of one lane; `busy` while one is ready or on its way. `nacked`: the seq whose nack the lane
    awaits."""

    __slots__ = ("busy", "nacked", "pending")

    def __init__(self) -> None:
        self.pending: deque[Entry] = deque()
        self.busy = False
        self.nacked: int | None = None


class Lanes:
    """Records that were read and not handed out yet."""

    def __init__(self, order_by: str, numbering: LaneNumbers | None = None) -> None:
        by_record = _LANE_OF[order_by]
        self._of: Callable[[Entry], Hashable] | None = (lambda e: by_record(e.record)) if by_record else None
        if numbering is not None:
            self._of = numbering.lane
        self._lanes: dict[Hashable, Lane] = {}
        self._ready: deque[tuple[Lane | None, Entry]] = deque()
        self.held = 0
        """Number of records read and not handed out."""

    def admit(self, entry: Entry) -> bool:
        """Takes a record that was read; entries come in order. Returns False if it is not taken, because its lane waits
        for a nack of the same seq."""
        self.held += 1
        if self._of is None:
            self._ready.append((None, entry))
            return True
        name = self._of(entry)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane()
        if lane.busy and lane.nacked == entry.seq:
            self.held -= 1
            return False
        if lane.busy:
            lane.pending.append(entry)
        else:
            lane.busy = True
            self._ready.append((lane, entry))
        return True

    @property
    def ready(self) -> bool:
        """Whether a record can be handed out now."""
        return bool(self._ready)

    def next(self) -> tuple[Lane | None, Entry]:
        """Returns a record that may go now, and the lane to release after it."""
        self.held -= 1
        return self._ready.popleft()

    def wait(self, lane: Lane | None, seq: int) -> list[Entry]:
        """Notes that the record handed out last from this lane is a nack, for which the lane waits until `release`.
        Returns the other records derived from its seq: the nack is not accepted before all of them have ended."""
        out: list[Entry] = []
        if lane is not None:
            lane.nacked = seq
            while lane.pending and lane.pending[0].seq == seq:
                out.append(lane.pending.popleft())
            self.held -= len(out)
        return out

    def release(self, lane: Lane | None) -> None:
        """Lets the next record of this lane go, once the one handed out last is delivered, or its nack is accepted and
        confirmed."""
        if lane is None:
            return
        lane.nacked = None
        if lane.pending:
            self._ready.append((lane, lane.pending.popleft()))
        else:
            lane.busy = False


def _by_partition(record: Record) -> Hashable:
    return (record.origin.connector, record.origin.partition)


def _by_key(record: Record) -> Hashable:
    return zlib.crc32(data_bytes(record.key)) % KEY_LANES


_LANE_OF: dict[str, Callable[[Record], Hashable] | None] = {"partition": _by_partition, "key": _by_key, "none": None}
