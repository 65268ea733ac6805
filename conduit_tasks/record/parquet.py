"""Rows of Parquet files in batches of a bounded size, whatever their encoding (SEMANTICS C13).

A file states the encoded size of its row groups only. A repeated text is stored once; decoded, each row has it. So
texts with dictionaries are read with their dictionary, measured, and decoded a batch at a time. Of other columns few
rows are read first, and then as many as fit by the size of these. A page of a file is always unpacked as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conduit_tasks.record.batches import Sizes, cut_by

FIRST = 16
"""Rows of the first batch, whose size is not known yet."""
FASTER = 4
"""Largest factor by which a batch may have more rows than the one before."""
LONG = 512
"""Bytes of a text above which it is decoded only after the number of rows that have it is known."""
BUFFER = 1 << 16
"""Bytes of a file that are read at once if only a part of a row group is needed."""
_FEW: dict[str, Any] = {"buffer_size": BUFFER, "pre_buffer": False}
"""How a file is opened of which only first rows are read: otherwise pyarrow reads whole columns of a row group."""
UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""Errors of pyarrow for a file that is no Parquet, or is damaged."""
VALUE = 16
"""Bytes of a value beside its text, in memory or as JSON."""


def opened(source: Any, begin: int = 0, end: int | None = None) -> pq.ParquetFile:
    """Opens a path or file, of which rows from `begin` to before `end` (None: its end) are to be read. Columns with
    long texts in their dictionaries are read as dictionaries. Of row groups outside, and of pages behind the first ones
    of those inside, nothing is read."""
    parquet = pq.ParquetFile(source, **_FEW)
    about = parquet.metadata
    columns = [parquet.schema.column(n) for n in range(len(parquet.schema))]
    names = parquet.schema_arrow.names
    texts = {n: c.path for n, c in enumerate(columns) if c.physical_type == "BYTE_ARRAY" and c.path in names}
    groups = row_groups(about, begin, end)[0] if texts else []
    repeated = {group: _repeated(parquet, group, texts) for group in groups}
    every = set().union(*repeated.values())
    parquet.close()
    if not every:
        return pq.ParquetFile(source, metadata=about)
    parquet = pq.ParquetFile(source, metadata=about, read_dictionary=sorted(every), **_FEW)
    long: set[str] = set()
    for group, here in repeated.items():
        # The first row comes with the whole dictionary.
        for batch in parquet.iter_batches(1, row_groups=[group], columns=sorted(here - long)) if here - long else ():
            long.update(name for name in batch.schema.names if _longest(batch.column(name)) > LONG)
            break
    parquet.close()
    return pq.ParquetFile(source, metadata=about, read_dictionary=sorted(long))


def row_groups(about: pq.FileMetaData, begin: int, end: int | None) -> tuple[list[int], int]:
    """Returns the row groups that hold rows from `begin` to before `end` (None: the file's end), and the number of the
    first row of the first."""
    found: list[int] = []
    first = at = 0
    for n in range(about.num_row_groups):
        rows = about.row_group(n).num_rows
        if (end is None or at < end) and at + rows > begin:
            first = first if found else at
            found.append(n)
        at += rows
    return found, first


def _repeated(parquet: pq.ParquetFile, group: int, texts: dict[int, str]) -> set[str]:
    """Returns the columns of a row group that may store a long text once that many rows have. `texts`: of the file's
    columns, by number. Raises pa.ArrowException or OSError if the file describes them wrongly."""
    # pyarrow ends the process, if it is asked what a column that is described wrongly is like. Reading it is an error.
    next(parquet.iter_batches(1, row_groups=[group], columns=[*texts.values()]), None)
    held = parquet.metadata.row_group(group)
    found = {name: held.column(n) for n, name in texts.items()} if held.num_rows else {}
    return {
        name for name, column in found.items() if column.has_dictionary_page and column.total_uncompressed_size > LONG
    }


def _longest(column: pa.Array) -> int:
    if not pa.types.is_dictionary(column.type):
        return 0
    return int(_sizes(column.dictionary).max(initial=0))


def batches_of(
    parquet: pq.ParquetFile, limit: int, rows: int, first: int = FIRST, **options: Any
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a Parquet file in batches of at most `rows` rows and about `limit` decoded bytes. `first`:
    rows to begin with. `options`: as `ParquetFile.iter_batches` takes them."""
    about = parquet.metadata
    groups = options.get("row_groups")
    groups = range(about.num_row_groups) if groups is None else groups
    step = first
    for group in groups:
        held = about.row_group(group)
        # Plain columns are no smaller decoded.
        most = max(1, min(rows, int(limit / max(held.total_byte_size / max(held.num_rows, 1), 1))))
        step = min(step, most)
        for batch in parquet.iter_batches(step, **{**options, "row_groups": [group]}):
            sizes = row_sizes(batch)
            for part in cut_by(batch, sizes, limit):
                yield decoded(part)
            average = int(sizes.sum()) // max(batch.num_rows, 1)
            step = max(1, min(most, FASTER * step, limit // max(average, 1)))
            # The reader takes it for the next batch.
            parquet.reader.set_batch_size(step)


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch without dictionaries."""
    for n, field in enumerate(batch.schema):
        if pa.types.is_dictionary(field.type):
            field = field.with_type(field.type.value_type)  # noqa: PLW2901
            batch = batch.set_column(n, field, batch.column(n).cast(field.type))
    return batch


def row_sizes(batch: pa.RecordBatch) -> Sizes:
    """Returns the approximate bytes of each decoded row: texts, names, and `VALUE` for each value."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        sizes += _sizes(column) + len(field.name)
    return sizes


def _sizes(column: pa.Array) -> Sizes:
    """Returns the approximate bytes of each value of an array."""
    kind = column.type
    sizes = np.full(len(column), VALUE, np.int64)
    if isinstance(column, pa.ExtensionArray):
        return _sizes(column.storage)
    if pa.types.is_dictionary(kind):
        if len(column.dictionary):
            sizes = np.where(column.is_valid(), _sizes(column.dictionary)[_filled(column.indices)], VALUE)
    elif _is_text(kind):
        sizes += _filled(pc.binary_length(column))
    elif pa.types.is_struct(kind):
        for n in range(kind.num_fields):
            sizes += _sizes(column.field(n)) + len(kind.field(n).name)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        below = [column.keys, column.items] if pa.types.is_map(kind) else [column.values]
        reached = np.concatenate([[0], np.cumsum(sum(_sizes(each) for each in below))])
        sizes += np.diff(reached[column.offsets.to_numpy()])
    elif pa.types.is_fixed_size_list(kind):
        sizes += _sizes(column.values).reshape(len(column), kind.list_size).sum(axis=1)
    elif pa.types.is_fixed_size_binary(kind):
        sizes += kind.byte_width
    return sizes


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())


def _filled(column: pa.Array) -> Sizes:
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
