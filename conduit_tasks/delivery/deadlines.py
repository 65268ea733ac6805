"""One timer for all sends on their way: who waits for longer than `timeout` is given up (SEMANTICS T5).

A timer per send costs more than what it is there for; as all wait equally long, the one that began first is due first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")

LOOKS = 20
"""Looks per timeout: a send is given up at most a twentieth late."""
SELDOM = 0.25
"""Seconds between two looks at most."""


class TimedOut(Exception):
    """The send was given up; whether it arrived is not known."""


class Deadlines:
    """Times the sends of tasks that each have one at a time. Use it in one event loop; then `stop`."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._since: dict[asyncio.Task[Any], float] = {}
        self._given_up: set[asyncio.Task[Any]] = set()
        self._every = min(timeout / LOOKS, SELDOM)
        self._next = self._loop.call_later(self._every, self._look)

    async def within(self, task: asyncio.Task[Any], send: Awaitable[T]) -> T:
        """What `send` gives, awaited by `task`, the current one. Raises TimedOut after `timeout` seconds."""
        self._since[task] = self._loop.time()
        try:
            return await send
        except asyncio.CancelledError:
            if task in self._given_up and not task.uncancel():
                raise TimedOut from None
            raise
        finally:
            del self._since[task]
            self._given_up.discard(task)

    def stop(self) -> None:
        """Nothing is given up any more."""
        self._next.cancel()

    def _look(self) -> None:
        late = self._loop.time() - self._timeout
        for task, since in self._since.items():
            if since > late:
                break
            if task not in self._given_up:
                self._given_up.add(task)
                task.cancel()
        self._next = self._loop.call_later(self._every, self._look)
