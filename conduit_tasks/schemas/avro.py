"""Avro schemas, parsed; and decoded values, as JSON can hold them."""

from __future__ import annotations

import base64
from datetime import date, datetime, time, timedelta
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.record import jsons


def parsed_schema(text: str) -> Any:
    """Returns a schema as fastavro takes it. Raises ConfigError if the text is none."""
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        return fastavro.parse_schema(jsons.loads(text))
    except (SchemaParseException, UnknownType, jsons.JSONDecodeError) as error:
        raise ConfigError(f"a schema of the registry is no Avro schema: {error}; register it again") from None


def json_value(value: Any) -> Any:  # noqa: PLR0911 - one line per type
    """Converts a decoded Avro value into one that JSON can hold."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {name: json_value(each) for name, each in value.items()}
        case list():
            return [json_value(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
    return str(value)
