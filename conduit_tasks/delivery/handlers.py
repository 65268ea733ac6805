"""State-change handlers: functions of the user's, told of every change to acked or nacked (SEMANTICS C7).

A handler is `notify(changes: list[StateChange])`, named in the pipeline file:

    handlers: [{on: nacked, call: "include.handlers:notify"}]

It is called with lists of changes, before they are confirmed to the broker: after a crash in between, or after an error
of a handler, the same changes come again (at least once). What it raises stops the pipeline with that error. Filtered
counts as acked (C4). Where no handler wants a state, nothing is gathered for it and nothing is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.port import DeadLetter
from conduit_tasks.include import load_function
from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    from conduit_tasks.delivery.progress import Settled
    from conduit_tasks.delivery.work import Work

State = Literal["acked", "nacked"]
Notify = Callable[[list["StateChange"]], Any]

MOST = 1_000
"""Changes in one call: a list of a whole micro-batch would be in memory at once."""
BLOCK = 512
"""Rows that become records at a time."""
ERROR_CLASS = "handler"


@dataclass(frozen=True, slots=True)
class StateChange:
    """A message is about to be acked or nacked.

    `node`: the destination (`destinations.<id>`), or where the record ended before the fan-out: the node that nacked
    it, `seal` for one that was filtered or that no trigger wants. `seq`: the record's number in the micro-batch;
    `index`: in its source partition, where that is known. `record`: as it came to the destination; None for one that
    was filtered before the fan-out, of which nothing is kept.
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


class Handlers:
    """The functions of a pipeline's `handlers`, loaded. Raises ConfigError where one cannot be."""

    def __init__(self, pipeline: str, handlers: Sequence[Mapping[str, str]]) -> None:
        self.pipeline = pipeline
        self._functions: dict[str, list[tuple[str, Notify]]] = {}
        for handler in handlers:
            loaded = load_function(handler["call"], f"pipeline {pipeline}: handlers: {handler['call']!r}")
            self._functions.setdefault(handler["on"], []).append((handler["call"], loaded))

    def wants(self, state: State) -> bool:
        """Whether anybody is to be told of it."""
        return state in self._functions

    def call(self, changes: Iterable[StateChange]) -> None:
        """Tells of changes of one state, in order. Raises HandlerFailed."""
        left = iter(changes)
        while some := list(islice(left, MOST)):
            for name, function in self._functions.get(some[0].state, ()):
                try:
                    function(list(some))
                except Exception as error:
                    raise HandlerFailed(
                        f"the handler {name} raised {type(error).__name__}: {error}, on {len(some)} records that were "
                        f"{some[0].state}; they stay unconfirmed and it is told of them again. Mend it, then "
                        f"`conduit start {self.pipeline}`"
                    ) from error


class HandlerFailed(Exception):
    """A handler raised; the message names it, its error and what to do."""


class Changes:
    """Tells the handlers what one delivery is about to confirm.

    For acks the rows are read a second time, beside the delivery and in the same order; only records that the delivery
    has read and not settled are held, as it holds them itself.
    """

    def __init__(self, handlers: Handlers, work: Work) -> None:
        self._handlers, self._work = handlers, work
        self._held: dict[int, list[Record]] = {}
        self._rows = self._read()
        self._ahead: tuple[int, Record] | None = None

    def nacked(self, letters: Sequence[DeadLetter]) -> None:
        """Called before their nacks are confirmed. Raises HandlerFailed."""
        if self._handlers.wants("nacked"):
            self._handlers.call(nacked(self._work.pipeline, letters))

    def acked(self, settled: Settled) -> None:
        """Called before `settled` is confirmed, with all of it. Raises HandlerFailed."""
        if self._handlers.wants("acked") and settled.ranges:
            self._handlers.call(self._acked(settled.ranges, {letter.seq for letter in settled.letters}))

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
        return StateChange("acked", work.pipeline, work.node, work.micro_batch, seq, index, record, epoch=work.epoch)

    def _read(self) -> Iterator[tuple[int, Record]]:
        from conduit_tasks.record.schema import to_records

        work, done = self._work, RangeSet.of(self._work.confirmed)
        for seqs, batch in work.rows():
            for at in range(0, len(seqs), BLOCK):
                records = to_records(batch.slice(at, BLOCK), work.origins)
                for seq, record in zip(seqs[at : at + BLOCK].tolist(), records):
                    if work.first <= seq <= work.last and seq not in done:
                        yield seq, record


def nacked(pipeline: str, letters: Iterable[DeadLetter]) -> Iterator[StateChange]:
    """Dead letters as changes."""
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
        )
