"""Number of records to ask for, or to work on, at a time: what comes of them has a bounded size (SEMANTICS C13)."""

from __future__ import annotations

FIRST = 16
GROWTH = 16
BYTES = 16 << 20


class Portion:
    """Number that begins small, grows by the factor GROWTH, and follows the size of the last records. `most`: records
    at most; `size`: bytes that they have together."""

    def __init__(self, most: int, size: int = BYTES) -> None:
        self._most, self._bytes = most, size
        self.size = min(FIRST, most)
        """Records to ask for now."""

    def came(self, records: int, size: int) -> None:
        """Adapts the number to an answer of `records` records with `size` bytes together."""
        if records:
            fitting = int(self._bytes * records / max(size, 1))
            self.size = max(1, min(self._most, fitting, self.size * GROWTH))
