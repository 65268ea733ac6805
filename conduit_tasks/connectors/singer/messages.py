"""Singer's messages (https://hub.meltano.com/singer/spec), one JSON object a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conduit_tasks.errors import SourceError
from conduit_tasks.record import jsons

QUOTED = 120
"""Characters of a wrong line that an error quotes."""
IGNORED = frozenset({"ACTIVATE_VERSION"})


@dataclass(frozen=True)
class Record:
    """A row of a stream. `at`: when the tap read it, as it says."""

    stream: str
    record: dict[str, Any]
    at: str = ""


@dataclass(frozen=True)
class Schema:
    """Shape of a stream's rows from here on: JSON Schema, and the properties that name a row."""

    stream: str
    schema: dict[str, Any]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """Where the tap goes on, if it is started with this value."""

    value: Any


def parse(line: bytes) -> Record | Schema | State | None:
    """Returns the message of a line; None if it means nothing here. Raises SourceError, which quotes it."""
    try:
        found = jsons.loads(line)
    except jsons.JSONDecodeError:
        raise _wrong(line, "no JSON; a tap prints messages only, and logs to stderr") from None
    kind = found.get("type") if isinstance(found, dict) else None
    if not isinstance(kind, str):
        raise _wrong(line, "no message: it has no type")
    if kind == "RECORD":
        record, at = found.get("record"), found.get("time_extracted")
        if not isinstance(record, dict):
            raise _wrong(line, "a RECORD without a record")
        return Record(_stream(found, line), record, at if isinstance(at, str) else "")
    if kind == "STATE":
        if not isinstance(found.get("value"), dict):
            raise _wrong(line, "a STATE without a value")
        return State(found["value"])
    if kind == "SCHEMA":
        schema, keys = found.get("schema"), found.get("key_properties") or []
        if not isinstance(schema, dict):
            raise _wrong(line, "a SCHEMA without a schema")
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise _wrong(line, "a SCHEMA whose key_properties are no list of names")
        return Schema(_stream(found, line), schema, tuple(keys))
    if kind in IGNORED:
        return None
    raise _wrong(
        line,
        f"a message of type {kind[:40]}, which is not taken"
        + ("; take batch_config out of its config" if kind == "BATCH" else ""),
    )


def _stream(found: dict[str, Any], line: bytes) -> str:
    stream = found.get("stream")
    if not isinstance(stream, str) or not stream:
        raise _wrong(line, "a message without a stream")
    return stream


def _wrong(line: bytes, why: str) -> SourceError:
    quoted = line[:QUOTED].decode(errors="replace")
    return SourceError(f"singer: the tap printed {why}: {quoted}")
