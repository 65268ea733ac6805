"""Continuous index (SEMANTICS O6, O6r): a number that is not the next one waits in the queue.

Queued messages are confirmed when they are queued, so the queue is part of the state that must be stored before. The
queue is bounded: when it is full, a message that is not the next is not taken and not confirmed, and comes again.
Because the next one is always taken, that cannot block for ever.
"""

from __future__ import annotations

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipes.base import Confirmation, Message, Reaction, Receiver, State
from conduit_tasks.pipes.resend_multi import ResendMultiSender


class ContinuousSender(ResendMultiSender):
    """Consecutive numbers over a re-sending window (O2): that is the inner route that re-sends.

    `timeout` None leaves re-sending to a route that delivers at least once. A number that is abandoned is announced
    as a gap, and the announcement is sent again until it is confirmed.
    """

    announces_gaps = True


class ContinuousReceiver(Receiver):
    """Delivers every number once, in order.

    `first`: the number to begin with, None = whichever comes first; `queue`: messages that may wait for a lower one.
    """

    relaxed = False
    """Whether the current number may pass again."""

    def __init__(self, *, first: int | None = 1, queue: int = 1024, epoch: int = 0) -> None:
        if queue < 0:
            raise ConfigError(f"queue: {queue} messages cannot wait; give 0 or more")
        self.epoch, self.capacity = epoch, queue
        self.current = None if first is None else first - 1
        self._passed = False
        """Whether the current number was delivered, not only announced or begun with."""
        self._queue: dict[int, Message] = {}

    @property
    def queued(self) -> int:
        """Messages that wait for a lower number."""
        return len(self._queue)

    def receive(self, message: Message) -> Reaction:
        if message.epoch != self.epoch:
            return Reaction()
        number = message.number
        if self.current is None:
            self.current = number - 1
        confirm = (Confirmation(number, self.epoch),)
        if number <= self.current:
            again = self.relaxed and number == self.current and self._passed and not message.gap
            return Reaction((message,) if again else (), confirm)
        if number > self.current + 1:
            if number not in self._queue and len(self._queue) >= self.capacity:
                return Reaction()
            # A gap takes the place of the message that it stands for, if that is still here.
            if message.gap or number not in self._queue:
                self._queue[number] = message
            return Reaction((), confirm)
        deliver = []
        following: Message | None = message
        while following is not None:
            self.current, self._passed = following.number, not following.gap
            if not following.gap:
                deliver.append(following)
            following = self._queue.pop(self.current + 1, None)
        return Reaction(tuple(deliver), confirm)

    def snapshot(self) -> State:
        queue = [[m.number, m.payload, m.gap] for m in self._queue.values()]
        return {"epoch": self.epoch, "current": self.current, "passed": self._passed, "queue": queue}

    def restore(self, state: State) -> None:
        self.epoch, self.current, self._passed = state["epoch"], state["current"], state["passed"]
        self._queue = {number: Message(number, payload, gap, self.epoch) for number, payload, gap in state["queue"]}


class ContinuousRelaxedReceiver(ContinuousReceiver):
    """The current number may pass again, so that a receiver that is not sure of its last delivery can repeat it."""

    relaxed = True
