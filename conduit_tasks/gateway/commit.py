"""Group commit: the chunks of many requests are stored in one call, then all are answered; with the rate limit of a
source, and whether Redis is away.

While one call is on its way (and Redis fsyncs), the next requests gather and then share the cost of one fsync. A
source's events are stored in the order in which their requests were read.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

from conduit_tasks.errors import BrokerFull, BrokerUnavailable, ConduitError
from conduit_tasks.gateway.pipe import LANES, WITHHELD
from conduit_tasks.gateway.store import CROWDED, FORGETFUL, REPEATED, REPLAYED, UNSETTLED, Budget
from conduit_tasks.gateway.verify import Mark
from conduit_tasks.redis_client.portions import portions
from conduit_tasks.waits import CALL

log = logging.getLogger("conduit.gateway")

LINGER = 0.002
"""Seconds that the first request of a group waits for others."""
GROUP_BYTES, GROUP_REQUESTS, GROUP_CHUNKS = 4 << 20, 20_000, 2_000
"""Limits of a group, in bytes, requests and, with a pipe or signatures, chunks: Redis does nothing else while it stores
one."""
CHUNK_BYTES = 64 << 10
"""Size up to which requests share an entry of the stream."""
PATIENCE = 5.0
"""Seconds for which a group is retried while Redis is away; then its producers are told to come back."""
PAUSE = 0.1
ANSWER = CALL + PATIENCE
"""Timeout in seconds of one call that stores a group: more than Redis takes with all retries; a disk may hang for
ever."""
HELD = 1_000
"""Requests of a source that may wait for an earlier request of their pipe."""

Add = Callable[..., list[str | None]]
"""`IngestStore.add`: gateway, group, events of each chunk, chunks, budget, and `marks` of each chunk if there are any;
`PipedStore.add` alike."""
_APART = (None, REPLAYED, REPEATED, FORGETFUL, UNSETTLED)
"""Answers to a chunk of several requests after which each is tried by itself."""


class NotNext(ConduitError):
    """An event whose number is not the next of its pipe, and the one before did not come in time."""


class TooManyLanes(ConduitError):
    """An event of a new lane, although the limit of lanes is reached."""


class Replayed(ConduitError):
    """A signed request that was taken before."""


class Unsettled(ConduitError):
    """A signed request that another call took, and that is not in the journal yet."""


class TooManyRemembered(ConduitError):
    """A signed request, although the limit of remembered ones is reached."""


class Health:
    """State of Redis: every committer reports that it is away, the server's probe that it is back."""

    def __init__(self) -> None:
        self.away = ""
        """Reason why Redis does not serve; "" = it serves."""
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


@dataclass(slots=True, eq=False)
class _Request:
    count: int
    chunk: bytes
    stored: asyncio.Future[bool]
    since: float
    marks: Sequence[Mark]
    timed: bool = False
    """Whether a timer runs for it."""


_REFUSED: dict[str | None, Callable[[], ConduitError]] = {
    CROWDED: lambda: TooManyLanes("no further lane may be known"),
    REPLAYED: lambda: Replayed("taken before"),
    FORGETFUL: lambda: TooManyRemembered("no further request may be remembered"),
    UNSETTLED: lambda: Unsettled("taken before, and not durable yet"),
}


