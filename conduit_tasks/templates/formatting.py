"""`print`, `println`, `printf`: the verbs of Go's fmt package that templates use."""

from __future__ import annotations

import re
from typing import Any

from conduit_tasks.errors import RecordError
from conduit_tasks.templates.strings_ import go_quote
from conduit_tasks.templates.values import nested

_VERB = re.compile(r"%([-+# 0]*+)(\d++)?+(?:\.(\d*+))?+([a-zA-Z%])")


def sprint(*arguments: Any) -> str:
    """Implements `print`: a blank between two arguments if neither is text."""
    out = ""
    for i, value in enumerate(arguments):
        if i and not isinstance(value, str) and not isinstance(arguments[i - 1], str):
            out += " "
        out += nested(value)
    return out


def sprintln(*arguments: Any) -> str:
    """Implements `println`: blanks between arguments, a line end after them."""
    return " ".join(map(nested, arguments)) + "\n"


def printf(pattern: Any, *arguments: Any) -> str:
    """Implements `printf`. Mistakes that Go marks inside the text as `%!d(…)` raise RecordError, so that they show."""
    rest = list(arguments)

    def replace(found: re.Match[str]) -> str:
        flags, width, precision, verb = found.groups()
        if verb == "%":
            return "%"
        if not rest:
            raise RecordError(f"printf has no argument for {found[0]}")
        if any(len(digits) > 4 for digits in (width, precision) if digits):
            raise RecordError(f"printf makes no field of more than 9,999 characters: {found[0][:40]}")
        text = _verb(verb, flags, precision, rest.pop(0), found[0])
        if width is None:
            return text
        if "-" in flags:
            return text.ljust(int(width))
        if "0" in flags and verb in "dfFgGeExXobt":
            return text.zfill(int(width))
        return text.rjust(int(width))

    out = _VERB.sub(replace, nested(pattern))
    if rest:
        raise RecordError(f"printf has {len(rest)} arguments too many for {pattern!r}")
    return out


def _verb(  # noqa: PLR0911 - one line per verb
    verb: str, flags: str, precision: str | None, value: Any, written: str
) -> str:
    sign = "+" if "+" in flags else " " if " " in flags else ""
    if verb in "sv":
        text = nested(value)
        return text if precision is None or verb == "v" else text[: int(precision or 0)]
    if verb == "q":
        return go_quote(nested(value))
    if verb == "t" and isinstance(value, bool):
        return nested(value)
    if verb == "T":
        return type(value).__name__
    if verb in "xX" and isinstance(value, str | bytes):
        text = (value.encode() if isinstance(value, str) else value).hex()
        return text.upper() if verb == "X" else text
    if verb in "dxXobc" and isinstance(value, int) and not isinstance(value, bool):
        return chr(value) if verb == "c" else format(value, f"{sign}{'#' if '#' in flags else ''}{verb}")
    if verb in "fFgGeE" and isinstance(value, int | float) and not isinstance(value, bool):
        if precision is None and verb in "gG":
            return nested(float(value))
        return format(value, f"{sign}.{precision or (6 if precision is None else 0)}{verb}")
    raise RecordError(f"printf cannot print a value of type {type(value).__name__} as {written}")
