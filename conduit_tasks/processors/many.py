"""Processors of several records at a time: one Redis command serves a whole block, or several requests are under way at
once. The order of records never changes, whatever `workers` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from conduit_tasks.errors import ConduitError, RecordError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.derived import Derived, record_bytes
from conduit_tasks.processors.result import Result
from conduit_tasks.record.record import Record

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
        """Returns one outcome per record, in order: of all, or of the first ones, at least one, that have
        CONDUIT_BATCH_BYTES bytes together; the others are then handed over again. Raises errors of ours that concern
        more than one record."""
        raise NotImplementedError

    def process(self, record: Record) -> Record | list[Record] | None:
        [made] = _answers(self, self.id, [record])
        if isinstance(made, RecordError):
            raise made
        return made


Row = list[Record] | Result
"""State of one record so far: the records that go on, or a failure."""

Step = tuple[Any, RecordProcessor, str]
"""(condition, processor, id)."""


def by_level(steps: Sequence[Step], records: list[Record], enough: int | None = None) -> Iterator[list[Result]]:
    """Takes records through one step after the other. Yields the results, as of `Chain.run`, of some records after the
    others, and removes these from `records`.

    A step gets all records, unless earlier steps have derived more than `enough` bytes, or may have made records larger
    and these have more than that: then some at a time.
    """
    for rows in _through(steps, [[record] for record in records], enough):
        results = [
            row if isinstance(row, Result) else Result(_numbered(row, record)) for row, record in zip(rows, records)
        ]
        # Answers are in the records themselves: they are not held beyond their turn.
        del records[: len(rows)]
        yield results


def _through(steps: Sequence[Step], rows: list[Row], enough: int | None) -> Iterator[list[Row]]:
    """Yields what becomes of the rows, in order. Empties `rows`."""
    if not steps:
        yield rows
        return
    while rows:
        made = _level(steps[0], rows, enough)
        del rows[: len(made)]
        yield from _through(steps[1:], made, enough)


def _level(step: Step, rows: Sequence[Row], enough: int | None) -> list[Row]:
    """Returns what the step makes of the first rows, at least one: about `enough` bytes of derived records, or of any
    from a processor that does not say what it changes."""
    condition, processor, step_id = step
    if isinstance(processor, ManyProcessor):
        return _together(condition, processor, step_id, rows)
    made: list[Row] = []
    used = 0
    for row in rows:
        made.append(row if isinstance(row, Result) else _alone(condition, processor, step_id, row))
        if enough is None:
            continue
        if made[-1].__class__ is Derived:
            used += made[-1].bytes
        elif processor.reads is None and not isinstance(made[-1], Result):
            used += sum(map(record_bytes, made[-1]))
        if used > enough:
            break
    return made


def _alone(condition: Any, processor: RecordProcessor, step_id: str, row: list[Record]) -> Row:
    """Returns what a step makes of the records of one position."""
    try:
        wanted = [condition is None or condition(record) for record in row]
        made = [_made(processor, record) if take else record for record, take in zip(row, wanted)]
        return _merged(made, step_id)
    except RecordError as error:
        return Result.failure(str(error), error.error_class, step_id)


def _made(processor: RecordProcessor, record: Record) -> Made:
    try:
        return processor.process(record)
    except ConduitError:
        raise
    except Exception as error:  # a processor's own failure is the record's (C4)
        raise RecordError(f"{type(error).__name__}: {error}") from error


def _together(condition: Any, processor: ManyProcessor, step_id: str, rows: Sequence[Row]) -> list[Row]:
    """Returns what the processor makes of rows: of all, or of the first ones if it says that these are enough."""
    given: list[Record] = []
    ends: list[int] = []
    taken: list[list[bool] | Result] = []
    for row in rows:
        try:
            wanted = row if isinstance(row, Result) else [condition is None or bool(condition(each)) for each in row]
        except RecordError as error:
            wanted = Result.failure(str(error), error.error_class, step_id)
        if not isinstance(wanted, Result):
            given += [each for each, take in zip(row, wanted) if take]  # type: ignore[arg-type]  # no result
        taken.append(wanted)
        ends.append(len(given))
    answers = _answers(processor, step_id, given) if given else []
    # The records of one position stay together.
    end = next((end for end in ends if end >= len(answers)), len(given)) if len(answers) < len(given) else len(given)
    while len(answers) < end:
        answers += _answers(processor, step_id, given[len(answers) : end])
    left = iter(answers)
    made: list[Row] = []
    for row, wanted, reached in zip(rows, taken, ends):
        if reached > end:
            break
        if isinstance(row, Result) or isinstance(wanted, Result):
            made.append(wanted)  # type: ignore[arg-type]  # a result
            continue
        own = [next(left) if take else each for each, take in zip(row, wanted)]
        try:
            made.append(_merged(own, step_id))
        except RecordError as error:
            made.append(Result.failure(str(error), error.error_class, step_id))
    return made


def _answers(processor: ManyProcessor, step_id: str, given: Sequence[Record]) -> list[Made]:
    """Returns what the processor answers for these records. Raises ConduitError if it answers for none of them, or more
    often than it was asked: it would be asked again without end, or a record would get the answer of another."""
    answers = list(processor.process_many(given) or ())
    if 0 < len(answers) <= len(given):
        return answers
    raise ConduitError(
        f"the processor '{step_id}' ({type(processor).__name__}) answered {len(answers)} outcomes for {len(given)} "
        "record(s): its process_many has to return a list of outcomes, in order: at least one, and one for each record "
        "at most"
    )


def _merged(row: Sequence[Made], step: str) -> list[Record]:
    """Returns the records of one position after a step, in order: those that the step skipped, and those that it made
    of the others. Raises the error of a record that failed, and Unwritable if they are too many bytes together."""
    out: list[Record] = []
    for made in row:
        if isinstance(made, Record):
            out.append(made)
        elif isinstance(made, RecordError):
            raise made
        elif isinstance(made, list):
            out.extend(made)
        elif made is not None:
            raise RecordError(f"a record, a list of records or None was expected, not {type(made).__name__}")
    return Derived(out, step) if len(out) > 1 else out


def _numbered(row: list[Record], origin: Record) -> list[Record]:
    """Numbers derived records 0, 1, …; a record that stayed the same one keeps its ordinal."""
    if not (len(row) == 1 and row[0] is origin):
        for ordinal, record in enumerate(row):
            record.ordinal = ordinal
    return row
