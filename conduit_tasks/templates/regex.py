"""Regular expressions of templates: RE2, as in Go's `regexp`, so that finding one match takes linear time; with a
limit of processor time for all matches, and one of the text that is made.

Finding all matches may take quadratic time, in Go, too: each search may run to the end of the text (`a*b|a` in many a).
So it has a limit of processor time, beyond which the record fails.

Syntax is Go's (`(?P<name>…)`, `(?i)`, `\\pL`, no look-around and no back-references); replacements know `$1`, `${name}`
and `$$`. Matching is over UTF-8; bytes that are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from conduit_tasks.errors import RecordError
from conduit_tasks.patterns import compiled
from conduit_tasks.templates.values import text

MOST = 32 << 20
"""Limit of the bytes of text that a function makes."""
SECONDS, EACH = 10.0, 50e-6
"""Seconds of processor time to find all matches: in all, and in addition for each match. If no search runs much further
than its match, 64 MiB of text take a fraction of the first, and each match a fraction of the second."""

_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|(\$))")
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


def too_long(what: str) -> RecordError:
    """Returns the error of a function whose result would be larger than `MOST`."""
    return RecordError(f"{what} would make text of more than {MOST >> 20} MiB")


def _compiled(pattern: Any) -> Any:
    try:
        return compiled(text(pattern))
    except ValueError as error:
        raise RecordError(str(error)) from None


def _bytes(value: Any) -> bytes:
    return text(value).encode(errors="replace")


def _matches(pattern: Any, value: bytes) -> Iterator[Any]:
    """Yields all matches as Go does: an empty match right behind another one does not count.

    Raises RecordError beyond `SECONDS`.
    """
    at, before, limit = 0, -1, time.thread_time() + SECONDS
    while at <= len(value):
        limit += EACH
        if time.thread_time() > limit:
            raise RecordError(
                f"to look for all matches in {len(value):,} bytes takes too long, more than {SECONDS:g} s as far "
                f"as byte {at:,}; give it less text, or a pattern that need not look to the end for each match"
            )
        found = pattern.search(value, at)
        if found is None:
            return
        begin, end = found.span()
        if begin != end or begin != before:
            yield found
        before = end
        at = end if end > at else at + _width(value, at)


def _width(value: bytes, at: int) -> int:
    """Returns the number of bytes of the character at `at`; 1 at the end."""
    end = at + 1
    while end < len(value) and value[end] & 0xC0 == 0x80:
        end += 1
    return end - at


def matches(pattern: Any, value: Any) -> bool:
    """Returns whether the pattern matches (`regexMatch`)."""
    return _compiled(pattern).search(_bytes(value)) is not None


def find(pattern: Any, value: Any) -> str:
    """Returns the first match, or empty text (`regexFind`)."""
    found = _compiled(pattern).search(_bytes(value))
    return found[0].decode(errors="replace") if found else ""


def find_all(pattern: Any, value: Any, count: Any) -> list[str]:
    """Returns at most `count` matches, all if it is below 0 (`regexFindAll`)."""
    out: list[str] = []
    if count == 0:
        return out
    for found in _matches(_compiled(pattern), _bytes(value)):
        out.append(found[0].decode(errors="replace"))
        if len(out) == count:
            break
    return out


def replace_all(pattern: Any, value: Any, replacement: Any) -> str:
    """Implements `regexReplaceAll`: `$1`, `${1}` and `${name}` are groups, `$$` a dollar; an unknown group is empty."""
    found = _compiled(pattern)
    names = {name.decode(): at for name, at in found.groupindex.items()}
    parts = list(_parts(text(replacement), found.groups, names))

    def expand(match: Any) -> bytes:
        return b"".join((match[part] or b"") if isinstance(part, int) else part for part in parts)

    return _replaced(found, _bytes(value), expand)


def replace_literal(pattern: Any, value: Any, replacement: Any) -> str:
    """Implements `regexReplaceAllLiteral`."""
    new = _bytes(replacement)
    return _replaced(_compiled(pattern), _bytes(value), lambda _: new)


def quote(value: Any) -> str:
    """Returns a pattern that matches exactly this text (`regexQuoteMeta`)."""
    return _SPECIAL.sub(r"\\\1", text(value))


def _parts(template: str, groups: int, names: dict[str, int]) -> Iterator[bytes | int]:
    at = 0
    for reference in _REFERENCE.finditer(template):
        yield template[at : reference.start()].encode(errors="replace")
        at = reference.end()
        name = reference[1] or reference[2]
        if name is None:
            yield b"$"
        elif name.isascii() and name.isdigit():
            if len(name) < 9 and int(name) <= groups:
                yield int(name)
        elif name in names:
            yield names[name]
    yield template[at:].encode(errors="replace")


def _replaced(pattern: Any, value: bytes, new: Callable[[Any], bytes]) -> str:
    out, at, size = [], 0, 0
    for found in _matches(pattern, value):
        begin, end = found.span()
        out += [value[at:begin], new(found)]
        size += len(out[-1])
        if size > MOST:
            raise too_long("a replacement")
        at = end
    return b"".join([*out, value[at:]]).decode(errors="replace")
