"""`unwrap.opencdc`, `unwrap.debezium`, `unwrap.kafkaconnect`: unwrap a record of another system from a field.

The wrapped record replaces the data of the record around it, which keeps its position.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import RecordError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.field import data_reference
from conduit_tasks.record import jsons
from conduit_tasks.record.fields import parse
from conduit_tasks.record.record import OPERATIONS, Data, Record
from conduit_tasks.templates.values import nested

_FIELD = (Option("field", "where the wrapped record is", default=".Payload.After"),)
_METADATA = parse(".Metadata")


class _Unwrap(RecordProcessor):
    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._field = data_reference(self.spec.name, "field", self.settings["field"])

    def process(self, record: Record) -> Record:
        value = self._field.get(record)
        if isinstance(value, str | bytes):
            try:
                value = jsons.loads(value)
            except jsons.JSONDecodeError as error:
                raise self._error(f"{self._field.text} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise self._error(f"{self._field.text} holds no record")
        self._unwrap(record, value)
        return record

    def _unwrap(self, record: Record, wrapped: dict[str, Any]) -> None:
        raise NotImplementedError

    def _error(self, reason: str) -> RecordError:
        return RecordError(f"{self.spec.name}: {reason}")

    def _payload(self, wrapped: dict[str, Any]) -> dict[str, Any]:
        payload = wrapped.get("payload")
        if not isinstance(payload, dict):
            raise self._error(f"{self._field.text} has no payload")
        return payload


class UnwrapOpencdc(_Unwrap):
    """An OpenCDC record as Conduit writes it to JSON: raw data in base64."""

    spec = Spec("unwrap.opencdc", "Unwraps an OpenCDC record from a field.", _FIELD)

    def _unwrap(self, record: Record, wrapped: dict[str, Any]) -> None:
        operation, metadata, payload = (wrapped.get(name) for name in ("operation", "metadata", "payload"))
        if operation not in OPERATIONS:
            raise self._error(f"the operation is {operation!r}, not one of {', '.join(OPERATIONS)}")
        if not isinstance(metadata, dict) or not isinstance(payload, dict):
            raise self._error("metadata and payload must be objects")
        key, before, after = (
            self._data(holder, name) for holder, name in ((wrapped, "key"), (payload, "before"), (payload, "after"))
        )
        record.operation, record.key, record.before, record.after = operation, key, before, after
        _METADATA.set(record, {name: nested(value) for name, value in metadata.items()})

    def _data(self, holder: dict[str, Any], name: str) -> Data:
        value = holder.get(name)
        if value is None or isinstance(value, dict):
            return value
        if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except binascii.Error as error:
                raise self._error(f"{name} is raw data and must be base64: {error}") from None
        raise self._error(f"{name} must be an object or a string")


class UnwrapDebezium(_Unwrap):
    """A Debezium event: its operation, before and after; `source` and the rest become metadata, which replace metadata
    of the same name."""

    spec = Spec("unwrap.debezium", "Unwraps a Debezium event from a field.", _FIELD)

    _OPERATIONS = {"c": "create", "u": "update", "d": "delete", "r": "snapshot", "$unset": "update"}  # noqa: RUF012

    def _unwrap(self, record: Record, wrapped: dict[str, Any]) -> None:
        event = self._payload(wrapped)
        missing = [name for name in ("after", "source", "op") if name not in event]
        if missing:
            raise self._error(f"the event has no {', '.join(missing)}")
        operation = self._OPERATIONS.get(event["op"]) if isinstance(event["op"], str) else None
        if operation is None:
            raise self._error(f"{event['op']!r} is no Debezium operation (c, u, d, r, $unset)")
        metadata: dict[str, str] = {}
        for name, value in event.items():
            if name == "ts_ms" and value is not None:
                if not isinstance(value, int | float):
                    raise self._error(f"ts_ms is {value!r}, not a number")
                metadata["opencdc.readAt"] = str(int(value) * 1_000_000)
            elif name not in ("after", "before", "op", "source", "ts_ms"):
                _flatten(f"debezium.{name}", value, metadata)
        _flatten("", event["source"], metadata)
        before, after = self._data(event.get("before"), "before"), self._data(event["after"], "after")
        record.key = _unwrapped_key(record.key)
        record.operation, record.before, record.after = operation, before, after
        record.metadata.update(metadata)

    def _data(self, value: Any, name: str) -> Data:
        if value is None or isinstance(value, dict):
            return value
        if isinstance(value, str):
            return value.encode()
        raise self._error(f"{name} must be an object or a string, not {type(value).__name__}")


class UnwrapKafkaConnect(_Unwrap):
    """A Kafka Connect record with its schema: the payload becomes the payload after, the operation create."""

    spec = Spec("unwrap.kafkaconnect", "Unwraps a Kafka Connect record from a field.", _FIELD)

    def _unwrap(self, record: Record, wrapped: dict[str, Any]) -> None:
        record.after = self._payload(wrapped)
        record.key = _unwrapped_key(record.key)
        record.before, record.operation = None, "create"


def _flatten(key: str, value: Any, into: dict[str, str]) -> None:
    """Adds nested maps to `into` under `a.b` names; nulls are left out."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _flatten(f"{key}.{name}" if key else name, inner, into)
    elif value is not None:
        into[key] = nested(value)


def _unwrapped_key(key: Data) -> Data:
    """Returns the key's `payload` if it has one, otherwise the key: it need not be wrapped."""
    wrapped: Any = key
    if isinstance(key, bytes):
        try:
            wrapped = jsons.loads(key)
        except jsons.JSONDecodeError:
            return key
    if not isinstance(wrapped, dict) or "payload" not in wrapped:
        return key
    payload = wrapped["payload"]
    return payload if isinstance(payload, dict) else nested(payload).encode()
