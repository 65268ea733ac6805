"""Several records in one request (`http`, `sqs`), an outcome for each: how long the first waits for others, and halves
of a request that is refused (SEMANTICS C17).

Records whose sends overlap share a request. A target without outcomes per record takes or refuses a request as a
whole; a refused request is sent again in halves, so that only the record at fault is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from conduit_tasks.connectors.base import Outcome
from conduit_tasks.errors import Unavailable
from conduit_tasks.record.record import Record

Exchange = Callable[[list[Record]], Awaitable[Outcome | list[Outcome]]]
"""Function that sends one request and returns one outcome for all of it, or one per record."""


Batch = list[tuple[Record, "asyncio.Future[Outcome]"]]
ENDING = 1.0
"""Seconds that cancelled requests are given to end; less than a delivery gives its destination to close."""


def _failed(batch: Batch, error: Exception) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(error)


class Batcher:
    """Batches of at most `most` records; the first record waits `delay` seconds for others. For one event loop."""

    def __init__(self, exchange: Exchange, most: int, delay: float) -> None:
        self._exchange, self._most, self._delay = exchange, most, delay
        self._waiting: Batch = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, record: Record) -> Outcome:
        """Sends the record with others and returns its outcome."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Outcome] = loop.create_future()
        self._waiting.append((record, answer))
        if len(self._waiting) >= self._most:
            self._go()
        elif self._timer is None:
            self._timer = loop.call_later(self._delay, self._go)
        return await answer

    async def close(self) -> None:
        """Cancels all requests; the senders of their records get Unavailable at once."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ENDING)
        waiting, self._waiting = self._waiting, []
        _failed(waiting, Unavailable("closed before it was sent"))

    def _go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # A record whose sender gave up in the meantime is not sent: nobody would receive its outcome.
        batch, self._waiting = [each for each in self._waiting if not each[1].done()], []
        if batch:
            task = asyncio.create_task(self._answered(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answered(self, batch: Batch) -> None:
        """Sends a batch; every sender receives the outcome of its record, or the error."""
        try:
            await self._bring(batch)
        except asyncio.CancelledError:
            _failed(batch, Unavailable("closed while it was sent"))
            raise
        except Exception as error:  # noqa: BLE001 - the senders judge it
            _failed(batch, error)

    async def _bring(self, batch: Batch) -> None:
        outcome = await self._exchange([record for record, _ in batch])
        if isinstance(outcome, list):
            for (_, answer), each in zip(batch, outcome, strict=True):
                if not answer.done():
                    answer.set_result(each)
            return
        if outcome.kind == "refused" and len(batch) > 1:
            half = len(batch) // 2
            # One after the other: the records of a lane keep their order.
            await self._bring(batch[:half])
            await self._bring(batch[half:])
            return
        for _, answer in batch:
            if not answer.done():
                answer.set_result(outcome)
