"""Values of columns as JSON, the same for rows that are queried and rows of the log (whose labels of enum and set come
from `images.py`).

Numbers that JSON has stay numbers; `decimal` is text, which keeps every digit; bytes and shapes are base64; times are
ISO 8601, `timestamp` in UTC, and a zero date is the server's own text; an enum is its label, a set its labels; MySQL's
`json` is what it holds.
"""

from __future__ import annotations

import base64
import math
import struct
from decimal import Decimal
from typing import Any

from conduit_tasks.connectors.mysql.tables import BYTES, SHAPES, WHOLE, Column
from conduit_tasks.errors import SourceError
from conduit_tasks.record import jsons


def selected(column: Column, name: str) -> str:
    """Returns what a query selects of a column, whose quoted name is given: the text of a float would be rounded to six
    digits."""
    return f"CAST({name} AS DOUBLE)" if column.type == "float" else name


def json_value(raw: str | bytes | None, column: Column) -> Any:  # noqa: PLR0911 - one for each kind of type
    """Returns a value as a query gives it, with no conversion by the driver. Raises SourceError."""
    if raw is None:
        return None
    type_ = column.type
    if type_ in BYTES or type_ in SHAPES:
        return of_bytes(raw.encode() if isinstance(raw, str) else raw)
    if type_ == "bit":
        return int.from_bytes(raw.encode("latin-1") if isinstance(raw, str) else raw, "big")
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        if type_ in WHOLE or type_ == "year":
            return int(text)
        if type_ == "float":
            return short(float(text))
        if type_ == "double":
            return float(text)
        if type_ == "decimal":
            return format(Decimal(text), "f")  # without the zeros of ZEROFILL, which the log does not have
        if type_ in ("datetime", "timestamp"):
            return iso(text, utc=type_ == "timestamp")
        return jsons.loads(text) if type_ == "json" else text
    except ValueError as error:
        raise SourceError(
            f"mysql: column {column.name}: a text of {len(raw)} characters is no {type_} ({type(error).__name__}); "
            "report it"
        ) from None


def of_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode()


def short(number: float) -> float:
    """Returns a float of 32 bits as the shortest number that is this float."""
    if not math.isfinite(number):
        return number
    for digits in range(6, 10):
        text = f"{number:.{digits}g}"
        if struct.pack("<f", float(text)) == struct.pack("<f", number):
            return float(text)
    return number


def iso(text: str, *, utc: bool) -> str:
    """Returns a time in ISO 8601 if it is a day of the calendar; `2026-00-00 00:00:00` stays as it is."""
    if text.startswith("0000") or "-00" in text[:10]:
        return text
    return f"{text[:10]}T{text[11:]}{'Z' if utc else ''}"
