"""Continuous index (SEMANTICS O6, O6r): a number that is not the next one waits in the queue.

Queued messages are confirmed when they are queued, so the queue is part of the state that must be stored before the
confirmation. The queue is bounded: if it is full, a message that is not the next is not taken and not confirmed, and
comes again. Because the next one is always taken, that cannot block for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipes.base import Confirmation, Message, Reaction, Receiver, State
from conduit_tasks.pipes.resend_multi import ResendMultiSender


class ContinuousSender(ResendMultiSender):
    """Sender of consecutive numbers over a re-sending window (O2), which is the inner route that re-sends.

    `timeout` None leaves re-sending to a route that delivers at least once. A number that is abandoned is announced as
    a gap, and the announcement is sent again until it is confirmed.
    """

    announces_gaps = True


class ContinuousReceiver(Receiver):
    """Receiver that delivers every number once, in order.

    `first`: the number to begin with, None = whichever comes first; `queue`: limit of messages that wait for a lower
    one.
    """

    relaxed = False
    """Whether the current number may pass again."""

    def __init__(self, *, first: int | None = 1, queue: int = 1024, epoch: int = 0) -> None:
        if queue < 0:
            raise ConfigError(f"queue: {queue} messages cannot wait; give 0 or more")
        self.epoch, self.capacity = epoch, queue
        self.current = None if first is None else first - 1
        self._passed = False
        """Whether the current number was delivered, not only announced as a gap or set as the beginning."""
        self._queue: dict[int, Message] = {}
        self._order: list[int] = []
        """A heap of the queued numbers."""

    @property
    def queued(self) -> int:
        """Number of messages that wait for a lower number."""
        return len(self._queue)

    def receive(self, message: Message) -> Reaction:
        if message.epoch != self.epoch:
            return Reaction()
        if self.current is None:
            self.current = message.number - 1
        confirm = (Confirmation(message.number, self.epoch),)
        if message.number <= self.current:
            again = self.relaxed and message.number == self.current and self._passed and not message.gap
            return Reaction((message,) if again else (), confirm)
        if message.follows > self.current:
            return Reaction((), confirm) if self._enqueue(message) else Reaction()
        return Reaction(tuple(m for m in self._following(message) if not m.gap), confirm)

    def _enqueue(self, message: Message) -> bool:
        known = message.number in self._queue
        if not known and len(self._queue) >= self.capacity:
            return False
        if not known:
            heappush(self._order, message.number)
        # A gap replaces the message that it stands for, if that is still queued.
        if message.gap or not known:
            self._queue[message.number] = message
        return True

    def _following(self, message: Message) -> Iterator[Message]:
        """Yields the message and the queued ones that follow it; `current` moves with each."""
        following: Message | None = message
        while following is not None:
            self.current, self._passed = following.number, not following.gap
            yield following
            following = None
            while self._order and following is None:
                queued = self._queue[self._order[0]]
                if queued.number > self.current and queued.follows > self.current:
                    return
                del self._queue[heappop(self._order)]
                following = queued if queued.number > self.current else None

    def snapshot(self) -> State:
        queue = [[m.number, m.payload, m.gap, m.after] for m in self._queue.values()]
        return {"epoch": self.epoch, "current": self.current, "passed": self._passed, "queue": queue}

    def restore(self, state: State) -> None:
        self.epoch, self.current, self._passed = state["epoch"], state["current"], state["passed"]
        messages = [Message(number, payload, gap, self.epoch, after) for number, payload, gap, after in state["queue"]]
        self._queue = {m.number: m for m in messages}
        self._order = sorted(self._queue)


class ContinuousRelaxedReceiver(ContinuousReceiver):
    """Receiver that lets the current number pass again, so that it can repeat its last delivery if it is not sure of
    it."""

    relaxed = True
