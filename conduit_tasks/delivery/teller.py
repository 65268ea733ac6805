"""Tells the broker what a flush holds, in the one order that loses nothing: vote, store, handlers, confirm (C6, C7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from conduit_tasks.delivery.handlers import ERROR_CLASS, Changes, HandlerFailed
from conduit_tasks.delivery.port import Counts, DeadLetter, DeliveryPort
from conduit_tasks.delivery.progress import Flush, Progress, Settled
from conduit_tasks.delivery.work import Report, Work, add
from conduit_tasks.errors import BrokerUnavailable, Fenced, PipelineStopped

if TYPE_CHECKING:
    from conduit_tasks.delivery.dead_letters import Handler
    from conduit_tasks.ledger.entry import Tally


class Teller:
    """One destination's word to the broker about one micro-batch. `tell` may run in another thread, one at a time.

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
    ) -> None:
        self.work, self.port = work, port
        self._changes, self._tally = changes, tally
        self._store = handler.store if handler is not None else port.store_dead
        self.counts, self.flushes = Counts(), 0

    def tell(self, flush: Flush, state: dict[str, Any] | None = None) -> tuple[int | None, Settled]:
        """1. vote, 2. store the dead letters of accepted nacks (Invariant 8), 3. tell the handlers (C7), 4. confirm.

        Returns how many votes were accepted before a nack that tripped the window (None: all), and what was told.
        Raises PipelineStopped where a dead letter cannot be stored: its record is not confirmed (T7), the acks are;
        and where a handler raises: nothing of the flush is confirmed.
        """
        accepted = self._vote(flush)
        settled = flush.settled(accepted)
        if settled.letters:
            try:
                self._store(settled.letters)
            except (Fenced, BrokerUnavailable):
                raise
            except Exception as error:
                self._only_acks(flush, state)
                raise self._not_stored(error) from error
        self._confirm(settled, state)
        self.counts, self.flushes = add(self.counts, settled.counts), self.flushes + 1
        return accepted, settled

    def _only_acks(self, flush: Flush, state: dict[str, Any] | None) -> None:
        self._confirm(flush.settled(0), state)

    def _confirm(self, settled: Settled, state: dict[str, Any] | None) -> None:
        if not settled.ranges:
            return
        if self._changes is not None:
            try:
                self._changes.announce(settled)
            except HandlerFailed as error:
                self.port.fail(str(error), ERROR_CLASS)
                raise PipelineStopped(str(error)) from error
        self.port.confirm(settled.ranges.ranges, settled.counts, state=state, dead=settled.letters)
        if self._tally is not None:
            self._tally.told(settled)

    def _not_stored(self, error: Exception) -> PipelineStopped:
        """Stops the pipeline (C5, C8): the handler failed."""
        said = (
            f"the dead letters of {self.work.node} cannot be stored ({type(error).__name__}: {error}); their records "
            f"stay unacknowledged. Mend the `dead-letter-queue`, then `conduit start {self.work.pipeline}`"
        )
        self.port.fail(said, "dead-letter-queue")
        return PipelineStopped(said)

    def flush(self, progress: Progress, state: dict[str, Any] | None = None) -> None:
        """A whole flush, for a caller that can wait. Raises PipelineStopped where the window tripped."""
        flush = progress.begin()
        accepted, settled = self.tell(flush, state)
        progress.end(flush, accepted, settled.ranges)
        if accepted is not None:
            raise self.tripped(flush, accepted)

    def tripped(self, flush: Flush, accepted: int) -> PipelineStopped:
        """The error of a tripped window: the nack that was one too many."""
        letter = flush.letter(flush.first + accepted)
        return PipelineStopped(
            f"{self.work.node} of {self.work.pipeline} stopped at a nack that its window does not tolerate: "
            f"{letter.error} (micro-batch {letter.micro_batch}, record {letter.seq}, {letter.error_class}). "
            f"Mend the cause or set `dead-letter-queue`, then `conduit start {self.work.pipeline}`"
        )

    def report(self, seconds: float) -> Report:
        """Everything told so far."""
        return Report(self.counts, self.flushes, seconds)

    def _vote(self, flush: Flush) -> int | None:
        done = 0
        for votes, letter in _one_nack_each(flush):
            accepted = self.port.vote(
                flush.first + done,
                votes,
                error=letter.error if letter else "",
                error_class=letter.error_class if letter else "",
            )
            if accepted is not None:
                return done + accepted
            done += sum(n for _, n in votes)
        return None


def _one_nack_each(flush: Flush) -> Iterator[tuple[list[tuple[str, int]], DeadLetter | None]]:
    """The votes of a flush in calls of at most one nack, its last vote, with that nack's first dead letter."""
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
