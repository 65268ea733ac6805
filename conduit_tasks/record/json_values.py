"""Values of a name in JSON texts, of a whole column at a time and without parsing: for what may be a little too many.

Every place where the name stands in a text is taken, at any depth, so nothing that is there is missed: whoever looks
for a value compares it with the record. Texts of which the bytes do not say the value (escapes, fractions, very long
values) are named, to be parsed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MANY = 4
"""Places per text, on average, above which texts are parsed instead."""
LONGEST = 256
"""Bytes of a value that are looked at."""
PORTION = 1 << 17
"""Places that are compared at a time: a mask over all of a column would take eight times its bytes."""
_BLANKS = 16

Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_QUOTE, _COLON, _BACKSLASH, _MINUS, _ZERO = (ord(c) for c in '":\\-0')
_BLANK = np.zeros(256, bool)
_BLANK[[ord(c) for c in " \t\r\n"]] = True
_TEXT_ENDS = np.zeros(256, bool)
_TEXT_ENDS[_QUOTE] = True
_OTHER_ENDS = _BLANK.copy()
_OTHER_ENDS[[ord(c) for c in ",}]"]] = True
_FRACTION = np.zeros(256, bool)
_FRACTION[[ord(c) for c in ".eE"]] = True
_NOTHING = np.zeros(256, bool)
_NOTHING[[ord(c) for c in "{[n"]] = True
"""First bytes of objects, lists and null."""


@dataclass(frozen=True)
class Values:
    """Values as places in the content: `starts` and `lengths`, and the text that each stands in, by number. `parse`:
    numbers of texts that are to be parsed; none of these is in `texts`."""

    starts: Places
    lengths: Places
    texts: Places
    parse: Places


def simple(name: str) -> bool:
    """Returns whether a name stands in JSON as it is, where it is not escaped."""
    return name.isprintable() and '"' not in name and "\\" not in name


def values_of(name: str, content: Bytes, ends: Places) -> Values | None:
    """Returns the values of a name (see `simple`) in JSON texts, which are `content[ends[i]:ends[i + 1]]`; None: there
    are so many that the texts should be parsed."""
    token = np.frombuffer(f'"{name}"'.encode(), np.uint8)
    hits = _places(token, content)
    if len(hits) > MANY * (len(ends) - 1):
        return None
    texts = _owners(hits, ends)
    # Nothing is read behind the end of a text: the last byte of one is a brace.
    padded = np.concatenate([content, np.zeros(1, np.uint8)])
    odd = np.zeros(len(ends) - 1, bool)
    if _BACKSLASH in content.tobytes():
        odd[_owners(np.flatnonzero(content == _BACKSLASH), ends)] = True
    at = _past_blanks(hits + len(token), texts, padded, odd)
    names = padded[at] == _COLON
    texts, at = texts[names], at[names]
    at = _past_blanks(at + 1, texts, padded, odd)
    found = ~_NOTHING[padded[at]]
    texts, at = texts[found], at[found]
    quoted = padded[at] == _QUOTE
    starts = at + quoted
    lengths = _lengths(starts, quoted, ends[texts + 1], texts, padded, odd)
    sound = ~odd[texts]
    return Values(starts[sound], lengths[sound], texts[sound], np.flatnonzero(odd))


def _places(token: Bytes, content: Bytes) -> Places:
    """Returns where the token begins in the content: by its first eight bytes, then by the others."""
    size = min(8, len(token))
    if len(content) < len(token):
        return np.empty(0, np.int64)
    padded = np.concatenate([content, np.zeros(8, np.uint8)])
    words = np.ndarray((len(content) - len(token) + 1,), np.dtype("<u8"), padded, strides=(1,))
    wanted = np.uint64(int.from_bytes(token[:size].tobytes(), "little"))
    mask, found = np.uint64((1 << 8 * size) - 1), []
    for at in range(0, len(words), PORTION):
        some = words[at : at + PORTION]
        found.append(np.flatnonzero((some & mask if size < 8 else some) == wanted) + at)
    hits = np.concatenate(found)
    for n in range(size, len(token)):
        hits = hits[content[hits + n] == token[n]]
    return hits


def _owners(places: Places, ends: Places) -> Places:
    """Returns the number of the text in which each place lies."""
    count = len(ends) - 1
    if len(places) == count and bool((places >= ends[:-1]).all()) and bool((places < ends[1:]).all()):
        return np.arange(count)
    return np.searchsorted(ends, places, side="right") - 1


def _past_blanks(at: Places, texts: Places, content: Bytes, odd: npt.NDArray[np.bool_]) -> Places:
    """Returns the places of the first bytes that are not blank; texts with too many blanks become odd."""
    for _ in range(_BLANKS):
        blank = _BLANK[content[at]]
        if not blank.any():
            return at
        at = at + blank
    odd[texts[_BLANK[content[at]]]] = True
    return at


def _lengths(  # noqa: PLR0917
    starts: Places,
    quoted: npt.NDArray[np.bool_],
    limits: Places,
    texts: Places,
    content: Bytes,
    odd: npt.NDArray[np.bool_],
) -> Places:
    """Returns the lengths of the values. Texts with a fraction, or a value that does not end soon, become odd."""
    lengths = np.zeros(len(starts), np.int64)
    for among, ended in ((np.flatnonzero(quoted), _TEXT_ENDS), (np.flatnonzero(~quoted), _OTHER_ENDS)):
        rows = among
        for n in range(LONGEST):
            if not len(rows):
                break
            here = content[starts[rows] + n]
            if n == 0 and ended is _OTHER_ENDS:
                # -0 is 0 as soon as it is parsed.
                zero = rows[(here == _MINUS) & (content[starts[rows] + 1] == _ZERO)]
                odd[texts[zero]] = True
            if ended is _OTHER_ENDS and (broken := _FRACTION[here]).any():
                # `true` and `false` have an e, too.
                fraction = rows[broken]
                letters = content[starts[fraction]] > ord("9")
                odd[texts[fraction[~letters]]] = True
            goes_on = ~ended[here] & (starts[rows] + n < limits[rows])
            lengths[rows[~goes_on]] = n
            rows = rows[goes_on]
        odd[texts[rows]] = True
    return lengths
