"""The interfaces of processors: `RecordProcessor` and `FrameProcessor`.

Record-wise processors of a section run as one chain in one pass (`conduit_tasks.processors.chain`); frame
processors (`sql`, a `python` function over DataFrames) see the whole micro-batch as a Spark DataFrame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from conduit_tasks.connectors.base import Listener, Spec
from conduit_tasks.record.parts import NOTHING, Parts
from conduit_tasks.record.record import Record


class RecordProcessor(Listener):
    """A processor of one record at a time. Built once per chain and executor; the constructor checks the settings."""

    spec: ClassVar[Spec]
    reads: Parts | None = None
    """Parts that `process` looks at or changes, if known; None: anything. If known, only these are built from a row."""
    changes: Parts = NOTHING
    """Parts that `process` may change; used only if `reads` is known. Derived records may differ in these only."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = self.spec.check(settings)

    @classmethod
    def asks(cls, settings: Mapping[str, str]) -> str:
        """Returns what it asks over the network, in words ("makes HTTP requests"); "" if it asks nobody. It is left out
        where records are only tried (`conduit records try`)."""
        return ""

    def process(self, record: Record) -> Record | list[Record] | None:
        """Returns the record (may be changed in place), several derived ones, or None: filtered, which acks it (C4).

        Raises RecordError to nack this record alone, with the message.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Closes what the processor opened."""


class FrameProcessor(Listener):
    """A processor of the whole micro-batch. `apply` gets and returns a DataFrame that keeps `_id` (see
    processors/sql.py)."""

    spec: ClassVar[Spec]
    id: str = ""
    """The processor's id in the pipeline file."""
    condition: str | None = None
    """Go template; rows of records for which it is false pass by unchanged."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = self.spec.check(settings)

    def apply(self, spark: Any, frame: Any) -> Any:
        raise NotImplementedError
