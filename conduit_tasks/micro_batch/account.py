"""The account of a pass: each row that came is in it by what the step that decided says, never as what is left over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conduit_tasks.record.accounts import accounted

Flags = npt.NDArray[np.bool_]
"""One flag per row."""


@dataclass
class Account:
    """Rows of a pass of `node` so far. `went_on`, `filtered`, `nacked`: of the rows that came; `made`: rows that were
    made of those that went on; `written`, `too_large`: of these, the latter nacked as they were made."""

    node: str
    micro_batch: int
    came: int = 0
    taken: int = 0
    went_on: int = 0
    filtered: int = 0
    nacked: int = 0
    made: int = 0
    written: int = 0
    too_large: int = 0

    def processed(self, keys: npt.NDArray[np.int64], on: Flags, filtered: Flags, made: int) -> int:
        """Notes that of rows with these keys some went on, as `made` rows, and some were filtered. Returns the number
        of records filtered whole: by key, as rows derived from one record share it."""
        self.went_on += int(np.count_nonzero(on))
        self.made += made
        gone = int(np.count_nonzero(filtered))
        self.filtered += gone
        return len(np.setdiff1d(keys[filtered], keys[~filtered])) if gone else 0

    def check(self, read: int, **became: int) -> None:
        """Compares rows, and records: `read` of them, and what became of those. Raises InvariantBroken."""
        node, number = self.node, self.micro_batch
        rows = {"went_on": self.went_on, "filtered": self.filtered, "nacked": self.nacked}
        accounted(node, number, self.taken, "rows", **rows)
        accounted(node, number, self.made, "rows to write", written=self.written, too_large=self.too_large)
        accounted(node, number, read, **became)

    def close(self, stored: int, nacked: int) -> None:
        """Compares the rows that came with those that were taken, and the rows in the files with those written. Raises
        InvariantBroken."""
        accounted(self.node, self.micro_batch, self.came, "rows", taken=self.taken)
        to_store = self.written + self.nacked + self.too_large
        accounted(self.node, self.micro_batch, to_store, "rows to store", stored=stored, nacked=nacked)
