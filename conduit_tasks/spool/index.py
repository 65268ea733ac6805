"""Indexes: which rows of a file may have a value, found by reading some KB (docs/adr/0037-indexes-beside-the-data.md).

    segment   per column: its head, which is the first entry and the CRC-32 of each block, then the blocks
    …         one segment per SEGMENT rows
    footer    JSON: rows, columns, segments with the place, entries and CRC-32 of the head of each column;
              then its length and CRC-32, and MAGIC

An entry is 64 bits: the top of the value's hash, then the row within the segment, so that sorting needs one array.
Whoever finds a row compares the value with the record: hashes may be equal by chance. All numbers are little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from conduit_tasks.spool.store import Sink, Store

MAGIC = b"CTINDEX1"
SEGMENT = 1 << 20
"""Rows of a segment: 8 MiB per column are in memory while it is made."""
BLOCK = 1_024
"""Entries that are read at a time."""
LEAST = 10_000
"""Rows below which a part has no index: they are gone through in some milliseconds, and a small micro-batch would pay
for a further file, and for its way to the disk."""
TAIL = 4_096
"""Bytes of the end that are read at first: the whole of a small index."""
_END = struct.Struct("<II8s")
_ENTRY, _CRC = np.dtype("<u8"), np.dtype("<u4")

Entries = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64] | None]
"""Hashes and the rows that have them, in order of rows (None: 0, 1, …, each once). A row may have several."""


def path_of(part: str) -> str:
    """Returns the path of the index of a part file."""
    return f"{part.removesuffix('.parquet')}.index"


class IndexWriter:
    """Writes the index of rows that are added in order. Ends with `close` or `abort`. Raises OSError."""

    def __init__(self, sink: Sink, columns: Sequence[str]) -> None:
        self._sink, self._columns = sink, list(columns)
        self._held: list[list[Entries]] = []
        self._waiting = self._rows = 0
        self._segments: list[dict[str, Any]] = []

    def add(self, rows: int, columns: Sequence[Entries]) -> None:
        """Adds rows. `columns`: as they were named."""
        at = 0
        while at < rows:
            some = min(rows - at, SEGMENT - self._waiting)
            self._held.append([_cut(each, at, some, self._waiting) for each in columns])
            self._waiting += some
            at += some
            if self._waiting == SEGMENT:
                self._flush()

    def _flush(self) -> None:
        bits = np.uint64(max(1, (self._waiting - 1).bit_length()))
        places = {}
        for n, name in enumerate(self._columns):
            hashes = np.concatenate([each[n][0] for each in self._held])
            rows = np.concatenate([each[n][1] for each in self._held])
            entries = (hashes >> bits << bits) | rows.astype(np.uint64)
            entries.sort()
            entries = entries.astype(_ENTRY, copy=False)
            blocks = [entries[at : at + BLOCK] for at in range(0, len(entries), BLOCK)]
            head = (
                entries[::BLOCK].tobytes() + np.array([zlib.crc32(block.tobytes()) for block in blocks], _CRC).tobytes()
            )
            places[name] = [self._sink.size, len(entries), zlib.crc32(head)]
            self._sink.write(head)
            if len(entries):
                self._sink.write(entries.view(np.uint8))
        self._segments.append({"first": self._rows, "rows": self._waiting, "columns": places})
        self._rows += self._waiting
        self._held, self._waiting = [], 0

    def close(self) -> None:
        """Makes the index visible under its name."""
        if self._waiting:
            self._flush()
        footer = orjson.dumps({"rows": self._rows, "columns": self._columns, "segments": self._segments})
        self._sink.write(footer + _END.pack(len(footer), zlib.crc32(footer), MAGIC))
        self._sink.commit()

    def abort(self) -> None:
        """Leaves no file. Harmless after `close`."""
        self._sink.abort()


def _cut(entries: Entries, at: int, rows: int, first: int) -> Entries:
    """Returns the entries of some rows, which get numbers from `first` on."""
    hashes, numbers = entries
    if numbers is None:
        return hashes[at : at + rows], np.arange(first, first + rows)
    begin, end = np.searchsorted(numbers, [at, at + rows])
    return hashes[begin:end], numbers[begin:end] - at + first


class Damaged(ValueError):
    """The error that a file is no index, or that a part of it was changed: it is passed over."""


class Index:
    """An index that is open for reading; a context manager. Raises OSError, FileNotFoundError among them, and
    Damaged."""

    def __init__(self, store: Store, path: str, rows: int) -> None:
        """`rows`: of the file that it belongs to."""
        self._file = store.open(path)
        try:
            self._open(rows)
        except BaseException:
            self._file.close()
            raise

    def _open(self, rows: int) -> None:
        size = self._file.size()
        tail = self._at(max(0, size - TAIL), min(size, TAIL))
        if len(tail) < _END.size:
            raise Damaged("it is too short")
        length, crc, magic = _END.unpack(tail[-_END.size :])
        if magic != MAGIC or length + _END.size > size:
            raise Damaged("it has no footer")
        whole = length + _END.size
        footer = (tail if whole <= len(tail) else self._at(size - whole, whole))[-whole : -_END.size]
        if zlib.crc32(footer) != crc:
            raise Damaged("its footer was changed")
        found = orjson.loads(footer)
        if found["rows"] != rows:
            raise Damaged(f"it is of {found['rows']} rows, not of {rows}")
        self.columns: list[str] = found["columns"]
        self._segments: list[Mapping[str, Any]] = found["segments"]

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _at(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        data: bytes = self._file.read(size)
        if len(data) != size:
            raise Damaged("it is too short")
        return data

    def rows(self, column: str, hash: int) -> Iterator[int]:
        """Yields the rows that may have the value with this hash, the last first. Raises KeyError if the index does not
        have the column."""
        if column not in self.columns:
            raise KeyError(column)
        for segment in reversed(self._segments):
            if segment["columns"][column][1]:
                bits = max(1, (segment["rows"] - 1).bit_length())
                rows = self._in_segment(segment["columns"][column], hash >> bits << bits, bits)
                yield from (segment["first"] + row for row in rows)

    def _in_segment(self, place: Sequence[int], low: int, bits: int) -> Iterator[int]:
        at, entries, crc = place
        high = low | (1 << bits) - 1
        blocks = -(-entries // BLOCK)
        head = self._at(at, blocks * (_ENTRY.itemsize + _CRC.itemsize))
        if zlib.crc32(head) != crc:
            raise Damaged("the head of a column was changed")
        firsts = np.frombuffer(head, _ENTRY, blocks)
        checks = np.frombuffer(head, _CRC, blocks, blocks * _ENTRY.itemsize)
        start = at + len(head)
        number = int(np.searchsorted(firsts, np.uint64(high), side="right")) - 1
        while number >= 0:
            count = min(BLOCK, entries - number * BLOCK)
            data = self._at(start + number * BLOCK * _ENTRY.itemsize, count * _ENTRY.itemsize)
            if zlib.crc32(data) != checks[number]:
                raise Damaged("a block was changed")
            block = np.frombuffer(data, _ENTRY)
            first, last = np.searchsorted(block, np.uint64(low)), np.searchsorted(block, np.uint64(high), side="right")
            yield from (block[first:last][::-1] & np.uint64((1 << bits) - 1)).tolist()
            if first > 0:
                return
            number -= 1
