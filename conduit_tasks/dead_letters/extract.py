"""Extract of a file of letters: what a look (`columns`) needs of it, found by one short read.

```
Parquet's data | extract: a record batch (Arrow IPC), packed (LZ4) | its trailer | Parquet's footer and its length
```

Parquet's footer says where its data is, so other readers never see what stands between the two. The extract is written
with the letters, by the same rename: both are there, or neither. A file without one (an older version wrote it, or
another tool), or with a damaged one, is read by its columns, which takes forty times as long.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conduit_tasks.dead_letters.issues import FORM, issue_ids
from conduit_tasks.dead_letters.parking import stored_key_hash
from conduit_tasks.record.record import json_data
from conduit_tasks.record.schema import KEY_STRUCTURED

EXTRACT = pa.schema(
    [
        ("epoch", pa.int64()),
        ("micro_batch", pa.int64()),
        ("seq", pa.int64()),
        ("ord", pa.int32()),
        ("id", pa.string()),
        ("node", pa.string()),
        ("error", pa.string()),
        ("error_class", pa.string()),
        ("attempts", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("key", pa.string()),
        ("structured", pa.bool_()),
        ("hash", pa.string()),
        ("issue", pa.string()),
        ("field", pa.string()),
    ]
)
"""Columns of an extract. `key`: the record's key as text (`structured`: as JSON); `hash`: by which keys are parked
(`parking.key_hash`); `field`: the letter's key as the broker's index has it."""
VERSION = 1
"""Of what `derived` makes of a letter, besides its issue."""
_CAUSE = ("node", "error_class", "error")
KEY = EXTRACT.names[:4]
"""Columns that are the key of a letter."""
_READ = [*EXTRACT.names[:10], "exact.key", "exact.shape"]
_CODEC = "lz4_raw"
"""Unpacked in 2 µs, of ten letters; zstd, which packs them to 1.0 kB and not to 1.4, takes 14."""
_TRAILER = struct.Struct("<8s8sIII8s")
"""Form of the columns, form of the issues, bytes packed and unpacked, CRC-32 of all that, and `_MAGIC`."""
_MAGIC = b"extract\n"
_TAIL = 32 << 10
"""Bytes of a file's end that are read at first: most extracts, with the trailer and the footer."""


def _form(*said: object) -> bytes:
    return hashlib.blake2b(repr(said).encode(), digest_size=8).digest()


_COLUMNS, _ISSUES = _form(VERSION, str(EXTRACT)), _form(FORM)


def with_extract(parquet: pa.Buffer, extract: pa.RecordBatch) -> bytes:
    """Returns the bytes of a Parquet file with the extract of its letters in front of its footer."""
    raw = extract.serialize()
    packed = pa.compress(raw, codec=_CODEC, asbytes=True)
    head = (_COLUMNS, _ISSUES, len(packed), raw.size)
    trailer = _TRAILER.pack(*head, _crc(packed, *head), _MAGIC)
    whole = memoryview(parquet)
    footer = 8 + int.from_bytes(whole[-8:-4], "little")
    return b"".join((whole[:-footer], packed, trailer, whole[-footer:]))


def read_extract(file: pa.NativeFile) -> pa.RecordBatch:
    """Returns the extract of a file of letters, made from its columns if it has none. Raises OSError, ArrowInvalid."""
    found = _extract(file)
    return derived(pq.ParquetFile(file).read(columns=_READ, use_threads=False)) if found is None else found


def _extract(file: pa.NativeFile) -> pa.RecordBatch | None:
    size = file.size()
    tail = file.read_at(min(size, _TAIL), max(0, size - _TAIL))

    def piece(length: int, end: int) -> bytes:
        """Returns bytes that end so many before the end of the file; none if the file does not have them."""
        if length + end <= len(tail):
            return tail[len(tail) - end - length : len(tail) - end]
        return file.read_at(length, size - end - length) if length + end <= size else b""

    footer = 8 + int.from_bytes(tail[-8:-4], "little")
    said = piece(_TRAILER.size, footer)
    if len(said) < _TRAILER.size:
        return None
    *head, crc, magic = _TRAILER.unpack(said)
    columns, issues, length, unpacked = head
    if magic != _MAGIC or columns != _COLUMNS:
        return None
    packed = piece(length, footer + _TRAILER.size)
    if crc != _crc(packed, *head):
        return None
    batch = pa.ipc.read_record_batch(pa.decompress(packed, unpacked, codec=_CODEC), EXTRACT)
    return batch if issues == _ISSUES else batch.set_column(EXTRACT.names.index("issue"), "issue", _issues(batch))


def _crc(packed: bytes, *head: Any) -> int:
    return zlib.crc32(packed, zlib.crc32(repr(head).encode()))


def derived(letters: pa.Table) -> pa.RecordBatch:
    """Returns the extract of letters, from their columns as they are stored (`_READ`, or all). Raises ArrowInvalid."""
    keys, shapes = (pc.struct_field(letters["exact"], name) for name in ("key", "shape"))
    structured = pc.not_equal(pc.bit_wise_and(shapes, pa.scalar(KEY_STRUCTURED, pa.int8())), 0)
    made: dict[str, Any] = {
        "key": _texts(keys, structured),
        "structured": structured,
        "hash": _hashes(keys, shapes),
        "issue": _issues(letters),
        "field": fields(letters),
    }
    columns = [made[name] if name in made else letters[name] for name in EXTRACT.names]
    found = pa.table(columns, names=EXTRACT.names).cast(EXTRACT).to_batches()
    # Texts that are too long for one batch are an error here, where `combine_chunks` would make two.
    return pa.concat_batches(found) if found else pa.RecordBatch.from_pylist([], EXTRACT)


def fields(letters: pa.Table) -> pa.Array:
    """Returns the keys of letters (the columns KEY) as the broker's index has them."""
    parts = [letters[name].cast(pa.string()) for name in KEY]
    joined = pc.binary_join_element_wise(*parts, "-")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _issues(letters: pa.Table | pa.RecordBatch) -> pa.Array:
    return pa.array(issue_ids(*(letters[name].to_pylist() for name in _CAUSE)), pa.string())


def _texts(keys: pa.ChunkedArray, structured: pa.ChunkedArray) -> Any:
    """Returns keys as text: a raw one that is no text in base64."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        both = zip(keys.to_pylist(), structured.to_pylist())
        return pa.array([k.decode() if k is not None and is_json else json_data(k) for k, is_json in both], pa.string())


def _hashes(keys: pa.ChunkedArray, shapes: pa.ChunkedArray) -> pa.Array:
    """Returns the hashes of keys; each distinct one is hashed once."""
    known: dict[tuple[bytes | None, int], str | None] = {}
    out = []
    for name in zip(keys.to_pylist(), pc.bit_wise_and(shapes, pa.scalar(KEY_STRUCTURED, pa.int8())).to_pylist()):
        if name not in known:
            known[name] = stored_key_hash(*name)
        out.append(known[name])
    return pa.array(out, pa.string())
