"""Records of the connector protocol and ours, both ways, whole batches at a time.

A structure travels as google.protobuf.Struct, whose numbers are doubles: a whole number comes back as one, and one that
a double cannot hold is refused on its way out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
OPERATIONS = {"create": 1, "update": 2, "delete": 3, "snapshot": 4}
_DECODED = ("payload", "key")


def batch_of(records: Sequence[Any], schemas: Schemas) -> pa.RecordBatch:
    """Returns the records of a source as a READ_SCHEMA batch. Data that names its schema, as the SDK encodes it, is
    decoded; a record whose data cannot be is raw, with the error in its metadata."""
    import numpy as np
    import pyarrow as pa

    from conduit_tasks.record.schema import (
        AFTER_STRUCTURED,
        BEFORE_STRUCTURED,
        KEY_STRUCTURED,
        READ_SCHEMA,
    )

    metadata: list[Any] = []
    shapes = np.zeros(len(records), np.int8)
    columns: dict[str, list[bytes | None]] = {"key": [], "before": [], "after": []}
    keys, befores, afters = columns.values()
    for n, record in enumerate(records):
        meta = dict(record.metadata)
        payload = record.payload
        shape = 0
        found: list[bytes | None] = []
        for data, bit, kind in (
            (record.key, KEY_STRUCTURED, "key"),
            (payload.before, BEFORE_STRUCTURED, "payload"),
            (payload.after, AFTER_STRUCTURED, "payload"),
        ):
            which = data.WhichOneof("data")
            if which == "raw_data":
                raw: bytes = data.raw_data
                subject = meta.get(f"opencdc.{kind}.schema.subject")
                if subject is not None and raw:
                    try:
                        raw = _json(schemas.decode(raw, subject, meta.get(f"opencdc.{kind}.schema.version", "")))
                        shape |= bit
                    except RecordError as error:
                        meta["conduit.error"] = f"{kind}: {error}"
                found.append(raw)
            elif which is None:
                found.append(None)
            else:
                found.append(orjson.dumps(_object(data.structured_data)))
                shape |= bit
        key, before, after = found
        keys.append(key)
        befores.append(before)
        afters.append(after)
        if shape:
            shapes[n] = shape
        metadata.append(list(meta.items()) if meta else None)
    operations = np.fromiter((max(0, record.operation - 1) for record in records), np.int8, len(records))
    types = {field.name: field.type for field in READ_SCHEMA}
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.position for record in records], pa.binary()),
            pa.array(operations),
            pa.array(metadata, types["metadata"]),
            *(pa.array(values, pa.binary()) for values in columns.values()),
            pa.array(shapes),
        ],
        schema=READ_SCHEMA,
    )


def _json(value: Any) -> bytes:
    return jsons.raw(value)


def _object(struct: Any) -> dict[str, Any]:
    return {name: _VALUES[value.WhichOneof("kind")](value) for name, value in struct.fields.items()}


def _number(value: Any) -> int | float:
    number: float = value.number_value
    whole = int(number) if number == number and abs(number) < EXACT else None
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


def fill(message: Any, record: Record, position: bytes) -> None:
    """Writes one of our records into a message. Raises RecordError if the protocol cannot hold it."""
    message.position = position
    message.operation = OPERATIONS[record.operation]
    message.metadata.update(record.meta())
    for data, into in (
        (record.key, message.key),
        (record.before, message.payload.before),
        (record.after, message.payload.after),
    ):
        if data is not None:
            _fill_data(into, data)


def _fill_data(into: Any, data: Data) -> None:
    if isinstance(data, bytes):
        into.raw_data = data
    elif data is not None:
        into.structured_data.SetInParent()
        _fill_object(into.structured_data.fields, data)


def _fill_object(fields: Any, value: Mapping[str, Any]) -> None:
    for name, each in value.items():
        _fill_value(fields[name], each, name)


def _fill_value(into: Any, value: Any, name: str) -> None:
    if isinstance(value, str):
        into.string_value = value
    elif value is None:
        into.null_value = 0
    elif isinstance(value, bool):
        into.bool_value = value
    elif isinstance(value, int | float):
        if isinstance(value, int) and abs(value) > EXACT and int(float(value)) != value:
            raise RecordError(
                f"'{name}' is {value}, which the connector protocol cannot hold exactly (its numbers are doubles); "
                "make it text with a processor"
            )
        into.number_value = value
    elif isinstance(value, dict):
        into.struct_value.SetInParent()
        _fill_object(into.struct_value.fields, value)
    elif isinstance(value, list | tuple):
        into.list_value.SetInParent()
        for each in value:
            _fill_value(into.list_value.values.add(), each, name)
    else:
        raise RecordError(f"'{name}' is {type(value).__name__}, which the connector protocol does not have")
