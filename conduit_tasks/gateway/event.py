"""One event as bytes: the gateway stores it, and the source `gateway` reads it back.

    <kind><metadata: a JSON object of texts>\\n<data>

`kind` is `s` (data is a JSON object: structured), `r` (any other bytes: raw) or `n` (no data). Metadata are a record's:
`cloudevents.<attribute>` as the producer gave it, and `opencdc.createdAt` (unix nanoseconds, when it came in) if the
event has no time of its own. JSON has no line break inside a value, so the first one ends the metadata.

A chunk is several events, each after its length in four bytes (little-endian).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Literal

import orjson

from conduit_tasks.record.cloudevents import PREFIX, unix_nanoseconds

Kind = Literal[b"s", b"r", b"n"]
TIME = PREFIX + "time"
CREATED = "opencdc.createdAt"
HEAD = 4
"""Bytes in front of each event of a chunk."""
_LENGTH = struct.Struct("<I")


def pack(kind: Kind, metadata: Mapping[str, str], data: bytes) -> bytes:
    """Packs one event (format: see the module)."""
    return kind + orjson.dumps(metadata) + b"\n" + data


def unpack(event: bytes) -> tuple[bool, dict[str, str], bytes | None]:
    """Returns whether the data is structured, the metadata, and the data or None.

    An event's own time becomes `opencdc.createdAt`, so that intervals select by it.
    """
    head, _, data = event.partition(b"\n")
    metadata: dict[str, str] = orjson.loads(head[1:])
    own = metadata.get(TIME)
    if own is not None:
        try:
            metadata[CREATED] = str(unix_nanoseconds(own.upper()))
        except ValueError:
            # RFC 3339 knows a 60th second, Python's calendar does not; the attribute itself is kept.
            metadata.pop(CREATED, None)
    return head[:1] == b"s", metadata, None if head[:1] == b"n" else data


def head(event: bytes) -> dict[str, str]:
    """Returns the metadata alone."""
    metadata: dict[str, str] = orjson.loads(event[1 : event.index(b"\n")])
    return metadata


def join(events: Iterable[bytes]) -> bytes:
    """Returns a chunk of these events."""
    return b"".join([part for event in events for part in (_LENGTH.pack(len(event)), event)])


def split(chunk: bytes) -> list[bytes]:
    """Returns the events of a chunk."""
    out, at = [], 0
    while at < len(chunk):
        begin = at + HEAD
        at = begin + _LENGTH.unpack_from(chunk, at)[0]
        out.append(chunk[begin:at])
    return out
