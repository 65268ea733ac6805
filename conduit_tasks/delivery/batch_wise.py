"""Batch-wise delivery: whole chunks, all or nothing, the record at fault found by halving (SEMANTICS C17, T6, T7).

Per chunk: write → vote → store the dead letters → confirm with the destination's state. After a failed write the
destination is opened again with the last confirmed state, and goes back to exactly that: rows that were not confirmed
leave no trace. Delivery is strictly in order: nothing is written past a nack before its vote is accepted and its dead
letter stored (C9). A chunk that needs no processors costs no Python per row; its counts come from its arrays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from conduit_tasks.connectors.base import BatchDestination, Outcome
from conduit_tasks.connectors.outcome import clip
from conduit_tasks.connectors.outcome import error_class as class_of
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.delivery.chunks import NONE, Chunk, Seqs, chunks, counts_of, distinct, last_of
from conduit_tasks.delivery.committer import Committer
from conduit_tasks.delivery.deadlines import RENEWALS, does_not_fit
from conduit_tasks.delivery.in_order import InOrder
from conduit_tasks.delivery.lease_renewer import LeaseRenewer
from conduit_tasks.delivery.numbering import RowNumbering
from conduit_tasks.delivery.progress import Flush, Nack
from conduit_tasks.delivery.rate import TokenBucket
from conduit_tasks.delivery.reading import Reading
from conduit_tasks.delivery.retry import RetryPolicy
from conduit_tasks.delivery.segments import cut_at_nacks
from conduit_tasks.delivery.watchdog import Watchdog
from conduit_tasks.delivery.work import DeliveryReport
from conduit_tasks.errors import DoesNotFit, PipelineStopped, Refused, Unavailable
from conduit_tasks.record.collector import seldom_collecting
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.settings import settings
from conduit_tasks.topology import Delivery

log = logging.getLogger(__name__)

NO_ROWS = pa.RecordBatch.from_pylist([], schema=SPOOL_SCHEMA)
BURIED = 1_000
"""Limit of dead letters in one confirm."""


class BatchWise:
    """One delivery of one micro-batch; used once."""

    def __init__(
        self,
        destination: BatchDestination,
        options: Delivery,
        committer: Committer,
        renewer: LeaseRenewer,
        watchdog: Watchdog,
    ) -> None:
        self._destination, self._options = destination, options
        self._committer, self._renewer, self._watchdog = committer, renewer, watchdog
        work, self._breaker = committer.work, committer.breaker
        self._work = work
        self._port = committer.port
        destination.still_ours = self._still_ours
        destination.limit = options.bulk_timeout
        destination.shard = work.shard.name if work.shard is not None else None
        self._reading = Reading(work)
        self._order = InOrder(work, self._reading)
        self._policy = RetryPolicy(options)
        destination.attempts = self._policy.attempts
        self._bucket = TokenBucket(options.rate_limit, rested=work.rested()) if options.rate_limit else None
        self._state = work.state
        self._reopen = True
        self._torn = False
        self._numbering = work.numbering if isinstance(work.numbering, RowNumbering) else None

    def _still_ours(self) -> None:
        """Renews the lease, and looks for the marks of a later lease holder: if Redis has forgotten that holder, the
        lease seems valid again, but the marks remain."""
        self._port.renew()
        self._work.look()

    def run(self) -> DeliveryReport:
        """Delivers the records that are left. Raises Unavailable (the target is down, with `on-unavailable: wait`: the
        cursor does not move), PipelineStopped (the window tripped, or a dead letter cannot be stored), Fenced."""
        began = time.monotonic()
        size = self._destination.chunk
        if self._options.rate_limit:
            size = max(1, min(size, int(self._options.rate_limit)))
        try:
            self._tidy()
            for chunk in chunks(self._reading.batches(), size, settings().batch_bytes):
                self._deliver(chunk)
            if not self._order.confirmed:
                self._tell(self._order.rest())
            self._undo()
        except PipelineStopped:
            self._undo()
            raise
        finally:
            self._destination.close()
        return self._committer.report(time.monotonic() - began)

    def _tidy(self) -> None:
        """Has the destination remove what earlier attempts wrote and nobody confirmed, before records of it become dead
        letters. If the target does not answer, each write asks again."""
        work = self._work
        if not self._destination.tidies or not work.seal or work.epoch:
            return
        rows = Rows(NO_ROWS, work.origins, work.micro_batch, seal=work.seal, pending=self._order.pending)
        try:
            self._may_send()
            limit = self._options.bulk_timeout
            self._watchdog.expect(limit, f"what was not confirmed to be removed (delivery.timeout {limit:g} s)")
            self._destination.open(self._state)
            self._reopen = False
            self._destination.tidy(rows)
        except Unavailable as error:
            self._reopen = True
            log.warning("%s: what was written and not confirmed is removed later: %s", work.node, error)
        finally:
            self._watchdog.alive()

    def _deliver(self, chunk: Chunk) -> None:
        """Runs one chunk through the destination's processors, if it has any, and writes it."""
        work = self._work
        self._order.coming(chunk.seqs)
        if work.chain is None and not work.culprits:
            self._write_all(chunk, NONE)
            return
        for part, filtered, letters in cut_at_nacks(work, chunk):
            if part is not None:
                self._write_all(part, filtered)
            elif len(filtered):
                self._tell(self._order.acks(int(filtered[-1]), counts_of(filtered, None)))
            if letters:
                seq = letters[0].seq
                self._nack(seq, [(int(chunk.ordinals[np.searchsorted(chunk.seqs, seq)]), letter) for letter in letters])

    def _write_all(self, chunk: Chunk, filtered: Seqs) -> None:
        """Writes rows, and halves them if they are refused. `filtered`: the filtered seqs among theirs, which this
        settles with them."""
        todo = [(chunk, filtered)]
        while todo:
            part, gone = todo.pop()
            kept, waiting = self._parted(part)
            if (at := self._probed(part, kept)) is not None:
                cut = int(np.searchsorted(gone, part.seqs[at]))
                todo += [(part.part(at, part.rows), gone[cut:]), (part.part(0, at), gone[:cut])]
                continue
            try:
                left = self._left(kept)
                state, attempts = self._write(left) if left is not None else (None, 1)
            except _Opened as opened:
                self._open(opened.error, part, gone)
            except Refused as error:
                # The row is known among those that were written; with others between them, halving finds it.
                known = error.row if left is part else None
                pieces = part.halves() if known is None else part.around(known)
                if pieces is None:
                    self._refuse(part, gone, error)
                    continue
                for piece in reversed(pieces):
                    cut = int(np.searchsorted(gone, piece.seqs[0])) if piece is not pieces[0] else 0
                    todo.append((piece, gone[cut:]))
                    gone = gone[:cut]
            except Unavailable as error:
                if self._options.on_unavailable == "wait":
                    raise
                # T7 literally: the retries are used up, so the records become dead letters and are acknowledged.
                outcome = Outcome("failed", clip(str(error)), error.status)
                self._bury(part, gone, outcome, error_class=class_of(outcome), attempts=self._policy.attempts)
            else:
                counts = counts_of(gone, kept, self._hold(waiting))
                counts = replace(counts, retried=counts.delivered * (attempts - 1))
                self._tell(self._order.acks(last_of(part, gone), counts), state)

    def _write(self, chunk: Chunk) -> tuple[dict[str, object] | None, int]:
        """Writes these rows. Returns the state that the write returned, and the number of attempts. Raises Refused,
        Unavailable."""
        numbers = self._numbering.rows(chunk.ordinals, chunk.seqs) if self._numbering is not None else None
        first, last = int(chunk.seqs[0]), int(chunk.seqs[-1])
        work = self._work
        rows = Rows(chunk.batch, work.origins, work.micro_batch, first, last, numbers, work.seal, work.epoch)
        rows = replace(rows, pending=self._order.pending, seqs=chunk.seqs if work.shard is not None else None)
        if self._bucket is not None:
            self._renewer.pause(self._bucket.reserve(chunk.rows))

        def attempt() -> dict[str, object] | None:
            self._may_send()
            limit = self._options.bulk_timeout
            self._watchdog.expect(limit, f"a write of {chunk.rows} rows (delivery.timeout {limit:g} s)")
            try:
                if self._reopen:
                    self._destination.open(self._state)
                self._reopen = self._torn = True
                state = self._destination.write(rows)
                self._reopen = self._torn = False
            except Unavailable as error:
                if self._breaker is not None and self._breaker.failure(str(error)):
                    raise _Opened(error) from error
                raise
            except Refused:
                self._answered()
                raise
            finally:
                self._watchdog.alive()
            self._answered()
            return state

        retrying = self._policy.calling(
            lambda state: log.warning(
                "%s, sending again: %s", self._work.node, state.outcome and str(state.outcome.exception())
            ),
            self._renewer.pause,
        )
        return retrying(attempt), int(retrying.statistics["attempt_number"])

    def _probed(self, part: Chunk, kept: Chunk | None) -> int | None:
        """Returns the number of rows of which one record is written, as the probe of a breaker; None: all rows are."""
        return part.after(kept) if kept is not None and self._breaker is not None and self._breaker.half_open else None

    def _answered(self) -> None:
        if self._breaker is not None:
            self._breaker.success()

    def _open(self, error: Unavailable, part: Chunk, gone: Seqs) -> None:
        """Ends the delivery, as its breaker opens: raises the error. The rows of a probe that was tried as often as a
        record may be become dead letters, and the next one is the probe."""
        assert self._breaker is not None
        if not self._breaker.gives_up():
            raise error
        outcome = Outcome("failed", clip(str(error)), error.status)
        self._bury(part, gone, outcome, error_class=class_of(outcome))

    def _undo(self) -> None:
        """Removes what a failed write left behind, if nothing was written after it: now, not at the next run."""
        if self._torn:
            self._renewer.check()
            try:
                self._destination.open(self._state)
            except (Unavailable, PipelineStopped) as error:
                log.warning("%s is undone when it is opened next: %s", self._work.node, error)
            else:
                self._reopen = self._torn = False

    def _may_send(self) -> None:
        self._renewer.check()
        for _ in range(RENEWALS):
            if time.monotonic() < self._port.send_until:
                return
            self._port.renew()
        if time.monotonic() >= self._port.send_until:
            raise does_not_fit(self._work.node, self._options.timeout)

    def _parted(self, chunk: Chunk) -> tuple[Chunk | None, Chunk | None]:
        """Returns the rows to write, and the rows that wait behind a dead letter of their key (X4)."""
        parking = self._work.parking
        if parking is None:
            return chunk, None
        waits = parking.waiting(self._work.micro_batch, chunk.seqs, chunk.batch)
        if not waits.any():
            return chunk, None
        kept = None if waits.all() else chunk.take(np.flatnonzero(~waits).tolist())
        return kept, chunk.take(np.flatnonzero(waits).tolist())

    def _left(self, kept: Chunk | None) -> Chunk | None:
        """Returns those of the rows that are not there already, by what `Work.there` says."""
        if kept is None or not len(self._work.there):
            return kept
        missing = np.flatnonzero(~np.isin(kept.seqs, self._work.there))
        if len(missing) == kept.rows:
            return kept
        return kept.take(missing.tolist()) if len(missing) else None

    def _hold(self, waiting: Chunk | None) -> Seqs:
        """Parks rows. Returns their seqs."""
        if waiting is None or self._work.parking is None:
            return NONE
        for seq, record in zip(waiting.seqs.tolist(), to_records(waiting.batch, self._work.origins)):
            self._work.parking.hold(self._work.letter(seq, record, "", ""))
        return distinct(waiting.seqs)

    def _refuse(self, chunk: Chunk, filtered: Seqs, error: Refused) -> None:
        """Ends one refused seq: its rows, which share a position, become dead letters together, or complete with
        `refused: complete`."""
        aside = self._destination.quarantine and isinstance(error, DoesNotFit)
        if self._options.refused == "complete" and not aside:
            log.warning("%s refused record %s, which counts as complete: %s", self._work.node, chunk.seqs[0], error)
            kept, waiting = self._parted(chunk)
            counts = counts_of(filtered, kept, self._hold(waiting))
            counts = replace(counts, delivered=0, completed=counts.delivered)
            self._tell(self._order.acks(last_of(chunk, filtered), counts))
        else:
            outcome = Outcome("refused", clip(str(error)), error.status)
            self._bury(chunk, filtered, outcome, error_class=_class(error), counts=not aside)

    def _bury(
        self,
        chunk: Chunk,
        filtered: Seqs,
        outcome: Outcome,
        *,
        error_class: str,
        attempts: int = 1,
        counts: bool = True,
    ) -> None:
        """Makes a dead letter of every record of the chunk, or parks it behind one of its key; at most `BURIED` at a
        time. `counts`: whether they are nacks to the window."""
        while chunk.rows > BURIED and (at := int(np.searchsorted(chunk.seqs, chunk.seqs[BURIED]))):
            cut = int(np.searchsorted(filtered, chunk.seqs[at]))
            first, chunk = chunk.part(0, at), chunk.part(at, chunk.rows)
            self._bury(first, filtered[:cut], outcome, error_class=error_class, attempts=attempts, counts=counts)
            filtered = filtered[cut:]
        letters = [
            (ordinal, self._work.letter(seq, record, outcome.message, error_class, attempts=attempts))
            for seq, ordinal, record in zip(
                chunk.seqs.tolist(), chunk.ordinals.tolist(), to_records(chunk.batch, self._work.origins)
            )
        ]
        self._nack(last_of(chunk, filtered), letters, filtered=len(filtered), retried=attempts - 1, counts=counts)

    def _nack(
        self,
        through: int,
        letters: Sequence[tuple[int, DeadLetter]],
        *,
        filtered: int = 0,
        retried: int = 0,
        counts: bool = True,
    ) -> None:
        """Tells the broker of dead letters, given as (ordinal, letter) in order, and of `filtered` other seqs; with
        them everything up to seq `through` is complete. `counts`: whether they are nacks to the window."""
        parking, held = self._work.parking, set()
        nacks: dict[int, Nack] = {}
        for ordinal, letter in letters:
            record = letter.record
            if parking is not None and parking.takes(letter.micro_batch, letter.seq, record.ordinal, record.key):
                parking.hold(letter)
                held.add(letter.seq)
                continue
            if parking is not None:
                parking.nacked([letter])
            nacks.setdefault(letter.seq, Nack(ordinal, [], retried, counts)).letters.append(letter)
        parked = len(held - nacks.keys())
        acks = Counts(matched=filtered + parked, filtered=filtered, parked=parked)
        self._tell(self._order.nacks(list(nacks.items()), through, acks))

    def _tell(self, flush: Flush, state: dict[str, object] | None = None) -> None:
        if self._destination.tidies:
            # What is confirmed as a dead letter looks like what is confirmed as written.
            self._undo()
        told = self._committer.tell(flush, state)
        self._watchdog.alive()
        self._order.told(flush, told.accepted, told.settled.ranges)
        if state is not None:
            self._state = state
        if told.stopped is not None:
            raise told.stopped


class _Opened(Exception):
    """A failed write after which the breaker opens: it is not repeated."""

    def __init__(self, error: Unavailable) -> None:
        super().__init__(str(error))
        self.error = error


def _class(error: Refused) -> str:
    """Returns the error class for grouping in the dead letters: of the error itself, or of the exception from the
    destination's own library, if there is one."""
    if error.error_class:
        return error.error_class
    cause = error.__cause__
    return type(cause).__name__ if cause is not None else class_of(Outcome("refused", status=error.status))


def deliver(
    destination: BatchDestination, options: Delivery, committer: Committer, renew_every: float
) -> DeliveryReport:
    """Runs the engine, with a renewer of the lease beside it."""
    with (
        Watchdog(committer.port, committer.work.node, options) as watchdog,
        LeaseRenewer(committer.port, renew_every) as renewer,
        seldom_collecting(),
    ):
        return BatchWise(destination, options, committer, renewer, watchdog).run()
