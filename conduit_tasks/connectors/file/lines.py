"""Rows as lines of a file: payloads, or whole records as OpenCDC JSON; both from columns, without making records."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import Refused
from conduit_tasks.record import jsons
from conduit_tasks.record.record import OPERATIONS, Data, json_data
from conduit_tasks.record.schema import DATA, part_values, to_records

BYTES = 256 << 20
"""Bytes per piece of lines: far below the 2 GiB that the offsets of an Arrow array reach."""


def lines(rows: Rows, format: str) -> Iterator[memoryview]:
    """Yields the rows as bytes, each with its `\\n`. Raises Refused if a raw payload holds a line end of its own:
    bisection then finds the row."""
    batch = rows.batch
    step = max(1, int(batch.num_rows * BYTES / max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, step):
        piece = batch.slice(start, step)
        yield _opencdc(piece, rows) if format == "opencdc" else _payloads(piece.column("after"))


def write_lines(rows: Rows, format: str, path: Path) -> None:
    """Writes the rows to a new file. Raises Refused as `lines`, OSError."""
    with path.open("wb") as file:
        for data in lines(rows, format):
            file.write(data)


def _joined(*columns: pa.Array | bytes) -> tuple[memoryview, int]:
    """Joins the values of columns and constants, row by row; null is empty. Returns the bytes, and the number of line
    ends in them."""
    parts = [pa.scalar(c, pa.binary()) if isinstance(c, bytes) else c for c in columns]
    joined = pc.binary_join_element_wise(
        *parts, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b""
    )
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset : joined.offset + len(joined) + 1]
    data = memoryview(joined.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
    return data, bytes(data).count(b"\n")


def _payloads(payloads: pa.Array) -> memoryview:
    """Returns one line per record; a record without a payload (a delete) is an empty line."""
    data, ends = _joined(payloads, b"\n")
    if ends != len(payloads):
        raise Refused("a raw payload with a line end in it would be two lines; write format: opencdc, which escapes it")
    return data


def _opencdc(batch: pa.RecordBatch, rows: Rows) -> memoryview:
    """Returns lines as `Record.to_opencdc` has them. Structured data keeps the text that it was read as."""

    def line(data: Callable[[str], pa.Array]) -> tuple[memoryview, int]:
        return _joined(
            b'{"position":"', pa.array(map(_base64, batch.column("position").to_pylist()), pa.binary()),
            b'","operation":"', pa.array([o.encode() for o in OPERATIONS], pa.binary()).take(batch.column("operation")),
            b'","metadata":', _metadata(batch, rows),
            b',"key":', data("key"),
            b',"payload":{"before":', data("before"),
            b',"after":', data("after"),
            b"}}\n",
        )  # fmt: skip

    found, ends = line(lambda part: _texts(batch, part))
    if ends != batch.num_rows:
        # Some JSON is formatted over several lines.
        found, _ = line(lambda part: _compact(part_values(batch, part)))
    return found


def _metadata(batch: pa.RecordBatch, rows: Rows) -> pa.Array:
    column = batch.column("metadata")
    if column.null_count == len(column):
        shared = pa.array([jsons.dumps(origin.metadata) for origin in rows.origins], pa.binary())
        return shared.take(batch.column("slice"))
    merged = [record.meta() for record in to_records(batch, rows.origins)]
    return pa.array(map(orjson.dumps, merged), pa.binary())


def _texts(batch: pa.RecordBatch, part: str) -> pa.Array:
    """Returns the JSON of a data column: the text it has if all of it is structured."""
    column = batch.column(part)
    if column.null_count == len(column):
        return pa.array([b"null"], pa.binary()).take(pa.array(np.zeros(len(column), np.int8)))
    shapes = batch.column("shape").to_numpy()
    if (shapes & DATA[part]).all():
        return column.fill_null(b"null")
    return _compact(part_values(batch, part))


def _compact(values: Iterable[Data]) -> pa.Array:
    return pa.array([jsons.dumps(json_data(v)) for v in values], pa.binary())


def _base64(raw: bytes) -> bytes:
    return binascii.b2a_base64(raw, newline=False)
