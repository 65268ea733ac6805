"""`field.convert`: one field under .Key or .Payload becomes text, a number, a boolean or a time.

A time is RFC 3339 text in UTC; as a whole number, in both directions, it is unix nanoseconds. Booleans become 1 and 0.
Absent and null values stay as they are; `null-values` (ours) names texts that become null. A value that does not
convert raises RecordError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.field import data_reference
from conduit_tasks.record.cloudevents import rfc3339, unix_nanoseconds
from conduit_tasks.record.record import Record
from conduit_tasks.templates.template import FALSE, TRUE
from conduit_tasks.templates.values import nested, plain_float

_WHOLE = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+")
SHOWN = 200
"""Characters of a value that an error quotes."""
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}\D")
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


def to_text(value: Any) -> str:
    """Returns the text as Go prints it; a number without an exponent."""
    if isinstance(value, dict | list):
        raise ValueError("it is a map or an array")
    return plain_float(value) if value.__class__ is float and math.isfinite(value) else nested(value)


def to_int(value: Any) -> int:
    """Returns a 64-bit whole number: from text in base ten, a number without a fraction, or a time (nanoseconds)."""
    match value:
        case str() if value.isdecimal() and value.isascii() and len(value) < 19:
            return int(value)
        case bool():
            return int(value)
        case int():
            number = value
        case str() if _WHOLE.fullmatch(value):
            number = int(value)
        case str() if _TIME.match(value):
            number = unix_nanoseconds(value)
        case float() if value.is_integer():
            number = int(value)
        case _:
            raise ValueError("it is no whole number")
    if not _LOWEST <= number <= _HIGHEST:
        raise ValueError("it does not fit into 64 bits")
    return number


def to_float(value: Any) -> float:
    """Returns a finite number."""
    if isinstance(value, int | float) or (isinstance(value, str) and _FLOAT.fullmatch(value)):
        number = float(value)
        if math.isfinite(number):
            return number
    raise ValueError("it is no finite number")


def to_bool(value: Any) -> bool:
    """Returns a boolean, from a boolean or a value that Go's ParseBool takes for one."""
    text = to_text(value)
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise ValueError("it is no boolean")


def to_time(value: Any) -> str:
    """Returns RFC 3339 in UTC, from unix nanoseconds or from text that is a time or a number of nanoseconds."""
    if isinstance(value, bool):
        raise ValueError("a boolean is no time")
    if isinstance(value, int | float) or (isinstance(value, str) and _WHOLE.fullmatch(value)):
        return rfc3339(to_int(value))
    if isinstance(value, str):
        return rfc3339(unix_nanoseconds(value))
    raise ValueError("it is no time")


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "string": to_text,
    "int": to_int,
    "float": to_float,
    "bool": to_bool,
    "time": to_time,
}


class ConvertField(RecordProcessor):
    """See the module."""

    spec = Spec(
        "field.convert",
        "Converts a field into another type.",
        (
            Option("field", "the field, under .Key or .Payload", required=True, example=".Payload.After.x"),
            Option("type", "string, int, float, bool or time", required=True, choices=tuple(_CONVERT)),
            Option("null-values", "comma-separated texts that become null, for example ',NA' (empty and NA)"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._field = data_reference("field.convert", "field", self.settings["field"])
        if not self._field.path:
            raise ConfigError(f"field.convert: option 'field': {self._field.text} is a whole; name a field in it")
        self.reads = self.changes = self._field.parts
        self._type = self.settings["type"]
        self._convert = _CONVERT[self._type]
        nulls = self.settings.get("null-values")
        self._nulls = frozenset(part.strip() for part in nulls.split(",")) if nulls is not None else frozenset()

    def process(self, record: Record) -> Record:
        field = self._field
        value = field.get(record)
        if value is None:
            return record
        try:
            field.set(record, None if value.__class__ is str and value in self._nulls else self._convert(value))
        except (ValueError, OverflowError) as error:
            shown = repr(value) if len(str(value)) <= SHOWN else f"{str(value)[:SHOWN]!r}…"
            raise RecordError(f"{field.text}: {shown} cannot become {self._type}: {error}") from None
        return record
