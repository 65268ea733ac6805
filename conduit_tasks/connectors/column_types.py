"""Column types of databases: values that one would store otherwise than given (digits, a time of day, a zone), the next
wider type, and the type of a new column.

A database rounds 1.555 in a `numeric(10,2)` and 0.123456789 in a `real`, and cuts a time off for a `date`. Here such a
value does not fit. A type is widened within its family only: a column of whole numbers never becomes one of fractions
because of one record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Literal

import numpy as np

LONGEST = 10_485_760
"""Limit of the characters of a `varchar` that has one (PostgreSQL)."""
MOST_DIGITS = 1_000
"""Limit of the digits of a `numeric` that has one (PostgreSQL)."""
_MICROSECONDS = 6
_EXACT = 1 << 53
"""Limit of the whole numbers that are each in a float of 64 bits."""
_TIME = re.compile(
    r"\d{4,}-\d\d-\d\d(?:[Tt ](?P<time>\d\d:\d\d(?::\d\d(?:\.(?P<digits>\d+))?)?) ?"
    r"(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?)?"
)
"""A date, or a date and a time, in ISO 8601."""


@dataclass(frozen=True)
class ColumnType:
    """A type that may not hold a value exactly. `size`: bits of a whole number or a float, digits of a decimal or of
    the seconds of a timestamp, characters of a text; None: no limit. `scale`: digits of a decimal's fraction. `either`:
    a whole number or a float, each of 64 bits (SQLite)."""

    kind: Literal["int", "float", "either", "decimal", "text", "date", "timestamp", "timestamptz"]
    size: int | None = None
    scale: int = 0

    def unfit(self, value: Any) -> str:
        """Returns why the column cannot hold a value exactly; "" if it can, or if the system itself says so: a word for
        a number, say, is an error everywhere."""
        if value is None or (self.size is None and self.kind in ("decimal", "text")) or self._plain(value):
            return ""
        if self.kind == "text":
            return (
                f"it is too long: {len(value)} characters"
                if isinstance(value, str) and len(value) > (self.size or 0)
                else ""
            )
        if self.kind in ("date", "timestamp", "timestamptz"):
            return self._unfit_time(value)
        number = number_of(value)
        if number is None or not number.is_finite():
            return ""
        return self._unfit_number(value, number)

    def _plain(self, value: Any) -> bool:
        """Returns whether a value is seen at once to fit, as most are; False says nothing."""
        kind, type_ = self.kind, type(value)
        if type_ is int:
            if kind == "int":
                return -(1 << (self.size or 64) - 1) <= value < 1 << (self.size or 64) - 1
            return kind in ("float", "either") and self.size == 64 and -_EXACT <= value <= _EXACT
        if type_ is float and kind == "decimal":
            whole, _, fraction = repr(value).partition(".")
            fits = len(fraction.rstrip("0")) <= self.scale and len(whole) <= (self.size or 0) - self.scale
            return fits and fraction.isdecimal()
        if type_ is float:
            return kind in ("float", "either") and self.size == 64
        if type_ is str and kind in ("date", "timestamp", "timestamptz"):
            # A date alone; or no room for a seventh digit of the seconds.
            return len(value) <= (26 if kind == "timestamptz" and self.size is None else 10)
        return False

    def _unfit_number(self, value: Any, number: Decimal) -> str:
        if self.kind == "int":
            # Of a text the system itself says so.
            return "" if isinstance(value, str) else _not_whole(number, self.size or 64)
        if self.kind == "decimal":
            whole, fraction = digits_of(number)
            if fraction > self.scale:
                return f"it has {fraction} digits behind the point"
            beyond = bool(number) and number.adjusted() + 1 > (self.size or 0) - self.scale
            return f"it has {whole} digits before the point" if beyond else ""
        if self.kind == "either" and not _not_whole(number, 64):
            return ""
        if self.size == 32 and isinstance(value, float) and float(_single(value)) == value:
            return ""
        held = nearest(value, self.size or 64)
        return "" if held == number else f"the nearest it can hold is {held}"

    def _unfit_time(self, value: Any) -> str:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return "a number has no unit of time; write the time as text (ISO 8601)"
        found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            return ""
        if self.kind != "timestamptz" and found["zone"] is not None and re.search("[1-9]", found["zone"]):
            return "the column has no time zone"
        if self.kind == "date":
            return "it has a time of day" if re.search("[1-9]", found["time"] or "") else ""
        digits = len((found["digits"] or "").rstrip("0"))
        limit = _MICROSECONDS if self.size is None else self.size
        return f"its seconds have {digits} digits" if digits > limit else ""

    def wider(self, value: Any) -> ColumnType | None:
        """Returns the type of the same family that holds what this one holds, and a value that does not fit this one;
        None if there is none."""
        made: ColumnType | None = None
        if self.kind in ("int", "float"):
            made = replace(self, size=64)
        elif self.kind == "decimal":
            made = self._more_digits(value)
        elif self.kind == "text":
            size = max(2 * (self.size or 0), len(value))
            made = replace(self, size=size if size <= LONGEST else None)
        elif self.kind == "date":
            made = ColumnType("timestamp")
        elif self.size is not None:
            made = replace(self, size=None)
        return made if made is not None and made != self and not made.unfit(value) else None

    def _more_digits(self, value: Any) -> ColumnType | None:
        number = number_of(value)
        if number is None:
            return None
        whole, fraction = digits_of(number)
        scale = max(self.scale, fraction)
        size = max((self.size or 0) - self.scale, whole) + scale
        return ColumnType("decimal", size, scale) if size <= MOST_DIGITS else None


def number_of(value: Any) -> Decimal | None:
    """Returns the number that a value of JSON is, or that its text says; None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, float | str):
        try:
            # Of a float the digits that JSON had, not those of its bits.
            return Decimal(value if isinstance(value, str) else repr(value))
        except InvalidOperation:
            return None
    return value if isinstance(value, Decimal) else None


