"""Tells the broker what a flush holds, in the one order that loses nothing (vote, store, handlers, confirm), and stops
the pipeline if a nack cannot be stored (C5–C8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conduit_tasks.delivery.handlers import ERROR_CLASS, Changes, HandlerFailed
from conduit_tasks.delivery.port import DeliveryPort
from conduit_tasks.delivery.progress import Flush, Progress, Settled
from conduit_tasks.delivery.work import DeliveryReport, Work, add
from conduit_tasks.errors import BrokerUnavailable, Fenced, PipelineStopped
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter

if TYPE_CHECKING:
    from conduit_tasks.dead_letters.handler import Handler
    from conduit_tasks.delivery.breaker import Breaker
    from conduit_tasks.ledger.entry import Tally


@dataclass(frozen=True)
class Told:
    """Result of telling the broker a flush. `accepted`: number of accepted votes, None: all. `stopped`: the error that
    ends the delivery; the caller notes what is settled before it raises it."""

    accepted: int | None
    settled: Settled
    stopped: PipelineStopped | None


class Committer:
    """Reports of one destination to the broker about one micro-batch. `tell` may run in another thread, one call at a
    time.

    `changes` is told before every confirm, `tally` after it.
    """

    def __init__(
        self,
        work: Work,
        port: DeliveryPort,
        handler: Handler | None = None,
        *,
        changes: Changes | None = None,
        tally: Tally | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self.work, self.port, self.breaker = work, port, breaker
        self._changes, self._tally = changes, tally
        self._store = handler.store if handler is not None else port.store_dead
        self.counts, self.flushes = Counts(), 0

    def tell(self, flush: Flush, state: dict[str, Any] | None = None) -> Told:
        """Tells the broker of a flush: 1. vote, 2. store the dead letters of accepted nacks (Invariant 8), 3. call the
        handlers (C7), 4. confirm.

        Delivered records are confirmed whatever stops the rest: a nack that trips the window, a dead letter that cannot
        be stored (its record is not confirmed, T7) or for which a handler raises, a pipeline that was stopped
        meanwhile. Raises PipelineStopped if a handler raises for acks: they are not confirmed, so that the handler is
        called for them again.
        """
        accepted, stopped = self._vote(flush)
        settled = flush.settled(accepted)
        if settled.letters and (failure := self._bury(settled.letters)) is not None:
            accepted, stopped, settled = 0, failure, flush.settled(0)
        halted = self._confirm(settled, state)
        if self.breaker is not None:
            self.breaker.told()
        self.counts, self.flushes = add(self.counts, settled.counts), self.flushes + 1
        return Told(accepted, settled, stopped or halted)

    def _bury(self, letters: list[DeadLetter]) -> PipelineStopped | None:
        """Stores dead letters and calls the handlers for them. Returns the error that keeps them from being confirmed,
        or None."""
        try:
            self._store(letters)
        except (Fenced, BrokerUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it stops the pipeline (C5, C8)
            return self._not_stored(error)
        try:
            if self._changes is not None:
                self._changes.nacked(letters)
        except HandlerFailed as error:
            return self._handler_failed(error)
        return None

    def _confirm(self, settled: Settled, state: dict[str, Any] | None) -> PipelineStopped | None:
        """Confirms. Returns the error of a pipeline that is stopped; the broker has taken the confirm all the same."""
        if not settled.ranges:
            return None
        halted: PipelineStopped | None = None
        try:
            if self._changes is not None:
                self._changes.acked(settled)
            self.port.confirm(settled.ranges.ranges, settled.counts, state=state, dead=settled.letters)
        except HandlerFailed as error:
            raise self._handler_failed(error) from error
        except PipelineStopped as error:
            halted = error
        if self._tally is not None:
            self._tally.told(settled)
        return halted

    def _handler_failed(self, error: HandlerFailed) -> PipelineStopped:
        self.port.fail(str(error), ERROR_CLASS)
        return PipelineStopped(str(error))

    def _not_stored(self, error: Exception) -> PipelineStopped:
        """Stops the pipeline (C5, C8), because the dead-letter handler failed. Returns the error."""
        said = (
            f"the dead letters of {self.work.node} cannot be stored ({type(error).__name__}: {error}); their records "
            f"stay unacknowledged. Fix the `dead-letter-queue`, then `conduit start {self.work.pipeline}`"
        )
        self.port.fail(said, "dead-letter-queue")
        return PipelineStopped(said)

    def flush(self, progress: Progress, state: dict[str, Any] | None = None) -> None:
        """Tells a whole flush, for a caller that can wait. Raises PipelineStopped if `tell` raises it, or returns it as
        `stopped`."""
        flush = progress.begin()
        told = self.tell(flush, state)
        progress.end(flush, told.accepted, told.settled.ranges)
        if told.stopped is not None:
            raise told.stopped

    def _tripped(self, flush: Flush, accepted: int) -> PipelineStopped:
        """Returns the error of a tripped window: the nack that was one too many."""
        letter = flush.letter(flush.first + accepted)
        return PipelineStopped(
            f"{self.work.node} of {self.work.pipeline} stopped at a nack that its window does not tolerate: "
            f"{letter.error} (micro-batch {letter.micro_batch}, record {letter.seq}, {letter.error_class}). "
            f"Fix the cause or set `dead-letter-queue`, then `conduit start {self.work.pipeline}`"
        )

    def report(self, seconds: float) -> DeliveryReport:
        """Returns the counts of everything told so far."""
        return DeliveryReport(self.counts, self.flushes, seconds)

    def _vote(self, flush: Flush) -> tuple[int | None, PipelineStopped | None]:
        """Returns the number of votes accepted before the one that tripped the window (None: all), and the error that
        stops the delivery. A window that had tripped before accepts no more votes."""
        done = 0
        for votes, letter in _one_nack_each(flush):
            try:
                accepted = self.port.vote(
                    flush.first + done,
                    votes,
                    error=letter.error if letter else "",
                    error_class=letter.error_class if letter else "",
                )
            except PipelineStopped as error:
                return done, error
            if accepted is not None:
                return done + accepted, self._tripped(flush, done + accepted)
            done += sum(n for _, n in votes)
        return None, None


def _one_nack_each(flush: Flush) -> Iterator[tuple[list[tuple[str, int]], DeadLetter | None]]:
    """Yields the votes of a flush in calls of at most one nack, which comes last, with that nack's first dead
    letter."""
    held: list[tuple[str, int]] = []
    at = flush.first
    for vote, count in flush.votes:
        if vote == "a":
            held.append((vote, count))
            at += count
            continue
        for _ in range(count):
            yield [*held, ("n", 1)], flush.letter(at)
            held = []
            at += 1
    if held:
        yield held, None
