"""Types, their zero values and the casts between them (CloudEvents SQL 1.0.0, sections 3.1, 3.2, 3.7)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from conduit_tasks.filters.cesql.errors import Fault, Kind

Value = str | int | bool
View = Mapping[str, Any]
"""Attributes that the event has, by name."""
Faults = list[Fault]
Run = Callable[[View, Faults], Any]
"""A compiled expression: returns its value and appends its faults; the first fault is the error."""

MIN, MAX = -(2**31), 2**31 - 1
ZERO: dict[type, Value] = {str: "", int: 0, bool: False}
NAMES: dict[type, str] = {str: "String", int: "Integer", bool: "Boolean"}

_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,10})")


class CastFailed(Exception):
    """Fault of a cast, for the operator whose operand was cast."""

    def __init__(self, value: Value, target: type) -> None:
        super().__init__()
        self.fault = Fault(Kind.cast, f"{_shown(value)} cannot be read as {NAMES[target]}")


def primitive(value: Any) -> Value:
    """Returns an attribute as one of the three types; a value of another type becomes its CloudEvents text."""
    kind = value.__class__
    if kind is str or kind is bool:
        return value
    if kind is int:
        return value if MIN <= value <= MAX else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return str(value)


def to_integer(value: Value) -> int:
    """Casts a value to Integer. Raises CastFailed for a text that is no 32 bit integer."""
    if value.__class__ is str:
        if len(value) < 10 and value.isascii() and value.isdecimal():
            return int(value)
        found = _INTEGER.fullmatch(value)
        if found is not None and MIN <= (number := int(found[1] + found[2])) <= MAX:
            return number
        raise CastFailed(value, int)
    return int(value)


def to_boolean(value: Value) -> bool:
    """Casts a value to Boolean. Raises CastFailed for a text other than true and false (in upper or lower case)."""
    if value.__class__ is str:
        lower = value.lower()
        if lower == "true":
            return True
        if lower == "false":
            return False
        raise CastFailed(value, bool)
    return bool(value)


def to_text(value: Value) -> str:
    """Casts a value to String, which never fails: integers in base 10, Booleans in lower case."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


CASTS: dict[type, Callable[[Any], Any]] = {str: to_text, int: to_integer, bool: to_boolean}


def cast(value: Value, target: type) -> Any:
    """Casts `value` to `target`. Raises CastFailed."""
    return value if value.__class__ is target else CASTS[target](value)


def castable(value: Value, target: type) -> bool:
    """Returns whether `cast` succeeds."""
    try:
        cast(value, target)
    except CastFailed:
        return False
    return True


def _shown(value: Value) -> str:
    text = value if isinstance(value, str) else to_text(value)
    return repr(text if len(text) <= 40 else text[:37] + "…")
