"""`clone` and `split`: one record becomes several, which share its position; it is acked when all of them are."""

from __future__ import annotations

from collections.abc import Mapping

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.derived import check_room
from conduit_tasks.processors.field import data_reference
from conduit_tasks.record.record import Record, copy_data


class Clone(RecordProcessor):
    """`count` + 1 equal records, told apart by metadata `clone.index` (from 0)."""

    spec = Spec(
        "clone",
        "Clones records.",
        (Option("count", "how many clones beside the record itself, above 0", required=True, example="1"),),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        text = self.settings["count"].strip()
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise ConfigError(f"clone: option 'count' must be a whole number above 0, not {text!r}")
        self._count = int(text)
        self.reads = self.changes = frozenset({"metadata"})

    def process(self, record: Record) -> list[Record]:
        check_room(record, self._count + 1)
        records = [record, *(record.copy() for _ in range(self._count))]
        for i, each in enumerate(records):
            each.metadata["clone.index"] = str(i)
        return records


class Split(RecordProcessor):
    """A record per element of the array `field`, which becomes that element; metadata `split.index` (from 0)."""

    spec = Spec(
        "split",
        "Splits records by an array.",
        (Option("field", "an array under .Key or .Payload", required=True, example=".Payload.After.x"),),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._field = data_reference("split", "field", self.settings["field"])
        self.reads = self.changes = self._field.parts | {"metadata"}

    def process(self, record: Record) -> list[Record]:
        elements = self._field.get(record)
        if not isinstance(elements, list):
            raise RecordError(f"split: {self._field.text} is {type(elements).__name__}, not an array")
        # The array goes first, so that it is not copied once per element.
        self._field.set(record, None)
        check_room(record, len(elements))
        records = []
        for i, element in enumerate(elements):
            each = record.copy()
            self._field.set(each, copy_data(element))
            each.metadata["split.index"] = str(i)
            records.append(each)
        return records
