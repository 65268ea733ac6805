"""Rows of one file of a Delta table as records, with the values of the partition columns, which the file does not
hold."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from conduit_tasks.connectors.arrow_rows import batch_of
from conduit_tasks.connectors.base import Slice
from conduit_tasks.connectors.delta.log import DeltaLog
from conduit_tasks.connectors.file.parquet import rows_between
from conduit_tasks.errors import Missing, SourceError
from conduit_tasks.record.parquet import UNREADABLE, opened


def read_slice(log: DeltaLog, slice: Slice, key: str | None) -> Iterator[pa.RecordBatch]:
    """Yields the rows of one file of the table, with the values of the partition columns, which the file does not
    hold."""
    path, begin = slice.hint["path"], slice.hint["row"]
    schema = pa.schema(log.table.schema().to_arrow())
    try:
        end = None if slice.hint["rows"] is None else begin + slice.hint["rows"]
        with log.files().open_input_file(path) as file, opened(file, begin, end) as parquet:
            for row, batch in rows_between(parquet, begin, parquet.metadata.num_rows if end is None else end):
                yield batch_of(_whole(batch, slice.hint["partition"], schema), path, row, key)
    except FileNotFoundError:
        raise Missing(
            f"delta: {path} of {log.uri} is gone (vacuumed?) before it was read. Restore it, or begin again under a "
            "new connector id with 'start: table'"
        ) from None
    except UNREADABLE as error:
        raise SourceError(f"delta: {path} of {log.uri} cannot be read: {error}") from None


def _whole(batch: pa.RecordBatch, partition: dict[str, str | None], schema: pa.Schema) -> pa.RecordBatch:
    for name, text in partition.items():
        if name in batch.schema.names:
            continue
        kind = schema.field(name).type if name in schema.names else pa.string()
        value = pa.scalar(text, pa.string()).cast(kind) if text is not None else pa.scalar(None, kind)
        batch = batch.append_column(name, pa.array([value.as_py()] * batch.num_rows, kind))
    return batch
