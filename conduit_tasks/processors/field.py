"""`field.set`, `field.rename`, `field.exclude`: Conduit's processors of fields, with its parameters."""

from __future__ import annotations

from collections.abc import Mapping

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.record.fields import FieldRef, parse
from conduit_tasks.record.parts import NOTHING
from conduit_tasks.record.record import Record
from conduit_tasks.templates import template


def reference(plugin: str, option: str, text: str) -> FieldRef:
    """Returns the field reference given as `option`. Raises ConfigError that names the option."""
    try:
        return parse(text.strip())
    except ConfigError as error:
        raise ConfigError(f"{plugin}: option {option!r}: {error}") from None


def data_reference(plugin: str, option: str, text: str) -> FieldRef:
    """Returns the same as `reference`, for a field under .Key or .Payload: only these can hold structured data."""
    field = reference(plugin, option, text)
    if field.root not in ("Key", "Payload.Before", "Payload.After"):
        raise ConfigError(f"{plugin}: option {option!r}: {text} must lie under .Key, .Payload.Before or .Payload.After")
    return field


class SetField(RecordProcessor):
    """`field` gets the text that the template `value` prints; maps on the way are created."""

    spec = Spec(
        "field.set",
        "Sets a field to the text of a template.",
        (
            Option(
                "field",
                "the field to set, for example .Payload.After.carrier; not .Position",
                required=True,
                example=".Payload.After.x",
            ),
            Option("value", "Go template over the record, for example {{ .Metadata.kind }}", required=True),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._field = reference("field.set", "field", self.settings["field"])
        if self._field.root in ("Position", "Payload"):
            raise ConfigError(f"field.set: option 'field': {self._field.text} cannot be set; name a field below it")
        try:
            self._value = template.compile(self.settings["value"])
        except ConfigError as error:
            raise ConfigError(f"field.set: option 'value': {error}") from None
        self.changes = self._field.parts
        self.reads = self.changes | self._value.reads

    def process(self, record: Record) -> Record:
        constant = self._value.constant
        self._field.set(record, self._value.render(record) if constant is None else constant)
        return record


class RenameFields(RecordProcessor):
    """The last part of each field of `mapping` gets a new name; a field that is absent stays so."""

    spec = Spec(
        "field.rename",
        "Renames fields.",
        (
            Option(
                "mapping",
                "field:new name, comma-separated, for example .Metadata.key:id,.Payload.After.foo:bar",
                required=True,
                example=".Payload.After.x:y",
            ),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._mapping: list[tuple[FieldRef, str]] = []
        for pair in comma_separated(self.settings["mapping"]):
            old, colon, new = pair.rpartition(":")
            if not colon or not old.strip() or not new.strip():
                raise ConfigError(f"field.rename: option 'mapping': {pair!r} is not of the form .Payload.After.foo:bar")
            field = reference("field.rename", "mapping", old)
            if not field.path:
                raise ConfigError(f"field.rename: option 'mapping': {field.text} is a part of every record")
            self._mapping.append((field, new.strip()))
        self.reads = self.changes = NOTHING.union(*(field.parts for field, _ in self._mapping))

    def process(self, record: Record) -> Record:
        for field, name in self._mapping:
            field.rename(record, name)
        return record


class ExcludeFields(RecordProcessor):
    """`fields` are removed with everything below them."""

    spec = Spec(
        "field.exclude",
        "Removes fields.",
        (
            Option(
                "fields",
                "comma-separated, for example .Metadata.key,.Payload.After.foo; not .Position or .Operation",
                required=True,
                example=".Payload.After.x",
            ),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        texts = comma_separated(self.settings["fields"])
        self._fields = [reference("field.exclude", "fields", text) for text in texts]
        for field in self._fields:
            if field.root in ("Position", "Operation"):
                raise ConfigError(f"field.exclude: option 'fields': {field.text} is a part of every record")
        self.reads = self.changes = NOTHING.union(*(field.parts for field in self._fields))

    def process(self, record: Record) -> Record:
        for field in self._fields:
            field.delete(record)
        return record


def comma_separated(text: str) -> list[str]:
    """Returns the parts of a comma-separated option; commas within quoted names (`["a,b"]`) do not separate."""
    parts, quoted, start = [], False, 0
    for at, character in enumerate(text):
        if character == '"' and text[at - 1 : at] != "\\":
            quoted = not quoted
        elif character == "," and not quoted:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]
