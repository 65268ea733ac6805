"""References to a field of a record: `.Payload.After.carrier`, `.Metadata["opencdc.readAt"]`, `.Key`.

The grammar is Conduit's: a dot and a name of letters, digits and underscores, or a quoted name in brackets,
as often as needed. The first name is Position, Operation, Metadata, Key or Payload; after Payload comes Before
or After. Metadata values are text and have no fields of their own.

Raw data has no fields: a nested reference into it raises RecordError. `None` on the way is an absent map: `get`
returns None, `set` creates it, `delete` and `rename` do nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, cast

from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.record.parts import Parts, parts_of
from conduit_tasks.record.record import OPERATIONS, Record

_STEP = re.compile(r'\.([^\W]\w*)|\["((?:[^"\\]|\\.)*)"\]')
_ESCAPE = re.compile(r"\\(.)")


class FieldRef:
    """One field of any record. `root` is the part of the record that contains it (`Payload.After`), `path` the names
    below that."""

    __slots__ = ("path", "root", "text")

    def __init__(self, text: str, root: str, path: tuple[str, ...]) -> None:
        self.text, self.root, self.path = text, root, path

    def __repr__(self) -> str:
        return f"FieldRef({self.text!r})"

    @property
    def parts(self) -> Parts:
        """Attributes of a record that contain the field."""
        return parts_of(self.root.split("."))

    def get(self, record: Record) -> Any:
        """Returns the value; None if there is none. Raises RecordError for a nested reference into raw data."""
        raise NotImplementedError

    def set(self, record: Record, value: Any) -> None:
        """Stores the value, creating maps on the way. Raises RecordError if it does not fit there."""
        raise RecordError(f"{self.text} cannot be set")

    def delete(self, record: Record) -> None:
        """Removes the field, if it is present. Raises RecordError if it must stay."""
        raise RecordError(f"{self.text} cannot be removed")

    def rename(self, record: Record, new_last: str) -> None:
        """Gives the last part of the reference another name, if the field is present. Raises RecordError if the field
        is a part of every record."""
        raise RecordError(f"{self.text} cannot be renamed: it is a part of every record")


class _Position(FieldRef):
    __slots__ = ()

    def get(self, record: Record) -> Any:
        return record.position


class _Operation(FieldRef):
    __slots__ = ()

    def get(self, record: Record) -> Any:
        return record.operation

    def set(self, record: Record, value: Any) -> None:
        # Conduit counts operations from 1.
        if isinstance(value, int) and 1 <= value <= len(OPERATIONS):
            value = OPERATIONS[value - 1]
        if value not in OPERATIONS:
            raise RecordError(f"{value!r} is no operation; it is one of {', '.join(OPERATIONS)}")
        record.operation = value


class _Payload(FieldRef):
    __slots__ = ()

    def get(self, record: Record) -> Any:
        return {"Before": record.before, "After": record.after}

    def delete(self, record: Record) -> None:
        record.before = record.after = None


class _Metadata(FieldRef):
    __slots__ = ()

    def get(self, record: Record) -> Any:
        return record.meta()

    def set(self, record: Record, value: Any) -> None:
        if value is None:
            value = {}
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise RecordError(f"{self.text} takes a map of text to text, not {type(value).__name__}")
        record.metadata = {**dict.fromkeys(record.origin.metadata, cast(str, None)), **value}

    def delete(self, record: Record) -> None:
        self.set(record, {})


class _MetadataValue(FieldRef):
    __slots__ = ("name",)

    def __init__(self, text: str, root: str, path: tuple[str, ...]) -> None:
        super().__init__(text, root, path)
        self.name = path[0]

    def get(self, record: Record) -> Any:
        own = record.metadata
        return own[self.name] if self.name in own else record.origin.metadata.get(self.name)

    def set(self, record: Record, value: Any) -> None:
        if value is None:
            self.delete(record)
        elif isinstance(value, str):
            record.metadata[self.name] = value
        else:
            raise RecordError(f"{self.text} takes text, not {type(value).__name__}")

    def delete(self, record: Record) -> None:
        if self.name in record.origin.metadata:
            # The slice's metadata is shared; None in the record's own hides it (see `Record.metadata`).
            record.metadata[self.name] = cast(str, None)
        else:
            record.metadata.pop(self.name, None)

    def rename(self, record: Record, new_last: str) -> None:
        value = self.get(record)
        if value is not None and new_last != self.name:
            record.metadata[new_last] = value
            self.delete(record)


class _Data(FieldRef):
    """`.Key`, `.Payload.Before` or `.Payload.After` as a whole."""

    __slots__ = ("attribute",)

    def __init__(self, text: str, root: str, path: tuple[str, ...]) -> None:
        super().__init__(text, root, path)
        self.attribute = {"Key": "key", "Payload.Before": "before", "Payload.After": "after"}[root]

    def get(self, record: Record) -> Any:
        return getattr(record, self.attribute)

    def set(self, record: Record, value: Any) -> None:
        if isinstance(value, str):
            value = value.encode()
        elif value is not None and not isinstance(value, bytes | dict):
            raise RecordError(f"{self.text} takes raw or structured data, not {_kind(value)}")
        setattr(record, self.attribute, value)

    def delete(self, record: Record) -> None:
        setattr(record, self.attribute, None)


class _DataField(_Data):
    """A field inside structured data."""

    __slots__ = ("last", "parents")

    def __init__(self, text: str, root: str, path: tuple[str, ...]) -> None:
        super().__init__(text, root, path)
        self.parents, self.last = path[:-1], path[-1]

    def _map(self, record: Record) -> dict[str, Any] | None:
        data = getattr(record, self.attribute)
        for name in self.parents:
            if data.__class__ is not dict:
                break
            data = data.get(name)
        if data is None or data.__class__ is dict:
            return data
        raise self._no_fields(data)

    def _no_fields(self, data: Any) -> RecordError:
        if isinstance(data, bytes):
            return RecordError(f"{self.text} refers into raw data; decode it first (json.decode)")
        return RecordError(f"{self.text} refers into {_kind(data)}, which has no fields")

    def get(self, record: Record) -> Any:
        data = self._map(record)
        return None if data is None else data.get(self.last)

    def set(self, record: Record, value: Any) -> None:
        data = getattr(record, self.attribute)
        if data is None:
            data = {}
            setattr(record, self.attribute, data)
        for name in self.parents:
            if data.__class__ is not dict:
                break
            child = data.get(name)
            if child is None:
                child = data[name] = {}
            data = child
        if data.__class__ is not dict:
            raise self._no_fields(data)
        data[self.last] = _text(self.text, value) if value.__class__ is bytes else value

    def delete(self, record: Record) -> None:
        data = self._map(record)
        if data is not None:
            data.pop(self.last, None)

    def rename(self, record: Record, new_last: str) -> None:
        data = self._map(record)
        if data is not None and self.last in data and new_last != self.last:
            data[new_last] = data.pop(self.last)


class _TopField(_DataField):
    """A field directly in structured data: the frequent case, without a loop over parents."""

    __slots__ = ()

    def get(self, record: Record) -> Any:
        data = getattr(record, self.attribute)
        return data.get(self.last) if data.__class__ is dict else super().get(record)

    def set(self, record: Record, value: Any) -> None:
        data = getattr(record, self.attribute)
        if data.__class__ is dict and value.__class__ is not bytes:
            data[self.last] = value
        else:
            super().set(record, value)


@lru_cache(maxsize=1024)
def parse(text: str) -> FieldRef:
    """Parses the reference written in `text`. Raises ConfigError that names the column (from 1)."""
    names: list[str] = []
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise _wrong(text, at, 'a name such as .Payload.After.x or ["x"] was expected')
        names.append(step[1] if step[1] is not None else _ESCAPE.sub(r"\1", step[2]))
        reason = _not_allowed(names)
        if reason:
            raise _wrong(text, at, reason)
        at = step.end()
    if not names:
        raise _wrong(text, 0, "it is empty; write for example .Payload.After.x")
    if names[0] == "Payload":
        if len(names) == 1:
            return _Payload(text, "Payload", ())
        root, path = f"Payload.{names[1]}", tuple(names[2:])
    else:
        root, path = names[0], tuple(names[1:])
    kinds: dict[str, tuple[type[FieldRef], type[FieldRef]]] = {
        "Position": (_Position, _Position),
        "Operation": (_Operation, _Operation),
        "Metadata": (_Metadata, _MetadataValue),
    }
    whole, inner = kinds.get(root, (_Data, _TopField if len(path) == 1 else _DataField))
    return (inner if path else whole)(text, root, path)


def _not_allowed(names: list[str]) -> str | None:
    first, depth = names[0], len(names)
    if first not in ("Position", "Operation", "Metadata", "Key", "Payload"):
        return "a record has .Position, .Operation, .Metadata, .Key, .Payload.Before and .Payload.After"
    if first in ("Position", "Operation") and depth > 1:
        return f".{first} has no fields"
    if first == "Metadata" and depth > 2:
        return f'metadata is text without fields; write .Metadata["{".".join(names[1:])}"] for a name with dots'
    if first == "Payload" and depth == 2 and names[1] not in ("Before", "After"):
        return ".Payload has .Payload.Before and .Payload.After"
    return None


def _wrong(text: str, at: int, reason: str) -> ConfigError:
    return ConfigError(f"field reference {text!r}, column {at + 1}: {reason}")


def _kind(value: Any) -> str:
    names = {"str": "text", "int": "a number", "float": "a number", "bool": "a boolean", "list": "an array"}
    return names.get(type(value).__name__, type(value).__name__)


def _text(field: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RecordError(f"{field} lies in structured data, which cannot hold bytes that are not UTF-8") from None
