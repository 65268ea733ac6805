"""Redrive of dead letters from before the fan-out: through the processors, and on to the destinations (SEMANTICS X2).

In pieces of at most `CHUNK` records, under a lease of their own:

1. *mark* in the store the letters that a redrive that died had dispatched;
2. *claim* the letters that are still dead letters: records derived from one position failed together, and go together;
3. *reprocess*: the failing processor and all that follow, and the triggers, as the pipeline file says now;
4. *store* each record that goes on as a letter of each destination that wants it, and each one that failed again as a
   letter of this epoch;
5. *dispatch*: in one step the index gets these letters and loses the claimed ones;
6. *mark* in the store the operator.

The destinations' letters are then sent like every dead letter. If that does not happen, they are dead letters of their
destinations: no destination gets them twice, and the next redrive sends them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conduit_tasks.broker.redrive import AGAIN, REDRIVEN, lease_node
from conduit_tasks.dead_letters.portions import first_groups
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, UNSENT, DeadLetterStore, row_key
from conduit_tasks.delivery.handlers import HandlerFailed, StateChange
from conduit_tasks.delivery.reading import KILLED
from conduit_tasks.errors import PipelineStopped
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.micro_batch.sending import mark_settled, settling
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.resend.letters import Redriven
from conduit_tasks.resend.port import announce
from conduit_tasks.resend.reprocess import Place, Start, reprocess, start_of
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.record.record import Record
    from conduit_tasks.topology import Pipeline

log = logging.getLogger(__name__)

CHUNK = 1_000
"""Limit of records under one lease."""
ATTEMPTS = 3
"""Number of successive attempts that died, after which processors run in children (C10)."""

Rows = list[dict[str, Any]]


def place_of(row: dict[str, Any]) -> Place:
    """Returns the place of a row's record: micro-batch and seq."""
    return row["micro_batch"], row["seq"]


def startable(pipeline: Pipeline, letters: pa.Table) -> tuple[pa.Table, list[str]]:
    """Returns the letters that can be redriven, and in sentences why others cannot; all letters of a record, or
    none."""
    no: dict[Place, str] = {}
    rows = letters.select(["micro_batch", "seq", "node", "error_class"]).to_pylist()
    starts = {of: start_of(pipeline, *of) for of in {(row["node"], row["error_class"]) for row in rows}}
    for row in rows:
        start = starts[row["node"], row["error_class"]]
        if not isinstance(start, Start):
            no[place_of(row)] = start
    said = [f"{sum(why == x for x in no.values()):,} dead letter(s) {why}" for why in sorted(set(no.values()))]
    return letters.filter([place_of(row) not in no for row in rows]) if no else letters, said


