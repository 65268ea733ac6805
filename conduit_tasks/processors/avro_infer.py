"""The Avro schema of structured data, for `schema.strategy: autoRegister`.

The data is a record; maps in it are maps, because any text may be a key there. Whole numbers are long, others double.
A null could be of any type and becomes nullable text, so two records of the same structure may get different schemas.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from conduit_tasks.errors import RecordError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NULLABLE = ["null", "string"]


def infer(data: dict[str, Any]) -> Any:
    """Returns the schema. Raises RecordError if a name at the top is not a valid Avro name."""
    for name in data:
        if not _NAME.fullmatch(name):
            raise RecordError(f"avro.encode: {name!r} is no name in Avro (letters, digits, underscores); rename it")
    return {
        "type": "record",
        "name": "record",
        "fields": [{"name": name, "type": _type(value)} for name, value in data.items()],
    }


def _type(value: Any) -> Any:  # noqa: PLR0911 - one line per type
    match value:
        case None:
            return NULLABLE
        case bool():
            return "boolean"
        case int():
            return "long"
        case float():
            return "double"
        case bytes():
            return "bytes"
        case list():
            return {"type": "array", "items": _common(value)}
        case dict():
            return {"type": "map", "values": _common(list(value.values()))}
    return "string"


def _common(values: list[Any]) -> Any:
    """Returns one type for all values: theirs, or a union of theirs; nullable text if there are no values."""
    found: dict[bytes, Any] = {}
    for value in values:
        kind = _type(value)
        for each in kind if isinstance(kind, list) else [kind]:
            found.setdefault(orjson.dumps(each, option=orjson.OPT_SORT_KEYS), each)
    kinds = _merged(list(found.values()))
    if not kinds:
        return NULLABLE
    return kinds[0] if len(kinds) == 1 else kinds


def _merged(kinds: list[Any]) -> list[Any]:
    """Merges types for a union, which may hold one array and one map only: their item types are put together."""
    plain: list[Any] = [kind for kind in kinds if isinstance(kind, str)]
    for name, inner in (("array", "items"), ("map", "values")):
        same = [kind for kind in kinds if isinstance(kind, dict) and kind["type"] == name]
        if same:
            held = [each for kind in same for each in (kind[inner] if isinstance(kind[inner], list) else [kind[inner]])]
            unique = list({orjson.dumps(each, option=orjson.OPT_SORT_KEYS): each for each in held}.values())
            merged = _merged(unique)
            plain.append({"type": name, inner: merged[0] if len(merged) == 1 else merged})
    # Null first: it is the default there, and the same kinds always give the same union.
    return sorted(plain, key=lambda kind: (kind != "null", not isinstance(kind, str), str(kind)))
