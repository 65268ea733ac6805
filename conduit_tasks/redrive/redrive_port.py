"""Delivers records that are sent again, and tells the broker what became of each (SEMANTICS X2, C3)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conduit_tasks.broker.redrive import AGAIN, REDRIVEN, Place
from conduit_tasks.dead_letters.parking import Parking, key_hash, position_of
from conduit_tasks.dead_letters.store import Key, portions
from conduit_tasks.delivery.broker_port import BrokerPort
from conduit_tasks.delivery.chunks import Seqs
from conduit_tasks.delivery.work import Work
from conduit_tasks.errors import PipelineStopped
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.redrive.ledger import Entries

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.delivery.handlers import StateChange
    from conduit_tasks.micro_batch.context import Context
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
    from conduit_tasks.delivery.engine import deliver
    from conduit_tasks.delivery.numbering import watched
    from conduit_tasks.micro_batch.checkpoint import Marker
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.deliver import connect
    from conduit_tasks.micro_batch.numbering import new_numbering
    from conduit_tasks.processors.chain import Chain

    with opened(pipeline, "redrive") as own:
        book = Entries(own.pipeline.digest(), destination.id, f"{token}-{secrets.token_hex(4)}", by, epoch)
        port = RedrivePort(own, own.broker.leases.attach(destination.node, token), destination, epoch, items, book)
        origins, slices = _origins(items)
        numbering = new_numbering(pipeline.id, destination, connect(pipeline.id, destination), origins, token)
        options = destination.delivery
        if options.guarantee == "at-most-once":
            # A dead letter is sent again because an operator asks for it; its marks would overwrite those of live
            # deliveries.
            options = replace(options, guarantee="at-least-once")
        with book.written(own, [item.letter for item in items]):
            for processed, group in groupby(range(len(items)), key=lambda n: _processed(destination, items[n].letter)):
                span = list(group)
                chain = None if processed or not destination.processors else Chain(destination.processors)
                work = Work(
                    pipeline=pipeline.id,
                    destination=destination.id,
                    micro_batch=0,
                    total=len(items),
                    matched=len(items),
                    rows=lambda: watched(numbering, _batches(items, slices)),
                    origins=origins,
                    state=own.broker.deliveries.get(destination.id).state,
                    chain=chain,
                    epoch=epoch,
                    index=lambda seq: items[seq].letter.index,
                    span=(span[0], span[-1]),
                    culprits=culprits,
                    parking=port.parking,
                    numbering=numbering,
                    look=Marker(own, destination.node, token).look,
                    rested=partial(own.broker.deliveries.rested, destination.id),
                )
                try:
                    deliver(work, connect(pipeline.id, destination), port, options)
                finally:
                    if chain is not None:
                        chain.close()
        return port.done


class RedrivePort(BrokerPort):
    """Port of a redrive for the engine: its seqs are places among `items`. Records that voted once do not vote again,
    and no failure here stops the pipeline."""

    def __init__(  # noqa: PLR0917 - the six things it is made of
        self,
        context: Context,
        lease: Lease,
        destination: Destination,
        epoch: int,
        items: Sequence[Item],
        book: Entries,
    ) -> None:
        handler = context.dead_letters(destination.dead_letters, destination.id)
        super().__init__(context.broker, lease, destination, 0, "", handler, epoch=epoch)
        self._context, self._items, self._book = context, items, book
        self._kept: dict[int, list[DeadLetter]] = {}
        self._step = 0
        self.done = Redriven(destination.id)
        parks = destination.delivery.park_keys or bool(context.broker.redrives.parked(destination.id))
        self.parking = Parking({}, self._keep) if parks else None

    def confirm(
        self,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        *,
        state: dict[str, Any] | None = None,
        dead: Sequence[DeadLetter] = (),
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
            copies += map(self._again, kept)
            outcome = AGAIN if seq in failed else REDRIVEN
            settled |= dict.fromkeys(item.settles, outcome)
            if not item.settles:
                hashed = key_hash(item.letter.record.key)
                assert hashed is not None
                through[hashed] = max(item.position, through.get(hashed, item.position))
            if seq not in failed:
                handled.append(item)
        letters = [self._again(letter) for letter in dead]
        if copies:
            self._context.parked(self._destination).store(copies)
        self._announce(handled, letters)
        self._step += 1
        stopped: PipelineStopped | None = None
        try:
            self._broker.redrives.settle(
                self._destination.id,
                self._lease.token,
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
        self._book.told([item.letter for item in handled], letters, counts)
        self.done.again += len(failed)
        self.done.held += held
        self.done.redriven += sum(bool(item.settles) for item in handled)
        self.done.released += sum(not item.settles for item in handled)
        if stopped is not None:
            raise stopped

    def store_dead(self, letters: Sequence[DeadLetter]) -> None:
        """See DeliveryPort."""
        super().store_dead([self._again(letter) for letter in letters])

    def fail(self, error: str, error_class: str) -> None:
        """Does nothing: the operator sees the error that is raised, and the pipeline goes on."""

    def _keep(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            self._kept.setdefault(letter.seq, []).append(letter)

    def _again(self, letter: DeadLetter) -> DeadLetter:
        """Returns a letter of the engine with its true position and all attempts so far."""
        before = self._items[letter.seq].letter
        attempts = before.attempts + letter.attempts
        return replace(letter, micro_batch=before.micro_batch, seq=before.seq, index=before.index, attempts=attempts)

    def _announce(self, handled: Sequence[Item], letters: Sequence[DeadLetter]) -> None:
        """Calls the handlers for these messages too, before they are settled (C7)."""
        from conduit_tasks.delivery.handlers import StateChange

        pipeline, node = self._context.pipeline, self._destination.node
        each = [item.letter for item in handled]
        acked = (
            StateChange(
                "acked",
                pipeline.id,
                node,
                x.micro_batch,
                x.seq,
                x.index,
                x.record,
                epoch=self._epoch,
                source=x.record.origin.connector,
            )
            for x in each
        )
        announce(self._context, node, letters, acked)


def announce(context: Context, node: str, letters: Sequence[DeadLetter], acked: Iterable[StateChange]) -> None:
    """Calls the handlers for what is about to be nacked and acked (C7). Raises HandlerFailed; by then the pipeline is
    degraded."""
    from conduit_tasks.delivery.handlers import BOTH, ERROR_CLASS, HandlerFailed, Handlers, nacked

    handlers = Handlers(context.pipeline, node)
    try:
        if handlers.wants("nacked", *BOTH):
            handlers.call(nacked(context.pipeline.id, letters), *BOTH)
        if handlers.wants("acked", *BOTH):
            handlers.call(acked, *BOTH)
    except HandlerFailed as error:
        context.broker.lifecycle.fail(node, str(error), ERROR_CLASS)
        raise


def _origins(items: Sequence[Item]) -> tuple[list[Origin], list[int]]:
    """Returns the records' origins, and for each record the place of its own."""
    origins: dict[tuple[Any, ...], int] = {}
    kinds: list[Origin] = []
    slices = []
    for item in items:
        origin = item.letter.record.origin
        name = (origin.connector, origin.partition, *sorted(origin.metadata.items()))
        if name not in origins:
            origins[name] = len(kinds)
            kinds.append(origin)
        slices.append(origins[name])
    return kinds, slices


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
