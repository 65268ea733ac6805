"""Number of records to ask for at a time, so that each answer has a bounded size (SEMANTICS C13)."""

from __future__ import annotations

FIRST = 16
GROWTH = 16
BYTES = 16 << 20


class Portion:
    """Number that begins small, grows by the factor GROWTH, and follows the size of the last records. `most`: records
    at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = min(FIRST, most)
        """Records to ask for now."""

    def came(self, records: int, size: int) -> None:
        """Adapts the number to an answer of `records` records with `size` bytes together."""
        if records:
            fitting = int(BYTES * records / max(size, 1))
            self.size = max(1, min(self._most, fitting, self.size * GROWTH))
