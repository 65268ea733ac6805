"""One timer for all sends on their way: a send that takes longer than `timeout` is given up (SEMANTICS T5).

A timer per send costs more than it is worth; as all sends have the same timeout, the one that began first is due first.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from conduit_tasks.errors import ConfigError

LOOKS = 20
"""Number of looks per timeout."""
SELDOM = 0.25
"""Longest time in seconds between two looks."""
RENEWALS = 10
"""Limit of lease renewals for one send: a process that was suspended may find a renewed lease nearly expired again."""


def does_not_fit(node: str, timeout: float) -> ConfigError:
    """Returns the error of a send that does not fit into a lease, however often it is renewed."""
    return ConfigError(
        f"{node}: delivery.timeout {timeout:g} s does not fit into the lease; shorten it, or raise CONDUIT_LEASE_TTL"
    )


class Deadlines:
    """Timer of the sends of tasks that each have one at a time: call `begin`, then `end` however the send ended.

    The task of a send that is given up is cancelled. Use it in one event loop; then `stop`.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._since: dict[asyncio.Task[Any], float] = {}
        self._given_up: set[asyncio.Task[Any]] = set()
        self.late = min(timeout / LOOKS, SELDOM)
        """Seconds after its timeout by which a send is given up."""
        self._waited = False
        self._begin_to_wait()

    def begin(self, task: asyncio.Task[Any], now: float) -> None:
        """Notes that this task begins a send at `now` (`time.monotonic()`)."""
        self._since[task] = now

    def end(self, task: asyncio.Task[Any]) -> bool:
        """Notes that the send has ended. Returns whether it was given up and its task is not cancelled for any other
        reason."""
        del self._since[task]
        if task not in self._given_up:
            return False
        self._given_up.remove(task)
        return not task.uncancel()

    def stop(self) -> None:
        """Stops the timer: no send is given up any more."""
        self._next.cancel()

    def _begin_to_wait(self) -> None:
        self._due = time.monotonic() + self.late
        self._next = self._loop.call_later(self.late, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        # A process that stood still has not read what came meanwhile: its sends may be answered. It does so before the
        # next look. Once only, as a loop that is always late would give up nothing.
        self._waited = not self._waited and now - self._due > self.late
        if not self._waited:
            self._give_up(now - self._timeout)
        self._begin_to_wait()

    def _give_up(self, late: float) -> None:
        for task, since in self._since.items():
            if since > late:
                break
            if task not in self._given_up:
                self._given_up.add(task)
                task.cancel()
