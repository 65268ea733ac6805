"""`json.decode`, `json.encode`, `base64.decode`, `base64.encode`: one field in, the same field out."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.field import data_reference, reference
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record
from conduit_tasks.templates.values import nested


class _FieldProcessor(RecordProcessor):
    """Changes the value of `field`; absent and null values stay as they are."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        name = self.spec.name
        if name.startswith("json."):
            self._field = data_reference(name, "field", self.settings["field"])
        else:
            self._field = reference(name, "field", self.settings["field"])
            if self._field.root in ("Position", "Operation", "Payload") or self._field.text == ".Metadata":
                raise ConfigError(f"{name}: option 'field': {self._field.text} cannot be encoded")
        self.reads = self.changes = self._field.parts

    def process(self, record: Record) -> Record:
        value = self._field.get(record)
        if value is not None:
            self._field.set(record, self._change(value))
        return record

    def _change(self, value: Any) -> Any:
        raise NotImplementedError

    def _unexpected(self, value: Any) -> RecordError:
        return RecordError(f"{self.spec.name}: {self._field.text} is a {type(value).__name__}, not raw data or text")


class DecodeJson(_FieldProcessor):
    """Raw data or text becomes the value of its JSON; empty becomes null; structured data stays."""

    spec = Spec(
        "json.decode",
        "Decodes a field from JSON into structured data.",
        (Option("field", "the field, under .Key or .Payload", required=True, example=".Payload.After.x"),),
    )

    def _change(self, value: Any) -> Any:
        if isinstance(value, dict):
            return value
        if not isinstance(value, str | bytes):
            raise self._unexpected(value)
        if not value:
            return None
        try:
            return jsons.loads(value)
        except jsons.JSONDecodeError as error:
            raise RecordError(f"json.decode: {self._field.text} is not JSON: {error}") from None


class EncodeJson(_FieldProcessor):
    """The value becomes its JSON: raw data if `field` is the whole key or payload, text inside structured data."""

    spec = Spec(
        "json.encode",
        "Encodes a field as JSON.",
        (Option("field", "the field, under .Key or .Payload", required=True, example=".Payload.After.x"),),
    )

    def _change(self, value: Any) -> Any:
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        return jsons.dumps(value).decode()


class DecodeBase64(_FieldProcessor):
    """Base64 text becomes the data that it encodes."""

    spec = Spec(
        "base64.decode",
        "Decodes a field from base64.",
        (Option("field", "the field; not .Position", required=True, example=".Payload.After.x"),),
    )

    def _change(self, value: Any) -> Any:
        if not isinstance(value, str | bytes):
            raise self._unexpected(value)
        try:
            # Go's decoder passes over line ends, which encoders put into long values.
            clean = value.translate({13: None, 10: None}) if isinstance(value, str) else value.translate(None, b"\r\n")
            return base64.b64decode(clean, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RecordError(f"base64.decode: {self._field.text} is not base64: {error}") from None


class EncodeBase64(_FieldProcessor):
    """Raw data, text, numbers and booleans become base64 text."""

    spec = Spec(
        "base64.encode",
        "Encodes a field as base64.",
        (Option("field", "the field; not .Position", required=True, example=".Payload.After.x"),),
    )

    def _change(self, value: Any) -> Any:
        if isinstance(value, dict | list):
            raise self._unexpected(value)
        raw = value if isinstance(value, bytes) else nested(value).encode()
        return base64.b64encode(raw).decode()
