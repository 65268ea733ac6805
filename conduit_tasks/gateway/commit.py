"""Group commit: the events of many requests are stored in one call, then all are answered.

While one call is on its way (and Redis fsyncs), the next requests gather; so the cost of an fsync is shared by whatever
came in meanwhile, and a source's events are stored in the order in which their requests were read.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.gateway.store import Budget

log = logging.getLogger("conduit.gateway")

LINGER = 0.002
"""Seconds that the first request of a group waits for others."""
GROUP_EVENTS, GROUP_BYTES = 4_000, 4 << 20
"""A group ends with the request that reaches one of these: Redis does nothing else while it stores one."""
PATIENCE = 5.0
"""Seconds for which a group is tried again while Redis is away; then its producers are told to come back."""
PAUSE = 0.1

Add = Callable[[str, int, list[int], list[bytes], Budget], list[bool]]
"""`IngestStore.add`."""


class Health:
    """Whether Redis serves; told by every committer, mended by the server's probe."""

    def __init__(self) -> None:
        self.away = ""
        """Why it does not; "" = it does."""
        self.changed = asyncio.Event()

    def lost(self, reason: str) -> None:
        if not self.away:
            log.error("not taking events: %s", reason)
        self.away = reason or "unknown"
        self.changed.set()

    def back(self) -> None:
        if self.away:
            log.warning("taking events again")
        self.away = ""


@dataclass(slots=True)
class _Request:
    events: list[bytes]
    size: int
    stored: asyncio.Future[bool]
    since: float


class Committer:
    """Stores the events of one source; one group at a time."""

    def __init__(self, add: Add, budget: Budget, pool: Executor, health: Health) -> None:
        self.add, self.budget = add, budget
        self._pool, self._health = pool, health
        # Groups are numbered per committer: after a restart of the gateway nothing is sent again.
        self._gateway, self._group = secrets.token_hex(8), 0
        self._waiting: deque[_Request] = deque()
        self._working: asyncio.Task[None] | None = None

    async def store(self, events: list[bytes], size: int) -> bool:
        """True once the events are durable, False where the backlog is used up.

        Raises BrokerUnavailable: they may be stored or not, and their producer has to send them again.
        """
        loop = asyncio.get_running_loop()
        request = _Request(events, size, loop.create_future(), loop.time())
        self._waiting.append(request)
        if self._working is None:
            self._working = loop.create_task(self._work())
        return await request.stored

    async def _work(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(LINGER)
                await self._commit(self._next())
        finally:
            self._working = None

    def _next(self) -> list[_Request]:
        group: list[_Request] = []
        count = size = 0
        while self._waiting and count < GROUP_EVENTS and size < GROUP_BYTES:
            request = self._waiting.popleft()
            group.append(request)
            count, size = count + len(request.events), size + request.size
        return group

    async def _commit(self, group: list[_Request]) -> None:
        """Invariant 1: no request is answered before the call that stored it came back."""
        self._group += 1
        events = [event for request in group for event in request.events]
        counts = [len(request.events) for request in group]
        loop = asyncio.get_running_loop()
        while True:
            try:
                stored = await loop.run_in_executor(
                    self._pool, self.add, self._gateway, self._group, counts, events, self.budget
                )
            except BrokerUnavailable as error:
                # The same group under the same number: if the first call came through, this one changes nothing.
                if not self._health.away and loop.time() - group[0].since < PATIENCE:
                    await asyncio.sleep(PAUSE)
                    continue
                self._health.lost(str(error))
                self._fail([*group, *self._waiting], error)
                self._waiting.clear()
                return
            except Exception as error:
                log.exception("a group of %d events was not stored", len(events))
                self._fail(group, error)
                return
            for request, done in zip(group, stored, strict=True):
                if not request.stored.done():
                    request.stored.set_result(done)
            return

    @staticmethod
    def _fail(group: list[_Request], error: Exception) -> None:
        for request in group:
            if not request.stored.done():
                request.stored.set_exception(error)

    async def drain(self) -> None:
        """Waits until nothing is under way."""
        while self._working is not None:
            await asyncio.shield(self._working)


class Bucket:
    """A rate limit: `rate` events per second, up to a second's worth at once; a batch may go into debt once."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._level, self._at = max(rate, 1.0), time.monotonic()

    def take(self, events: int) -> float:
        """0 where the events may pass, else the seconds until the next may."""
        now = time.monotonic()
        self._level = min(max(self.rate, 1.0), self._level + (now - self._at) * self.rate)
        self._at = now
        if self._level <= 0:
            return (-self._level + 1) / self.rate
        self._level -= events
        return 0.0
