"""The OpenCDC record as a Python object, its stable id, and its form as JSON; used wherever single records are handled.

Data is either *raw* (`bytes`) or *structured* (a `dict`); `None` if there is none (OpenCDC, "Data").
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any

from conduit_tasks.record import jsons

Data = bytes | dict[str, Any] | None

OPERATIONS = ("create", "update", "delete", "snapshot")
"""Operations of a record; the index is the code stored in Arrow (`operation`, int8, counted from 0)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Values that all records of one slice share. Shared by reference, never copied per record."""

    pipeline: str
    connector: str
    partition: str
    metadata: dict[str, str] = field(default_factory=dict)
    """Metadata of every record of the slice (`opencdc.readAt` and the like); a record's own value wins."""


@dataclass(slots=True)
class Record:
    """One record on its way through a pipeline.

    `position` is the source's own, opaque. `metadata` holds only the differences to `origin.metadata`, and a value of
    None hides the slice's value of that name; read the whole with `meta()`. `ordinal` tells derived records (`split`,
    `clone`) of one position apart.
    """

    position: bytes
    operation: str = "create"
    metadata: dict[str, str] = field(default_factory=dict)
    key: Data = None
    before: Data = None
    after: Data = None
    ordinal: int = 0
    origin: Origin = Origin("", "", "")

    @property
    def id(self) -> str:
        """Stable id: a hash of pipeline, connector, partition, position and ordinal (never of the index), 32 hex."""
        return record_id(self.origin, self.position, self.ordinal)

    def meta(self) -> dict[str, str]:
        """Returns the whole metadata: the slice's, overlaid with the record's own, without the names that it hides."""
        if not self.origin.metadata:
            return self.metadata
        merged = {**self.origin.metadata, **self.metadata}
        return {k: v for k, v in merged.items() if v is not None} if None in merged.values() else merged

    def copy(self) -> Record:
        """Returns an independent copy; structured data is copied through JSON types (dicts and lists), not shared."""
        return Record(
            self.position,
            self.operation,
            dict(self.metadata),
            copy_data(self.key),
            copy_data(self.before),
            copy_data(self.after),
            self.ordinal,
            self.origin,
        )

    def to_opencdc(self) -> dict[str, Any]:
        """Returns the record as OpenCDC JSON: position base64, raw data a string (base64 if it is not UTF-8),
        structured data an object."""
        return {
            "position": base64.b64encode(self.position).decode(),
            "operation": self.operation,
            "metadata": self.meta(),
            "key": json_data(self.key),
            "payload": {"before": json_data(self.before), "after": json_data(self.after)},
        }

    @classmethod
    def from_opencdc(cls, data: dict[str, Any], origin: Origin | None = None) -> Record:
        """Makes a record from the form of `to_opencdc`: a string in key or payload is raw, an object structured."""
        payload = data.get("payload") or {}
        return cls(
            position=base64.b64decode(data.get("position") or ""),
            operation=data.get("operation") or "create",
            metadata=dict(data.get("metadata") or {}),
            key=_data_from_json(data.get("key")),
            before=_data_from_json(payload.get("before")),
            after=_data_from_json(payload.get("after")),
            origin=origin or Origin("", "", ""),
        )


def record_id(origin: Origin, position: bytes, ordinal: int) -> str:
    """Returns the stable id of a record, see `Record.id`."""
    return hashlib.blake2b(b"%b%b%d" % (position, id_suffix(origin), ordinal), digest_size=16).hexdigest()


def id_suffix(origin: Origin) -> bytes:
    """Returns what an id is made of between position and ordinal."""
    return f"\0{origin.pipeline}\0{origin.connector}\0{origin.partition}\0".encode()


def data_bytes(data: Data) -> bytes:
    """Returns data as bytes: raw data as it is, structured data as compact JSON, None as empty bytes."""
    if data is None:
        return b""
    return data if isinstance(data, bytes) else jsons.dumps(data)


def copy_data(data: Any) -> Any:
    """Returns a deep copy of dicts and lists; other values are immutable and shared."""
    if isinstance(data, dict):
        return {k: copy_data(v) for k, v in data.items()}
    if isinstance(data, list):
        return [copy_data(v) for v in data]
    return data


def json_data(data: Data) -> Any:
    """Returns data in its form in OpenCDC JSON: raw data a string (base64 if it is not UTF-8), structured an object."""
    if isinstance(data, bytes):
        try:
            return data.decode()
        except UnicodeDecodeError:
            return base64.b64encode(data).decode()
    return data


def _data_from_json(value: Any) -> Data:
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, str):
        return value.encode()
    raise ValueError(f"key and payload must be a string (raw) or an object (structured), not {type(value).__name__}")
