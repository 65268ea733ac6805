"""`filter` and `error`: filter or nack records, usually under a `condition`."""

from __future__ import annotations

from collections.abc import Mapping

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.record.parts import NOTHING
from conduit_tasks.record.record import Record
from conduit_tasks.templates import template


class Filter(RecordProcessor):
    """Filters every record it sees, which acks it (SEMANTICS C4)."""

    spec = Spec("filter", "Filters every record that meets its condition, which acks it.")
    reads = NOTHING

    def process(self, record: Record) -> None:
        return None


class Error(RecordProcessor):
    """Nacks every record it sees, with the text of `message`."""

    spec = Spec(
        "error",
        "Nacks every record that meets its condition.",
        (Option("message", "Go template over the record", default="error processor triggered"),),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        try:
            self._message = template.compile(self.settings["message"])
        except ConfigError as error:
            raise ConfigError(f"error: option 'message': {error}") from None
        self.reads = self._message.reads

    def process(self, record: Record) -> Record:
        raise RecordError(self._message.render(record))
