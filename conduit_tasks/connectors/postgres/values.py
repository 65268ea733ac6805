"""PostgreSQL's text of a value as JSON, by its type: the same for rows that are queried and rows that are replicated.

Numbers that JSON has stay numbers; `numeric` is text, which keeps every digit, and so are whole numbers beyond 64 bits
inside `json`; `bytea` is base64; `json` and arrays are what they hold; times are ISO 8601; everything else is
PostgreSQL's own text.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from conduit_tasks.errors import SourceError
from conduit_tasks.record import jsons

SETTINGS = (
    "SET datestyle = 'ISO'; SET intervalstyle = 'iso_8601'; SET bytea_output = 'hex'; SET extra_float_digits = 1; "
    "SET timezone = 'UTC'"
)
"""Settings that a session needs for its texts to be readable here."""


_DIGITS = 20
"""Digits of the largest number of 64 bits."""
_LONG = re.compile(r"\d{19}")


def json_value(text: str | None, oid: int) -> Any:
    """Returns the value of a column of type `oid`."""
    if text is None:
        return None
    plain = _PLAIN.get(oid)
    if plain is not None:
        return plain(text)
    element = _ARRAYS.get(oid)
    return text if element is None else _elements(_array(text), element)


def json_row(values: Mapping[str, str | None], oids: Mapping[str, int]) -> dict[str, Any]:
    """Returns a row's values by name. Raises SourceError if a text is not of its type: PostgreSQL never sends one, but
    another server or a session with other settings may."""
    name, out = "", dict[str, Any]()
    try:
        for name, text in values.items():
            out[name] = json_value(text, oids[name])
    except (ValueError, KeyError) as error:
        raise SourceError(
            f"postgres: column {name}: a text of {len(values[name] or '')} characters is no value of type oid "
            f"{oids.get(name)} as PostgreSQL writes it ({type(error).__name__}); look at the server's settings"
        ) from None
    return out


def _bool(text: str) -> bool:
    return {"t": True, "f": False}[text]


def _bytes(text: str) -> str:
    if not text.startswith("\\x"):
        raise ValueError("not in hex")
    return base64.b64encode(bytes.fromhex(text[2:])).decode()


def _float(text: str) -> float | str:
    """Returns a number, or the text of NaN and Infinity, which JSON does not have."""
    value = float(text)
    return value if math.isfinite(value) else text


def _time(text: str) -> str:
    """Returns ISO 8601 if it can express the year; `infinity` and years before Christ stay as they are."""
    if len(text) < 19 or text.endswith("BC"):
        return text
    text = text.replace(" ", "T", 1)
    return f"{text[:-3]}Z" if text.endswith("+00") else text


def _json(text: str) -> Any:
    try:
        value = jsons.loads(text)
    except jsons.JSONDecodeError:
        # PostgreSQL takes numbers and escapes that JSON libraries do not; nothing of it is lost as text.
        return text
    return value if _LONG.search(text) is None else json.loads(text, parse_int=_whole)


def _whole(digits: str) -> int | str:
    """Returns a number, or its text if it is beyond 64 bits, as for a `numeric`."""
    number = int(digits) if len(digits) <= _DIGITS + 1 else None
    return number if number is not None and -(1 << 63) <= number < 1 << 64 else digits


def _array(text: str) -> Any:
    from psycopg2 import DataError
    from psycopg2.extensions import UNICODEARRAY

    if not text.endswith("}"):
        raise ValueError("cut")  # psycopg2 would take what is there
    try:
        # Bounds other than 1 are written in front.
        return UNICODEARRAY(text[text.index("{") :], None)
    except DataError:
        raise ValueError("no array") from None


def _elements(values: Any, oid: int) -> Any:
    return [_elements(v, oid) if isinstance(v, list) else json_value(v, oid) for v in values]


_PLAIN: dict[int, Callable[[str], Any]] = {
    16: _bool,
    17: _bytes,
    **dict.fromkeys((20, 21, 23, 26), int),
    **dict.fromkeys((700, 701), _float),
    **dict.fromkeys((114, 3802), _json),
    **dict.fromkeys((1114, 1184), _time),
}
"""oid → function that reads its text: bool, bytea, int8 int2 int4 oid, float4 float8, json jsonb, timestamp
timestamptz."""

_ARRAYS = {
    **{1000: 16, 1001: 17, 1016: 20, 1005: 21, 1007: 23, 1028: 26, 1021: 700, 1022: 701, 199: 114, 3807: 3802},
    **{1115: 1114, 1185: 1184, 1231: 1700, 1009: 25, 1014: 1042, 1015: 1043, 1182: 1082, 1183: 1083, 2951: 2950},
}
"""oid of an array → oid of its elements."""
