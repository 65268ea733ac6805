"""Values of columns as JSON: the same for rows that are queried and rows of the log.

Numbers that JSON has stay numbers; `decimal` is text, which keeps every digit; bytes and shapes are base64; times are
ISO 8601, `timestamp` in UTC, and a zero date is the server's own text; an enum is its label, a set its labels; MySQL's
`json` is what it holds.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from conduit_tasks.connectors.mysql.tables import BYTES, SHAPES, WHOLE, Column
from conduit_tasks.errors import SourceError
from conduit_tasks.record import jsons

CODECS = {
    **dict.fromkeys(("utf8mb4", "utf8mb3", "utf8"), "utf-8"),
    **{"latin1": "cp1252", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "ascii": "ascii"},
    **{"greek": "iso8859-7", "hebrew": "iso8859-8", "koi8r": "koi8-r", "koi8u": "koi8-u"},
    **{name: name for name in ("cp850", "cp852", "cp866", "cp932", "cp1250", "cp1251", "cp1256", "cp1257", "gbk")},
    **{"gb2312": "gb2312", "gb18030": "gb18030", "euckr": "cp949"},
    **{"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"},
    **{"macroman": "mac-roman", "macce": "mac-latin2"},
}
"""The server's charset → Python's. Others, such as `sjis`, `ujis`, `big5` and `tis620`, Python decodes otherwise."""


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


def decoded(data: bytes, charset: str) -> str:
    """Returns a text. Raises UnicodeDecodeError if it is none."""
    try:
        return data.decode(CODECS[charset])
    except UnicodeDecodeError:
        if charset != "latin1":
            raise
        # The server's latin1 is cp1252, and has five bytes more.
        return "".join(_latin1(byte) for byte in data)


def _latin1(byte: int) -> str:
    one = bytes([byte])
    try:
        return one.decode("cp1252")
    except UnicodeDecodeError:
        return one.decode("latin-1")


def plain_json(value: Any) -> Any:
    """Returns a document of MySQL's `json`, as the reader of the log gives it: its texts are bytes there."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Mapping):
        return {plain_json(name): plain_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain_json(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
