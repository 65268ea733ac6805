"""What a processor is.

Record-wise processors of a section run as one chain in one pass (`conduit_tasks.processors.chain`); frame
processors (`sql`, a `python` function over DataFrames) see the whole micro-batch as a Spark DataFrame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from conduit_tasks.connectors.base import Listener, Spec
from conduit_tasks.record.fields import NOTHING, Parts
from conduit_tasks.record.record import Record


class RecordProcessor(Listener):
    """Sees one record at a time. Built once per chain and executor; settings are checked in the constructor."""

    spec: ClassVar[Spec]
    reads: Parts | None = None
    """What `process` looks at or changes, where that is known; None: anything. Nothing else is made of a row then."""
    changes: Parts = NOTHING
    """What of it `process` may change; counts where `reads` is known. Derived records may differ in these only."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = self.spec.check(settings)

    def process(self, record: Record) -> Record | list[Record] | None:
        """The record (may be changed in place), several derived ones, or None: filtered, which acks it (C4).

        Raises RecordError: the record is nacked alone, with the message.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Leaves nothing open."""


class FrameProcessor(Listener):
    """Sees the whole micro-batch. `apply` gets and returns a DataFrame that keeps `_id` (see processors/sql.py)."""

    spec: ClassVar[Spec]
    id: str = ""
    """In the pipeline file."""
    condition: str | None = None
    """Go template; rows of records that it does not hold for pass by, untouched."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = self.spec.check(settings)

    def apply(self, spark: Any, frame: Any) -> Any:
        raise NotImplementedError
