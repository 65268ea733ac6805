"""Bytes of derived records in a chain over columns (`columns`): when a block has enough of them, and when a record has
too many."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.derived import Derived
from conduit_tasks.record import batches
from conduit_tasks.record.batches import Sizes, row_bytes


class Weighing:
    """Bytes of derived records: of a block, and of one key. Columns that the chain does not look at count too, once for
    each record."""

    def __init__(self, chain: Chain, batch: pa.RecordBatch, keys: npt.NDArray[np.int64], limit: int) -> None:
        self._chain, self._batch, self._keys, self._limit = chain, batch, keys, limit
        self._carried: Sizes | None = None
        self._key, self._own = -1, 0
        self.bytes = 0
        self.ending = False
        """Whether the block has enough, and ends with its key."""

    def admits(self, row: int, made: Derived) -> bool:
        """Returns whether these records, derived of a row, may be kept, with those of the rows of its key before."""
        if self._carried is None:
            names = [name for name in self._batch.schema.names if name not in self._chain.reads]
            self._carried = row_bytes(self._batch.select(names))
        size = made.bytes + len(made) * int(self._carried[row])
        if self._keys[row] != self._key:
            self._key, self._own = self._keys[row], 0
        self._own += size
        if self._own > batches.DERIVED_BYTES:
            return False
        self.bytes += size
        return True

    def end(self, row: int) -> int | None:
        """Returns the row with which the next key begins, if the block has enough from now on; else None."""
        if self.ending or self.bytes <= self._limit:
            return None
        return int(self._keys.searchsorted(self._keys[row], "right"))
