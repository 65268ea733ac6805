"""Stream (SEMANTICS O3): messages are stored under an index, confirmed from the storage, and fetched from there.

Four machines: the sender, which re-sends until the storage confirms; the storage; the receiver, which asks the storage
for the messages after its index; the index store, to which the receiver may commit its index. Between the spool and a
destination these are the source's task, the spool, the destination's task and its cursor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipes.base import AT_ONCE, Confirmation, Message, Reaction, Receiver, State
from conduit_tasks.pipes.resend_multi import ResendMultiSender


class StreamSender(ResendMultiSender):
    """Sender that re-sends until the storage has confirmed; messages that it still holds are lost with it."""


class StreamStorage(Receiver):
    """Storage of messages under consecutive indexes from 1, in the order of their arrival.

    Its state is to be stored before it confirms. A message that was sent to it again has two indexes.
    """

    def __init__(self) -> None:
        self._first = 1
        self._entries: list[Any] = []

    @property
    def end(self) -> int:
        """The index of the next message to be stored."""
        return self._first + len(self._entries)

    def receive(self, message: Message) -> Reaction:
        if not message.gap:
            self._entries.append(message.payload)
        return Reaction((), (Confirmation(message.number, message.epoch),))

    def read(self, index: int, limit: int) -> list[Message]:
        """Returns up to `limit` messages from `index` on, numbered by their index; fewer or none at the end."""
        start = max(index - self._first, 0)
        return [Message(self._first + start + n, p) for n, p in enumerate(self._entries[start : start + limit])]

    def trim(self, index: int) -> None:
        """Removes the messages below `index`."""
        count = max(min(index, self.end) - self._first, 0)
        del self._entries[:count]
        self._first += count

    def snapshot(self) -> State:
        return {"first": self._first, "entries": list(self._entries)}

    def restore(self, state: State) -> None:
        self._first, self._entries = state["first"], list(state["entries"])


@dataclass(frozen=True, slots=True)
class Fetch:
    """Request of the receiver to the storage."""

    index: int
    limit: int


class StreamReceiver:
    """Receiver that asks for the next messages and delivers them; if a request or an answer is lost, it asks again.

    `first`: the index to begin with: the committed one + 1, or 1 if nothing is committed, which delivers all again.
    `timeout`: seconds to wait for an answer; `limit`: messages per answer.
    """

    def __init__(self, *, first: int = 1, timeout: float = 10.0, limit: int = 256) -> None:
        if not timeout > 0:
            raise ConfigError(f"timeout: {timeout} seconds is no time to wait; give more than 0")
        if limit < 1:
            raise ConfigError(f"limit: {limit} messages per answer bring none; give 1 or more")
        self.next, self.timeout, self.limit = first, timeout, limit
        self._due = AT_ONCE

    def poll(self, now: float) -> Fetch | None:
        """Returns the request to send now, if it is time for one."""
        if self._due > now:
            return None
        self._due = now + self.timeout
        return Fetch(self.next, self.limit)

    @property
    def wake_at(self) -> float:
        """Time of the next poll; an empty answer leaves it at the timeout, so that an idle storage is not asked without
        a pause."""
        return self._due

    def fetched(self, messages: Sequence[Message]) -> Reaction:
        """Takes an answer, even one to an old request. `confirm` of its reaction holds the index to commit, at most
        one."""
        fresh = []
        for message in messages:
            if message.number == self.next:
                fresh.append(message)
                self.next += 1
        if not fresh:
            return Reaction()
        self._due = AT_ONCE
        return Reaction(tuple(fresh), (Confirmation(self.next - 1),))

    def snapshot(self) -> State:
        return {"next": self.next}

    def restore(self, state: State) -> None:
        """Goes on from a stored state."""
        self.next, self._due = state["next"], AT_ONCE


class IndexStore:
    """Store of the index that a receiver has committed; late and repeated commits do not move it back."""

    def __init__(self) -> None:
        self.index = 0

    def commit(self, confirmation: Confirmation) -> None:
        self.index = max(self.index, confirmation.number)

    def snapshot(self) -> State:
        return {"index": self.index}

    def restore(self, state: State) -> None:
        """Goes on from a stored state."""
        self.index = state["index"]
