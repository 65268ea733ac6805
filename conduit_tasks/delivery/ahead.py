"""Bound on the records that the record-wise engine has read and not settled: the reader pauses at so many bytes,
records or nacks without a vote."""

from __future__ import annotations

import asyncio

from conduit_tasks.delivery.lanes import Lane, Lanes
from conduit_tasks.delivery.progress import Progress
from conduit_tasks.settings import settings

LOOK_AHEAD = 1_024
"""Records read ahead, or four times `max-unconfirmed` if that is more. The reader also pauses at CONDUIT_BATCH_BYTES
bytes, with the records on their way and the nacks that wait for their vote included."""

NACKS = 1_024
"""Limit of nacks that wait for a record before them: together with the records read ahead it bounds the ranges of a
confirm."""

LEAST = 24
"""The least of both for a task that delivers one shard of several, which share them: the ranges of all shards together
are to be few, too."""


class Ahead:
    """Records ahead of the broker. `bytes`: of those that are waiting, on their way, or nacked and not voted; `held`:
    the nacked ones, as (seq, bytes, lane that waits for its vote). `tasks`: number of tasks that deliver the
    micro-batch."""

    def __init__(self, lanes: Lanes, progress: Progress, in_flight: int, tasks: int = 1) -> None:
        self._lanes, self._progress = lanes, progress
        self._most = max(LEAST, max(LOOK_AHEAD, 4 * in_flight) // tasks)
        self._nacks = max(LEAST, NACKS // tasks)
        self._most_bytes = settings().batch_bytes
        self._room = asyncio.Event()
        self.bytes = 0
        self.held: list[tuple[int, int, Lane | None]] = []

    def enough(self, busy: int) -> bool:
        """Returns whether the reader has to pause, until there is `room`. `busy`: number of records on their way."""
        if self._lanes.held < self._most and not self._laden(busy):
            return False
        self._room.clear()
        return True

    async def room(self) -> None:
        """Waits until a `look` finds room."""
        await self._room.wait()

    def look(self, busy: int) -> None:
        """Lets the reader go on if half of the room is free."""
        if self._lanes.held < self._most // 2 and not self._laden(busy):
            self._room.set()

    def settle(self) -> None:
        """Drops the nacks that are settled, and lets their lanes go on."""
        held, self.held = self.held, []
        for seq, size, lane in held:
            if self._progress.settled_nack(seq):
                self.bytes -= size
                self._lanes.release(lane)
            else:
                self.held.append((seq, size, lane))

    def _laden(self, busy: int) -> bool:
        """Returns whether enough is held: bytes, or nacks that wait for their vote (each of them separates two
        confirmed ranges). Nacks alone do not stop the reader: the last one waits for the record after it."""
        enough = self.bytes >= self._most_bytes or self._progress.waiting >= self._nacks
        return enough and bool(self._lanes.held or busy)
