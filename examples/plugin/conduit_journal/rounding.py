"""`number.round`: a processor that looks at one record at a time."""

from __future__ import annotations

from collections.abc import Mapping

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import RecordError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.record.fields import parse
from conduit_tasks.record.record import Record


class Round(RecordProcessor):
    """A field that is absent stays absent; one that is no number nacks its record."""

    spec = Spec(
        "number.round",
        "Rounds a number.",
        (
            Option("field", "the field, for example .Payload.After.amount", required=True),
            Option("digits", "digits after the point", default="0"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._digits = options.integer(self.settings, "digits")
        self._field = parse(self.settings["field"])
        # Nothing else is taken apart for it, and nothing else is written again.
        self.reads = self.changes = self._field.parts

    def process(self, record: Record) -> Record:
        value = self._field.get(record)
        if value is None:
            return record
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RecordError(f"number.round: {self.settings['field']} is no number: {value!r}")
        self._field.set(record, round(value, self._digits))
        return record