def _not_whole(number: Decimal, bits: int) -> str:
    if number != number.to_integral_value():
        return "it is a fraction"
    return "" if -(1 << bits - 1) <= number < 1 << bits - 1 else "it is out of range"


def digits_of(number: Decimal) -> tuple[int, int]:
    """Returns how many digits a number has before and behind the point, without zeros that say nothing."""
    if not number:
        return 0, 0
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # it is finite
    nothing = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return max(len(digits) + exponent, 0), max(-exponent - nothing, 0)


def nearest(value: Any, bits: int) -> Decimal:
    """Returns the number that a float of so many bits holds in place of a value, as it is written shortest."""
    try:
        held = float(value)
    except OverflowError:
        return Decimal("Infinity")
    if bits == 64:
        # A whole number has all its digits; of a fraction the shortest text counts, as 0.1 is in no float.
        return Decimal(int(held)) if isinstance(value, int) else Decimal(repr(held))
    single = _single(held)
    return Decimal(int(single)) if isinstance(value, int) and np.isfinite(single) else Decimal(str(single))


def _single(value: float) -> Any:
    with np.errstate(over="ignore"):
        return np.float32(value)


def new_kind(values: Sequence[Any]) -> str:
    """Returns the kind of a new column for values, none of them null: bool, int, float, decimal, text or json. If they
    do not go together, the first one decides."""
    kinds = dict.fromkeys(_kind(value) for value in values)
    if kinds.keys() == {"int", "float"}:
        exact = not any(ColumnType("float", 64).unfit(value) for value in values)
        return "float" if exact else "decimal"
    if kinds.keys() == {"int"} and any(ColumnType("int", 64).unfit(value) for value in values):
        return "decimal"
    return next(iter(kinds))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "int" if isinstance(value, int) else "float"
    return "json" if isinstance(value, dict | list) else "text"


def of_sqlite(name: str) -> ColumnType | None:
    """Returns what SQLite makes of numbers in a column that is declared so (its "affinity"): text that is a number
    becomes one. None if it keeps every value as it is."""
    name = name.upper()
    if "INT" not in name:
        if any(part in name for part in ("CHAR", "CLOB", "TEXT", "BLOB")) or not name:
            return None
        if any(part in name for part in ("REAL", "FLOA", "DOUB")):
            return ColumnType("float", 64)
    return ColumnType("either", 64)


_NAMES: dict[str, ColumnType] = {
    "smallint": ColumnType("int", 16),
    "integer": ColumnType("int", 32),
    "bigint": ColumnType("int", 64),
    "real": ColumnType("float", 32),
    "double precision": ColumnType("float", 64),
    "date": ColumnType("date"),
    "timestamp without time zone": ColumnType("timestamp"),
    "timestamp with time zone": ColumnType("timestamptz"),
    "numeric": ColumnType("decimal"),
    "character varying": ColumnType("text"),
}
_LIMITED = re.compile(
    r"(?P<name>numeric|character varying|timestamp)\((?P<size>\d+)(?:,(?P<scale>\d+))?\)"
    r"(?P<zone> with(?:out)? time zone)?"
)


@lru_cache(maxsize=4096)
def of_postgres(name: str) -> ColumnType | None:
    """Returns the type that PostgreSQL writes so (`format_type`); None if it loses nothing, or is none of these."""
    if found := _LIMITED.fullmatch(name):
        type_ = _NAMES[found["name"] + (found["zone"] or "")]
        return replace(type_, size=int(found["size"]), scale=int(found["scale"] or 0))
    return _NAMES.get(name)


def in_postgres(type_: ColumnType) -> str:
    """Returns how PostgreSQL writes a type."""
    if type_.kind in ("decimal", "text"):
        name = "numeric" if type_.kind == "decimal" else "character varying"
        limits = "" if type_.size is None else f"({type_.size},{type_.scale})"
        return name + (limits if type_.kind == "decimal" else limits.partition(",")[0] + ")" * bool(limits))
    if type_.kind in ("timestamp", "timestamptz"):
        digits = "" if type_.size is None else f"({type_.size})"
        return f"timestamp{digits} with{'' if type_.kind == 'timestamptz' else 'out'} time zone"
    return next(name for name, known in _NAMES.items() if known == type_)
