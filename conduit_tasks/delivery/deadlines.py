"""One timer for all sends on their way: who waits for longer than `timeout` is given up (SEMANTICS T5).

A timer per send costs more than what it is there for; as all wait equally long, the one that began first is due first.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from conduit_tasks.errors import ConfigError

LOOKS = 20
"""Looks per timeout."""
SELDOM = 0.25
"""Seconds between two looks at most."""
RENEWALS = 10
"""Times that a lease is renewed for one send: a process that stands still may find a renewed one nearly over again."""


def does_not_fit(node: str, timeout: float) -> ConfigError:
    """The error of a send that a lease has no room for, however often it is renewed."""
    return ConfigError(
        f"{node}: delivery.timeout {timeout:g} s does not fit into the lease; shorten it, or raise CONDUIT_LEASE_TTL"
    )


class Deadlines:
    """Times the sends of tasks that each have one at a time: `begin`, then `end` however it ended.

    A send that is given up sees its task cancelled. Use it in one event loop; then `stop`.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._since: dict[asyncio.Task[Any], float] = {}
        self._given_up: set[asyncio.Task[Any]] = set()
        self.late = min(timeout / LOOKS, SELDOM)
        """Seconds after its timeout by which a send is given up."""
        self._next = self._loop.call_later(self.late, self._look)

    def begin(self, task: asyncio.Task[Any], now: float) -> None:
        """This task sends from now on (`time.monotonic()`)."""
        self._since[task] = now

    def end(self, task: asyncio.Task[Any]) -> bool:
        """The send has ended; whether it was given up, and its task is not cancelled for any other reason."""
        del self._since[task]
        if task not in self._given_up:
            return False
        self._given_up.remove(task)
        return not task.uncancel()

    def stop(self) -> None:
        """Nothing is given up any more."""
        self._next.cancel()

    def _look(self) -> None:
        late = time.monotonic() - self._timeout
        for task, since in self._since.items():
            if since > late:
                break
            if task not in self._given_up:
                self._given_up.add(task)
                task.cancel()
        self._next = self._loop.call_later(self.late, self._look)
