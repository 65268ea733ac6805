"""Interface between the delivery engines and the broker: only what the engines need.

The real implementations (`delivery.broker_port`, `delivery.shard_port`) talk to Redis; tests may use a dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter


class DeliveryPort(Protocol):
    """Calls of one lease holder for one destination and one micro-batch. Every call renews the lease and raises Fenced
    if it was lost, PipelineStopped if the pipeline (or this destination) was stopped forcefully: then nothing more may
    be sent. Records sent by then are still told: `confirm` takes them in any status, and `vote` until this
    destination's own window has tripped.

    Calls come from one thread at a time, except `renew`, `begin_send` and `send_until`, which may come beside another
    call.
    """

    def confirm(
        self,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        *,
        state: dict[str, Any] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> None:
        """Confirms inclusive seq ranges, none of them confirmed before. `state` replaces the stored one if given.

        They are confirmed even if it raises PipelineStopped: records that have arrived are not sent again because of a
        stop.
        """

    def vote(
        self, first: int, votes: Sequence[tuple[str, int]], *, error: str = "", error_class: str = ""
    ) -> int | None:
        """Sends votes, run-length encoded (("a", 500), ("n", 1), …), for the matched seqs in order; `first` is the
        ordinal (among the micro-batch's matched records) of the first vote. Repeats are ignored by watermark. `error`,
        `error_class`: of the nack in `votes`; a call has at most one nack, so the stored error belongs to it.

        Returns None, or the number of votes of this call accepted before the nack that tripped the window; the pipeline
        is stopped by then (with `isolate` only this destination), and its first error is `error`. Raises
        PipelineStopped if an earlier vote tripped it.
        """

    def fail(self, error: str, error_class: str) -> None:
        """Stops the pipeline (isolated: the destination) with this error; the first one is kept (invariant 9)."""

    def give_up(self, error: str) -> None:
        """Tells the broker that this process ends right now, because its delivery makes no progress: the destination
        counts as down."""

    def store_dead(self, letters: Sequence[DeadLetter]) -> None:
        """Stores dead letters, idempotently, durable on return (invariant 8). Raises if it cannot (T7)."""

    def begin_send(self, seq: int) -> None:
        """Stores that everything up to `seq` may have been sent from here on (guarantee: at-most-once). The mark may be
        taken back to what was really sent, in any status."""

    def renew(self) -> None:
        """Renews the lease; called at least every `lease_ttl / 3` while no other call is made."""

    @property
    def send_until(self) -> float:
        """`time.monotonic()` after which no send may begin: lease expiry less the send timeout."""
