"""LIKE patterns (CloudEvents SQL 1.0.0, section 3.4.3): `%` any text, `_` one character, `\\%` and `\\_` themselves.

A pattern becomes the cheapest possible test: equality, a prefix, a suffix, a substring; any other pattern becomes a
regular expression. Its pieces between `%` are matched one after the other, each at its first place and without
backtracking (atomic groups), so that no pattern takes more than length × pieces steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Test = Callable[[str], bool]
_ANY = "%"
_ONE = "_"


def compile_like(pattern: str) -> Test:
    """Returns the test of a pattern; case sensitive, line ends are characters like others."""
    pieces = _pieces(pattern)
    if any(_ONE in _wild(piece) for piece in pieces):
        return _expression(pieces)
    texts = ["".join(piece) for piece in ([c.removeprefix("\\") for c in piece] for piece in pieces)]
    match texts:
        case [text]:
            return text.__eq__
        case [text, ""]:
            return lambda value: value.startswith(text)
        case ["", text]:
            return lambda value: value.endswith(text)
        case ["", text, ""]:
            return lambda value: text in value
    return _expression(pieces)


def _pieces(pattern: str) -> list[list[str]]:
    """Splits the pattern at its `%`; an escaped character keeps a backslash before it."""
    pieces: list[list[str]] = [[]]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            if pattern[at + 1 : at + 2] in (_ANY, _ONE) and at + 1 < len(pattern):
                at += 1
            pieces[-1].append("\\" + pattern[at])
        elif character == _ANY:
            pieces.append([])
        else:
            pieces[-1].append(character)
        at += 1
    return pieces


def _wild(piece: list[str]) -> list[str]:
    return [character for character in piece if len(character) == 1]


def _expression(pieces: list[list[str]]) -> Test:
    parts = ["".join("." if c == _ONE else re.escape(c[-1]) for c in piece) for piece in pieces]
    first, middle, last = parts[0], [part for part in parts[1:-1] if part], parts[-1]
    text = first + "".join(f"(?>.*?{part})" for part in middle)
    if len(parts) > 1:
        text += f".*{last}"
    match = re.compile(text, re.DOTALL).fullmatch
    return lambda value: match(value) is not None
