"""Re-send (SEMANTICS O1): one unconfirmed message at a time; without a confirmation in time it is sent again."""

from __future__ import annotations

from collections import deque
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipes.base import AT_ONCE, Confirmation, Message, Reaction, Receiver, Sender, State


class ResendSender(Sender):
    """Sender that keeps each message until it is confirmed.

    `timeout`: seconds after which an unconfirmed message is sent again; None = never, because the route does that.
    `capacity`: limit of messages that wait, sent or not; `offer` refuses more.
    """

    window = 1
    """Messages on their way at once."""
    announces_gaps = False

    def __init__(self, *, timeout: float | None = 10.0, capacity: int = 1024, epoch: int = 0) -> None:
        if timeout is not None and not timeout > 0:
            raise ConfigError(f"timeout: {timeout} seconds is no time to wait; give more than 0")
        if capacity < 1:
            raise ConfigError(f"capacity: {capacity} messages leave no room for one; give 1 or more")
        self.timeout, self.capacity, self.epoch = timeout, capacity, epoch
        self._next = 1
        self._waiting: deque[Message] = deque()
        self._unconfirmed: dict[int, Message] = {}
        self._due: dict[int, float] = {}
        """Time at which each unconfirmed message is to be sent again, in the order of these times."""

    def offer(self, payload: Any) -> int | None:
        if self.open >= self.capacity:
            return None
        number = self._next
        self._next += 1
        self._waiting.append(Message(number, payload, epoch=self.epoch))
        return number

    def poll(self, now: float) -> list[Message]:
        again = []
        for number, due in self._due.items():
            if due > now:
                break
            again.append(number)
        messages = [self._send(self._unconfirmed[number], now) for number in again]
        while self._waiting and len(self._unconfirmed) < self.window:
            message = self._waiting.popleft()
            self._unconfirmed[message.number] = message
            messages.append(self._send(message, now))
        return messages

    def _send(self, message: Message, now: float) -> Message:
        self._due.pop(message.number, None)
        if self.timeout is not None:
            self._due[message.number] = now + self.timeout
        return message

    def confirm(self, confirmation: Confirmation) -> None:
        if confirmation.epoch == self.epoch:
            self._unconfirmed.pop(confirmation.number, None)
            self._due.pop(confirmation.number, None)

    def abandon(self, number: int) -> None:
        if self.announces_gaps:
            gap = Message(number, gap=True, epoch=self.epoch)
            if number in self._unconfirmed:
                self._unconfirmed[number] = gap
                # At the front, so that messages that wait behind the gap do not wait a timeout longer.
                self._due = {number: AT_ONCE} | {n: due for n, due in self._due.items() if n != number}
            else:
                self._waiting = deque(gap if m.number == number else m for m in self._waiting)
        else:
            self.confirm(Confirmation(number, self.epoch))
            self._waiting = deque(m for m in self._waiting if m.number != number)

    @property
    def wake_at(self) -> float | None:
        if self._waiting and len(self._unconfirmed) < self.window:
            return AT_ONCE
        return next(iter(self._due.values()), None)

    @property
    def open(self) -> int:
        return len(self._waiting) + len(self._unconfirmed)

    def snapshot(self) -> State:
        """Returns the state without the times of sending: a restored sender sends unconfirmed messages at once."""
        messages = sorted([*self._unconfirmed.values(), *self._waiting], key=lambda m: m.number)
        return {
            "epoch": self.epoch,
            "next": self._next,
            "open": [[m.number, m.payload, m.gap] for m in messages],
        }

    def restore(self, state: State) -> None:
        self.epoch, self._next = state["epoch"], state["next"]
        self._waiting = deque(Message(number, payload, gap, self.epoch) for number, payload, gap in state["open"])
        self._unconfirmed, self._due = {}, {}


class ResendReceiver(Receiver):
    """Receiver that delivers and confirms every message; it has no state that could be lost."""

    def receive(self, message: Message) -> Reaction:
        confirm = (Confirmation(message.number, message.epoch),)
        return Reaction(() if message.gap else (message,), confirm)

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Does nothing: there is no state."""
