"""Brings one record at a time to its outcome: gives it its number, sends, waits, sends again, suspects the target,
makes it a dead letter (SEMANTICS T5–T9).

No send begins while the rate limit or the lease forbids it: a successor may be sending by the end of the lease, so
every send must have ended by then, timed out if need be.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from conduit_tasks.connectors.base import Outcome, RecordDestination
from conduit_tasks.connectors.outcome import error_class, outcome_of
from conduit_tasks.delivery.at_most_once import Gate
from conduit_tasks.delivery.breaker import Breaker
from conduit_tasks.delivery.deadlines import RENEWALS, Deadlines, does_not_fit
from conduit_tasks.delivery.down import Suspects
from conduit_tasks.delivery.numbering import LaneNumbers
from conduit_tasks.delivery.port import DeliveryPort
from conduit_tasks.delivery.progress import Progress
from conduit_tasks.delivery.rate import TokenBucket
from conduit_tasks.delivery.retry import RetryPolicy
from conduit_tasks.delivery.work import Entry, Work
from conduit_tasks.errors import Unavailable
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.topology import Delivery

log = logging.getLogger(__name__)

CLOSING = 2.0
"""Seconds that a destination has to close; they are also added to its timeout when it opens."""


class Attempts:
    """Send attempts of all tasks of one delivery. Create it in the delivery's event loop, and `close` it at the end.

    `suspected` is called when a record has used up its retries and joins `suspects`.
    """

    def __init__(
        self,
        destination: RecordDestination,
        options: Delivery,
        work: Work,
        port: DeliveryPort,
        progress: Progress,
        *,
        suspected: Callable[[], None],
        breaker: Breaker | None = None,
    ) -> None:
        self._destination, self._options = destination, options
        self._work, self._port, self._progress = work, port, progress
        self._suspected, self._breaker = suspected, breaker
        self._policy = RetryPolicy(options)
        self._bucket = TokenBucket(options.rate_limit, rested=work.rested()) if options.rate_limit else None
        self._lease = asyncio.Lock()
        self._deadlines = Deadlines(options.timeout)
        self._last_failure = Outcome("failed")
        self.suspects = Suspects()
        self._numbering = work.numbering if isinstance(work.numbering, LaneNumbers) else None
        self._gate = Gate(port, work.begun) if options.guarantee == "at-most-once" else None

    async def open(self) -> None:
        """Opens the destination, with the same retry policy as a send. Raises Unavailable if the retries are used up
        and `on-unavailable` is `wait`."""
        attempts = 1
        while True:
            try:
                async with asyncio.timeout(self._options.timeout + CLOSING):
                    await self._destination.open(self._options.timeout)
                return
            except TimeoutError:
                error = Unavailable(f"{self._work.node}: no connection within {self._options.timeout:g} s")
            except Unavailable as unavailable:
                error = unavailable
            try:
                if self._breaker is not None and self._breaker.failure(str(error)):
                    raise error
                delay = self._policy.delay(attempts, Outcome("failed", str(error), error.status, error.retry_after))
                if delay is None:
                    if self._options.on_unavailable == "wait":
                        raise error
                    # T7 literally: every send fails in the same way, and its record goes to the dead letters.
                    said = str(error)
                    log.warning("%s cannot be opened, its records go to the dead letters: %s", self._work.node, said)
                    return
            finally:
                del error  # which holds this frame
            attempts += 1
            await asyncio.sleep(delay)

    async def close(self) -> None:
        """Closes the destination; if that takes longer than `CLOSING` seconds, it is left to the end of the process."""
        self._deadlines.stop()
        if self._gate is not None:
            self._gate.close(self._work.node)
        try:
            async with asyncio.timeout(CLOSING):
                await self._destination.close()
        except TimeoutError:
            log.warning("%s did not close within %g s", self._work.node, CLOSING)

    def stale(self, seq: int) -> bool:
        """Returns whether an earlier attempt may have sent this record, so that it must not be sent again
        (at-most-once)."""
        return self._gate is not None and self._gate.stale(seq)

    async def _before_the_first(self, entry: Entry) -> None:
        """Does what pipe and guarantee require before a record's first send: gives it its number, and lets the broker
        know of it."""
        if self._numbering is not None:
            self._numbering.stamp(entry)
        if self._gate is not None:
            await self._gate.passed(entry.seq)

    async def bring(self, entry: Entry, task: asyncio.Task[Any]) -> bool:  # noqa: PLR0912 - the steps of one loop
        """Brings one record to its outcome in `task`, the current one. Returns whether it is a nack."""
        if (nacked := self._unsent(entry)) is not None:
            return nacked
        if self._numbering is not None or self._gate is not None:
            await self._before_the_first(entry)
        attempts, before = 1, 0
        first = began = time.monotonic()
        deadlines = self._deadlines
        while True:
            if self._bucket is not None or began >= self._port.send_until - deadlines.late:
                await self._may_begin()
                began = time.monotonic()
                first = began if attempts == before + 1 else first
            deadlines.begin(task, began)
            try:
                outcome = await self._destination.send(entry.record)
            except asyncio.CancelledError:
                said = f"no answer within {self._options.timeout:g} s" if deadlines.end(task) else "cancelled by itself"
                if task.cancelling():
                    raise
                outcome = Outcome("failed", said)
            except Exception as error:
                deadlines.end(task)
                stands_for = outcome_of(error)
                if stands_for is None:
                    raise
                outcome = stands_for
            else:
                deadlines.end(task)
            if outcome.kind != "failed":
                self.suspects.succeeded(began, time.monotonic())
                if self._breaker is not None:
                    self._breaker.success()
                break
            self.suspects.failed(entry, time.monotonic())
            delay = self._policy.delay(attempts - before, outcome)
            if self._breaker is not None and self._breaker.failure(outcome.message):
                if self._breaker.gives_up():
                    break
                raise self._open(outcome)
            if delay is None:
                if not await self._outlived(entry, outcome, first, began, again=before > 0):
                    break
                delay, before = self._policy.pause(outcome), attempts
            attempts += 1
            await asyncio.sleep(delay)
            began = time.monotonic()
            first = began if attempts == before + 1 else first
        if outcome.kind == "delivered":
            self._delivered(entry, attempts - 1)
            return False
        return self._not_delivered(entry, outcome, attempts)

    def _open(self, outcome: Outcome) -> Unavailable:
        """Returns the error of a delivery that ends because its breaker opens."""
        said = f"{self._work.node} of {self._work.pipeline} does not answer: {outcome.message}"
        return Unavailable(said, retry_after=outcome.retry_after, status=outcome.status)

    def down(self, suspects: int) -> Unavailable:
        """Returns the error of a target that is down. `suspects`: number of records that it was tried with."""
        last = self._last_failure
        return Unavailable(
            f"{self._work.node} of {self._work.pipeline} is down: {last.message} (the same for every one of "
            f"{suspects} record(s) tried {self._policy.attempts} time(s)); it goes on by itself once it answers",
            retry_after=last.retry_after,
            status=last.status,
        )

    def _unsent(self, entry: Entry) -> bool | None:
        """Ends a record that is not sent, because it waits behind a dead letter of its key (X4) or its processors
        failed it. Returns whether that is a nack; None if the record is to be sent."""
        parking, record = self._work.parking, entry.record
        if parking is not None and parking.takes(self._work.micro_batch, entry.seq, record.ordinal, record.key):
            parking.hold(entry.letter or self._work.letter(entry.seq, record, "", ""))
            self._progress.complete(entry.seq, record.ordinal, "parked")
            return False
        return None if entry.letter is None else self._nack(entry, entry.letter)

    def bury(self, entry: Entry) -> None:
        """Ends a record that must not overtake a nack of its own seq: it becomes a dead letter beside that one, unsent,
        as in a batch."""
        if self._unsent(entry) is not None:
            return
        first = self._progress.nack_of(entry.seq)
        error = f"not sent, as one before it of the same record is a dead letter: {first.error}"
        self._nack(entry, self._work.letter(entry.seq, entry.record, error, first.error_class, attempts=0))

    def _delivered(self, entry: Entry, retried: int) -> None:
        if self._numbering is not None:
            self._numbering.delivered(entry)
        self._progress.complete(entry.seq, entry.record.ordinal, "delivered", retried=retried)

    async def _outlived(self, entry: Entry, outcome: Outcome, first: float, last: float, *, again: bool) -> bool:
        """Waits until it is known whether the target is down, for a record that has used up its retries; ends the
        delivery if it is. `first`, `last`, `again`: see `Suspects.wait`. Returns whether the record may have failed by
        an outage that is over, and is to be tried once more: never twice, and not at most once."""
        if self._options.on_unavailable != "wait":
            return False
        verdict = self.suspects.wait(entry, outcome, first, last, time.monotonic(), again=again)
        self._last_failure = outcome
        self._suspected()
        return await verdict and not again and self._gate is None

    def _not_delivered(self, entry: Entry, outcome: Outcome, attempts: int) -> bool:
        """Ends a record that was refused or has used up its retries. Returns whether that is a nack."""
        record, seq, retried = entry.record, entry.seq, attempts - 1
        if outcome.kind == "refused" and self._options.refused == "complete":
            log.warning("%s refused record %s, which counts as complete: %s", self._work.node, seq, outcome.message)
            self._progress.complete(seq, record.ordinal, "completed", retried=retried)
            return False
        letter = self._work.letter(seq, record, outcome.message, error_class(outcome), attempts=attempts)
        return self._nack(entry, letter, retried)

    def _nack(self, entry: Entry, letter: DeadLetter, retried: int = 0) -> bool:
        if self._work.parking is not None:
            self._work.parking.nacked([letter])
        self._progress.complete(entry.seq, entry.record.ordinal, "nacked", retried=retried, letters=[letter])
        return True

    async def _may_begin(self) -> None:
        """Waits until the rate limit and the lease allow a send."""
        if self._bucket is not None:
            pause = self._bucket.reserve()
            if pause:
                await asyncio.sleep(pause)
        if not self._lasts():
            await self._keep_lease()

    def _lasts(self) -> bool:
        """Returns whether a send that begins now ends before the lease does, even if it is given up."""
        return time.monotonic() < self._port.send_until - self._deadlines.late

    async def _keep_lease(self) -> None:
        """Waits until sends may begin again. Raises Fenced if the lease is lost, ConfigError if a send does not fit
        into it."""
        async with self._lease:
            loop = asyncio.get_running_loop()
            for _ in range(RENEWALS):
                if self._lasts():
                    return
                await loop.run_in_executor(None, self._port.renew)
            if not self._lasts():
                raise does_not_fit(self._work.node, self._options.timeout)
