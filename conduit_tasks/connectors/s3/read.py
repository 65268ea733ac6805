"""An object on this machine's disk, unpacked (gzip) and no larger than `largest`: it is read as a file is."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa

from conduit_tasks.connectors.arrow_rows import batch_of
from conduit_tasks.connectors.file.on_disk import SourceFile
from conduit_tasks.connectors.file.parquet import rows_between, sound
from conduit_tasks.errors import SourceError
from conduit_tasks.record.parquet import opened

PIECE = 4 << 20
"""Bytes of an object that are in memory at once."""
_GZIP = b"\x1f\x8b"


class S3Object(SourceFile):
    """An object that is stored here, unpacked, in a file without a name: it is read as a file is, whatever its size."""

    def __init__(self, part: str, pieces: Iterable[bytes]) -> None:
        """Stores the pieces. Raises SourceError if there is no room for them, and whatever `pieces` raises."""
        self.part = part
        # On disk, as it may be large; `TMPDIR` says on which.
        self._file = tempfile.TemporaryFile(prefix="conduit-s3-", buffering=0)  # noqa: SIM115 - closed by __exit__
        self.fd = self._file.fileno()
        try:
            for piece in pieces:
                self._keep(piece)
        except BaseException:
            self._file.close()
            raise
        self.size, self.modified = os.fstat(self.fd).st_size, 0.0

    @property
    def place(self) -> str:
        """Beginning of its records' positions. It needs no number of a life: a new object has another key."""
        return self.part

    def _keep(self, piece: bytes) -> None:
        try:
            while piece:
                piece = piece[self._file.write(piece) :]
        except OSError as error:
            where = tempfile.gettempdir()
            raise self.error(
                f"cannot be kept in {where} to be read: {error.strerror}; make room, or set TMPDIR"
            ) from error

    def error(self, what: str) -> SourceError:
        return SourceError(f"s3: {self.part} {what}")

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def rows(self, key: str | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a Parquet file. Raises SourceError."""
        with sound(self), opened(self._file) as parquet:
            for row, batch in rows_between(parquet, 0, parquet.metadata.num_rows):
                yield batch_of(batch, self.part, row, key)


def unpacked(where: str, pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yields data, unpacked if it is packed by gzip, of no more than `most` bytes altogether. Raises SourceError."""
    left = most
    for piece in _unpacked(where, iter(pieces)):
        left -= len(piece)
        if left < 0:
            raise SourceError(f"{where} is larger than {most:,} bytes; raise 'largest', or write smaller objects")
        yield piece


def _unpacked(where: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= len(_GZIP):
            break
    pieces = chain([head], pieces)
    if not head.startswith(_GZIP):
        yield from pieces
        return
    member = None
    try:
        for piece in pieces:
            data = piece
            while data:
                if member is None:
                    # Several members, as after appending, are one file; zeros fill up the last block of a tape.
                    if not (data := data.lstrip(b"\0")):
                        break
                    member = zlib.decompressobj(wbits=31)
                yield member.decompress(data, PIECE)
                data = member.unconsumed_tail
                if member.eof:
                    data, member = member.unused_data, None
        if member is not None:
            yield member.flush()
    except zlib.error as error:
        raise SourceError(f"{where} is damaged: {error}") from None
    if member is not None and not member.eof:
        raise SourceError(f"{where} is cut off: its gzip has no end")
