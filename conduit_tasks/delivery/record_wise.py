"""Record-wise delivery: many sends at a time, an outcome each, order kept per lane (SEMANTICS C9, O2, O3, T5–T7, T9).

A reader keeps a bounded number of records ahead; a fixed pool of workers sends them, at most `max-unconfirmed` at once;
a flusher tells the broker every `FLUSH_RECORDS` completed records or `FLUSH_SECONDS`, in another thread, so that
sending goes on meanwhile. At most **max-unconfirmed + UNTOLD records** are sent and not confirmed in the broker, and so
may be sent again after a crash (SEMANTICS C10).

Order: with lanes, a record is sent only after the one before it in its lane was delivered, or its nack was voted,
stored and confirmed. A pipe with several unconfirmed records (O2) fills its `max-unconfirmed` from different lanes, or
from anywhere with `order-by: none`; `resend` and `sequential` have one record on its way in all (O1, O4).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop

from conduit_tasks.connectors.base import RecordDestination
from conduit_tasks.delivery.ahead import Ahead
from conduit_tasks.delivery.attempts import Attempts
from conduit_tasks.delivery.committer import Committer
from conduit_tasks.delivery.lanes import Lanes
from conduit_tasks.delivery.lease_renewer import LeaseRenewer
from conduit_tasks.delivery.numbering import LaneNumbers
from conduit_tasks.delivery.progress import Progress
from conduit_tasks.delivery.reading import Reading
from conduit_tasks.delivery.turns import Turns
from conduit_tasks.delivery.watchdog import Watchdog
from conduit_tasks.delivery.work import DeliveryReport, Entry
from conduit_tasks.errors import BrokerUnavailable, Fenced, InvariantBroken, PipelineStopped
from conduit_tasks.logs import carried
from conduit_tasks.record.accounts import accounted
from conduit_tasks.record.collector import seldom_collecting
from conduit_tasks.topology import UNTOLD, Delivery

FLUSH_RECORDS = UNTOLD * 9 // 10
"""Number of completed records that starts a flush; the rest of `UNTOLD` is for records that complete while it runs."""
FLUSH_SECONDS = 0.25
ONE_UNCONFIRMED = frozenset({"resend", "sequential"})
"""Pipes that have one record on its way, whatever `max-unconfirmed` says."""


class RecordWise:
    """One delivery of one micro-batch; used once."""

    def __init__(
        self,
        destination: RecordDestination,
        options: Delivery,
        committer: Committer,
        renew_every: float,
        watchdog: Watchdog,
    ) -> None:
        self._destination, self._options, self._committer = destination, options, committer
        self._watchdog = watchdog
        work, self._breaker = committer.work, committer.breaker
        self._work = work
        self._port = committer.port
        self._renew_every = renew_every
        self._progress = Progress(work.first, work.last, work.confirmed)
        numbering = work.numbering if isinstance(work.numbering, LaneNumbers) else None
        self._lanes = Lanes(options.order_by, numbering)
        self._in_flight = 1 if options.pipe in ONE_UNCONFIRMED else max(1, options.max_unconfirmed)
        self._busy = self._telling = 0
        self._told = True
        self._turns = Turns(self._may_send)
        self._ahead = Ahead(self._lanes, self._progress, self._in_flight)
        self._reading = True
        self._stopping = False
        self._due = asyncio.Event()

    async def run(self) -> DeliveryReport:
        """Delivers the records that are left. Raises Unavailable (the target is down, with `on-unavailable: wait`),
        PipelineStopped (the window tripped), Fenced, or an exception of a destination that stands for no outcome.

        Before it raises, everything completed is told to the broker, unless the broker itself is the cause.
        """
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = loop.create_future()
        self._attempts = Attempts(
            self._destination,
            self._options,
            self._work,
            self._port,
            self._progress,
            suspected=self._judge,
            breaker=self._breaker,
        )
        self._suspects = self._attempts.suspects

        def lost(error: BaseException) -> None:
            loop.call_soon_threadsafe(self._fail, error)

        with (
            ThreadPoolExecutor(1, "delivery-reader", carried()) as self._reader,
            ThreadPoolExecutor(1, "delivery-committer", carried()) as self._talker,
            LeaseRenewer(self._port, self._renew_every, lost),
        ):
            flusher = asyncio.create_task(self._guard(self._flush_loop()))
            senders: list[asyncio.Task[None]] = []
            try:
                await self._attempts.open()
                senders = [asyncio.create_task(self._guard(self._work_loop())) for _ in range(self._in_flight + 1)]
                senders.append(asyncio.create_task(self._guard(self._read_loop())))
                await self._end
            except (Fenced, BrokerUnavailable, InvariantBroken):
                await self._stop(senders, flusher)
                raise
            except Exception as error:
                await self._stop(senders, flusher)
                if self._told:
                    # Records that succeeded are not sent again because another failed, or stopped the rest (T4).
                    await self._last_words(error)
                raise
            finally:
                await self._stop(senders, flusher)
                await self._attempts.close()
        return self._committer.report(time.monotonic() - began)

    # -- reading ------------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        loop = asyncio.get_running_loop()
        reading = Reading(self._work)
        blocks = reading.entries()
        came = 0
        while True:
            block = await loop.run_in_executor(self._reader, next, blocks, None)
            if block is None:
                break
            for entry in block:
                self._progress.expect(entry.seq, entry.record.ordinal, entry.ordinal)
                if entry.filtered:
                    self._progress.complete(entry.seq, entry.record.ordinal, "filtered")
                elif self._attempts.stale(entry.seq):
                    self._progress.complete(entry.seq, entry.record.ordinal, "completed")
                else:
                    self._ahead.bytes += entry.bytes
                    if not self._lanes.admit(entry):
                        self._bury(entry)
            came += len(block)
            accounted(self._work.node, self._work.micro_batch, came, expected=self._progress.came)
            self._turns.wake()
            self._completed()
            if self._ahead.enough(self._busy):
                self._reading = False
                self._judge()
                await self._ahead.room()
                self._reading = True
        self._progress.finish(reading.matched)
        self._reading = False
        self._due.set()
        self._judge()

    # -- sending ------------------------------------------------------------------------------------------------

    def _may_send(self) -> bool:
        if not self._lanes.ready or (self._breaker is not None and self._breaker.half_open and self._busy):
            return False
        progress = self._progress
        # If all are suspected, one more is tried, to see whether the target is down; none of them is being sent then.
        probe = self._busy == self._in_flight == len(self._suspects)
        if self._busy >= self._in_flight and not probe:
            return False
        untold = progress.unconfirmed + self._telling + self._busy
        if untold < self._in_flight + UNTOLD + probe:
            return True
        # Only nacks wait, for a record before them that is still to be sent: no flush would make room for it.
        return (
            not self._busy and not self._telling and progress.unconfirmed == progress.waiting and not progress.votable
        )

    async def _work_loop(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            while not self._may_send():
                self._judge()
                await self._turns.wait()
            lane, entry = self._lanes.next()
            self._busy += 1
            self._turns.wake()
            self._ahead.look(self._busy)
            try:
                nacked = await self._attempts.bring(entry, task)
            finally:
                self._busy -= 1
            if nacked:
                # Invariant 8 and C9: the next record of the lane waits until the window accepted this nack.
                self._ahead.held.append((entry.seq, entry.bytes, lane))
                for derived in self._lanes.wait(lane, entry.seq):
                    self._bury(derived)
                self._due.set()
            else:
                self._ahead.bytes -= entry.bytes
                self._lanes.release(lane)
            self._ahead.look(self._busy)
            self._completed()

    def _bury(self, entry: Entry) -> None:
        self._attempts.bury(entry)
        self._ahead.held.append((entry.seq, entry.bytes, None))

    # -- telling ------------------------------------------------------------------------------------------------

    def _completed(self) -> None:
        """Notes progress, and wakes the flusher if a flush is due now."""
        self._watchdog.alive()
        progress = self._progress
        if progress.unconfirmed >= FLUSH_RECORDS or progress.complete_through or progress.votable:
            self._due.set()

    async def _flush_loop(self) -> None:
        while not self._stopping:
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            if await self._flush() and self._progress.complete_through and self._progress.confirmed:
                if not self._end.done():
                    self._end.set_result(None)
                return

    async def _last_words(self, why: Exception) -> None:
        """Tells the broker what completed since the last flush. Raises PipelineStopped, unless `why` is already one."""
        try:
            await self._flush()
        except PipelineStopped:
            if not isinstance(why, PipelineStopped):
                raise

    async def _flush(self) -> bool:
        """Tells the broker what there is. Returns False if there is nothing to tell and more is to come."""
        progress = self._progress
        flush = progress.begin()
        if not flush.size and not flush.votes and not progress.complete_through:
            return False
        self._telling = flush.size
        self._told = False
        told = await asyncio.get_running_loop().run_in_executor(self._talker, self._committer.tell, flush)
        progress.end(flush, told.accepted, told.settled.ranges)
        self._telling, self._told = 0, True
        if told.stopped is not None:
            raise told.stopped
        self._ahead.settle()
        self._ahead.look(self._busy)
        self._completed()
        self._turns.wake()
        self._judge()
        return True

    # -- ending -------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Ends the delivery if the target is down: every record on its way is suspected, and no other can be tried."""
        suspects = len(self._suspects)
        if not suspects or suspects < self._busy or self._telling or self._reading:
            return
        if self._may_send():
            self._turns.wake()
            return
        if self._lanes.ready and self._progress.unconfirmed > self._progress.waiting:
            return  # the next flush makes room for others to be tried
        if self._end.done() or not self._suspects.judge():
            return
        self._fail(self._attempts.down(suspects))

    def _fail(self, error: BaseException) -> None:
        if not self._end.done():
            self._end.set_exception(error)

    async def _guard(self, loop: Coroutine[Any, Any, None]) -> None:
        try:
            await loop
        except Exception as error:  # noqa: BLE001 - raised again by `run`, which waits for `_end`
            self._fail(error)

    async def _stop(self, senders: list[asyncio.Task[None]], flusher: asyncio.Task[None]) -> None:
        """Ends all sends at once, and waits for a flush that is under way, because the broker may have received it."""
        for task in senders:
            task.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        self._stopping = True
        self._due.set()
        await flusher
        if self._end.done() and not self._end.cancelled():
            self._end.exception()


def deliver(
    destination: RecordDestination, options: Delivery, committer: Committer, renew_every: float
) -> DeliveryReport:
    """Runs the engine in an event loop of its own."""
    with (
        Watchdog(committer.port, committer.work.node, options) as watchdog,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        seldom_collecting(),
    ):
        return runner.run(RecordWise(destination, options, committer, renew_every, watchdog).run())
