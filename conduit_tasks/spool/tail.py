"""The last rows of a spool file, without reading all of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_tasks.errors import SpoolError
from conduit_tasks.record.parquet import batches_of
from conduit_tasks.spool.manifest import PartFile
from conduit_tasks.spool.parts import ROW_GROUP
from conduit_tasks.spool.spool import Spool

HELD = 1 << 20
"""Decoded bytes of a batch while a row group is gone through."""


@dataclass
class Budget:
    """Bytes that may still be read, as they are before compression; the first row group is read whatever its size.
    `spent`: something was not read because they are used up."""

    bytes: int
    used: bool = False
    spent: bool = False

    def takes(self, size: int) -> bool:
        """Returns whether so many bytes may be read, and counts them."""
        if self.used and size > self.bytes:
            self.spent = True
            return False
        self.bytes -= size
        self.used = True
        return True


def last_rows(
    spool: Spool, file: PartFile, count: int, *, columns: Sequence[str], budget: Budget, row_filter: str | None = None
) -> list[pa.RecordBatch]:
    """Returns the last `count` rows of a part file, in order, or fewer if it has fewer or the budget is used up; with
    `row_filter` those in which that boolean column is true. Raises SpoolError."""
    spool.check(file)
    found: deque[pa.RecordBatch] = deque()
    names = [*columns, row_filter] if row_filter else list(columns)
    try:
        with spool.store.open(file.path) as source:
            parquet = pq.ParquetFile(source)
            for group in reversed(range(parquet.num_row_groups)):
                need = count - sum(batch.num_rows for batch in found)
                if need <= 0 or not budget.takes(parquet.metadata.row_group(group).total_byte_size):
                    break
                kept: deque[pa.RecordBatch] = deque()
                for each in batches_of(parquet, HELD, ROW_GROUP, row_groups=[group], columns=names):
                    batch = each.filter(each.column(row_filter)) if row_filter else each
                    kept.append(batch.select(list(columns)))
                    while sum(b.num_rows for b in kept) - kept[0].num_rows >= need:
                        kept.popleft()
                over = sum(b.num_rows for b in kept) - need
                if over > 0:
                    kept[0] = kept[0].slice(over)
                found.extendleft(reversed(kept))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise SpoolError(f"{spool.uri(file.path)} cannot be read: {error}") from error
    return [batch for batch in found if batch.num_rows]
