"""Processors of several records at a time: one Redis command serves a whole block, or several requests are under way at
once. The order of records never changes, whatever `workers` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import ConduitError, RecordError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.derived import Derived
from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    from conduit_tasks.processors.chain import Result

Made = Record | list[Record] | None | RecordError
"""Outcome of one record: the return value of `RecordProcessor.process`, or the error that it would raise."""


class ManyProcessor(RecordProcessor):
    """A record processor that gets whole blocks of records from a chain."""

    id: str = ""
    """The processor's id in the pipeline file."""
    section: str = ""
    """The node whose section holds the processor in the pipeline file."""
    workers: int = 1
    """Number of records that may be under way at a time."""

    def process_many(self, records: Sequence[Record]) -> list[Made]:
        """Returns one outcome per record, in order. Raises errors of ours that concern more than one record."""
        raise NotImplementedError

    def process(self, record: Record) -> Record | list[Record] | None:
        [made] = self.process_many([record])
        if isinstance(made, RecordError):
            raise made
        return made


def by_level(steps: Sequence[tuple[Any, RecordProcessor, str]], records: Sequence[Record]) -> list[Result]:
    """Takes all records through one step (condition, processor, id) after the other; results as in `Chain.run`."""
    from conduit_tasks.processors.chain import Result

    current: list[list[Record]] = [[record] for record in records]
    failed: dict[int, Result] = {}
    for condition, processor, step_id in steps:
        places: list[int] = []
        given: list[Record] = []
        following: list[list[Record | None]] = [[] for _ in current]
        for place, row in enumerate(current):
            for record in row:
                try:
                    wanted = condition is None or condition(record)
                except RecordError as error:
                    failed[place] = Result.failure(str(error), error.error_class, step_id)
                    break
                if wanted:
                    places.append(place)
                    given.append(record)
                    following[place].append(None)
                else:
                    following[place].append(record)
        alive = [i for i, place in enumerate(places) if place not in failed]
        made = _made(processor, [given[i] for i in alive])
        answers: dict[int, list[Made]] = {}
        for i, each in zip(alive, made):
            answers.setdefault(places[i], []).append(each)
        for place, passed in enumerate(following):
            if place in failed:
                current[place] = []
                continue
            try:
                current[place] = _merged(passed, iter(answers.get(place, [])), step_id)
            except RecordError as error:
                failed[place] = Result.failure(str(error), error.error_class, step_id)
                current[place] = []
    return [failed.get(place) or Result(_numbered(row, records[place])) for place, row in enumerate(current)]


def _made(processor: RecordProcessor, records: Sequence[Record]) -> list[Made]:
    if isinstance(processor, ManyProcessor):
        return processor.process_many(records) if records else []
    made: list[Made] = []
    for record in records:
        try:
            made.append(processor.process(record))
        except RecordError as error:
            made.append(error)
        except ConduitError:
            raise
        except Exception as error:  # noqa: BLE001 - a processor's own failure is the record's (C4)
            made.append(RecordError(f"{type(error).__name__}: {error}"))
    return made


def _merged(row: list[Record | None], answers: Any, step: str) -> list[Record]:
    """Returns the records of one position after a step, in order: those that the step skipped, and those that it made
    of the others. Raises the error of a record that failed, and Unwritable if they are too many bytes together."""
    out: list[Record] = []
    for each in row:
        made = next(answers) if each is None else each
        if isinstance(made, RecordError):
            raise made
        if isinstance(made, list):
            out.extend(made)
        elif isinstance(made, Record):
            out.append(made)
        elif made is not None:
            raise RecordError(f"a record, a list of records or None was expected, not {type(made).__name__}")
    return Derived(out, step) if len(out) > 1 else out


def _numbered(row: list[Record], origin: Record) -> list[Record]:
    """Numbers derived records 0, 1, …; a record that stayed the same one keeps its ordinal."""
    if not (len(row) == 1 and row[0] is origin):
        for ordinal, record in enumerate(row):
            record.ordinal = ordinal
    return row
