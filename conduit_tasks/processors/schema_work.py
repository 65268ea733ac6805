"""Bounds on the work of checking a value by a schema: with alternatives that contain themselves, the ways to try are a
power of the value's depth, and a few hundred bytes would take years.

JSON Schema: whether a value is valid is found out in time (the library keeps what it knows of a part); what is wrong is
not. `explainable` says if it may be looked for. Avro: the library reads fields of a `counted` value only so often.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

EXPLAINED = 10_000
"""Most steps in which the fault of a value is looked for."""
READ, READ_EACH = 1_000_000, 200
"""Most fields that Avro's library reads in a value; in addition, for each part of the value."""
_ALTERNATIVES = ("anyOf", "oneOf")


class TooMuchWork(ValueError):
    """A value whose check takes too long; the message says why."""


def size(value: Any) -> tuple[int, int]:
    """Returns how many values are in the value, itself among them, and in how many levels of objects and lists."""
    count, levels, level = 0, 0, [value]
    while level:
        count += len(level)
        inner = [each for each in level if isinstance(each, dict | list | tuple)]
        levels += bool(inner)
        level = [part for each in inner for part in (each.values() if isinstance(each, dict) else each)]
    return count, levels


class Ways:
    """Number of ways that a JSON Schema offers to check a part of a value."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        keys = [key for part in _parts(schema) for key in part]
        self._alternatives = any(key in _ALTERNATIVES for key in keys)
        self._references = len(list(_references(schema)))
        self._recursive = "$dynamicRef" in keys or "$recursiveRef" in keys or self._loops(schema, (), set())

    def explainable(self, value: Any) -> bool:
        """Says if what is wrong with the value is found in at most `EXPLAINED` steps."""
        if not self._recursive and not self._alternatives:
            return True
        count, levels = size(value)
        return count * (max(2, self._references) ** levels if self._recursive else 1) <= EXPLAINED

    def _loops(self, part: Any, above: tuple[str, ...], seen: set[str]) -> bool:
        """Says if the part refers to what refers to it. One that cannot be followed counts as such."""
        for reference in _references(part):
            if reference in above:
                return True
            if reference not in seen:
                seen.add(reference)
                try:
                    if self._loops(self._at(reference), (*above, reference), seen):
                        return True
                except (LookupError, TypeError, ValueError):
                    return True
        return False

    def _at(self, reference: str) -> Any:
        if reference != "#" and not reference.startswith("#/"):
            raise LookupError(reference)
        part = self._schema
        for step in reference.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            part = part[int(name)] if isinstance(part, list) else part[name]
        return part


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yields every object in the schema."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)


def _references(schema: Any) -> Iterator[str]:
    return (part["$ref"] for part in _parts(schema) if isinstance(part.get("$ref"), str))


class Counted:
    """Values for fastavro, by a schema that it parsed. A union with several records, arrays or maps is where it tries
    more than one way; a value for another schema stays as it is."""

    def __init__(self, schema: Any) -> None:
        self._several = any(len(union) > 1 for union in _unions(schema))

    def value(self, value: Any) -> Any:
        """Returns the value; if it is counted, in objects that raise TooMuchWork when they are read too often."""
        if not self._several:
            return value
        return _counting(value, [READ + READ_EACH * size(value)[0]])

    def explainable(self, value: Any) -> bool:
        """Says if what is wrong with the value may be looked for: the error writes out the value for each way."""
        if not self._several:
            return True
        count, levels = size(value)
        return count * 2**levels <= EXPLAINED


class _Object(dict[str, Any]):
    left: list[int]

    def get(self, *asked: Any) -> Any:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise TooMuchWork("by the alternatives of the schema there are too many ways to read it")
        return super().get(*asked)


def _counting(value: Any, left: list[int]) -> Any:
    if isinstance(value, dict):
        made = _Object((key, _counting(each, left)) for key, each in value.items())
        made.left = left
        return made
    if isinstance(value, list):
        return [_counting(each, left) for each in value]
    if isinstance(value, tuple):
        return tuple(_counting(each, left) for each in value)
    return value


def _unions(schema: Any) -> Iterator[list[Any]]:
    """Yields what each union has beside scalars."""
    if isinstance(schema, list):
        yield [each for each in schema if each not in _SCALARS and not _is_scalar(each)]
        for each in schema:
            yield from _unions(each)
    elif isinstance(schema, dict):
        for key in ("type", "items", "values"):
            yield from _unions(schema.get(key))
        for field in schema.get("fields", ()):
            yield from _unions(field["type"])


_SCALARS = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


def _is_scalar(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] in (*_SCALARS, "enum", "fixed")
