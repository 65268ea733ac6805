"""Values of the pipeline file's keys: durations, sizes, rates, ids, and settings as flat text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.names import ID_PATTERN
from conduit_tasks.record.units import parse_duration, parse_per, parse_rate, parse_size

MOST_TASKS = 64
"""Tasks that deliver one micro-batch to a destination, at most: all shards have their state in one hash of Redis."""


def reads(parse: Callable[[Any], Any]) -> BeforeValidator:
    """Returns a validator that parses a value; its ConfigError becomes an error of the key."""

    def validate(value: Any) -> Any:
        try:
            return parse(value)
        except ConfigError as error:
            raise PydanticCustomError("conduit", "{message}", {"message": str(error)}) from None

    return BeforeValidator(validate)


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Returns settings in Conduit's form: dotted names and text. Maps nest names, lists of scalars join by comma, lists
    of maps count (`a.0.b`). Raises ConfigError if two spellings give the same name, or `value` is no map."""
    if not isinstance(value, dict):
        raise ConfigError("settings must be a map of names to values")
    out: dict[str, str] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        nested = item
        if isinstance(item, list) and any(isinstance(part, dict | list) for part in item):
            nested = {str(n): part for n, part in enumerate(item)}
        part = flatten(nested, f"{name}.") if isinstance(nested, dict) else {name: _text(item)}
        twice = sorted(out.keys() & part.keys())
        if twice:
            raise ConfigError(f"the setting '{twice[0]}' is given twice, once nested and once dotted; remove one")
        out.update(part)
    return out


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_text(part) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def as_list(value: Any) -> Any:
    """Returns an empty list for a key without a value."""
    return [] if value is None else value


def as_words(value: Any) -> Any:
    """Returns a text alone as a list of it."""
    return [value] if isinstance(value, str) else value


def as_tasks(value: Any) -> int | str:
    """Returns a number of tasks, or `auto`. Raises ConfigError."""
    if value == "auto":
        return "auto"
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= MOST_TASKS:
        raise ConfigError(f"tasks are a whole number, more than 0 and {MOST_TASKS} at most, or auto; not '{value}'")
    return int(text)


Duration = Annotated[
    float,
    reads(parse_duration),
    WithJsonSchema({"type": "string", "examples": ["200ms", "10s", "1h30m", "PT0.2S"]}),
]

Size = Annotated[
    int,
    reads(parse_size),
    Field(gt=0),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["256MiB", "10MB", 1048576]}),
]

Rate = Annotated[
    float,
    reads(parse_rate),
    WithJsonSchema({"type": ["string", "number"], "examples": [100, "100/s", "6000/m"]}),
]

Per = Annotated[
    tuple[int, float],
    reads(parse_per),
    WithJsonSchema({"type": "string", "examples": ["5/h", "100/30m"]}),
]

Tasks = Annotated[
    int | Literal["auto"],
    reads(as_tasks),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_TASKS}, {"const": "auto"}]}),
]

Settings = Annotated[dict[str, str], reads(flatten), WithJsonSchema({"type": "object"})]

Id = Annotated[str, Field(pattern=f"^{ID_PATTERN}$")]

Count = Annotated[int, Field(ge=0)]

Positive = Annotated[int, Field(gt=0)]
