"""Parquet files as a source: a record is a row; a file is whole when it is seen, and never changes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_tasks.connectors.arrow_rows import batch_of
from conduit_tasks.connectors.base import Slice
from conduit_tasks.connectors.file.on_disk import GUARD, SourceFile, path_of
from conduit_tasks.connectors.file.plan import NotWhole, Room
from conduit_tasks.connectors.outcome import clip
from conduit_tasks.record.parquet import UNREADABLE, batches_of, opened, row_groups
from conduit_tasks.settings import settings

ROWS = 16_384
"""Rows per batch."""
_MAGIC = b"PAR1"


def slices(
    file: SourceFile,
    token: Any | None,
    room: Room,
    *,
    slice_bytes: int,
    settled: Callable[[SourceFile], bool],
    partition: Callable[[str], str],
) -> Iterator[Slice]:
    """Yields the slices of the rows past `token`, as far as `room` allows; shrinks it.

    Raises NotWhole if the file is being written, SourceError if it was replaced or is no Parquet file.
    """
    if token is not None and check(file, token) == token["rows"]:
        return
    if not _has_footer(file):
        if not settled(file):
            raise NotWhole
        raise file.error("is no whole Parquet file; write files to the side and rename them, or correct 'format'")
    with _opened(file) as parquet:
        rows = parquet.metadata.num_rows
        held = sum(parquet.metadata.row_group(n).total_byte_size for n in range(parquet.metadata.num_row_groups))
    guard = _guard(file)
    row_bytes = max(1.0, held / max(rows, 1))
    at = token["row"] if token is not None else 0

    def there(row: int) -> dict[str, int]:
        return {"row": row, "rows": rows, "size": file.size, "crc": guard, **file.lived()}

    while at < rows and not room.full:
        take = min(rows - at, room.records, max(1, int(slice_bytes / row_bytes)))
        take = max(1, min(take, int(max(room.bytes, 0) / row_bytes)))
        size = int(take * row_bytes)
        yield Slice(file.part, partition(file.part), there(at), there(at + take), take, size)
        room.records, room.bytes, room.taken = room.records - take, room.bytes - size, True
        at += take


def read_slice(slice: Slice, key: str | None) -> Iterator[pa.RecordBatch]:
    """Yields exactly the rows of the slice, as READ_SCHEMA batches. Raises SourceError if the file was replaced."""
    begin, end = slice.start["row"], slice.end["row"]
    with SourceFile(slice.part) as file:
        file.life = slice.end.get("life", 0)
        check(file, slice.end)
        with sound(file), opened(path_of(file.part), begin, end) as parquet:
            for row, batch in rows_between(parquet, begin, end):
                yield batch_of(batch, file.place, row, key)


def rows_between(parquet: pq.ParquetFile, begin: int, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields the rows `begin` … `end` - 1, each batch with the number of its first; row groups outside are not read."""
    groups, row = row_groups(parquet.metadata, begin, end)
    for batch in batches_of(parquet, settings().batch_bytes, ROWS, row_groups=groups) if groups else ():
        if row >= end:
            return
        first, last = max(begin, row), min(end, row + batch.num_rows)
        if first < last:
            yield first, batch.slice(first - row, last - first)
        row += batch.num_rows


def _has_footer(file: SourceFile) -> bool:
    """Returns whether the file ends as a whole one does; one that is still being written has no footer."""
    return file.bytes_at(max(0, file.size - 4), 4) == _MAGIC


def _opened(file: SourceFile) -> pq.ParquetFile:
    with sound(file):
        return pq.ParquetFile(path_of(file.part))


@contextmanager
def sound(file: SourceFile) -> Iterator[None]:
    """Raises SourceError if the data read inside is no Parquet, or is damaged."""
    try:
        yield
    except UNREADABLE as error:
        said = clip(str(error))
        raise file.error(f"cannot be read as Parquet: {said}; correct 'format', or take the file away") from None


def _guard(file: SourceFile) -> int:
    """Returns the checksum of the file's end, with the footer that describes everything in it."""
    return zlib.crc32(file.bytes_at(max(0, file.size - GUARD), GUARD))


def check(file: SourceFile, token: Any) -> int:
    """Returns the next row of a token. Raises Missing if it does not match this file (any more)."""
    if (token["size"], token["crc"]) != (file.size, _guard(file)):
        raise file.missing(f"was replaced after {token['row']} of its rows were read")
    return int(token["row"])
