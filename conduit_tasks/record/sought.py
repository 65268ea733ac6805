"""Values by which records are looked for: their text, and 64-bit hashes of it, made column by column.

The hash is part of the format of the files that hold it (`spool.index`): with another one they are to get another name.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.errors import RecordError
from conduit_tasks.record import jsons
from conduit_tasks.record.fields import FieldRef, parse
from conduit_tasks.record.json_values import simple, values_of
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import DATA, part_values
from conduit_tasks.record.searchable import COLUMNS

MOST = 256
"""Bytes of a value that enter the hash, with the length of the whole: what is found is compared with the record."""
_MULTIPLIER, _LAST = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_ALL, _WORD = np.uint64(0xFFFFFFFFFFFFFFFF), 8

_NUMBER = re.compile(r"-?(0|[1-9]\d{0,300})(\.\d{1,300})?([eE][+-]?\d{1,3})?", re.ASCII)

Hashes = npt.NDArray[np.uint64]


Rows = npt.NDArray[np.int64]
Entries = tuple[Hashes, Rows | None]
"""Hashes and the rows that have them, in order of rows (None: 0, 1, …, each once). A row may have several."""


def hash_of(value: bytes) -> int:
    """Returns the hash of one value."""
    return int(_hashes(np.frombuffer(value, np.uint8), np.array([0]), np.array([len(value)]))[0])


def hashed(column: pa.Array) -> Entries:
    """Returns the hashes of the values of a binary or text column."""
    if column.null_count == len(column):
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    content, ends = _content(column)
    if not column.null_count:
        return _hashes(content, ends[:-1], np.diff(ends)), None
    rows = np.flatnonzero(np.asarray(column.is_valid()))
    return _hashes(content, ends[:-1][rows], np.diff(ends)[rows]), rows


def _content(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Rows]:
    """Returns the bytes of a column, and where each row ends, with 0 before."""
    _, offsets, data = column.buffers()
    kind = np.int64 if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type) else np.int32
    ends = np.frombuffer(offsets, kind)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return content[ends[0] : ends[-1]], ends - ends[0]


def _hashes(content: npt.NDArray[np.uint8], starts: Rows, lengths: Rows) -> Hashes:
    """Returns the hash of each value, eight bytes of all of them at a time."""
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
    """Returns the texts under which a value may have been stored: as it is given, a number as JSON writes it, what the
    text is in base64, and a structured key as JSON without and with blanks, and with other letters as they are or
    escaped."""
    out = [text.encode(errors="replace"), *(form for form in (_number(text), _decoded(text)) if form is not None)]
    if text.lstrip()[:1] == "{":
        try:
            value = jsons.exact(text)
        except (jsons.JSONDecodeError, UnicodeEncodeError):
            return out
        out.append(jsons.dumps(value))
        for separators in (None, (",", ":")):
            out += [json.dumps(value, ensure_ascii=e, separators=separators).encode() for e in (True, False)]
    return list(dict.fromkeys(out))


def matches(value: Any, text: str) -> bool:
    """Returns whether a field has the value that is looked for."""
    if isinstance(value, dict):
        try:
            return bool(jsons.exact(text) == value)
        except (jsons.JSONDecodeError, UnicodeEncodeError):
            return False
    if isinstance(value, bytes) and value[:1] == b"{":
        # A raw key may be JSON, too.
        return value in forms(text)
    if isinstance(value, bytes) and value == _decoded(text):
        return True
    found = text_of(value)
    return found == text.encode(errors="replace") or (isinstance(value, int | float) and found == _number(text))


def _decoded(text: str) -> bytes | None:
    """Returns the bytes of which a text is the base64; None if it is none. So positions are shown, and raw keys that
    are no text."""
    try:
        return base64.b64decode(text, validate=True) or None
    except ValueError:
        return None


def _number(text: str) -> bytes | None:
    """Returns a number as JSON writes it (`1.50` as `1.5`, `-0` as `0`); None if the text is none."""
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return jsons.dumps(jsons.exact(text))
    except jsons.JSONDecodeError:  # out of the range of a double
        return None


class Columns:
    """Makes the hashes of fields of SPOOL_SCHEMA batches. `origins`: per slice number."""

    def __init__(self, fields: Sequence[str], origins: Sequence[Origin]) -> None:
        self._refs = [parse(field) for field in fields]
        self._origins = origins

    def of(self, batch: pa.RecordBatch) -> list[Entries]:
        """Returns the hashes of each field; in structured data also of other places with the same last name."""
        return [self._of(ref, batch) for ref in self._refs]

    def _of(self, ref: FieldRef, batch: pa.RecordBatch) -> Entries:
        if not ref.path and ref.root in COLUMNS:
            return hashed(batch.column(ref.root.lower()))
        [part] = ref.parts
        if part not in DATA or not simple(ref.path[-1]):
            return hashed(pa.array(_values(batch, ref, self._origins), pa.binary()))
        column, shape = batch.column(part), batch.column("shape").to_numpy()
        structured = np.flatnonzero((shape & DATA[part] != 0) & np.asarray(column.is_valid()))
        if len(structured) < len(column):
            column = column.take(pa.array(structured))
        if not len(column):
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        content, ends = _content(column)
        found = values_of(ref.path[-1], content, ends)
        if found is None:
            return hashed(pa.array(_values(batch, ref, self._origins), pa.binary()))
        hashes, rows = _hashes(content, found.starts, found.lengths), structured[found.texts]
        if len(found.parse):
            numbers = structured[found.parse]
            some, of = hashed(pa.array(_values(batch.take(pa.array(numbers)), ref, self._origins), pa.binary()))
            hashes, rows = (
                np.concatenate([hashes, some]),
                np.concatenate([rows, numbers if of is None else numbers[of]]),
            )
            order = np.argsort(rows, kind="stable")
            hashes, rows = hashes[order], rows[order]
        return hashes, rows

    @property
    def reads(self) -> list[str]:
        """The columns that a batch needs."""
        parts = {part for ref in self._refs for part in ref.parts}
        return ["slice", *sorted(parts), *(["shape"] if parts & DATA.keys() else [])]


def _values(batch: pa.RecordBatch, ref: FieldRef, origins: Sequence[Origin]) -> list[bytes | None]:
    """Returns the text of a field in each row; records without the field, or with raw data, have none."""
    [part] = ref.parts
    record = Record(b"")
    out = []
    for number, value in zip(batch.column("slice").to_pylist(), part_values(batch, part)):
        record.origin = origins[number]
        setattr(record, part, value)
        out.append(_text_in(ref, record))
    return out


def _text_in(ref: FieldRef, record: Record) -> bytes | None:
    try:
        return text_of(ref.get(record))
    except RecordError:
        return None
