"""JSON values as literals of SQL, by the column's type: exactly, or not at all.

The server says nothing, even in its strict mode, if it rounds a fraction to a whole number, a time to the digits of its
column, or a double to a float, or takes a text for the number of an enum's label. So these are refused here. Where it
says something (digits cut off a decimal, spaces off a text), the writer asks for its warnings.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from conduit_tasks.connectors.column_types import nearest
from conduit_tasks.connectors.mysql.tables import BYTES, SHAPES, TEXTS, TIMES, WHOLE, Column
from conduit_tasks.errors import Refused
from conduit_tasks.record import jsons

Cell = None | int | str | bytes | float | Decimal
"""A value as PyMySQL writes it exactly."""

_ZONED = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)(Z|[+-]\d\d:?\d\d)")
_FRACTION = re.compile(r"\.(\d+)$")


def cell(value: Any, column: Column) -> Cell:  # noqa: PLR0911 - one for each kind of type
    """Returns a value for a column. Raises Refused if the column cannot hold exactly this value, as far as the server
    would not say so itself."""
    if value is None:
        return None
    if isinstance(value, bytes):
        # A key may be raw.
        value = _text(value)
    type_ = column.type
    if type_ in WHOLE or type_ == "bit":
        return _whole(value, column)
    if type_ == "decimal":
        return _decimal(value, column)
    if type_ in ("float", "double"):
        return _float(value, column)
    if type_ in BYTES or type_ in SHAPES:
        return _bytes(value, column)
    if type_ == "json":
        return jsons.dumps(value).decode()
    if type_ in TIMES:
        return _time(_text(value), column)
    if type_ == "year":
        number = _whole(value, column)
        if number != 0 and not 1901 <= number <= 2155:
            raise _no(column, "a year from 1901 to 2155, or 0")
        return number
    if type_ in ("enum", "set"):
        return _labels(_text(value), column)
    text = _text(value)
    if type_ in TEXTS and column.length is not None and type_ in ("char", "varchar") and len(text) > column.length:
        # The server cuts spaces at the end, and says so in a note only.
        raise _no(column, f"text of {column.length} characters")
    return text


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Refused("bytes that are no text cannot be a value; encode them (base64)") from None
    return jsons.dumps(value).decode() if isinstance(value, bool | dict | list) else str(value)


def _number(value: Any, column: Column) -> Decimal:
    """Returns a finite number. Raises Refused."""
    try:
        if isinstance(value, bool):
            return Decimal(int(value))
        number = Decimal(value if isinstance(value, int) else str(value).strip())
        if number.is_finite() and abs(number.adjusted()) < 400:
            return number
    except (InvalidOperation, ValueError):
        pass
    raise _no(column, "a number")


def _whole(value: Any, column: Column) -> int:
    number = _number(value, column)
    if number != number.to_integral_value():
        raise _no(column, "a whole number")
    return int(number)


def _decimal(value: Any, column: Column) -> Decimal:
    number = _number(value, column)
    digits = max(0, -int(number.normalize().as_tuple().exponent))
    if column.scale is not None and digits > column.scale:
        raise _no(column, f"a number with {column.scale} digits behind the point")
    return number


def _float(value: Any, column: Column) -> float:
    exact = _number(value, column)
    number = float(exact)
    if not math.isfinite(number):
        raise _no(column, f"a {column.type}")
    if not isinstance(value, float) and nearest(value if isinstance(value, int) else exact, 64) != exact:
        raise _no(column, f"a {column.type}, which this number has too many digits for")
    if column.type == "float":
        import numpy as np

        with np.errstate(over="ignore"):
            short = np.float32(number)
        # As text: 0.1 is a number that both types have, and their bits differ.
        if not np.isfinite(short) or float(str(short)) != number:
            raise _no(column, "a float of 32 bits, which this number has too many digits for")
        return float(short)
    return number


def _bytes(value: Any, column: Column) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise Refused(f"column {column.name} is {column.type}, which takes base64 text") from None


_CLOCK = r"\d\d:\d\d(:\d\d(\.\d+)?)?"
_FORMS = {
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "time": re.compile(rf"-?\d?{_CLOCK}"),
    "datetime": re.compile(rf"\d{{4}}-\d\d-\d\d( {_CLOCK})?"),
}
"""The server would take other texts and numbers for times, too: 1712131415 for one of 2017."""


def _time(text: str, column: Column) -> str:
    """Returns a time as the server reads it in UTC. A zone is applied, also for a column that keeps none."""
    if column.type in ("datetime", "timestamp"):
        zoned = _ZONED.fullmatch(text)
        if zoned is not None:
            text = _utc(zoned, column)
        elif len(text) > 10 and text[10] == "T":
            text = f"{text[:10]} {text[11:]}"
    fraction = _FRACTION.search(text)
    if fraction and len(fraction[1].rstrip("0")) > (column.scale or 0):
        raise _no(column, f"a time with {column.scale or 0} digits behind the second")
    if column.type == "date" and len(text) > 10:
        raise _no(column, "a date without a time")
    if not _FORMS.get(column.type, _FORMS["datetime"]).fullmatch(text):
        raise _no(column, f"a {column.type} in ISO 8601")
    return text


def _utc(zoned: re.Match[str], column: Column) -> str:
    day, clock, zone = zoned.groups()
    clock, _, fraction = clock.partition(".")
    try:
        moment = dt.datetime.fromisoformat(f"{day}T{clock}{zone}").astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise _no(column, f"a {column.type}") from None
    text = moment.strftime("%H:%M:%S")
    return f"{moment.date().isoformat()} {text}{f'.{fraction}' if fraction else ''}"


def _labels(text: str, column: Column) -> str:
    """Returns a label of an enum, or labels of a set. The server would take the text of a number for the label of that
    number."""
    there = {label.casefold() for label in column.labels}
    wanted = text.split(",") if column.type == "set" and text else [text]
    if column.type == "set" and not text:
        return text
    if unknown := [each for each in wanted if each.casefold() not in there]:
        raise _no(column, f"one of its labels (not '{unknown[0][:50]}')")
    return text


def _no(column: Column, wanted: str) -> Refused:
    return Refused(f"column {column.name} is {column.type} and takes {wanted}")
