"""An object's bytes as records."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_tasks.connectors.arrow_rows import batch_of
from conduit_tasks.connectors.file_open import SourceFile
from conduit_tasks.connectors.file_parquet import rows_between, sound
from conduit_tasks.errors import SourceError

_GZIP = b"\x1f\x8b"


class S3Object(SourceFile):
    """An object that is here whole, to be read as a file is."""

    def __init__(self, part: str, data: bytes) -> None:
        self.part, self._data = part, data
        self.size, self.modified = len(data), 0.0

    def bytes_at(self, start: int, length: int) -> bytes:
        return self._data[start : start + length]

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


def rows_of(part: str, data: bytes, key: str | None) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file. Raises SourceError."""
    with sound(S3Object(f"s3: {part}", data)), pq.ParquetFile(io.BytesIO(data)) as parquet:
        for row, batch in rows_between(parquet, 0, parquet.metadata.num_rows):
            yield batch_of(batch, part, row, key)


def unpacked(where: str, data: bytes, most: int) -> bytes:
    """Data that is packed by gzip, unpacked; never more than `most` bytes. Raises SourceError."""
    too_large = f"{where} is larger than {most:,} bytes; raise 'largest', or write smaller objects"
    if not data.startswith(_GZIP):
        if len(data) > most:
            raise SourceError(too_large)
        return data
    out = bytearray()
    try:
        while data:
            # Files of several members, as appended to, are one.
            member = zlib.decompressobj(wbits=31)
            out += member.decompress(data, most + 1 - len(out))
            if len(out) > most:
                raise SourceError(too_large)
            if not member.eof:
                raise SourceError(f"{where} is cut off: its gzip has no end")
            data = member.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise SourceError(f"{where} is damaged: {error}") from None
    return bytes(out)
