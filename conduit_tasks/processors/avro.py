"""`avro.decode`, `avro.encode`: structured data to Avro and back, in Confluent's wire format.

The format is a zero byte, the schema's id in four bytes (big-endian), the data. Schemas come from a registry
(`processors.registry_client`) and are kept as long as the chain lives. A registry that cannot be reached stops the
task and nacks nothing. Data that would be larger or deeper than a record may be is not decoded (`schemas.bound`).
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.processors.avro_infer import infer
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.field import data_reference
from conduit_tasks.processors.registry_client import OPTIONS, check_options, open_registry
from conduit_tasks.processors.schema_work import Counted
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record
from conduit_tasks.schemas.avro import json_value, parsed_schema
from conduit_tasks.schemas.registry import SchemaRegistry

if TYPE_CHECKING:
    from conduit_tasks.schemas.bound import Bound

HEAD = 5
_FIELD = Option("field", "the field, under .Key or .Payload", default=".Payload.After")


class _Avro(RecordProcessor):
    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        check_options(self.spec.name, self.settings)
        self._field = data_reference(self.spec.name, "field", self.settings["field"])
        self._opened: SchemaRegistry | None = None
        self._pid = 0

    @classmethod
    def asks(cls, settings: Mapping[str, str]) -> str:
        return "asks the schema registry"

    def _registry(self) -> SchemaRegistry:
        """Returns the registry, opened at the first record; a forked child opens its own."""
        if self._opened is None or self._pid != os.getpid():
            self._opened, self._pid = open_registry(self.settings), os.getpid()
        return self._opened

    def _error(self, reason: str) -> RecordError:
        return RecordError(f"{self.spec.name}: {self._field.text}: {reason}")

    def close(self) -> None:
        if self._opened is not None and self._pid == os.getpid():
            self._opened.close()
        self._opened = None


class DecodeAvro(_Avro):
    """Raw data becomes structured data. Bytes become base64 text, times RFC 3339, decimals text, as JSON has none.

    Data that would be larger or nested deeper than a record may be fails undecoded, however few bytes it has.
    """

    spec = Spec("avro.decode", "Decodes a field from Avro into structured data.", (_FIELD, *OPTIONS))

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._schemas: dict[int, tuple[Any, Bound]] = {}

    def process(self, record: Record) -> Record:
        raw = self._field.get(record)
        if isinstance(raw, str):
            raw = raw.encode()
        if not isinstance(raw, bytes):
            raise self._error(f"it is {type(raw).__name__}, not raw data")
        if len(raw) < HEAD or raw[0] != 0:
            raise self._error("it does not begin with a zero byte and a schema id (Confluent's wire format)")
        id = int.from_bytes(raw[1:HEAD], "big")
        import fastavro

        from conduit_tasks.schemas.bound import Beyond, Bound

        known = self._schemas.get(id)
        if known is None:
            parsed = parsed_schema(self._registry().by_id(id))
            known = self._schemas[id] = (parsed, Bound(parsed))
        schema, bound = known
        try:
            bound.check(raw, HEAD)
        except Beyond as error:
            raise self._error(f"by schema {id} {error}") from None

        stream = io.BytesIO(raw)
        stream.seek(HEAD)
        try:
            value = fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:  # noqa: BLE001 - broken data makes the decoder fail in many ways
            raise self._error(f"it is not of schema {id}: {type(error).__name__}: {error}") from None
        if stream.tell() != len(raw):
            raise self._error(f"it goes on after the data of schema {id}")
        self._field.set(record, json_value(value))
        return record


class EncodeAvro(_Avro):
    """Structured data, or raw data that is a JSON object, becomes raw data."""

    spec = Spec(
        "avro.encode",
        "Encodes a field into Avro.",
        (
            _FIELD,
            Option(
                "schema.strategy",
                "preRegistered: a schema of the registry; autoRegister: inferred from each record and registered",
                required=True,
                choices=("preRegistered", "autoRegister"),
            ),
            Option("schema.preRegistered.subject", "with preRegistered: the schema's subject"),
            Option("schema.preRegistered.version", "with preRegistered: its version there"),
            Option("schema.autoRegister.subject", "with autoRegister: where schemas are registered"),
            *OPTIONS,
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        self._fixed = s["schema.strategy"] == "preRegistered"
        option = "schema.preRegistered.subject" if self._fixed else "schema.autoRegister.subject"
        self._subject = s.get(option, "").strip()
        if not self._subject:
            raise ConfigError(f"avro.encode: option '{option}' is missing")
        if self._fixed:
            s.setdefault("schema.preRegistered.version", "")
            self._version = options.integer(s, "schema.preRegistered.version", least=1)
        self._found: tuple[bytes, Any, Counted] | None = None
        self._registered: dict[bytes, tuple[bytes, Any, Counted]] = {}

    def process(self, record: Record) -> Record:
        data = self._structured(self._field.get(record))
        head, schema, counted = self._schema(data)
        import fastavro

        stream = io.BytesIO()
        stream.write(head)
        try:
            fastavro.schemaless_writer(stream, schema, counted.value(data))
        except Exception as error:  # noqa: BLE001 - data that does not fit makes the encoder fail in many ways
            raise self._error(f"it is not of the schema {self._subject}: {type(error).__name__}: {error}") from None
        if self._field.path:
            raise self._error("Avro is bytes, which structured data cannot hold")
        self._field.set(record, stream.getvalue())
        return record

    def _structured(self, value: Any) -> dict[str, Any]:
        if isinstance(value, str | bytes):
            try:
                value = jsons.loads(value) if value else {}
            except jsons.JSONDecodeError as error:
                raise self._error(f"it is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise self._error(f"it is {type(value).__name__}, not structured data")
        return value

    def _schema(self, data: dict[str, Any]) -> tuple[bytes, Any, Counted]:
        """Returns the wire format's head, the schema, and what counts the work of values of it."""
        if self._fixed:
            if self._found is None:
                id, text = self._registry().by_version(self._subject, self._version)
                self._found = _written_by(id, text)
            return self._found
        canonical = jsons.dumps(infer(data))
        known = self._registered.get(canonical)
        if known is None:
            id = self._registry().register(self._subject, canonical.decode())
            known = self._registered[canonical] = _written_by(id, canonical.decode())
        return known


def _written_by(id: int, text: str) -> tuple[bytes, Any, Counted]:
    parsed = parsed_schema(text)
    return b"\0" + id.to_bytes(4, "big"), parsed, Counted(parsed)
