"""State-change handlers: functions of the user that are called for every change to acked or nacked (SEMANTICS C7).

A handler is `notify(changes: list[StateChange])`, named in the pipeline file:

    handlers: [{on: nacked, call: "include.handlers:notify"}, {on: acked, of: message, call: "include.handlers:done"}]

or registered in code (`delivery.registered`). With `of: message` it is called for the message as a whole (C4): nacked
when the first destination nacks it; acked when all destinations have it, called by `micro_batch.messages` as the
sources are acked.

It is called with lists of changes, before they are confirmed to the broker: after a crash in between, or after an error
of a handler, the same changes come again (at least once). An exception of a handler stops the pipeline with that error.
Filtered counts as acked (C4). If no handler wants a state, its changes are not gathered and nothing is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.include import load_function
from conduit_tasks.processors.derived import record_bytes
from conduit_tasks.record.batches import in_lists
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Record
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.delivery.progress import Settled
    from conduit_tasks.delivery.registered import Registered
    from conduit_tasks.delivery.work import Work
    from conduit_tasks.topology import Pipeline

State = Literal["acked", "nacked"]
Of = Literal["destination", "message"]
BOTH: tuple[Of, ...] = ("destination", "message")
"""Both values of `Of`, for a redelivery, a redrive or a replay: these are messages of their own, which go to one
destination (C3)."""
Notify = Callable[[list["StateChange"]], Any]

MOST = 1_000
"""Limit of changes in one call, whose records have about CONDUIT_BATCH_BYTES bytes: a whole micro-batch is not in
memory at once."""
BLOCK = 512
"""Rows that become records at a time."""
ERROR_CLASS = "handler"


@dataclass(frozen=True, slots=True)
class StateChange:
    """Change of a message that is about to be acked or nacked.

    `node`: the destination (`destinations.<id>`), or the node at which the record ended before the fan-out: the one
    that nacked it, or `seal` if it was filtered or no trigger wants it; `pipeline` if a message is acked as a whole.
    `seq`: the record's number in the micro-batch; `index`: its number in its source partition, if that is known.
    `record`: as it came to the destination; None if it was filtered before the fan-out, because nothing is kept of it.
    `of`: whether it is a change at that destination, or of the message. `source`: the connector that the record came
    from.
    """

    state: State
    pipeline: str
    node: str
    micro_batch: int
    seq: int
    index: int | None
    record: Record | None
    error: str = ""
    error_class: str = ""
    epoch: int = 0
    of: Of = "destination"
    source: str = ""


class Handlers:
    """Functions of a pipeline's `handlers`, and functions that its connectors and processors register. Raises
    ConfigError if one cannot be loaded. `node`: the destination that they are for, or a node before the
    destinations."""

    def __init__(self, pipeline: Pipeline, node: str = "") -> None:
        from conduit_tasks.delivery.registered import Registered, registered

        self.pipeline = pipeline.id
        self._functions: dict[tuple[str, str], list[Registered]] = {}
        for handler in pipeline.handlers:
            call = handler["call"]
            loaded = load_function(call, f"pipeline {pipeline.id}: handlers: {call!r}")
            of: Any = handler.get("of", "destination")
            self._functions.setdefault((of, handler["on"]), []).append(Registered(of, handler["on"], call, loaded))
        for each in registered(pipeline, node):
            self._functions.setdefault((each.of, each.state), []).append(each)

    def __bool__(self) -> bool:
        return bool(self._functions)

    def wants(self, state: State, *of: Of) -> bool:
        """Returns whether a handler wants this state, for any of `of`; for `destination` if `of` is empty."""
        return any((each, state) in self._functions for each in of or ("destination",))

    def call(self, changes: Iterable[StateChange], *of: Of) -> None:
        """Calls the handlers that listen to `of` with changes of one state, in order. Raises HandlerFailed."""
        for some in in_lists(changes, _size, MOST, settings().batch_bytes):
            for each in of or ("destination",):
                for function in self._functions.get((each, some[0].state), ()):
                    if told := [c if c.of == each else replace(c, of=each) for c in some if function.takes(c)]:
                        self._tell(function, told)

    def _tell(self, function: Registered, told: list[StateChange]) -> None:
        try:
            function.call(told)
        except Exception as error:
            raise HandlerFailed(
                f"the handler {function.name} raised {type(error).__name__}: {error}, on {len(told)} records that were "
                f"{told[0].state}; they stay unconfirmed and it is told of them again. Fix it, then "
                f"`conduit start {self.pipeline}`"
            ) from error


class HandlerFailed(Exception):
    """Error of a handler that raised; the message names the handler, its error and what to do."""


class Changes:
    """Changes that one delivery is about to confirm, and the calls of the handlers for them.

    `nacked_before` says of a dead letter whether its record was nacked by another destination before.

    For acks the rows are read a second time, beside the delivery and in the same order; only records that the delivery
    has read and not settled are held, as the delivery itself holds them.
    """

    def __init__(
        self, handlers: Handlers, work: Work, nacked_before: Callable[[DeadLetter], bool] | None = None
    ) -> None:
        self._handlers, self._work, self._nacked_before = handlers, work, nacked_before
        self._held: dict[int, list[Record]] = {}
        self._rows = self._read()
        self._ahead: tuple[int, Record] | None = None

    def nacked(self, letters: Sequence[DeadLetter]) -> None:
        """Calls the handlers, before the nacks of these letters are confirmed. Raises HandlerFailed."""
        of = self._of
        if self._handlers.wants("nacked", *of):
            self._handlers.call(nacked(self._work.pipeline, letters), *of)
        if "message" not in of and self._handlers.wants("nacked", "message"):
            self._handlers.call(nacked(self._work.pipeline, self._first(letters)), "message")

    def acked(self, settled: Settled) -> None:
        """Calls the handlers, before `settled` is confirmed, with all acks in it. Raises HandlerFailed."""
        of = self._of
        if self._handlers.wants("acked", *of) and settled.ranges:
            self._handlers.call(self._acked(settled.ranges, {letter.seq for letter in settled.letters}), *of)

    @property
    def _of(self) -> tuple[Of, ...]:
        return BOTH if self._work.epoch else ("destination",)

    def _first(self, letters: Sequence[DeadLetter]) -> Iterator[DeadLetter]:
        """Yields the letters that nack a message as a whole: it changes its state once, whichever destination nacks it
        next (C3)."""
        for letter in first_of_each(letters):
            if self._nacked_before is None or not self._nacked_before(letter):
                yield letter

    def _acked(self, ranges: RangeSet, nacks: set[int]) -> Iterator[StateChange]:
        for seq in sorted(seq for seq in self._held if seq in ranges):
            records = self._held.pop(seq)
            if seq not in nacks:
                for record in records:
                    yield self._change(seq, record)
        last = ranges.ranges[-1][1]
        while (row := self._ahead or next(self._rows, None)) is not None:
            self._ahead = row
            seq, record = row
            if seq > last:
                return
            self._ahead = None
            if seq not in ranges:
                self._held.setdefault(seq, []).append(record)
            elif seq not in nacks:
                yield self._change(seq, record)

    def _change(self, seq: int, record: Record) -> StateChange:
        work = self._work
        index = work.index(seq) if work.index else None
        source = record.origin.connector
        return StateChange(
            "acked", work.pipeline, work.node, work.micro_batch, seq, index, record, epoch=work.epoch, source=source
        )

    def _read(self) -> Iterator[tuple[int, Record]]:
        from conduit_tasks.record.schema import to_records

        work, done = self._work, RangeSet.of(self._work.confirmed)
        for seqs, batch in work.rows():
            for at in range(0, len(seqs), BLOCK):
                records = to_records(batch.slice(at, BLOCK), work.origins)
                for seq, record in zip(seqs[at : at + BLOCK].tolist(), records):
                    if work.first <= seq <= work.last and seq not in done:
                        yield seq, record


def _size(change: StateChange) -> int:
    return 0 if change.record is None else record_bytes(change.record)


def nacked(pipeline: str, letters: Iterable[DeadLetter]) -> Iterator[StateChange]:
    """Yields dead letters as changes."""
    for at in letters:
        yield StateChange(
            "nacked",
            pipeline,
            at.node,
            at.micro_batch,
            at.seq,
            at.index,
            at.record,
            at.error,
            at.error_class,
            at.epoch,
            source=at.record.origin.connector,
        )


def first_of_each(letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
    """Yields one letter for each record: the letters of records derived from it share its number."""
    seen: set[int] = set()
    for letter in letters:
        if letter.seq not in seen:
            seen.add(letter.seq)
            yield letter
