"""The functions of templates by their names: Go's own, and the sprig functions that conditions and values use.

Arguments come in sprig's order (the value a pipeline carries is last). String functions take a missing value as empty
text; numbers are converted as sprig does (anything that is not a number is 0). Functions that read the environment,
files or the network, or that would change the record, do not exist here.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from conduit_tasks.errors import RecordError
from conduit_tasks.templates import collections_ as coll
from conduit_tasks.templates import dates, strings_, values
from conduit_tasks.templates.formatting import printf, sprint, sprintln

MANY = 1_000


@dataclass(frozen=True, slots=True)
class Function:
    """A function of templates; `call` takes between `least` and `most` arguments."""

    call: Callable[..., Any]
    least: int
    most: int


def to_int(value: Any) -> int:
    """Returns the whole part of a number, or text that is a whole number (with 0x, 0b, 0o); 0 for anything else."""
    match value:
        case bool():
            return int(value)
        case int():
            return value
        case float():
            return int(value) if math.isfinite(value) else 0
        case str() | bytes():
            try:
                return int(values.text(value), 0)
            except ValueError:
                return atoi(value)
    return 0


def atoi(value: Any) -> int:
    """Returns text as a whole number in base ten; 0 if it is none."""
    digits = values.text(value)
    return int(digits) if digits.isascii() and digits.lstrip("+-").isdigit() and digits.count("_") == 0 else 0


def to_float(value: Any) -> float:
    """Returns a number, or text that is one; 0 for anything else."""
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(values.text(value)) if value is not None else 0.0
    except ValueError:
        return 0.0


def _divide(left: Any, right: Any) -> int:
    left, right = to_int(left), to_int(right)
    if right == 0:
        raise RecordError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _modulo(left: Any, right: Any) -> int:
    return to_int(left) - _divide(left, right) * to_int(right)


def _round(value: Any, places: Any, threshold: Any = 0.5) -> float:
    scale = 10.0 ** to_int(places)
    scaled = to_float(value) * scale
    fraction, whole = math.modf(scaled)
    return (whole + math.copysign(1, scaled) if abs(fraction) >= to_float(threshold) else whole) / scale


def _ternary(yes: Any, no: Any, condition: Any) -> Any:
    return yes if values.truth(condition) else no


def _default(fallback: Any, value: Any = None) -> Any:
    return value if values.truth(value) else fallback


def _coalesce(*options: Any) -> Any:
    return next((option for option in options if values.truth(option)), None)


def _fail(message: Any) -> Any:
    raise RecordError(values.text(message))


def _sum(*numbers: Any) -> int:
    return sum(map(to_int, numbers))


def _product(*numbers: Any) -> int:
    return math.prod(map(to_int, numbers))


def _not_called(*_: Any) -> Any:
    raise AssertionError("and, or and not are compiled, not called")


_TABLE: dict[str, tuple[Callable[..., Any], int, int]] = {
    "and": (_not_called, 1, MANY),
    "or": (_not_called, 1, MANY),
    "not": (_not_called, 1, 1),
    "eq": (values.equals_any, 2, MANY),
    "ne": (values.not_equal, 2, 2),
    "lt": (values.less, 2, 2),
    "le": (values.less_or_equal, 2, 2),
    "gt": (values.greater, 2, 2),
    "ge": (values.greater_or_equal, 2, 2),
    "len": (values.length, 1, 1),
    "index": (values.index, 1, MANY),
    "slice": (coll.slice_, 1, 3),
    "print": (sprint, 0, MANY),
    "println": (sprintln, 0, MANY),
    "printf": (printf, 1, MANY),
    "html": (lambda *v: html.escape(sprint(*v)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"), 1, MANY),
    "urlquery": (lambda *v: quote_plus(sprint(*v)), 1, MANY),
    "default": (_default, 1, 2),
    "empty": (lambda v: not values.truth(v), 1, 1),
    "coalesce": (_coalesce, 0, MANY),
    "ternary": (_ternary, 3, 3),
    "all": (lambda *v: all(map(values.truth, v)), 0, MANY),
    "any": (lambda *v: any(map(values.truth, v)), 0, MANY),
    "fail": (_fail, 1, 1),
    "int": (to_int, 1, 1),
    "int64": (to_int, 1, 1),
    "float64": (to_float, 1, 1),
    "atoi": (atoi, 1, 1),
    "add": (_sum, 1, MANY),
    "add1": (lambda v: to_int(v) + 1, 1, 1),
    "sub": (lambda a, b: to_int(a) - to_int(b), 2, 2),
    "mul": (_product, 1, MANY),
    "div": (_divide, 2, 2),
    "mod": (_modulo, 2, 2),
    "max": (lambda *v: max(map(to_int, v)), 1, MANY),
    "min": (lambda *v: min(map(to_int, v)), 1, MANY),
    "addf": (lambda *v: math.fsum(map(to_float, v)), 1, MANY),
    "subf": (lambda a, *v: to_float(a) - math.fsum(map(to_float, v)), 1, MANY),
    "mulf": (lambda *v: math.prod(map(to_float, v)), 1, MANY),
    "divf": (lambda a, b: to_float(a) / to_float(b), 2, 2),
    "maxf": (lambda *v: max(map(to_float, v)), 1, MANY),
    "minf": (lambda *v: min(map(to_float, v)), 1, MANY),
    "floor": (lambda v: float(math.floor(to_float(v))), 1, 1),
    "ceil": (lambda v: float(math.ceil(to_float(v))), 1, 1),
    "round": (_round, 2, 3),
    **strings_.TABLE,
    **coll.TABLE,
    **dates.TABLE,
}

FUNCTIONS = {name: Function(*entry) for name, entry in _TABLE.items()}
