"""Parts that all pipes share: messages, confirmations, and the shape of their two machines (SEMANTICS "O").

Machines are pure: they do no I/O and read no clock, so the same ones run over HTTP, a queue or a function call, and the
caller stores the state that `snapshot()` returns. Two rules keep that state valid:

- a sender is stored **after `offer` and before** the messages of `poll` are sent: a number that was on the route is
  never given to another message;
- a receiver is stored **after** the messages of its reaction were delivered, **and before** the confirmations go back.
  If the destination stores the state in one transaction with the data, nothing is delivered twice (effectively-once).

A machine serves one *epoch*: a sender that lost its state, a replay and a redrive each begin a new one, with a receiver
of its own. Messages and confirmations of other epochs are ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = dict[str, Any]
"""Plain JSON: survives `json.dumps` and `json.loads`, as far as the payloads do."""

AT_ONCE = float("-inf")
"""A `wake_at` in the past: there is something to send now."""


LANE, EPOCH, INDEX, AFTER = "conduit.lane", "conduit.epoch", "conduit.index", "conduit.after"
"""Metadata of a record on its way through an index pipe: `lane` has numbers of its own, `index` is `Message.number`,
`after` is `Message.after`."""


@dataclass(frozen=True, slots=True)
class Message:
    """Message with a `number` that counts from 1 within the epoch and never changes when it is sent again (SEMANTICS
    T8).

    A `gap` announces that this number will not come: its message was dead-lettered. A message may announce gaps before
    it too: the numbers between `after` and its own will not come, or not again; None: there are none.
    """

    number: int
    payload: Any = None
    gap: bool = False
    epoch: int = 0
    after: int | None = None

    @property
    def follows(self) -> int:
        """Number that this message follows directly."""
        return self.number - 1 if self.after is None else self.after


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Confirmation of one number by the receiver."""

    number: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Reaction:
    """Reaction to a message that arrived: deliver these messages in this order, store the state, send the
    confirmations.

    If both are empty, the message is dropped, and the sender decides whether it comes again.
    """

    deliver: tuple[Message, ...] = ()
    confirm: tuple[Confirmation, ...] = ()


class Sender(ABC):
    """Machine that numbers messages and says what to send and when. Times are seconds of any one clock of the
    caller."""

    @abstractmethod
    def offer(self, payload: Any) -> int | None:
        """Takes a message and returns its number; None if the buffer is full: offer it again later."""

    @abstractmethod
    def poll(self, now: float) -> list[Message]:
        """Returns what to send now, in this order: new messages, and again those whose confirmation is overdue."""

    @abstractmethod
    def confirm(self, confirmation: Confirmation) -> None:
        """Takes a confirmation that arrived. Late, repeated and foreign ones change nothing."""

    @abstractmethod
    def abandon(self, number: int) -> None:
        """Gives up a message that was dead-lettered: it is not sent again. Pipes whose receiver counts announce a
        gap."""

    @property
    @abstractmethod
    def wake_at(self) -> float | None:
        """Time at which `poll` has something to send, None = not before something is offered or confirmed."""

    @property
    @abstractmethod
    def open(self) -> int:
        """Number of messages taken whose sending is not finished."""

    @abstractmethod
    def snapshot(self) -> State:
        """Returns the state, to be stored."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Goes on from a stored state."""


class Receiver(ABC):
    """Machine that says for each message that arrives what to deliver and what to confirm."""

    @abstractmethod
    def receive(self, message: Message) -> Reaction:
        """Returns the reaction to a message; see Reaction."""

    @abstractmethod
    def snapshot(self) -> State:
        """Returns the state, to be stored."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Goes on from a stored state."""


Order = Literal["none", "first", "monotonic", "continuous"]
"""Property of the numbers in the order of delivery: none; the first deliveries have no gap and go up, repeated ones may
come late; numbers go up, with gaps; numbers go up without a gap."""
Duplicates = Literal["any", "current", "none"]
"""Messages that may be delivered again: any, only the last delivered one, none."""


@dataclass(frozen=True)
class Pipe:
    """One row of SEMANTICS "O": texts for people, and `order`, `loss`, `duplicates` for code."""

    name: str
    number: str
    delivery: str
    tolerates: str
    not_tolerated: str
    needs: str
    order: Order
    loss: bool
    duplicates: Duplicates
    sender: Callable[..., Sender]
    receiver: Callable[..., Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Delivery options that the pipe sets if the file does not."""
