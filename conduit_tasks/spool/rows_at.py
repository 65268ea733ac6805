"""Single rows of a spool file, by their numbers: of the row groups that have any of them, each is read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from conduit_tasks.errors import SpoolError
from conduit_tasks.record.parquet import batches_of
from conduit_tasks.spool.manifest import PartFile
from conduit_tasks.spool.parts import ROW_GROUP
from conduit_tasks.spool.spool import Spool
from conduit_tasks.spool.tail import HELD


def rows_at(
    spool: Spool, file: PartFile, rows: Iterable[int], columns: Sequence[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields (number, its row) of rows of a part file, in the order of `rows`, which must rise or fall. Takes no more
    of `rows` than is asked for, but reads a row group at a time. Raises SpoolError."""
    spool.check(file)
    try:
        with spool.store.open(file.path) as source:
            parquet = pq.ParquetFile(source)
            about = parquet.metadata
            ends = np.cumsum([about.row_group(n).num_rows for n in range(about.num_row_groups)])
            groups = groupby(rows, lambda row: int(np.searchsorted(ends, row, side="right")))
            for group, numbers in groups:
                first = int(ends[group]) - about.row_group(group).num_rows
                wanted = list(numbers)
                found = _of_group(parquet, group, [number - first for number in wanted], columns)
                yield from ((number, found[number - first]) for number in wanted)
    except (OSError, KeyError, IndexError, pa.ArrowException) as error:
        raise SpoolError(f"{spool.uri(file.path)} cannot be read: {error}") from error


def _of_group(
    parquet: pq.ParquetFile, group: int, rows: Sequence[int], columns: Sequence[str]
) -> dict[int, pa.RecordBatch]:
    found: dict[int, pa.RecordBatch] = {}
    left = sorted(set(rows))
    at = 0
    for batch in batches_of(parquet, HELD, ROW_GROUP, row_groups=[group], columns=list(columns)):
        while left and left[0] < at + batch.num_rows:
            row = left.pop(0)
            # A copy: a slice would keep the whole batch.
            found[row] = batch.select(list(columns)).take(pa.array([row - at]))
        at += batch.num_rows
        if not left:
            break
    return found
