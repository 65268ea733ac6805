"""A dead letter: a record that could not be delivered or processed, and why (SEMANTICS C14)."""

from __future__ import annotations

from dataclasses import dataclass

from conduit_tasks.record.record import Record


@dataclass(frozen=True)
class DeadLetter:
    """One record that could not be delivered or processed (C14): the whole record and the reason."""

    micro_batch: int
    seq: int
    record: Record
    node: str
    """Node at which it failed: `sources.<id>`, `processors`, `destinations.<id>`."""
    error: str
    error_class: str
    """Short class for grouping: `http 400`, `IntegrityError`, `processor`, `killed its worker`."""
    attempts: int = 1
    epoch: int = 0
    at: float = 0.0
    """Seconds since the epoch."""
    index: int | None = None
    """The record's permanent number in its source partition; None if the caller does not know it."""

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Key (epoch, micro-batch, seq, ord): one dead letter per destination and key, however often it is stored."""
        return (self.epoch, self.micro_batch, self.seq, self.record.ordinal)
