"""Counts of what became of delivered records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Outcomes of the seqs of a confirm, counted per record (seq), and the number of repeated sends (`retried`)."""

    matched: int = 0
    delivered: int = 0
    filtered: int = 0
    """Filtered by a destination processor."""
    nacked: int = 0
    completed: int = 0
    """Refused, and counted as delivered because of `refused: complete`."""
    parked: int = 0
    """Stored behind a dead letter of the same key (X4)."""
    retried: int = 0
