"""Records of the connector protocol and ours, both ways, whole batches at a time.

A structure travels as google.protobuf.Struct, whose numbers are doubles: a whole number comes back as one, and one that
a double cannot hold is refused on its way out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.errors import RecordError
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Data, Record

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.standalone.schemas import Schemas

EXACT = 1 << 53
"""Whole numbers beyond it are not all doubles."""
LONG = 256
"""Bits from which a number is not written out in a message."""
OPERATIONS = {"create": 1, "update": 2, "delete": 3, "snapshot": 4}
_SUBJECTS = {kind: f"opencdc.{kind}.schema.subject" for kind in ("key", "payload")}
_VERSIONS = {kind: f"opencdc.{kind}.schema.version" for kind in ("key", "payload")}


def batch_of(records: Sequence[Any], schemas: Schemas) -> pa.RecordBatch:
    """Returns the records of a source as a READ_SCHEMA batch. Data that names its schema, as the SDK encodes it, is
    decoded. A record that cannot be taken as it is, by its data or its operation, has the error in its metadata; such
    data is raw. As everywhere, NaN and infinities become null."""
    import numpy as np
    import pyarrow as pa

    from conduit_tasks.record.schema import (
        AFTER_STRUCTURED,
        BEFORE_STRUCTURED,
        KEY_STRUCTURED,
        READ_SCHEMA,
    )

    names: list[str] = []
    texts: list[str] = []
    ends = [0]
    shapes, operations = np.zeros(len(records), np.int8), np.zeros(len(records), np.int8)
    columns: dict[str, list[bytes | None]] = {"key": [], "before": [], "after": []}
    keys, befores, afters = columns.values()
    for n, record in enumerate(records):
        meta = dict(record.metadata)
        payload = record.payload
        shape = 0
        for has, data, bit, kind, into in (
            (record.HasField("key"), record.key, KEY_STRUCTURED, "key", keys),
            (payload.HasField("before"), payload.before, BEFORE_STRUCTURED, "payload", befores),
            (payload.HasField("after"), payload.after, AFTER_STRUCTURED, "payload", afters),
        ):
            if not has:
                into.append(None)
                continue
            raw: bytes | None = data.raw_data
            if raw:
                if _SUBJECTS[kind] in meta:
                    try:
                        raw = _decoded(raw, kind, meta, schemas)
                        shape |= bit
                    except RecordError as error:
                        meta["conduit.error"] = f"{kind}: {error}"
            elif data.HasField("structured_data"):
                raw = orjson.dumps(_object(data.structured_data))
                shape |= bit
            elif not data.HasField("raw_data"):
                raw = None
            into.append(raw)
        if shape:
            shapes[n] = shape
        # Nothing is 0 in messages of connectors that leave it out.
        if 0 < record.operation <= len(OPERATIONS):
            operations[n] = record.operation - 1
        elif record.operation:
            meta["conduit.error"] = f"operation {record.operation} is none of {', '.join(OPERATIONS)}"
        names += meta
        texts += meta.values()
        ends.append(len(names))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.position for record in records], pa.binary()),
            pa.array(operations),
            pa.MapArray.from_arrays(
                pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(texts, pa.string())
            ),
            *(pa.array(values, pa.binary()) for values in columns.values()),
            pa.array(shapes),
        ],
        schema=READ_SCHEMA,
    )


def _decoded(raw: bytes, kind: str, meta: Mapping[str, str], schemas: Schemas) -> bytes:
    return jsons.raw(schemas.decode(raw, meta[_SUBJECTS[kind]], meta.get(_VERSIONS[kind], "")))


def _object(found: Any) -> dict[str, Any]:
    return {name: _VALUES[value.WhichOneof("kind")](value) for name, value in found.fields.items()}


def _number(value: Any) -> int | float:
    number: float = value.number_value
    whole = int(number) if abs(number) < EXACT else None  # neither infinite nor NaN
    return whole if whole is not None and whole == number else number


_VALUES: dict[Any, Callable[[Any], Any]] = {
    "string_value": lambda value: value.string_value,
    "number_value": _number,
    "bool_value": lambda value: value.bool_value,
    "struct_value": lambda value: _object(value.struct_value),
    "list_value": lambda value: [_VALUES[each.WhichOneof("kind")](each) for each in value.list_value.values],
    "null_value": lambda value: None,
    None: lambda value: None,
}


def encoded(record: Record) -> bytes:
    """Returns one of our records as the protocol's message, written by hand: most of it is bytes that we have. Raises
    RecordError if the protocol cannot hold it."""
    try:
        return _encoded(record)
    except UnicodeEncodeError:
        raise RecordError("one of its texts has half of a surrogate pair, which is no character") from None


def _encoded(record: Record) -> bytes:
    before, after, key = record.before, record.after, record.key
    change = b"" if before is None else _field(_BEFORE, _data(before))
    if after is not None:
        change += _field(_AFTER, _data(after))
    out = _field(_POSITION, record.position) + _OPERATIONS[record.operation]
    for pair in record.meta().items():
        out += _entry(pair)
    if key is not None:
        out += _field(_KEY, _data(key))
    return out + _field(_PAYLOAD, change)


def sized(records: Sequence[bytes]) -> bytes:
    """Returns a message of encoded records: field 1, repeated."""
    return b"".join(_field(_POSITION, record) for record in records)


_POSITION, _KEY, _PAYLOAD = b"\x0a", b"\x22", b"\x2a"
_BEFORE, _AFTER = b"\x0a", b"\x12"
_RAW, _STRUCTURED = b"\x0a", b"\x12"
_OPERATIONS = {name: b"\x10" + bytes([code]) for name, code in OPERATIONS.items()}
_ENTRY, _NAME, _TEXT = b"\x1a", b"\x0a", b"\x12"
"""Tags: the number of a field, and how it is written (`proto/opencdc.proto`)."""


def _field(tag: bytes, content: bytes) -> bytes:
    size = len(content)
    return tag + (_SIZES[size] if size < 0x4000 else _varint(size)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SIZES = [_varint(size) for size in range(0x4000)]


@lru_cache(maxsize=4_096)
def _entry(pair: tuple[str, str]) -> bytes:
    """Returns an entry of the metadata; most are the same in many records."""
    name, text = pair
    return _field(_ENTRY, _field(_NAME, name.encode()) + _field(_TEXT, text.encode()))


def _data(data: Data) -> bytes:
    if isinstance(data, bytes):
        return _field(_RAW, data)
    return _field(_STRUCTURED, _object_of(data or {}))


def _object_of(value: Mapping[str, Any]) -> bytes:
    """Returns a google.protobuf.Struct: a map of values, each an entry of key and value."""
    # No comprehensions: each is one more frame per level, and what is 200 levels deep must fit into the stack.
    out = []
    for name, each in value.items():
        out.append(_field(_MEMBER, _member(name) + _field(_MEMBER_VALUE, _value_of(each, name))))
    return b"".join(out)


@lru_cache(maxsize=4_096)
def _member(name: str) -> bytes:
    """Returns the key of an entry; most are the same in many records."""
    return _field(_MEMBER, name.encode())


def _value_of(value: Any, name: str) -> bytes:
    """Returns a google.protobuf.Value. Raises RecordError if there is none for it."""
    if isinstance(value, str):
        return _field(b"\x1a", value.encode())
    if value is None:
        return b"\x08\x00"
    if isinstance(value, bool):
        return b"\x20\x01" if value else b"\x20\x00"
    if isinstance(value, int | float):
        if isinstance(value, int) and abs(value) > EXACT and not _is_double(value):
            said = str(value) if value.bit_length() < LONG else f"a whole number of {value.bit_length()} bits"
            raise RecordError(
                f"'{name}' is {said}, which the connector protocol cannot hold exactly (its numbers are doubles); make "
                "it text with a processor"
            )
        return b"\x11" + _DOUBLE(value)
    if isinstance(value, dict):
        return _field(b"\x2a", _object_of(value))
    if isinstance(value, list | tuple):
        out = []
        for each in value:
            out.append(_field(_MEMBER, _value_of(each, name)))
        return _field(b"\x32", b"".join(out))
    raise RecordError(f"'{name}' is {type(value).__name__}, which the connector protocol does not have")


_MEMBER, _MEMBER_VALUE = b"\x0a", b"\x12"
_DOUBLE = struct.Struct("<d").pack


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False
