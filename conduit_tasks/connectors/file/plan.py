"""Cutting of files into slices: whole records only, exact to the record within the limits of the micro-batch.

Counting scans a chunk of bytes at a time (a gigabyte and more per second) and makes no object per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.file.framing import CsvFraming, LineFraming
from conduit_tasks.connectors.file.on_disk import SourceFile
from conduit_tasks.errors import SourceError

CHUNK = 4 << 20
_NO_BOUND = 1 << 62


class NotWhole(Exception):
    """A file does not have its end yet, which its reader needs."""


@dataclass
class Room:
    """Records and bytes that one plan may still take. At least one record is always taken: a limit must not stop the
    stream."""

    records: int
    bytes: int
    taken: bool = False

    @classmethod
    def of(cls, limit: Limit) -> Room:
        return cls(
            _NO_BOUND if limit.records is None else limit.records, _NO_BOUND if limit.bytes is None else limit.bytes
        )

    @property
    def full(self) -> bool:
        return self.records <= 0 or (self.bytes <= 0 and self.taken)


@dataclass(frozen=True)
class Planner:
    """Plans one file after the other. `settled`: returns whether a last line without an end counts as whole; it may
    wait, and is called only if there is such a line."""

    framing: LineFraming
    slice_bytes: int
    settled: Callable[[SourceFile], bool]
    partition: Callable[[str], str]

    def slices(self, file: SourceFile, token: Any | None, room: Room) -> Iterator[Slice]:
        """Yields the slices past `token` (None: from the beginning), as far as `room` allows; shrinks it.

        Raises SourceError after the last whole record if no other one can follow.
        """
        start = file.token(0) if token is None else token
        offset = file.check(start)
        if offset == file.size:
            return
        at = self._data_start(file, offset)
        if at is None:
            return
        # The slice being filled: data from `begin` to `end`, `count` records.
        begin = end = at
        count = 0
        while at < file.size and not room.full:
            try:
                ends = self._ends(file, at)
            except SourceError:
                if count:
                    yield self._slice(file, start, begin, end, count)
                raise
            i = 0
            while i < len(ends) and not room.full:
                in_slice = int(np.searchsorted(ends, begin + self.slice_bytes, "right"))
                in_bytes = int(np.searchsorted(ends, begin + min(room.bytes, _NO_BOUND - begin), "right"))
                j = min(in_slice, in_bytes, i + room.records)
                if j <= i and not count and (in_bytes > i or not room.taken):
                    j = i + 1
                if j <= i:
                    if not count:
                        return
                    yield self._slice(file, start, begin, end, count)
                    room.bytes -= end - begin
                    start, begin, count = file.token(end), end, 0
                    continue
                count += j - i
                room.records -= j - i
                room.taken = True
                end = int(ends[j - 1])
                i = j
            if not len(ends):
                break
            at = int(ends[-1])
        if count:
            yield self._slice(file, start, begin, end, count)
            room.bytes -= end - begin

    def _slice(self, file: SourceFile, start: Any, begin: int, end: int, count: int) -> Slice:
        return Slice(
            file.part, self.partition(file.part), start, file.token(end), count, end - begin, hint={"from": begin}
        )

    def _ends(self, file: SourceFile, at: int) -> np.ndarray:
        """Returns the ends (in the file) of the records from `at`, some of them at least; empty if none is whole."""
        length = CHUNK
        while True:
            data = file.bytes_at(at, min(length, file.size - at))
            whole = at + len(data) >= file.size
            ends = self.framing.bounds(data, False).ends
            if whole and (not len(ends) or ends[-1] < len(data)):
                all_ends = self.framing.bounds(data, True).ends
                if len(all_ends) > len(ends) and self.settled(file):
                    return all_ends + at
            if len(ends) or whole:
                return ends + at
            length = file.grown(at, length)

    def _data_start(self, file: SourceFile, offset: int) -> int | None:
        """Returns the start of the records past `offset`; None if there can be none yet."""
        if offset == 0:
            if not self.framing.skip_blank:
                return 0
            if not isinstance(self.framing, CsvFraming):
                return file.beginning()
            header = file.first_record(self.framing, lambda: self.settled(file))
            return header[1] if header else None
        if file.bytes_at(offset - 1, 1) != b"\n":
            # The last line was read without its end; the end that was written since is not an empty line.
            following = file.bytes_at(offset, 2)
            for ending in (b"\n", b"\r\n"):
                if following.startswith(ending):
                    return offset + len(ending)
        return offset
