"""List and map functions of sprig. They never change their arguments: a condition must not change the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conduit_tasks.errors import RecordError
from conduit_tasks.templates.values import equal, nested, text, truth

MANY = 1_000


def _items(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return list(value)
    raise RecordError(f"a list was expected, not {type(value).__name__}")


def _map(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise RecordError(f"a map was expected, not {type(value).__name__}")


def _dict(*pairs: Any) -> dict[str, Any]:
    keys, rest = pairs[::2], [*pairs[1::2], ""]
    return {text(key): rest[i] for i, key in enumerate(keys)}


def slice_(value: Any, *bounds: int) -> Any:
    """Returns part of text or of a list (`slice`), by positions counted from 0."""
    whole = text(value) if not isinstance(value, list) else value
    start = bounds[0] if bounds else 0
    end = bounds[1] if len(bounds) > 1 else len(whole)
    if not 0 <= start <= end <= len(whole):
        raise RecordError(f"slice bounds {start}:{end} are out of range: there are {len(whole)} elements")
    return whole[start:end]


def _same(left: Any, right: Any) -> bool:
    try:
        return equal(left, right)
    except RecordError:
        return False


def _unique(value: Any) -> list[Any]:
    out: list[Any] = []
    for item in _items(value):
        if not any(_same(item, seen) for seen in out):
            out.append(item)
    return out


def _dig(*arguments: Any) -> Any:
    *path, fallback, value = arguments
    for key in path:
        if not isinstance(value, dict) or text(key) not in value:
            return fallback
        value = value[text(key)]
    return value


def _until(count: int, start: int = 0, step: int = 1) -> list[int]:
    if step == 0 or abs(count - start) > 1_000_000:
        raise RecordError("until makes at most 1,000,000 numbers")
    return list(range(start, count, step if count >= start else -abs(step)))


def _split(separator: Any, value: Any) -> list[str]:
    return text(value).split(text(separator)) if text(separator) else list(text(value))


def _kind(value: Any) -> str:
    names = {"NoneType": "invalid", "str": "string", "float": "float64", "list": "slice", "dict": "map"}
    return names.get(type(value).__name__, type(value).__name__)


TABLE: dict[str, tuple[Callable[..., Any], int, int]] = {
    "list": (lambda *v: list(v), 0, MANY),
    "tuple": (lambda *v: list(v), 0, MANY),
    "dict": (_dict, 0, MANY),
    "hasKey": (lambda value, key: text(key) in _map(value), 2, 2),
    "get": (lambda value, key: _map(value).get(text(key), ""), 2, 2),
    "dig": (_dig, 3, MANY),
    "keys": (lambda *v: sorted(key for m in v for key in _map(m)), 1, MANY),
    "values": (lambda value: [v for _, v in sorted(_map(value).items())], 1, 1),
    "pick": (lambda value, *names: {k: v for k, v in _map(value).items() if k in names}, 1, MANY),
    "omit": (lambda value, *names: {k: v for k, v in _map(value).items() if k not in names}, 1, MANY),
    "merge": (lambda *v: {k: x for m in reversed(v) for k, x in _map(m).items()}, 1, MANY),
    "first": (lambda value: next(iter(_items(value)), None), 1, 1),
    "last": (lambda value: (_items(value) or [None])[-1], 1, 1),
    "rest": (lambda value: _items(value)[1:], 1, 1),
    "initial": (lambda value: _items(value)[:-1], 1, 1),
    "append": (lambda value, item: [*_items(value), item], 2, 2),
    "prepend": (lambda value, item: [item, *_items(value)], 2, 2),
    "concat": (lambda *v: [x for part in v for x in _items(part)], 1, MANY),
    "reverse": (lambda value: _items(value)[::-1], 1, 1),
    "uniq": (_unique, 1, 1),
    "compact": (lambda value: [x for x in _items(value) if truth(x)], 1, 1),
    "without": (lambda value, *gone: [x for x in _items(value) if not any(_same(x, g) for g in gone)], 1, MANY),
    "has": (lambda item, value: any(_same(item, x) for x in _items(value)), 2, 2),
    "sortAlpha": (lambda value: sorted(nested(x) for x in _items(value)), 1, 1),
    "join": (
        lambda separator, value: text(separator).join(
            nested(x) for x in (_items(value) if isinstance(value, list | None) else [value]) if x is not None
        ),
        2,
        2,
    ),
    "split": (lambda sep, v: {f"_{i}": part for i, part in enumerate(_split(sep, v))}, 2, 2),
    "splitList": (_split, 2, 2),
    "toStrings": (lambda value: [nested(x) for x in _items(value)], 1, 1),
    "until": (_until, 1, 1),
    "untilStep": (lambda start, stop, step: _until(stop, start, step), 3, 3),
    "kindOf": (_kind, 1, 1),
    "kindIs": (lambda kind, value: _kind(value) == kind, 2, 2),
}
