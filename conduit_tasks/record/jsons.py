"""JSON of records: what is read here can be written here; whole numbers keep every digit, fractions are doubles.

orjson reads JSON nested 1,024 deep and writes 254 levels, and makes a float of a whole number beyond 64 bits. What a
record holds is parsed and written by these two functions only, so that no source takes what no destination can write.
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
"""Objects and lists inside each other that a key or payload may have. orjson writes 254: an envelope around it fits."""

_WRITABLE = 254
_ZEROS = bytes(48 if chr(n) in "0123456789" else n if n != 48 else 47 for n in range(256))
"""Every digit becomes a 0."""
_RUN = b"0" * 19
_LONG = re.compile(rb"-\d{19}|\d{20}")
_SIZES = range(-(1 << 63), 1 << 64)

JSONDecodeError = orjson.JSONDecodeError


def loads(text: bytes | bytearray | memoryview | str) -> Any:
    """The value of a JSON text. Whole numbers are exact. Raises JSONDecodeError, also where it is nested too deeply."""
    value = orjson.loads(text)
    data = text if isinstance(text, bytes) else text.encode() if isinstance(text, str) else bytes(text)
    if data.count(b"{") + data.count(b"[") > DEPTH and too_deep(value):
        raise JSONDecodeError(f"nested deeper than {DEPTH} levels", "", 0)
    return _whole(data) if has_long(data) else value


def exact(text: bytes | str) -> Any:
    """The value of JSON text that came through a door: its depth is known to be sound. Raises JSONDecodeError."""
    value = orjson.loads(text)
    return _whole(text) if has_long(text if isinstance(text, bytes) else text.encode()) else value


def dumps(value: Any, default: Callable[[Any], Any] | None = None, *, sort_keys: bool = False) -> bytes:
    """Compact JSON. Keys that are no strings become strings, NaN and infinities null. Raises Unwritable.

    `default`: a value for one of a type that JSON does not have.
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
    """As `dumps`, of a value that a source parsed, however deep it is: it is refused as a record, with its position."""
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
    """Goes out as it is."""

    text: bytes


def clean(text: str) -> str:
    """Text that can be written: halves of surrogate pairs become `?`."""
    return text.encode(errors="replace").decode()


def has_long(data: bytes) -> bool:
    """Whether JSON text may hold a whole number beyond 64 bits."""
    return len(data) >= len(_RUN) and many_digits(data) and _LONG.search(data) is not None


def many_digits(data: bytes) -> bool:
    """Whether as many digits follow each other as in a number beyond 64 bits; cheaper than the whole question."""
    return _RUN in data.translate(_ZEROS)


def too_deep(value: Any) -> bool:
    """Whether a value that orjson parsed is nested deeper than `DEPTH`: the writer itself is asked."""
    for _ in range(_WRITABLE - DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False


def fault(value: Any) -> str | None:
    """Why a record must not have this key or payload; None where it may."""
    if not isinstance(value, dict):
        return None
    try:
        text = dumps(value)
    except Unwritable as error:
        return str(error)
    return text_fault(text)


def text_fault(text: bytes) -> str | None:
    """The same of JSON text."""
    if text.count(b"{") + text.count(b"[") <= DEPTH:
        return None
    try:
        deep = too_deep(orjson.loads(text))
    except JSONDecodeError as error:
        return f"not JSON: {error}"
    return f"nested deeper than {DEPTH} levels" if deep else None


def _whole(text: bytes | str) -> Any:
    """By the standard library, which keeps every digit and is slower."""
    try:
        return json.loads(text)
    except RecursionError:
        raise JSONDecodeError("nested too deeply for its large numbers", "", 0) from None


def with_digits(value: Any) -> Any:
    """For orjson: the same with whole numbers beyond 64 bits as text that goes in as it is. Raises Unwritable."""
    return _exact(value, 0)


def _exact(value: Any, depth: int) -> Any:
    """The same with whole numbers beyond 64 bits as text that goes in as it is."""
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
