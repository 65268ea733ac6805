"""The seam between delivering and the broker: what the delivery engines need, and nothing else.

The real one (`conduit_tasks.broker`) talks to Redis; tests may use a dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conduit_tasks.record.record import Record


@dataclass(frozen=True)
class DeadLetter:
    """One record that could not be delivered or processed (C14): the whole record and why."""

    micro_batch: int
    seq: int
    record: Record
    node: str
    """Where it failed: `sources.<id>`, `processors`, `destinations.<id>`."""
    error: str
    error_class: str
    """Short and groupable: `http 400`, `IntegrityError`, `processor`, `killed its worker`."""
    attempts: int = 1
    epoch: int = 0
    at: float = 0.0
    """Seconds since the epoch."""
    index: int | None = None
    """The record's number in its source partition, for ever; None where the caller does not know it."""

    @property
    def key(self) -> tuple[int, int, int, int]:
        """(epoch, micro-batch, seq, ord): one dead letter per destination and key, however often it is stored."""
        return (self.epoch, self.micro_batch, self.seq, self.record.ordinal)


@dataclass(frozen=True)
class Counts:
    """What happened to the seqs of a confirm, counted per record (seq), plus sends repeated (`retried`)."""

    matched: int = 0
    delivered: int = 0
    filtered: int = 0
    """By a destination processor."""
    nacked: int = 0
    completed: int = 0
    """Refused, and `refused: complete` says that counts as delivered."""
    parked: int = 0
    """Stored behind a dead letter of the same key (X4)."""
    retried: int = 0


class DeliveryPort(Protocol):
    """Calls of one lease holder for one destination and one micro-batch. Every call renews the lease and raises
    Fenced where it was lost, PipelineStopped where the pipeline (or this destination) was stopped forcefully: no more
    may be sent then. What was sent by then is still told: `confirm` takes it in any status, and `vote` until this
    destination's own window has tripped.

    Calls come from one thread at a time, but for `renew`, `begin_send` and `send_until`, which may come beside another
    call."""

    def confirm(
        self,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        *,
        state: dict[str, Any] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> None:
        """Confirms inclusive seq ranges, none of them confirmed before. `state` replaces the stored one if given.

        They are confirmed as well where it raises PipelineStopped: what has arrived is not sent again for a stop.
        """

    def vote(
        self, first: int, votes: Sequence[tuple[str, int]], *, error: str = "", error_class: str = ""
    ) -> int | None:
        """Votes run-length encoded (("a", 500), ("n", 1), …) for the matched seqs in order, where `first` is the
        ordinal (among the micro-batch's matched records) of the first vote. Repeats are ignored by watermark.
        `error`, `error_class`: of the nack in `votes`; a call has at most one, so that the stored error is its own.

        Returns None, or the number of votes of this call accepted before the nack that tripped the window;
        the pipeline is stopped by then (unless `isolate`, then this destination), its first error being `error`.
        Raises PipelineStopped where an earlier vote tripped it.
        """

    def fail(self, error: str, error_class: str) -> None:
        """Stops the pipeline (isolated: the destination) with this error; the first one is kept (invariant 9)."""

    def give_up(self, error: str) -> None:
        """The process of this delivery ends right now, because it makes no progress: the destination counts as down."""

    def store_dead(self, letters: Sequence[DeadLetter]) -> None:
        """Stores dead letters, idempotently, durable on return (invariant 8). Raises where it cannot (T7)."""

    def begin_send(self, seq: int) -> None:
        """Everything up to `seq` may have been sent from here on (guarantee: at-most-once). The mark may be taken back
        to what was really sent, in any status."""

    def renew(self) -> None:
        """Keeps the lease; called at least every `lease_ttl / 3` while nothing else is."""

    @property
    def send_until(self) -> float:
        """`time.monotonic()` after which no send may begin: lease expiry less the send timeout."""
