"""A section's record-wise processors in one pass over its records: conditions, derived records, nacks; and how
processors over DataFrames cut a section."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from conduit_tasks.errors import ConduitError, ConfigError, RecordError, Unwritable
from conduit_tasks.processors import registry
from conduit_tasks.processors.base import FrameProcessor, RecordProcessor
from conduit_tasks.processors.derived import Derived
from conduit_tasks.processors.many import ManyProcessor, by_level
from conduit_tasks.processors.result import FILTERED, NACKED, Result
from conduit_tasks.record.faults import value_fault
from conduit_tasks.record.parts import EVERYTHING, NOTHING, Parts
from conduit_tasks.record.record import Record
from conduit_tasks.templates import template
from conduit_tasks.topology import Processor

Condition = Callable[[Record], bool]
_Step = tuple[Condition | None, Callable[[Record], Any], str]


class Chain:
    """The processors of a section, built once per executor; raises ConfigError that names the processor and its option.

    `run` changes the records it is given: a caller that needs one as it came in (a nacked one, C14) keeps its row.
    """

    def __init__(self, processors: Sequence[Processor]) -> None:
        self._processors: list[RecordProcessor] = []
        self._steps: list[_Step] = []
        reads = changes = NOTHING
        for each in processors:
            built = registry.build(each)
            if isinstance(built, FrameProcessor):
                raise ConfigError(
                    f"processor {each.id}: {each.plugin} sees all records at once; it is no record's step"
                )
            self._processors.append(built)
            try:
                condition = template.compile(each.condition).condition if each.condition else None
            except ConfigError as error:
                raise ConfigError(f"processor {each.id}: condition: {error}") from None
            self._steps.append((condition, built.process, each.id))
            if condition is not None:
                reads |= template.compile(each.condition or "").reads
            reads |= EVERYTHING if built.reads is None else built.reads
            changes |= EVERYTHING if built.reads is None else built.changes
        self.many = any(isinstance(each, ManyProcessor) for each in self._processors)
        """Whether a processor takes several records at a time: only `levels` then bounds what is made."""
        self.reads: Parts = reads | changes
        """The parts of a record that the chain looks at or changes."""
        self.changes: Parts = changes
        """The parts that it may change."""
        self.columnar = not self.many and all(built.reads is not None for built in self._processors)
        """Whether every processor declares what it looks at, and so can run over columns (`processors.columns`)."""

    def run(self, records: Sequence[Record], enough: int | None = None) -> list[Result]:
        """Returns one result per record, in order. With `enough`, it may end after a record with which the derived ones
        have more bytes than that: see `derived.in_parts`.

        A record that stays one keeps its ordinal; derived ones get 0, 1, … in the order in which the whole chain
        made them. An exception of a processor nacks its record alone, except errors of ours that concern more than
        one record. Derived records are nacked together: they share the position.
        """
        if self.many:
            return [result for results in self.levels(list(records), None) for result in results]
        results: list[Result] = []
        append = results.append
        through = self.through
        used = 0
        for record in records:
            made = through(record)
            if made.__class__ is Record:
                append(Result((made,)))
            elif made is None:
                append(FILTERED)
            elif made.__class__ is Derived:
                append(Result(made))
                used += made.bytes
                if enough is not None and used > enough:
                    break
            else:
                append(made)
        return results

    def levels(self, records: list[Record], enough: int | None) -> Iterator[list[Result]]:
        """Yields the same results, of some records after the others, and empties `records`: see `many.by_level`."""
        steps = [(condition, built, id) for (condition, _, id), built in zip(self._steps, self._processors)]
        return by_level(steps, records, enough)

    def through(self, record: Record) -> Any:
        """Takes one record through all steps. Returns the record, a list of derived ones (never empty), None if it is
        filtered, or the `Result` of a failure. See `run`."""
        current: Any = record
        step_id = ""
        try:
            for step in self._steps:
                condition, process, step_id = step
                if condition is not None and not condition(current):
                    continue
                current = process(current)
                if current.__class__ is not Record:
                    return None if current is None else self._derived(current, self._steps.index(step)) or None
        except RecordError as error:
            return Result.failure(str(error), error.error_class, step_id)
        except _Failed as failed:
            return Result.failure(failed.message, failed.error_class, failed.step)
        except ConduitError:
            raise
        except Exception as error:  # noqa: BLE001 - a processor's own failure is the record's (C4)
            return Result.failure(f"{type(error).__name__}: {error}", NACKED, step_id)
        return current

    def unwritable(self, why: str) -> Result:
        """Returns the failure of a record whose changed value cannot be written."""
        return Result.failure(why, Unwritable.error_class, self._steps[-1][2] if self._steps else None)

    def writable(self, result: Result) -> Result:
        """Returns the result, or a failure if one of its records cannot be written."""
        for record in result.records:
            for part in self.changes:
                why = value_fault(part, getattr(record, part))
                if why is not None:
                    return self.unwritable(f"{part}: {why}")
        return result

    def close(self) -> None:
        """Closes every processor."""
        for each in self._processors:
            each.close()

    def _derived(self, made: Any, place: int) -> Derived:
        """Takes the records that the step in this place made through all later steps, level by level; numbers them at
        the end. Raises Unwritable and _Failed."""
        if not isinstance(made, list):
            raise RecordError(f"a record, a list of records or None was expected, not {type(made).__name__}")
        records = Derived(made, self._steps[place][2])
        for condition, process, step_id in self._steps[place + 1 :]:
            following = Derived((), records.step)
            for record in records:
                try:
                    made = process(record) if condition is None or condition(record) else record
                    if isinstance(made, list):
                        following.step = step_id
                        following.take(made)
                    elif made is not None:
                        following.take((made,))
                except RecordError as error:
                    raise _Failed(str(error), step_id, error.error_class) from None
                except ConduitError:
                    raise
                except Exception as error:
                    raise _Failed(f"{type(error).__name__}: {error}", step_id) from error
            records = following
        for ordinal, record in enumerate(records):
            record.ordinal = ordinal
        return records


class _Failed(Exception):
    """Failure of a derived record at `step`."""

    def __init__(self, message: str, step: str, error_class: str = NACKED) -> None:
        super().__init__(message)
        self.message, self.step, self.error_class = message, step, error_class


def has_frames(section: Sequence[Processor]) -> bool:
    """Returns whether any processor of the section sees the micro-batch as a DataFrame."""
    return any(map(registry.is_frame, section))


def segments(section: Sequence[Processor]) -> list[tuple[Processor, ...] | FrameProcessor]:
    """Splits the section into groups of record-wise processors (for a `Chain`) and frame processors, in order."""
    out: list[tuple[Processor, ...] | FrameProcessor] = []
    for frame, run in groupby(section, key=registry.is_frame):
        if frame:
            out.extend(registry.build(each) for each in run)  # type: ignore[misc]
        else:
            out.append(tuple(run))
    return out
