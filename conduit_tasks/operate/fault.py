"""The expression at fault where a processor fails: which of its keys, the text, and the place in that text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.record.record import Record
from conduit_tasks.templates import template
from conduit_tasks.topology import Processor

_PLACE = re.compile(r"line (\d+), column (\d+)")
_COLUMN = re.compile(r"column (\d+)")
_SCRIPT = re.compile(r"<input>:(\d+)(?::(\d+))?")


@dataclass(frozen=True)
class Fault:
    """`key`: `condition`, `settings.<name>` or `trigger.filters[n]` of the file; `line` and `column` in the expression,
    both from 1; None: not known."""

    key: str
    expression: str
    line: int | None = None
    column: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {"key": self.key, "expression": self.expression, "line": self.line, "column": self.column}


def fault_of(processor: Processor, records: Iterable[Record], message: str) -> Fault | None:
    """Returns the expression by which the processor fails on one of these records, with this message; None if it is
    none: the processor itself failed."""
    some = list(records)
    if processor.condition and _fails(processor.condition, some):
        return _fault("condition", processor.condition, message)
    for name, value in processor.settings.items():
        if name == "script" and (found := _SCRIPT.search(message)):
            return Fault("settings.script", value, int(found[1]), int(found[2]) if found[2] else None)
        # Templates and references are quoted by the errors that they raise.
        if "{{" in value and (f"template {value!r}" in message or _fails(value, some)):
            return _fault(f"settings.{name}", value, message)
    for name, value in processor.settings.items():
        for part in value.split(","):
            text = part.partition(":")[0].strip() if part.strip().startswith(".") else ""
            if text and text in message:
                column = value.find(text) + 1
                return Fault(f"settings.{name}", value, 1, column)
    named = re.search(r"option '([^']+)'", message)
    if named and named[1] in processor.settings:
        return _fault(f"settings.{named[1]}", processor.settings[named[1]], message)
    # A statement is all that this processor has.
    query = processor.settings.get("query") if processor.plugin == "sql" else None
    return None if query is None else Fault("settings.query", query)


def _fault(key: str, expression: str, message: str) -> Fault:
    if found := _PLACE.search(message):
        return Fault(key, expression, int(found[1]), int(found[2]))
    found = _COLUMN.search(message)
    return Fault(key, expression, 1 if found else None, int(found[1]) if found else None)


def _fails(text: str, records: list[Record]) -> bool:
    """Returns whether a template cannot be compiled, or fails on one of the records."""
    try:
        compiled = template.compile(text)
        for record in records:
            compiled.render(record)
    except (ConfigError, RecordError):
        return True
    return False