class Committer:
    """Stores the events of one source; one group at a time."""

    def __init__(self, add: Add, budget: Budget, pool: Executor, health: Health, hold: float | None = None) -> None:
        """Takes `hold`: seconds that a request may wait for an earlier one of its pipe; None: there is no pipe."""
        self.add, self.budget, self.hold = add, budget, hold
        self._pool, self._health = pool, health
        # Groups are numbered per committer: a restarted gateway does not send a group again.
        self._gateway, self._group = secrets.token_hex(8), 0
        self._waiting: deque[_Request] = deque()
        self._held: list[_Request] = []
        self._working: asyncio.Task[None] | None = None
        self._context = copy_context()

    async def store(self, count: int, chunk: bytes, marks: Sequence[Mark] = ()) -> bool:
        """Returns True once the `count` events of the chunk are durable, False if the backlog is full. `marks`: what is
        remembered of a signed request.

        Raises BrokerUnavailable: they may be stored or not, and their producer has to send them again. Raises
        BrokerFull: none of them is stored. Raises NotNext, TooManyLanes, Replayed, TooManyRemembered,
        Unsettled.
        """
        loop = asyncio.get_running_loop()
        request = _Request(count, chunk, loop.create_future(), loop.time(), marks)
        self._waiting.append(request)
        if self._working is None:
            self._working = loop.create_task(self._work(), context=self._context)
        return await request.stored

    async def _work(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(LINGER)
                full = await self._commit(_chunks(self._next(), CHUNK_BYTES if self.hold is None else 0))
                if full:
                    # Of the requests in a chunk that does not fit, some may fit by themselves.
                    for some in portions(full, GROUP_CHUNKS):
                        await self._commit([[request] for request in some])
        finally:
            self._working = None

    def _next(self) -> list[_Request]:
        group: list[_Request] = []
        size = events = 0
        apart = self.hold is not None or (self._waiting and self._waiting[0].marks)
        most = GROUP_CHUNKS if apart else GROUP_REQUESTS
        while self._waiting and size < GROUP_BYTES and len(group) < most:
            events += self._waiting[0].count
            # Each event may have a lane of its own.
            if self.hold is not None and group and events > LANES:
                break
            group.append(self._waiting.popleft())
            size += len(group[-1].chunk)
        return group

    async def _commit(self, chunks: list[list[_Request]]) -> list[_Request]:
        """Stores chunks and answers their requests; returns the requests of refused chunks that had more than one.

        Invariant 1: no request is answered before the call that stored it came back.
        """
        self._group += 1
        stored = await self._add(chunks)
        if stored is None:
            return []
        again: list[_Request] = []
        if self._held and any(id and id != WITHHELD for id in stored):
            # The events that they wait for may have been stored now.
            self._waiting.extendleft(reversed([r for r in self._held if not r.stored.done()]))
            self._held.clear()
        for chunk, done in zip(chunks, stored, strict=True):
            if done == WITHHELD:
                self._hold(chunk[0])
                continue
            if done in _APART and len(chunk) > 1:
                again += chunk
                continue
            if done in _REFUSED:
                self._fail(chunk, _REFUSED[done]())
                continue
            for request in chunk:
                if not request.stored.done():
                    request.stored.set_result(done is not None)
        return again

    async def _add(self, chunks: list[list[_Request]]) -> list[str | None] | None:
        """Stores the chunks in one call and returns the result of each. None if that failed or is not known; then their
        requests were answered with the error."""
        counts = [sum(r.count for r in chunk) for chunk in chunks]
        marks = [[mark for r in chunk for mark in r.marks] for chunk in chunks]
        blobs = [b"".join([r.chunk for r in chunk]) for chunk in chunks]
        add = partial(self.add, marks=marks) if any(marks) else self.add
        loop = asyncio.get_running_loop()
        while True:
            try:
                storing = loop.run_in_executor(self._pool, add, self._gateway, self._group, counts, blobs, self.budget)
                return await asyncio.wait_for(storing, ANSWER)
            except TimeoutError:
                # A disk that does not answer: it is not known whether the group is stored.
                late = BrokerUnavailable(f"it is not known after {ANSWER:g} s whether events are stored")
                self._health.lost(str(late))
                self._fail([*(r for chunk in chunks for r in chunk), *self._waiting], late)
                self._waiting.clear()
                return None
            except BrokerFull as error:
                # Redis serves, but has stored none of them; an immediate retry would not help.
                log.warning("a group of %d events was refused: %s", sum(counts), error)
                self._fail([r for chunk in chunks for r in chunk], error)
                return None
            except BrokerUnavailable as error:
                # Retries the group under the same number: if the first call came through, this one changes nothing.
                if not self._health.away and loop.time() - chunks[0][0].since < PATIENCE:
                    await asyncio.sleep(PAUSE)
                    continue
                self._health.lost(str(error))
                self._fail([*(r for chunk in chunks for r in chunk), *self._waiting], error)
                self._waiting.clear()
                return None
            except Exception as error:
                log.exception("a group of %d events was not stored", sum(counts))
                self._fail([r for chunk in chunks for r in chunk], error)
                return None

    def _hold(self, request: _Request) -> None:
        """Lets a request wait for an earlier one. It was not confirmed, so no data is lost if it is forgotten."""
        left = request.since + (self.hold or 0.0) - asyncio.get_running_loop().time()
        if left <= 0 or len(self._held) >= HELD:
            self._fail([request], NotNext("an earlier number is missing"))
            return
        self._held.append(request)
        if not request.timed:
            request.timed = True
            asyncio.get_running_loop().call_later(left, self._expire, request)

    def _expire(self, request: _Request) -> None:
        if request in self._held:
            self._held.remove(request)
            self._fail([request], NotNext("an earlier number is missing"))

    @staticmethod
    def _fail(group: list[_Request], error: Exception) -> None:
        for request in group:
            if not request.stored.done():
                request.stored.set_exception(error)

    async def drain(self) -> None:
        """Waits until no group is under way, at most the timeout of a group."""
        if self._working is not None:
            await asyncio.wait([self._working], timeout=ANSWER)


def _chunks(group: list[_Request], most: int) -> list[list[_Request]]:
    """Returns the requests in order, in chunks of up to `most` bytes; 0: one request per chunk."""
    chunks: list[list[_Request]] = []
    room = 0
    for request in group:
        if len(request.chunk) > room:
            chunks.append([])
            room = most
        chunks[-1].append(request)
        room -= len(request.chunk)
    return chunks


class Bucket:
    """A rate limit: `rate` events per second, up to a second's worth at once; a batch may go into debt once."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._level, self._at = max(rate, 1.0), time.monotonic()

    def take(self, events: int) -> float:
        """Returns 0 if the events may pass, else the seconds until the next event may."""
        now = time.monotonic()
        self._level = min(max(self.rate, 1.0), self._level + (now - self._at) * self.rate)
        self._at = now
        if self._level <= 0:
            return (-self._level + 1) / self.rate
        self.charge(events)
        return 0.0

    def charge(self, events: int) -> None:
        """Takes events without a check: those that a request turned out to hold beyond the number taken before."""
        self._level -= events
