"""Schemas of a tap's streams in the registry: Singer's are JSON Schema, the registry has Avro."""

from __future__ import annotations

import re
from typing import Any

import orjson

_SCALARS = {"integer": "long", "number": "double", "string": "string", "boolean": "boolean"}
_NAME = re.compile("[^A-Za-z0-9_]")
DEPTH = 20
"""Levels of objects and arrays; what is deeper is JSON text."""


class Registered:
    """Registers the schemas of one read, each change once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._ids: dict[str, tuple[str, str]] = {}
        self._registry: Any = None

    def register(self, stream: str, schema: dict[str, Any]) -> dict[str, str]:
        """Returns metadata of the stream's records: subject and id of their schema. Raises Unavailable."""
        from conduit_tasks.schemas.registry import RedisRegistry

        subject, text = f"{self._prefix}.{stream}", orjson.dumps(avro(stream, schema)).decode()
        if self._ids.get(stream, ("", ""))[0] != text:
            if self._registry is None:
                self._registry = RedisRegistry()
            self._ids[stream] = text, str(self._registry.register(subject, text))
        return {"singer.schema.subject": subject, "singer.schema.id": self._ids[stream][1]}

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._registry is not None:
            self._registry.close()
            self._registry = None


def avro(name: str, schema: dict[str, Any]) -> Any:
    """Returns an Avro schema for what a JSON Schema describes. Every field may be missing. What Avro has no name for
    gets one, with its own name as `doc`; a value of any other type is JSON text."""
    return _record(_named(name), schema, 0)


def _record(name: str, schema: dict[str, Any], depth: int) -> Any:
    fields, used = [], set()
    for own, of in sorted((schema.get("properties") or {}).items()):
        made = _named(own)
        while made in used:
            made += "_"
        used.add(made)
        field: dict[str, Any] = {"name": made, "type": _nullable(_types(f"{name}_{made}", of, depth)), "default": None}
        fields.append(field if made == own else {**field, "doc": own})
    return {"type": "record", "name": name, "fields": fields}


def _types(name: str, schema: Any, depth: int) -> list[Any]:
    return _of(name, schema, depth) or ["string"]


def _of(name: str, schema: Any, depth: int) -> list[Any]:
    if not isinstance(schema, dict):
        return ["string"]
    if any(isinstance(schema.get(several), list) for several in ("anyOf", "oneOf")):
        found = [
            each for several in ("anyOf", "oneOf") for of in schema.get(several) or [] for each in _of(name, of, depth)
        ]
    else:
        said = schema.get("type", "string")
        found = [_type(name, kind, schema, depth) for kind in (said if isinstance(said, list) else [said])]
    out: list[Any] = []
    kinds: set[str] = set()
    for each in found:
        kind = each if isinstance(each, str) else each["type"]
        if kind not in kinds and kind != "null":
            kinds.add(kind)
            out.append(each)
    return out


def _type(name: str, kind: Any, schema: dict[str, Any], depth: int) -> Any:
    if kind == "null":
        return "null"
    if kind == "array" and depth < DEPTH:
        return {"type": "array", "items": _nullable(_types(f"{name}_item", schema.get("items"), depth + 1))}
    if kind == "object" and schema.get("properties") and depth < DEPTH:
        return _record(name, schema, depth + 1)
    return _SCALARS.get(kind, "string") if isinstance(kind, str) else "string"


def _nullable(types: list[Any]) -> list[Any]:
    return ["null", *types]


def _named(text: str) -> str:
    name = _NAME.sub("_", text) or "_"
    return f"_{name}" if name[0].isdigit() else name
