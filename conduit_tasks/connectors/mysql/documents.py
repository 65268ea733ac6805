"""Documents of MySQL's `json` in the binary log, as the server writes them for a query.

The library reads their structure. What JSON has no type for it reads otherwise than the server writes it: a time of
more than a day is an error, one of whole seconds has no fraction, bytes are cut to what is text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from conduit_tasks.record import jsons

_DECIMALS, _DATE, _TIMES, _MOMENTS = (0, 246), 10, (11, 19), (7, 12, 17, 18)
"""Types of such values: decimals, dates, times, dates with a time."""


def document(data: bytes) -> Any:
    """Returns what a document holds; None if it is empty."""
    from pymysqlreplication import json_binary

    # It is called by the library for each value that JSON has no type for.
    json_binary.parse_opaque = opaque
    return _plain(json_binary.parse_json(data[0], data[1:])) if data else None


def opaque(data: bytes) -> Any:
    """Returns such a value: a decimal as a number, a time as text with six digits of its second, others in base64."""
    from pymysqlreplication.util.bytes import decode_decimal, decode_variable_length

    type_ = data[0]
    length, at = decode_variable_length(data[1:])
    value = data[1 + at : 1 + at + length]
    if type_ in _DECIMALS:
        return jsons.exact(format(decode_decimal(value), "f"))
    if type_ in (_DATE, *_TIMES, *_MOMENTS):
        return _time(int.from_bytes(value[:8], "little", signed=True), type_)
    return f"base64:type{type_}:{base64.b64encode(value).decode()}"


def _time(packed: int, type_: int) -> str:
    sign, packed = ("-" if packed < 0 else ""), abs(packed)
    whole, micro = packed >> 24, packed & 0xFFFFFF
    clock = f"{whole >> 6 & 63:02d}:{whole & 63:02d}.{micro:06d}"
    if type_ in _TIMES:
        return f"{sign}{whole >> 12 & 1023:02d}:{clock}"
    month, day = whole >> 22, whole >> 17 & 31
    date = f"{month // 13:04d}-{month % 13:02d}-{day:02d}"
    return date if type_ == _DATE else f"{date} {whole >> 12 & 31:02d}:{clock}"


def _plain(value: Any) -> Any:
    """Returns a value with text in place of the bytes that the library makes of texts."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Mapping):
        return {_plain(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
