"""Monotonic index (SEMANTICS O5, O5r): consecutive numbers, and the receiver passes on only higher ones.

Messages that the route lost, or that arrive after a higher number, are gone: the price of no duplicates without
waiting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipes.base import AT_ONCE, Confirmation, Message, Reaction, Receiver, Sender, State


class MonotonicSender(Sender):
    """Sender that numbers messages and sends each once, without waiting for a confirmation.

    `capacity`: limit of messages that wait for the next `poll`; `offer` refuses more.
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
        """Does nothing: no message waits for a confirmation."""

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
    """Receiver that passes a number only if it is higher than the current one.

    `first`: the number to begin with, None = whichever comes first (producers may count from any number). Dropped
    messages are confirmed too: no repetition would make them pass.
    """

    relaxed = False
    """Whether the current number may pass again."""

    def __init__(self, *, first: int | None = 1, epoch: int = 0) -> None:
        self.epoch = epoch
        self.current = None if first is None else first - 1
        self._passed = False
        """Whether the current number was delivered, not only announced as a gap or set as the beginning."""

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
        """Receives messages with these ascending numbers one after the other, as `receive` does, without gaps. Returns
        the number of messages that it drops: these are the first ones, and all others pass. A relaxed receiver drops
        the current one too."""
        dropped = 0 if self.current is None else bisect_right(numbers, self.current)
        if dropped < len(numbers):
            self.current, self._passed = int(numbers[-1]), True
        return dropped

    def snapshot(self) -> State:
        return {"epoch": self.epoch, "current": self.current, "passed": self._passed}

    def restore(self, state: State) -> None:
        self.epoch, self.current, self._passed = state["epoch"], state["current"], state["passed"]


class MonotonicRelaxedReceiver(MonotonicReceiver):
    """Receiver that lets the current number pass again, so that it can repeat its last delivery if it is not sure of
    it."""

    relaxed = True
