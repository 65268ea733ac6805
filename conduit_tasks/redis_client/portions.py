"""Portions of unbounded lists: Redis serves nobody else while a command or script runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

PORTION = 1_000
"""Limit of fields, letters or parts that one command or script takes of an unbounded list: a millisecond or two."""


def portions(items: Sequence[T], size: int = PORTION) -> Iterator[Sequence[T]]:
    """Yields consecutive pieces of at most `size` items; none if `items` is empty."""
    for at in range(0, len(items), size):
        yield items[at : at + size]
