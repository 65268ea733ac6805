"""Bounds on the size and depth of decoded Avro data: few bytes can decode to a huge value.

An array of nulls has a billion items in ten bytes; a type that refers to itself is as deep as the data says. Data that
would be larger than a record, or nested deeper than its JSON may be, is refused before it is decoded. Most schemas
allow no such data: the bytes of JSON that a byte of Avro can become are worked out once per schema, and the data is
looked through only if they could be too many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conduit_tasks.record.batches import FIXED_BYTES, RECORD_BYTES
from conduit_tasks.record.jsons import DEPTH

_SCALARS = {"null": (0, 5), "boolean": (1, 6), "int": (1, 12), "long": (1, 21), "float": (4, 25), "double": (8, 25)}
"""Least bytes in Avro, most in JSON with a comma."""
_RECORDS = ("record", "error")
_UNIONS = ("union", "error_union")
_WORD = (1 << 64) - 1
_NUMBER = 10
"""Limit of the bytes of a number."""
_DECIMAL = 16
"""Bytes that a decimal may have, unless its precision needs more. The time to read one grows with their square."""
_SHORT = 4096
"""Bytes of data in which no decimal is too long to be read at once."""


class Beyond(ValueError):
    """Refusal of the data; the message says why."""


@dataclass(frozen=True)
class _Kind:
    """Bounds of a type: the least bytes in Avro; the most in JSON, without items of its arrays and maps; levels of
    objects and lists; whether it never has any byte."""

    least: int
    most: int
    levels: int
    empty: bool


class Bound:
    """Bounds of a schema that fastavro parsed. Sizes count the least bytes of the JSON; for items without a byte, the
    memory that they take."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._kinds: dict[str, _Kind | None] = {}
        self._ratio = 2.0
        self._sure = True
        self._decimals = False
        self._top = self._kind(schema)
        self._sure = self._sure and self._top.levels <= DEPTH
        self._size = 0

    def check(self, data: bytes, start: int) -> None:
        """Raises Beyond if the data from `start` on is larger or deeper than a record may be, or ends too early."""
        held = len(data) - start
        small = self._top.most + held * self._ratio <= RECORD_BYTES
        if self._sure and small and (held <= _SHORT or not self._decimals):
            return
        self._size = 0
        try:
            self._walk(self._schema, data, start, 0)
        except IndexError:
            raise Beyond("it ends too early") from None

    def _kind(self, schema: Any) -> _Kind:  # noqa: PLR0911 - one per form of a schema
        """Returns a type's bounds. If a type contains itself, every record of the schema is looked through."""
        if isinstance(schema, str):
            if schema in _SCALARS:
                least, most = _SCALARS[schema]
                return _Kind(least, most, 0, least == 0)
            if schema in ("bytes", "string"):
                return _Kind(1, 3, 0, False)
            known = self._kinds[schema]
            if known is None:
                self._sure = False
                return _Kind(0, 0, 0, False)
            return known
        if isinstance(schema, list):
            return self._union([self._kind(each) for each in schema])
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._kind(kind)
        if kind in ("array", "map"):
            return self._container(self._kind(schema["items" if kind == "array" else "values"]), kind == "map")
        if kind == "bytes" and schema.get("logicalType") == "decimal":
            self._decimals = True
        if "name" not in schema or kind not in (*_RECORDS, "enum", "fixed"):
            return self._kind(kind)
        name = schema["name"]
        self._named[name], self._kinds[name] = schema, None
        self._kinds[name] = made = self._made(kind, schema)
        return made

    def _made(self, kind: str, schema: Any) -> _Kind:
        if kind == "enum":
            return _Kind(1, 3 + max((len(each) for each in schema["symbols"]), default=0), 0, False)
        if kind == "fixed":
            return _Kind(schema["size"], 2 * schema["size"] + 3, 0, schema["size"] == 0)
        fields = [self._kind(each["type"]) for each in schema["fields"]]
        names = sum(len(each["name"]) + 4 for each in schema["fields"])
        return _Kind(
            sum(each.least for each in fields),
            3 + names + sum(each.most for each in fields),
            1 + max((each.levels for each in fields), default=0),
            all(each.empty for each in fields),
        )

    def _union(self, kinds: list[_Kind]) -> _Kind:
        least = min((each.least for each in kinds), default=0)
        most, levels = (max((getattr(each, what) for each in kinds), default=0) for what in ("most", "levels"))
        return _Kind(1 + least, most, levels, False)

    def _container(self, item: _Kind, keys: bool) -> _Kind:
        least = item.least + keys
        if not least:
            self._sure = False
        else:
            self._ratio = max(self._ratio, (item.most + 4 * keys) / least + 2)
        return _Kind(1, 3, 1 + item.levels, False)

    def _add(self, size: int) -> None:
        self._size += size
        if self._size > RECORD_BYTES:
            raise Beyond(f"decoded, it is larger than the {RECORD_BYTES >> 20} MiB that a record may have")

    def _walk(self, schema: Any, data: bytes, at: int, depth: int) -> int:  # noqa: PLR0911 - one line per type
        """Returns the offset behind the value that begins at `at`; adds its size to the count."""
        if depth > DEPTH:
            raise Beyond(f"decoded, it is nested deeper than {DEPTH} levels")
        if isinstance(schema, list):
            branch, at = _number(data, at)
            if not 0 <= branch < len(schema):
                raise Beyond(f"its union has no branch {branch}")
            return self._walk(schema[branch], data, at, depth)
        if isinstance(schema, dict):
            kind = schema["type"]
            if kind in _RECORDS:
                return self._record(schema, data, at, depth)
            if kind in ("array", "map"):
                return self._items(schema, data, at, depth + 1)
            if kind == "fixed":
                return self._skip(data, at, schema["size"])
            if kind == "enum":
                self._add(3)
                return _number(data, at)[1]
            if kind == "bytes" and schema.get("logicalType") == "decimal":
                return self._decimal(schema, data, at)
            return self._walk(kind, data, at, depth)
        if schema in self._named:
            return self._walk(self._named[schema], data, at, depth)
        if schema in ("bytes", "string"):
            size, at = _number(data, at)
            return self._skip(data, at, size)
        self._add(2)
        if schema in ("int", "long"):
            return _number(data, at)[1]
        return self._skip(data, at, _SCALARS[schema][0])

    def _record(self, schema: Any, data: bytes, at: int, depth: int) -> int:
        kind = self._kinds[schema["name"]]
        if kind is not None and kind.empty:
            if depth + kind.levels > DEPTH:
                raise Beyond(f"decoded, it is nested deeper than {DEPTH} levels")
            self._add(kind.most)
            return at
        self._add(3)
        for each in schema["fields"]:
            self._add(len(each["name"]) + 4)
            at = self._walk(each["type"], data, at, depth + 1)
        return at

    def _decimal(self, schema: Any, data: bytes, at: int) -> int:
        size, at = _number(data, at)
        most = max(_DECIMAL, int(schema["precision"]) // 2 + 1)
        if size > most:
            raise Beyond(f"a decimal in it has {size} bytes, {most} is the most for its precision")
        return self._skip(data, at, size)

    def _items(self, schema: Any, data: bytes, at: int, depth: int) -> int:
        keys = schema["type"] == "map"
        item = schema["values" if keys else "items"]
        empty = not keys and self._is_empty(item)
        while True:
            count, at = _number(data, at)
            if count < 0:
                count = -count
                at = _number(data, at)[1]
            if not count:
                return at
            if empty:
                before = self._size
                self._walk(item, data, at, depth)
                self._add(count * max(FIXED_BYTES, self._size - before))
                continue
            for _ in range(count):
                if keys:
                    size, at = _number(data, at)
                    at = self._skip(data, at, size)
                at = self._walk(item, data, at, depth)

    def _is_empty(self, schema: Any) -> bool:
        if isinstance(schema, dict):
            if "name" not in schema:
                return self._is_empty(schema["type"]) if schema["type"] not in ("array", "map") else False
            schema = schema["name"]
        if not isinstance(schema, str):
            return False
        kind = self._kinds.get(schema)
        return kind.empty if kind is not None else schema == "null"

    def _skip(self, data: bytes, at: int, size: int) -> int:
        if size < 0 or at + size > len(data):
            raise Beyond("it ends too early")
        self._add(size)
        return at + size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Returns the number at `at`, and the offset behind it."""
    value = data[at]
    if value < 128:
        return (value >> 1) ^ -(value & 1), at + 1
    value &= 127
    for n in range(1, _NUMBER):
        byte = data[at + n]
        value |= (byte & 127) << 7 * n
        if byte < 128:
            value &= _WORD
            return (value >> 1) ^ -(value & 1), at + n + 1
    raise Beyond("a number in it has more than ten bytes")
