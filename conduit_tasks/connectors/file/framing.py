"""Bounds of the records in a file's bytes, found for a whole chunk at a time: lines, and rows of CSV with their quotes.

Planning and reading use the same framing, so that the planned records are the ones read. A chunk begins at a record's
beginning, and each record is framed by its own bytes alone: chunks may be cut differently each time.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from conduit_tasks.errors import ConfigError

Offsets = npt.NDArray[np.int64]
NEWLINE, RETURN = 10, 13


class Bounds(NamedTuple):
    """Start and end of each record of a chunk; the end includes the line end, and the next record may start there."""

    starts: Offsets
    ends: Offsets


class LineFraming:
    """A record is a line, ended by `\\n` or `\\r\\n`."""

    def __init__(self, *, skip_blank: bool) -> None:
        self.skip_blank = skip_blank

    def bounds(self, data: bytes, final: bool) -> Bounds:
        """Returns the bounds of the whole records of `data`. `final`: nothing follows, so that the rest is a record,
        too."""
        return self._between(data, np.flatnonzero(_array(data) == NEWLINE) + 1, final)

    def _between(self, data: bytes, ends: Offsets, final: bool) -> Bounds:
        if final and len(data) > (ends[-1] if len(ends) else 0):
            ends = np.append(ends, len(data))
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1]
        if self.skip_blank and len(ends):
            blank = payload_ends(data, starts, ends) == starts
            if blank.any():
                starts, ends = starts[~blank], ends[~blank]
        return Bounds(starts, ends)


class CsvFraming(LineFraming):
    """A record is a CSV row (RFC 4180): line ends within quotes belong to it. Blank lines are no records.

    A quote opens a field only at its beginning; elsewhere it is a character like any other. `delimiter`
    and `quote` are one byte each; without a `quote` there is no quoting.
    """

    def __init__(self, delimiter: bytes, quote: bytes) -> None:
        super().__init__(skip_blank=True)
        if len(delimiter) != 1 or len(quote) > 1 or delimiter == quote or {delimiter, quote} & {b"\n", b"\r"}:
            raise ConfigError("options 'delimiter' and 'quote' must be one different ASCII character each")
        self.delimiter, self.quote = delimiter, quote
        d, q = re.escape(delimiter), re.escape(quote)
        quoted = rb"%b(?P<quoted>(?:[^%b]|%b%b)*+)(?:%b(?P<junk>[^%b\n]*)|\Z)|" % (q, q, q, q, q, d) if quote else b""
        self._field = re.compile(rb"(?:%b(?P<plain>[^%b\n]*))(?P<end>%b|\n|\Z)" % (quoted, d, d))

    def bounds(self, data: bytes, final: bool) -> Bounds:
        array = _array(data)
        newlines = np.flatnonzero(array == NEWLINE)
        if not self.quote or self.quote not in data:
            return self._between(data, newlines + 1, final)
        quotes = np.flatnonzero(array == self.quote[0])
        # Taken in pairs, quotes open and close; a doubled one closes and opens again at once. That is
        # correct if every opening quote stands at the beginning of a field or behind a closing one.
        openers = quotes[0::2]
        before = array[openers - 1]
        sound = (openers == 0) | (before == self.delimiter[0]) | (before == NEWLINE) | (before == self.quote[0])
        if not sound.all():
            return self._between(data, self._row_ends(data), final)
        return self._between(data, newlines[np.searchsorted(quotes, newlines) % 2 == 0] + 1, final)

    def _row_ends(self, data: bytes) -> Offsets:
        """Finds the ends field by field: for chunks with a stray quote."""
        ends, at = [], 0
        while at < len(data):
            match = self._field.match(data, at)
            assert match is not None, "the last alternative matches anything"
            at = match.end()
            if match["end"] == b"\n":
                ends.append(at)
            elif not match["end"]:
                break
        return np.array(ends, np.int64)

    def fields(self, row: bytes) -> list[tuple[bytes, bool]]:
        """Returns (value, was quoted) of each field of one row, without its line end."""
        out, at = [], 0
        while True:
            match = self._field.match(row, at)
            assert match is not None, "the last alternative matches anything"
            groups = match.groupdict()
            if groups.get("quoted") is not None:
                value = groups["quoted"].replace(self.quote * 2, self.quote) + (groups["junk"] or b"")
                out.append((value, True))
            else:
                out.append((groups["plain"], False))
            at = match.end()
            if match["end"] != self.delimiter:
                return out


def payload_ends(data: bytes, starts: Offsets, ends: Offsets) -> Offsets:
    """Returns the end of each record's content: before its `\\n`, and before a `\\r` ahead of that."""
    array = _array(data)
    out = ends - (array[ends - 1] == NEWLINE)
    return out - ((out > starts) & (array[out - 1] == RETURN))


def _array(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)
