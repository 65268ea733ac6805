"""Values by which records are looked for: their text, and 64-bit hashes of it, made column by column.

The hash is part of the format of the files that hold it (`spool.index`): with another one they are to get another name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.errors import RecordError
from conduit_tasks.record import jsons
from conduit_tasks.record.fields import FieldRef, parse
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import DATA, part_values

MOST = 256
"""Bytes of a value that enter the hash, with the length of the whole: what is found is compared with the record."""
_MULTIPLIER, _LAST = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_ALL, _WORD = np.uint64(0xFFFFFFFFFFFFFFFF), 8

Hashes = npt.NDArray[np.uint64]


def hash_of(value: bytes) -> int:
    """Returns the hash of one value."""
    return int(_hashes(np.frombuffer(value, np.uint8), np.array([0, len(value)], np.int64))[0])


def hashed(column: pa.Array) -> tuple[Hashes, npt.NDArray[np.bool_] | None]:
    """Returns a hash per row of a binary or text column, and which rows have a value (None: all)."""
    rows = len(column)
    if column.null_count == rows:
        return np.zeros(rows, np.uint64), np.zeros(rows, bool)
    valid, offsets, data = column.buffers()
    kind = np.int64 if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type) else np.int32
    ends = np.frombuffer(offsets, kind)[column.offset : column.offset + rows + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    found = _hashes(content[ends[0] : ends[-1]], ends - ends[0])
    has = None if valid is None or not column.null_count else np.asarray(column.is_valid())
    return found, has


def _hashes(content: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> Hashes:
    """Returns the hash of each `content[ends[i]:ends[i + 1]]`, eight bytes of all of them at a time."""
    starts, lengths = ends[:-1], np.diff(ends)
    padded = np.empty(len(content) + _WORD, np.uint8)
    padded[: len(content)], padded[len(content) :] = content, 0
    # The eight bytes from each place on: a view, in which the words overlap.
    words = np.ndarray((len(content) + 1,), np.dtype("<u8"), padded, strides=(1,))
    out = lengths.astype(np.uint64) * _MULTIPLIER
    longest = int(lengths.max()) if len(lengths) else 0
    for at in range(0, min(longest, MOST), _WORD):
        left = lengths - at
        rows = np.flatnonzero(left > 0)
        every = len(rows) == len(left)
        here, left = (starts + at, left) if every else (starts[rows] + at, left[rows])
        # Of the last word of a value, the bytes behind it do not count.
        word = words[here] & (_ALL >> ((_WORD - np.minimum(left, _WORD)) * 8).astype(np.uint64))
        mixed = ((out if every else out[rows]) ^ word) * _MULTIPLIER
        mixed ^= mixed >> np.uint64(32)
        if every:
            out = mixed
        else:
            out[rows] = mixed
    out *= _LAST
    return out ^ (out >> np.uint64(29))


def text_of(value: Any) -> bytes | None:
    """Returns the text by which a field's value is looked for: as JSON writes numbers, `true` and `false`, text without
    quotes; None: it is not looked for (nothing, a list, an object in a payload)."""
    if isinstance(value, str):
        return value.encode(errors="replace")
    if isinstance(value, bytes):
        return value
    if value is None or isinstance(value, dict | list):
        return None
    return jsons.dumps(value)


def forms(text: str) -> list[bytes]:
    """Returns the texts under which a value may have been stored: as it is given and, for a structured key, as JSON
    without and with blanks."""
    out = [text.encode(errors="replace")]
    if text.lstrip()[:1] == "{":
        try:
            value = jsons.exact(text)
        except (jsons.JSONDecodeError, UnicodeEncodeError):
            return out
        out += [jsons.dumps(value), json.dumps(value).encode(), json.dumps(value, ensure_ascii=False).encode()]
    return list(dict.fromkeys(out))


def matches(value: Any, text: str) -> bool:
    """Returns whether a field has the value that is looked for."""
    if isinstance(value, dict):
        try:
            return bool(jsons.exact(text) == value)
        except (jsons.JSONDecodeError, UnicodeEncodeError):
            return False
    return text_of(value) == text.encode(errors="replace")


class Columns:
    """Makes the hashes of fields of SPOOL_SCHEMA batches. `origins`: per slice number."""

    def __init__(self, fields: Sequence[str], origins: Sequence[Origin]) -> None:
        self._refs = [parse(field) for field in fields]
        self._origins = origins

    def of(self, batch: pa.RecordBatch) -> list[tuple[Hashes, npt.NDArray[np.bool_] | None]]:
        """Returns the hashes of each field, as `hashed` does."""
        parsed = [ref for ref in self._refs if not _is_column(ref)]
        values = dict(zip((ref.text for ref in parsed), _values(batch, parsed, self._origins))) if parsed else {}
        return [
            hashed(batch.column(ref.root.lower()))
            if _is_column(ref)
            else hashed(pa.array(values[ref.text], pa.binary()))
            for ref in self._refs
        ]

    @property
    def reads(self) -> list[str]:
        """The columns that a batch needs."""
        parts = {part for ref in self._refs for part in ref.parts}
        return ["slice", *sorted(parts), *(["shape"] if parts & DATA.keys() else [])]


def _is_column(ref: FieldRef) -> bool:
    """Returns whether the field is a column of its own."""
    return not ref.path and ref.root in ("Key", "Position")


def _values(batch: pa.RecordBatch, refs: Sequence[FieldRef], origins: Sequence[Origin]) -> list[list[bytes | None]]:
    """Returns for each field its text in each row; records without the field, or with raw data, have none."""
    out: list[list[bytes | None]] = [[] for _ in refs]
    parts = sorted({part for ref in refs for part in ref.parts})
    record = Record(b"")
    slices = batch.column("slice").to_pylist()
    for number, *found in zip(slices, *(part_values(batch, part) for part in parts)):
        record.origin = origins[number]
        for part, value in zip(parts, found):
            setattr(record, part, value)
        for ref, texts in zip(refs, out):
            texts.append(_text_in(ref, record))
    return out


def _text_in(ref: FieldRef, record: Record) -> bytes | None:
    try:
        return text_of(ref.get(record))
    except RecordError:
        return None
