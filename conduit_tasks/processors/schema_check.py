"""`schema.check` (ours): quarantines records that drifted from their schema: they are nacked with the error class
`schema`, so that the dead letters hold them whole, apart from other failures.

`type: json` is JSON Schema (draft by its `$schema`, 2020-12 without one; formats are asserted); it may refer only into
itself: nothing is fetched. `type: avro` is an Avro schema; a field that it does not have, or that is absent without a
default, is drift too.

A large value, or a deep one by a schema that contains itself, may have more ways to be wrong than can be looked
through: then the error says that it is wrong, but not where. One that Avro's alternatives offer too many ways to read
is drift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, SchemaDrift
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.field import data_reference
from conduit_tasks.processors.schema_work import Counted, TooMuchWork, Ways
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record
from conduit_tasks.settings import settings as installation

LENGTH = 300
"""Characters of a finding that a message keeps."""

Check = Callable[[Any], str | None]
"""A function that returns the fault of a value; None: no fault."""


class SchemaCheck(RecordProcessor):
    """See the module."""

    spec = Spec(
        "schema.check",
        "Quarantines records that drifted from a JSON Schema or an Avro schema.",
        (
            Option("field", "what is checked; raw data is read as JSON", default=".Payload.After"),
            Option("type", "json or avro", default="json", choices=("json", "avro")),
            Option("schema", "the schema, JSON"),
            Option("schema.path", "a file with it, relative to the home folder; one of the two is required"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._field = data_reference("schema.check", "field", self.settings["field"])
        self.reads = self._field.parts
        schema = self._schema()
        self._check = _json_check(schema) if self.settings["type"] == "json" else _avro_check(schema)

    def process(self, record: Record) -> Record:
        value = self._field.get(record)
        if isinstance(value, bytes):
            try:
                value = jsons.loads(value)
            except jsons.JSONDecodeError as error:
                raise SchemaDrift(f"schema.check: {self._field.text} is not JSON: {error}") from None
        wrong = self._check(value)
        if wrong is not None:
            raise SchemaDrift(f"schema.check: {self._field.text}{wrong[:LENGTH]}")
        return record

    def _schema(self) -> Any:
        text, path = self.settings.get("schema", "").strip(), self.settings.get("schema.path", "").strip()
        if bool(text) == bool(path):
            raise ConfigError("schema.check: give exactly one of the options 'schema' and 'schema.path'")
        where = "option 'schema'"
        if path:
            file = Path(installation().path(path))
            where = f"option 'schema.path': {file}"
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"schema.check: {where} cannot be read: {error}") from None
        try:
            return jsons.loads(text)
        except jsons.JSONDecodeError as error:
            raise ConfigError(f"schema.check: {where} is not JSON: {error}") from None


def _json_check(schema: Any) -> Check:
    import jsonschema_rs

    try:
        validator = jsonschema_rs.validator_for(schema, validate_formats=True, offline=True)
    except (ValueError, TypeError, jsonschema_rs.ReferencingError) as error:
        raise ConfigError(f"schema.check: option 'schema' is no JSON Schema: {str(error).splitlines()[0]}") from None

    ways = Ways(schema)

    def check(value: Any) -> str | None:
        if validator.is_valid(value):
            return None
        if not ways.explainable(value):
            return ": it does not match the schema; there are too many ways to look for where"
        try:
            validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            at = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
            return f"{at}: {error.message}"
        return ": it does not match the schema"

    return check


def _avro_check(schema: Any) -> Check:
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        parsed = fastavro.parse_schema(schema)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"schema.check: option 'schema' is no Avro schema: {type(error).__name__}: {error}") from None

    counted = Counted(parsed)

    def check(value: Any) -> str | None:
        unknown = _unknown_fields(value, parsed)
        if unknown:
            return f": the schema has no field {', '.join(unknown)}"
        try:
            if fastavro.validate(counted.value(value), parsed, raise_errors=False):
                return None
            if not counted.explainable(value):
                return ": it does not match the schema; there are too many ways to look for where"
            fastavro.validate(value, parsed)
        except TooMuchWork as error:
            return f": {error}"
        except fastavro.validation.ValidationError as error:
            return f": {' '.join(str(error).split())}"
        return ": it does not match the schema"

    return check


def _unknown_fields(value: Any, schema: Any) -> list[str]:
    """Returns names of top-level fields that the schema does not have; Avro itself drops them silently."""
    if not isinstance(value, dict) or not isinstance(schema, dict) or schema.get("type") != "record":
        return []
    known = {field["name"] for field in schema["fields"]}
    return sorted(name for name in value if name not in known)
