"""Entries of a stream as records: position, payload and key of their fields, and entries that do not have what is asked
for."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.record import jsons

if TYPE_CHECKING:
    import pyarrow as pa

Fields = list[tuple[bytes, bytes]]
"""Fields in their order; a name may occur more than once."""


def parts(pairs: Fields, data: bytes | None, key: bytes | None, as_json: bool) -> tuple[bytes, bytes | None, str]:
    """Returns payload, key, and the reason if the payload is not of the kind it should be (it is raw then)."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        for name in (data, key):
            if name is not None and (times := sum(n == name for n, _ in pairs)) > 1:
                error = f"the field '{text(name)}' is there {times} times, and one value is asked for"
                return _all(pairs)[0], None, error
    payload, error = _all(pairs) if data is None else _payload(fields, data, as_json)
    return payload, None if key is None else fields.get(key), error


def _payload(fields: dict[bytes, bytes], data: bytes, as_json: bool) -> tuple[bytes, str]:
    if data not in fields:
        return b"", f"there is no field '{text(data)}'"
    if not as_json:
        return fields[data], ""
    try:
        if isinstance(jsons.loads(fields[data]), dict):
            return fields[data], ""
    except jsons.JSONDecodeError as error:
        return fields[data], f"'{text(data)}' is not JSON: {error}"
    return fields[data], f"'{text(data)}' is no JSON object"


def _all(pairs: Fields) -> tuple[bytes, str]:
    """Returns an object of all fields, and the reason if its values are not their text. A name that occurs more than
    once has a list."""
    try:
        return _object((k.decode(), v.decode()) for k, v in pairs), ""
    except UnicodeDecodeError:
        error = "a field is not UTF-8 (all are in base64 here); name the one that holds the payload in 'data'"
        return _object((k.decode(errors="backslashreplace"), base64.b64encode(v).decode()) for k, v in pairs), error


def _object(pairs: Iterable[tuple[str, str]]) -> bytes:
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return json.dumps({name: of[0] if len(of) == 1 else of for name, of in values.items()}).encode()


def text(raw: Any) -> str:
    """Returns a name as it is shown."""
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


Entry = tuple[bytes, Fields]
"""Id of an entry, and its fields."""


def size_of(entries: list[Entry]) -> int:
    """Returns the bytes of their names and values."""
    return sum(len(name) + len(value) for _, fields in entries for name, value in fields)


def id_of(raw: Any) -> str:
    """Returns an entry's id as text."""
    return raw.decode() if isinstance(raw, bytes) else str(raw)


def batch_of(stream: str, entries: list[Entry], settings: Mapping[str, str]) -> pa.RecordBatch:
    """Returns entries of a stream as a READ_SCHEMA batch."""
    import numpy as np
    import pyarrow as pa

    from conduit_tasks.record.schema import AFTER_STRUCTURED, RECORD_FIELDS, read_batch

    data, key = (settings[n].encode() if n in settings else None for n in ("data", "key"))
    as_json = settings["format"] == "json"
    structured, payloads, keys, errors = [], [], [], []
    for id, fields in entries:
        payload, own, error = parts(fields, data, key, as_json)
        payloads.append(payload)
        keys.append(own)
        structured.append(not error and (data is None or as_json))
        errors.append([("conduit.error", f"{stream} {id_of(id)}: {error}")] if error else None)
    batch = read_batch(
        pa.array([f"{stream}/{id_of(id)}".encode() for id, _ in entries], pa.binary()),
        after=pa.array(payloads, pa.binary()),
        key=None if key is None else pa.array(keys, pa.binary()),
        metadata=pa.array(errors, RECORD_FIELDS[2].type) if any(errors) else None,
    )
    shapes = pa.array(np.where(structured, AFTER_STRUCTURED, 0).astype(np.int8))
    return batch.set_column(batch.schema.get_field_index("shape"), batch.schema.field("shape"), shapes)


def order_of(id: str) -> tuple[int, ...]:
    """Returns what ids are ordered by."""
    return tuple(int(part) for part in id.split("-"))
