"""JSON of records, of 200 levels at most: every value read here can be written here; whole numbers keep every digit,
fractions are doubles.

orjson reads JSON nested 1,024 deep and writes 254 levels, and makes a float of a whole number beyond 64 bits. Content
of records is parsed and written by these functions only, so that no source takes what no destination can write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from conduit_tasks.errors import Unwritable

DEPTH = 200
"""Most levels of nested objects and lists in a key or payload. orjson writes 254: an envelope around it fits."""

_WRITABLE = 254
_ZEROS = bytes(48 if chr(n) in "0123456789" else n if n != 48 else 47 for n in range(256))
"""Translation table that turns every digit into 0."""
_RUN = b"0" * 19
_LONG = re.compile(rb"-\d{19}|\d{20}")
_SIZES = range(-(1 << 63), 1 << 64)

JSONDecodeError = orjson.JSONDecodeError


def loads(text: bytes | bytearray | memoryview | str) -> Any:
    """Parses a JSON text; whole numbers are exact. Raises JSONDecodeError, also if it is nested too deeply."""
    value = orjson.loads(text)
    data = text if isinstance(text, bytes) else text.encode() if isinstance(text, str) else bytes(text)
    if data.count(b"{") + data.count(b"[") > DEPTH and too_deep(value):
        raise JSONDecodeError(f"nested deeper than {DEPTH} levels", "", 0)
    return _whole(data) if has_long(data) else value


def exact(text: bytes | str) -> Any:
    """Parses JSON text whose depth was checked when it came in; whole numbers are exact. Raises JSONDecodeError."""
    value = orjson.loads(text)
    return _whole(text) if has_long(text if isinstance(text, bytes) else text.encode()) else value


def dumps(value: Any, default: Callable[[Any], Any] | None = None, *, sort_keys: bool = False) -> bytes:
    """Writes compact JSON. Keys that are no strings become strings, NaN and infinities null. Raises Unwritable.

    `default`: replaces a value of a type that JSON does not have.
    """
    option = orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS if sort_keys else orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, default, option)
    except TypeError:
        try:
            return orjson.dumps(with_digits(value), default, option)
        except TypeError as error:
            raise Unwritable(f"the record cannot be written as JSON: {error}") from None


def raw(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Writes JSON as `dumps` does, for a parsed value of any depth: it is refused later as a record, with its
    position."""
    out: list[bytes] = []
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, _Text):
            out.append(item.text)
            continue
        try:
            out.append(orjson.dumps(item, default, orjson.OPT_NON_STR_KEYS))
        except TypeError:
            if isinstance(item, dict) and item:
                parts = [(_Text(dumps(str(name)) + b":"), each) for name, each in item.items()]
            elif isinstance(item, list) and item:
                parts = [(_Text(b""), each) for each in item]
            else:
                out.append(dumps(item, default))
                continue
            begin, end = (b"{", b"}") if isinstance(item, dict) else (b"[", b"]")
            todo.append(_Text(end))
            for n in range(len(parts) - 1, -1, -1):
                name, each = parts[n]
                todo += [each, name, _Text(b"," if n else begin)]
    return b"".join(out)


@dataclass(frozen=True)
class _Text:
    """JSON text that is written as it is."""

    text: bytes


def clean(text: str) -> str:
    """Returns text that can be written: halves of surrogate pairs become `?`."""
    return text.encode(errors="replace").decode()


def has_long(data: bytes) -> bool:
    """Returns whether JSON text may hold a whole number beyond 64 bits."""
    return len(data) >= len(_RUN) and many_digits(data) and _LONG.search(data) is not None


def many_digits(data: bytes) -> bool:
    """Returns whether the text has as many digits in a row as a number beyond 64 bits; cheaper than `has_long`."""
    return _RUN in data.translate(_ZEROS)


def too_deep(value: Any) -> bool:
    """Returns whether a value that orjson parsed is nested deeper than `DEPTH`, by a trial of the writer."""
    for _ in range(_WRITABLE - DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False


def fault(value: Any) -> str | None:
    """Returns why a record must not have this key or payload; None if it may."""
    if not isinstance(value, dict):
        return None
    try:
        text = dumps(value)
    except Unwritable as error:
        return str(error)
    return text_fault(text)


def text_fault(text: bytes) -> str | None:
    """Returns why a record must not have this JSON text as key or payload; None if it may."""
    if text.count(b"{") + text.count(b"[") <= DEPTH:
        return None
    try:
        deep = too_deep(orjson.loads(text))
    except JSONDecodeError as error:
        return f"not JSON: {error}"
    return f"nested deeper than {DEPTH} levels" if deep else None


def _whole(text: bytes | str) -> Any:
    """Parses with the standard library, which keeps every digit and is slower."""
    try:
        return json.loads(text)
    except RecursionError:
        raise JSONDecodeError("nested too deeply for its large numbers", "", 0) from None


def with_digits(value: Any) -> Any:
    """Makes a value fit for orjson: whole numbers beyond 64 bits become text that is written as it is. Raises
    Unwritable."""
    return _exact(value, 0)


def _exact(value: Any, depth: int) -> Any:
    """Returns the value with whole numbers beyond 64 bits as text that is written as it is."""
    if depth > _WRITABLE:
        raise Unwritable(f"the record cannot be written as JSON: it is nested deeper than {DEPTH} levels")
    if isinstance(value, dict):
        return {_key(k): _exact(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(v, depth + 1) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and value not in _SIZES:
        return orjson.Fragment(_digits(value))
    return value


def _key(key: Any) -> Any:
    return _digits(key) if isinstance(key, int) and not isinstance(key, bool) and key not in _SIZES else key


def _digits(value: int) -> str:
    try:
        return str(int(value))
    except ValueError as error:
        raise Unwritable(f"the record cannot be written as JSON: {error}") from None