class BeforeFanOut:
    """One redrive of letters from before the fan-out. `outcome` counts letters: `redriven` have passed the processors.
    `places`: of the records that destinations have as letters now."""

    def __init__(self, context: Context, by: str, wait: float) -> None:
        self._context, self._by, self._wait = context, by, wait
        self._root = context.settings.path(context.settings.dead_letters)
        self.outcome = Redriven(BEFORE_FAN_OUT)
        self.places: set[Place] = set()

    def send(self, rows: Rows) -> Iterator[Redriven]:
        """Redrives rows that `startable` returned, chunk by chunk. Raises LeaseHeld, PipelineStopped, Fenced,
        SpoolError, ConfigError."""
        groups: dict[Place, Rows] = {}
        for row in sorted(rows, key=row_key):
            groups.setdefault(place_of(row), []).append(row)
        left = [groups[place] for place in sorted(groups)]
        store = DeadLetterStore(self._root, self._context.pipeline.id)
        while left:
            # Each record becomes a letter of every destination that wants it, all in one step.
            some = max(1, CHUNK // max(1, len(self._context.pipeline.destinations)))
            some = first_groups(store, left, some)
            chunk, left = left[:some], left[some:]
            node, owner = lease_node(""), self._context.owner
            with self._context.broker.leases.acquire(node, owner, wait=self._wait) as lease, keeping(lease):
                mark_settled(self._context, "", lease.token, None)
                with settling(self._context, "", lease, None):
                    self._chunk(lease, chunk)
            yield self.outcome

    def tidy(self) -> None:
        """Marks the letters that a redrive that died had dispatched, if nothing else is to be sent."""
        node, owner = lease_node(""), self._context.owner
        with self._context.broker.leases.acquire(node, owner, wait=self._wait) as lease, keeping(lease):
            mark_settled(self._context, "", lease.token, None, over=True)

    def _chunk(self, lease: Lease, groups: Sequence[Rows]) -> None:
        broker, pipeline = self._context.broker, self._context.pipeline
        asked = sorted(row_key(row) for group in groups for row in group)
        epoch, answer = broker.redrives.claim("", lease.token, self._by, asked)
        claimed = set(answer)
        self.outcome.gone += len(asked) - len(claimed)
        mine = [group for group in groups if all(row_key(row) in claimed for row in group)]
        if not mine:
            return
        rows = [row for group in mine for row in group]
        newest = [row for group in mine for row in _newest(group)]
        letters = list(DeadLetterStore(self._root, pipeline.id).load(newest))
        isolate_poison = lease.attempts > ATTEMPTS or any(row["error_class"] == KILLED for row in newest)
        with halting_call(broker, lease_node("")):
            passed = reprocess(self._context, letters, isolate_poison=isolate_poison)

        before = {(letter.micro_batch, letter.seq): letter for letter in letters}
        again = [_again(before[place], record, error, epoch) for place, record, error in passed.nacked]
        to = {id: [_unsent(before[p], r, id) for p, r in sent] for id, sent in passed.sent.items() if sent}
        failed = {(letter.micro_batch, letter.seq) for letter in again}
        sent = {place for each in passed.sent.values() for place, _ in each}
        with halting_call(broker, lease_node("")):
            self._announce(epoch, again, [x for place, x in before.items() if place not in failed | sent])
            # Invariant 8: stored before the index knows of them.
            self._context.dead_letters(pipeline.dead_letters, None).store(again)
        for id, each in to.items():
            # Not by the destination's own `dead-letter-queue`: these are on their way, and have not failed there.
            DeadLetterStore(self._root, pipeline.id, id).store(each)
        settled = {row_key(row): AGAIN if place_of(row) in failed else REDRIVEN for row in rows}
        broker.redrives.dispatch(lease.token, 1, settled, to, again)
        self.places |= sent
        self.outcome.again += sum(outcome == AGAIN for outcome in settled.values())
        self.outcome.redriven += sum(outcome == REDRIVEN for outcome in settled.values())

    def _announce(self, epoch: int, again: Sequence[DeadLetter], ended: Sequence[DeadLetter]) -> None:
        """Calls the handlers (C7) for records that failed again, and for records that were filtered or that no trigger
        wants."""
        id = self._context.pipeline.id
        acked = [
            StateChange("acked", id, "seal", x.micro_batch, x.seq, x.index, None, epoch=epoch, source=source)
            for x in ended
            for source in [x.record.origin.connector]
        ]
        try:
            announce(self._context, "redrive", again, acked)
        except HandlerFailed as error:
            raise PipelineStopped(str(error)) from error


def _newest(group: Rows) -> Rows:
    """Returns the letters of the attempt at which a record failed last. Those of earlier attempts are settled with
    them: they are open, too, if a redrive died, and Redis has forgotten which of them it knew (X7)."""
    last = max(group, key=lambda row: row["at"])
    return [row for row in group if row["epoch"] == last["epoch"]]


def _again(before: DeadLetter, record: Record, error: dict[str, str], epoch: int) -> DeadLetter:
    return replace(
        before,
        record=record,
        node=error["node"],
        error=error["message"],
        error_class=error["class"],
        attempts=before.attempts + 1,
        epoch=epoch,
        at=time.time(),
    )


def _unsent(before: DeadLetter, record: Record, destination: str) -> DeadLetter:
    """Returns the letter as it failed, so that the same filters choose it, but at the destination. Epoch 0 makes it the
    same letter, however often it is dispatched; no live letter has the same key, because this record never came so
    far."""
    return replace(before, record=record, node=f"{Node.destination(destination)}/{UNSENT}", epoch=0)
