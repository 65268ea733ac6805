"""`python`: a function of the user, named `module:function`, over records or over the whole micro-batch.

Record-wise (`mode: record`, the default) it is `f(record) -> record | list of records | None`; None filters. An
exception nacks the record. The record may be changed in place; position and origin stay as they were.

With `mode: frame` it is `f(spark, df) -> df` over the columns of `processors.sql`'s view `records`; the result must
keep `_id` (missing = filtered, repeated = derived), and its other columns of the view are taken over.

The folder that holds `include` is on the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.include import load_function
from conduit_tasks.processors.base import FrameProcessor, RecordProcessor
from conduit_tasks.record.record import Record

SPEC = Spec(
    "python",
    "Calls a Python function per record, or once with a DataFrame.",
    (
        Option("call", "module:function, for example include.enrich:add_region", required=True, example="json:loads"),
        Option("mode", "record: f(record); frame: f(spark, df)", default="record", choices=("record", "frame")),
    ),
)

CALL = "python: option 'call'"


class PythonRecord(RecordProcessor):
    """`f(record)`; see the module."""

    spec = SPEC

    @classmethod
    def variant(cls, settings: Mapping[str, str]) -> type[RecordProcessor] | type[FrameProcessor]:
        """Returns the class for these settings."""
        return PythonFrame if settings.get("mode", "").strip() == "frame" else cls

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._function = load_function(self.settings["call"], CALL)

    def handlers(self) -> Mapping[str, Any]:
        """Returns the attribute `handlers` of the function, if it has one."""
        return getattr(self._function, "handlers", {})

    def process(self, record: Record) -> Record | list[Record] | None:
        position, origin = record.position, record.origin
        result = self._function(record)
        if result is None:
            return None
        records = result if isinstance(result, list) else [result]
        for each in records:
            if not isinstance(each, Record):
                raise RecordError(
                    f"{self.settings['call']} gave a {type(each).__name__}; "
                    "a record, a list of records or None was expected"
                )
            # The position belongs to the source: acks and the record's id depend on it.
            each.position, each.origin = position, origin
        return result


class PythonFrame(FrameProcessor):
    """`f(spark, df)`; see the module."""

    spec = SPEC

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._function = load_function(self.settings["call"], CALL)

    def handlers(self) -> Mapping[str, Any]:
        """Returns the attribute `handlers` of the function, if it has one."""
        return getattr(self._function, "handlers", {})

    def apply(self, spark: Any, frame: Any) -> Any:
        from conduit_tasks.processors import view

        records = view.of(frame, None)
        result = self._function(spark, records)
        if not hasattr(result, "columns"):
            raise ConfigError(
                f"python: {self.settings['call']} gave a {type(result).__name__}; with mode: frame a DataFrame "
                "was expected"
            )
        return view.take_over(f"python: {self.settings['call']}", records, result, same=set(), repeats=True)
