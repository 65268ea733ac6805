"""Dead letters and parked records on their way to one destination, and what the broker is told of each (SEMANTICS X2,
X4, C3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.redrive import AGAIN, REDRIVEN, Place
from conduit_tasks.dead_letters.parking import Parking, key_hash, position_of
from conduit_tasks.dead_letters.portions import portions
from conduit_tasks.dead_letters.store import Key
from conduit_tasks.delivery.chunks import Seqs
from conduit_tasks.delivery.handlers import StateChange
from conduit_tasks.delivery.numbering import watched
from conduit_tasks.delivery.progress import Settled
from conduit_tasks.delivery.work import Work
from conduit_tasks.errors import PipelineStopped
from conduit_tasks.ledger.entry import Attempt, Tally
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.numbering import new_numbering
from conduit_tasks.micro_batch.recorded import attempt_id, recording
from conduit_tasks.micro_batch.sending import connect
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.resend.port import ResendPort, announce, send_again
from conduit_tasks.resend.reprocess import origins_of

if TYPE_CHECKING:
    from conduit_tasks.topology import Destination, Pipeline


NONE = range(0)


@dataclass
class Redriven:
    """Result of a redrive, in letters: `redriven`; dead `again`; `held` back by an earlier letter of their key that is
    dead again; `gone`: redriven or purged by somebody else meanwhile. Parked records: `released`, and still
    `waiting`."""

    destination: str
    redriven: int = 0
    again: int = 0
    released: int = 0
    held: int = 0
    gone: int = 0
    waiting: int = 0

    def add(self, other: Redriven) -> None:
        """Adds the outcome of another part of the same redrive."""
        self.redriven += other.redriven
        self.again += other.again
        self.released += other.released
        self.held += other.held


@dataclass(frozen=True)
class Item:
    """One record to send. `settles`: its claimed letters; empty for a parked record."""

    letter: DeadLetter
    settles: tuple[Key, ...] = ()

    @property
    def position(self) -> Place:
        return position_of(self.letter)


def deliver_items(
    pipeline: Pipeline,
    destination: Destination,
    token: int,
    epoch: int,
    items: Sequence[Item],
    *,
    by: str,
    culprits: range = NONE,
) -> Redriven:
    """Delivers items in order, in alternating groups: items that need the destination's processors, and items that have
    passed them.

    `by`: the operator, for the ledger. `culprits`: places of items that are not sent, because they killed their worker.
    Opens a connection of its own, so that it may run in another process. Raises what `delivery.engine` raises.
    """
    with opened(pipeline, "redrive") as own:
        sending = _Sending(own, destination, token, epoch, items, by)
        port = ResendPort(own, destination, token, epoch, sending.confirm, sending.original)
        origins, slices = origins_of([item.letter for item in items])
        numbering = new_numbering(pipeline.id, destination, connect(pipeline.id, destination), origins, token)
        with recording(own, *sending.tallies.values()):
            for processed, group in groupby(range(len(items)), key=lambda n: _processed(destination, items[n].letter)):
                span = list(group)
                work = Work(
                    pipeline=pipeline.id,
                    destination=destination.id,
                    micro_batch=0,
                    total=len(items),
                    matched=len(items),
                    rows=lambda: watched(numbering, _batches(items, slices)),
                    origins=origins,
                    epoch=epoch,
                    index=lambda seq: items[seq].letter.index,
                    span=(span[0], span[-1]),
                    culprits=culprits,
                    parking=sending.parking,
                    numbering=numbering,
                )
                connector = connect(pipeline.id, destination)
                # The ledger and the handlers go by the records' true positions, which the engine does not know.
                send_again(own, work, connector, port, token, run=None, processed=processed)
        return sending.done


class _Sending:
    """Items that are being sent; their seqs are places among `items`. `tallies`: for the ledger, one attempt per
    micro-batch of the items."""

    def __init__(  # noqa: PLR0917 - what it is made of
        self, context: Context, destination: Destination, token: int, epoch: int, items: Sequence[Item], by: str
    ) -> None:
        self._context, self._destination, self._token = context, destination, token
        self._epoch, self._items = epoch, items
        self._kept: dict[int, list[DeadLetter]] = {}
        self._step = 0
        self.done = Redriven(destination.id)
        parks = destination.delivery.park_keys or bool(context.broker.redrives.parked(destination.id))
        self.parking = Parking({}, self._keep) if parks else None
        asked: dict[int, set[int]] = defaultdict(set)
        for item in items:
            asked[item.letter.micro_batch].add(item.letter.seq)
        name, config, run = attempt_id(token), context.pipeline.digest(), f"redrive by {by}"
        self.tallies = {
            m: Tally(Attempt(destination.id, m, f"{name}-{m}", run, config, _ranges(seqs), epoch))
            for m, seqs in sorted(asked.items())
        }

    def confirm(
        self,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        state: dict[str, Any] | None,
        dead: Sequence[DeadLetter],
    ) -> None:
        """Settles letters and parked records. A record that waits behind one that failed again stays a letter or a
        parked record; only records that the processors derived from it are parked in their present form. Raises
        HandlerFailed too: nothing is settled then."""
        if self.parking is not None:
            self.parking.save()
        failed = {letter.seq for letter in dead}
        settled: dict[Key, str] = {}
        through: dict[str, Place] = {}
        handled: list[Item] = []
        copies: list[DeadLetter] = []
        held = 0
        for seq in (n for first, last in ranges for n in range(first, last + 1)):
            item, kept = self._items[seq], self._kept.get(seq, [])
            if seq not in failed and [c.record.ordinal for c in kept] == [item.letter.record.ordinal]:
                held += bool(item.settles)
                continue
            copies += map(self.original, kept)
            outcome = AGAIN if seq in failed else REDRIVEN
            settled |= dict.fromkeys(item.settles, outcome)
            if not item.settles:
                hashed = key_hash(item.letter.record.key)
                assert hashed is not None
                through[hashed] = max(item.position, through.get(hashed, item.position))
            if seq not in failed:
                handled.append(item)
        letters = [self.original(letter) for letter in dead]
        if copies:
            self._context.parked(self._destination).store(copies)
        self._announce(handled, letters)
        self._step += 1
        stopped: PipelineStopped | None = None
        try:
            self._context.broker.redrives.settle(
                self._destination.id,
                self._token,
                self._step,
                settled,
                {"redriven": len(handled), "retried": counts.retried},
                state=state,
                through=through,
                park=_positions([*(letters if self._destination.delivery.park_keys else ()), *copies]),
                dead=letters,
            )
        except PipelineStopped as error:
            stopped = error
        self._record([item.letter for item in handled], letters, counts)
        self.done.again += len(failed)
        self.done.held += held
        self.done.redriven += sum(bool(item.settles) for item in handled)
        self.done.released += sum(not item.settles for item in handled)
        if stopped is not None:
            raise stopped

    def original(self, letter: DeadLetter) -> DeadLetter:
        """Returns a letter of the engine with its true position and all attempts so far."""
        before = self._items[letter.seq].letter
        attempts = before.attempts + letter.attempts
        return replace(letter, micro_batch=before.micro_batch, seq=before.seq, index=before.index, attempts=attempts)

    def _keep(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            self._kept.setdefault(letter.seq, []).append(letter)

    def _announce(self, handled: Sequence[Item], letters: Sequence[DeadLetter]) -> None:
        """Calls the handlers for these messages too, before they are settled (C7)."""
        id, node = self._context.pipeline.id, self._destination.node
        acked = (
            StateChange("acked", id, node, x.micro_batch, x.seq, x.index, x.record, epoch=self._epoch, source=source)
            for x in (item.letter for item in handled)
            for source in [x.record.origin.connector]
        )
        announce(self._context, node, letters, acked)

    def _record(self, acked: Sequence[DeadLetter], nacked: Sequence[DeadLetter], counts: Counts) -> None:
        """Adds letters that were settled to the tallies; the counts, of all of them, to the first, so that sums are
        right."""
        seqs, nacks = defaultdict[int, set[int]](set), defaultdict[int, list[DeadLetter]](list)
        for letter in (*acked, *nacked):
            seqs[letter.micro_batch].add(letter.seq)
        for letter in nacked:
            nacks[letter.micro_batch].append(letter)
        for m, tally in self.tallies.items():
            tally.told(Settled(_ranges(seqs[m]), counts, nacks[m]))
            counts = Counts()


def _ranges(seqs: set[int]) -> RangeSet:
    return RangeSet.of((seq, seq) for seq in sorted(seqs))


def _batches(items: Sequence[Item], slices: Sequence[int]) -> Iterator[tuple[Seqs, pa.RecordBatch]]:
    """Yields the records as the engines read them, with CONDUIT_BATCH_BYTES at a time; `slice` is the place of a
    record's origin."""
    start = 0
    for part in portions([item.letter for item in items]):
        seqs = range(start, start + len(part))
        yield np.array(seqs, np.int64), spool_batch(slices[start : seqs.stop], seqs, [letter.record for letter in part])
        start = seqs.stop


def _processed(destination: Destination, letter: DeadLetter) -> bool:
    """Returns whether the letter holds the record as it was sent; if its node names a processor, it holds the record as
    it came in (`Work.letter`)."""
    return not letter.node.startswith(f"{destination.node}/")


def _positions(letters: Sequence[DeadLetter]) -> dict[str, Place]:
    """Returns hash of a key → position of its first letter."""
    found: dict[str, Place] = {}
    for letter in letters:
        if (hashed := key_hash(letter.record.key)) is not None:
            found[hashed] = min(position_of(letter), found.get(hashed, position_of(letter)))
    return found
