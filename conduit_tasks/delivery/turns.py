"""Turns of the senders of the record-wise engine: one that has nothing to send waits until it is woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    """Senders that wait. `may_send`: whether there is something to send now."""

    def __init__(self, may_send: Callable[[], bool]) -> None:
        self._may_send = may_send
        self._idle: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Waits to be woken."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(turn)
        await turn

    def wake(self) -> None:
        """Wakes one sender if there is something to send; that one wakes the next if there is more."""
        while self._idle and self._may_send():
            turn = self._idle.pop()
            if not turn.done():
                turn.set_result(None)
                return
