"""Printing, comparison and fields of template values: Go's rules over the values that JSON has.

Values are None, bool, int, float, str, bytes (raw data), list, dict, datetime (from `now`) and the record itself.
Whole and fractional numbers compare with each other; Go, in which JSON numbers are always float64, would refuse some.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

from conduit_tasks.errors import RecordError
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record

NO_VALUE = "<no value>"


def truth(value: Any) -> bool:
    """Returns whether the value is true in Go: not the zero value, not empty."""
    return bool(value)


def show(value: Any) -> str:
    """Returns the text that an action prints for `value`."""
    kind = value.__class__
    if kind is str:
        return value
    if value is None:
        return NO_VALUE
    return nested(value)


def nested(value: Any) -> str:  # noqa: PLR0911 - one case per type
    """Returns the text of `%v`: as `show`, but None is `<nil>`, as it is inside a map or list."""
    match value:
        case str():
            return value
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return float_text(value)
        case bytes():
            return value.decode(errors="replace")
        case dict():
            return "map[" + " ".join(f"{k}:{nested(value[k])}" for k in sorted(value)) + "]"
        case list() | tuple():
            return "[" + " ".join(map(nested, value)) + "]"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".") + value.strftime(" %z %Z")
        case Record():
            return jsons.dumps(value.to_opencdc()).decode()
    raise RecordError(f"a value of type {type(value).__name__} cannot be printed")


def float_text(value: float) -> str:
    """Returns Go's shortest form of a float64 (`%v`): an exponent only below 1e-4 and from 1e21 on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value and not 1e-4 <= abs(value) < 1e21:
        digits, _, exponent = f"{Decimal(repr(value)):e}".partition("e")
        if "." in digits:
            digits = digits.rstrip("0").rstrip(".")
        return f"{digits}e{exponent[0]}{exponent[1:]:0>2}"
    return plain_float(value)


def plain_float(value: float) -> str:
    """Returns the shortest form without an exponent (`strconv.FormatFloat(f, 'f', -1, 64)`)."""
    text = f"{Decimal(repr(value)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def text(value: Any) -> str:
    """Returns an argument of a string function as text: empty for None, otherwise as it prints."""
    if value.__class__ is str:
        return value
    return "" if value is None else nested(value)


def _family(value: Any) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str() | bytes():
            return "text"
        case datetime():
            return "time"
    return type(value).__name__


def equal(left: Any, right: Any) -> bool:
    """Returns whether two values are equal (`eq`); None equals only None. Raises RecordError if the types do not
    compare."""
    if left is None or right is None:
        return left is right
    kind = _comparable(left, right)
    if kind == "text":
        return text(left) == text(right)
    return bool(left == right)


def equals_any(left: Any, *rights: Any) -> bool:
    """Returns whether the first argument equals any other (`eq` with several arguments)."""
    if not rights:
        raise RecordError("eq compares at least two values")
    return any(equal(left, right) for right in rights)


def not_equal(left: Any, right: Any) -> bool:
    return not equal(left, right)


def _ordered(compare: Callable[[Any, Any], bool], name: str) -> Callable[[Any, Any], bool]:
    def ordered(left: Any, right: Any) -> bool:
        kind = _comparable(left, right)
        if kind not in ("number", "text", "time"):
            raise RecordError(f"{name} cannot order values of type {kind}")
        return compare(text(left), text(right)) if kind == "text" else compare(left, right)

    return ordered


less = _ordered(lambda a, b: a < b, "lt")
less_or_equal = _ordered(lambda a, b: a <= b, "le")
greater = _ordered(lambda a, b: a > b, "gt")
greater_or_equal = _ordered(lambda a, b: a >= b, "ge")


def _comparable(left: Any, right: Any) -> str:
    kind, other = _family(left), _family(right)
    if kind != other:
        raise RecordError(f"incompatible types for comparison: {kind} and {other}")
    return kind


def field(value: Any, name: str) -> Any:
    """Returns `.name` of a value; None if the value is None. Raises RecordError if the value has no fields."""
    if value.__class__ is dict:
        return value.get(name)
    if value is None:
        return None
    if value.__class__ is Record:
        return record_field(value, name)
    if value.__class__ is bytes:
        raise RecordError(f"raw data has no field {name}; decode it first (json.decode)")
    raise RecordError(f"{_family(value)} has no field {name}")


RECORD_FIELDS: dict[str, Callable[[Record], Any]] = {
    "Position": lambda r: r.position,
    "Operation": lambda r: r.operation,
    "Metadata": lambda r: r.meta(),
    "Key": lambda r: r.key,
    "Payload": lambda r: {"Before": r.before, "After": r.after},
}


def record_field(record: Record, name: str) -> Any:
    """Returns a field of the record by the name that Conduit's templates use."""
    accessor = RECORD_FIELDS.get(name)
    if accessor is None:
        raise RecordError(f"a record has no field {name}; it has {', '.join(RECORD_FIELDS)}")
    return accessor(record)


def index(value: Any, *keys: Any) -> Any:
    """Returns an element (`index`): of lists by number, of maps by key; None for None and for an absent key."""
    for key in keys:
        if value is None:
            return None
        if isinstance(value, dict):
            value = value.get(text(key))
        elif isinstance(value, list | str | bytes):
            if not isinstance(key, int) or isinstance(key, bool):
                raise RecordError(f"an array is indexed by a number, not {_family(key)}")
            if not 0 <= key < len(value):
                raise RecordError(f"index {key} is out of range: there are {len(value)} elements")
            value = value[key]
        else:
            raise RecordError(f"{_family(value)} cannot be indexed")
    return value


def length(value: Any) -> int:
    """Returns the length (`len`): bytes of text, elements of a list or map."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes | list | dict):
        return len(value)
    if value is None:
        return 0
    raise RecordError(f"{_family(value)} has no length")
