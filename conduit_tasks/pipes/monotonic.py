"""Monotonic index (SEMANTICS O5, O5r): consecutive numbers, and the receiver passes on only higher ones.

What the route lost, and what arrives after a higher number, is gone: the price of no duplicates without any waiting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipes.base import AT_ONCE, Confirmation, Message, Reaction, Receiver, Sender, State


class MonotonicSender(Sender):
    """Numbers messages and sends each once; it waits for no confirmation.

    `capacity`: messages that wait for the next `poll` before `offer` refuses one.
    """

    def __init__(self, *, capacity: int = 1024, epoch: int = 0) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity: {capacity} messages leave no room for one; give 1 or more")
        self.capacity, self.epoch = capacity, epoch
        self._next = 1
        self._waiting: deque[Message] = deque()

    def offer(self, payload: Any) -> int | None:
        if len(self._waiting) >= self.capacity:
            return None
        number = self._next
        self._next += 1
        self._waiting.append(Message(number, payload, epoch=self.epoch))
        return number

    def poll(self, now: float) -> list[Message]:
        messages = list(self._waiting)
        self._waiting.clear()
        return messages

    def confirm(self, confirmation: Confirmation) -> None:
        """Nothing waits for it."""

    def abandon(self, number: int) -> None:
        self._waiting = deque(m for m in self._waiting if m.number != number)

    @property
    def wake_at(self) -> float | None:
        return AT_ONCE if self._waiting else None

    @property
    def open(self) -> int:
        return len(self._waiting)

    def snapshot(self) -> State:
        return {"epoch": self.epoch, "next": self._next, "open": [[m.number, m.payload] for m in self._waiting]}

    def restore(self, state: State) -> None:
        self.epoch, self._next = state["epoch"], state["next"]
        self._waiting = deque(Message(number, payload, epoch=self.epoch) for number, payload in state["open"])


class MonotonicReceiver(Receiver):
    """Passes a number that is higher than the current one.

    `first`: the number to begin with, None = whichever comes first (producers that count from where they like).
    Dropped messages are confirmed too: no repetition would make them pass.
    """

    relaxed = False
    """Whether the current number may pass again."""

    def __init__(self, *, first: int | None = 1, epoch: int = 0) -> None:
        self.epoch = epoch
        self.current = None if first is None else first - 1
        self._passed = False
        """Whether the current number was delivered, not only announced or begun with."""

    def receive(self, message: Message) -> Reaction:
        if message.epoch != self.epoch:
            return Reaction()
        confirm = (Confirmation(message.number, self.epoch),)
        if self.current is None or message.number > self.current:
            self.current, self._passed = message.number, not message.gap
            return Reaction(() if message.gap else (message,), confirm)
        if self.relaxed and message.number == self.current and self._passed and not message.gap:
            return Reaction((message,), confirm)
        return Reaction((), confirm)

    def receive_all(self, numbers: Sequence[int]) -> int:
        """As `receive` of one message after the other, without gaps; how many of these ascending numbers it drops:
        all others, which follow them, pass. Of a relaxed receiver the current one is dropped too."""
        dropped = 0 if self.current is None else bisect_right(numbers, self.current)
        if dropped < len(numbers):
            self.current, self._passed = int(numbers[-1]), True
        return dropped

    def snapshot(self) -> State:
        return {"epoch": self.epoch, "current": self.current, "passed": self._passed}

    def restore(self, state: State) -> None:
        self.epoch, self.current, self._passed = state["epoch"], state["current"], state["passed"]


class MonotonicRelaxedReceiver(MonotonicReceiver):
    """The current number may pass again, so that a receiver that is not sure of its last delivery can repeat it."""

    relaxed = True
