"""Reads a slice of a file as Arrow batches, without Python per record for text and JSON Lines; finds lines that are no
JSON objects, and the keys of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.connectors.base import Slice
from conduit_tasks.connectors.file.csv import CsvRows
from conduit_tasks.connectors.file.framing import NEWLINE, Bounds, CsvFraming, LineFraming, payload_ends
from conduit_tasks.connectors.file.on_disk import SourceFile
from conduit_tasks.record import jsons
from conduit_tasks.record.schema import AFTER_STRUCTURED, RECORD_FIELDS, read_batch

CHUNK = 16 << 20
ROWS = 65_536
"""Rows per batch at most."""

FEW = 64
"""Rows below which Python makes their positions faster than Arrow."""

ERROR = "conduit.error"

Columns = tuple[pa.Array, pa.Array | None, dict[int, str]]
"""Payloads, keys, and errors by row for rows that cannot be decoded (their payload is raw)."""


def read_slice(
    slice: Slice,
    framing: LineFraming,
    format: str,
    *,
    key: str | None,
    null_values: tuple[bytes, ...],
    parse: bool,
) -> Iterator[pa.RecordBatch]:
    """Yields exactly the records of the slice, as READ_SCHEMA batches. `parse`: see the option `validate`.

    Raises Missing if the file changed since it was planned.
    """
    with SourceFile(slice.part) as file:
        file.life = slice.end.get("life", 0)
        file.check(slice.end)
        begin, end, found = slice.hint["from"], slice.end["offset"], 0
        for batch in records(
            file, framing, format, begin=begin, end=end, key=key, null_values=null_values, parse=parse
        ):
            found += batch.num_rows
            yield batch
        if found != slice.records:
            raise file.missing(
                f"has {found} records between bytes {slice.hint['from']} and {slice.end['offset']}, where "
                f"{slice.records} were counted: a file that is read must only grow"
            )


def records(
    file: SourceFile,
    framing: LineFraming,
    format: str,
    *,
    begin: int,
    end: int,
    key: str | None,
    null_values: tuple[bytes, ...],
    parse: bool,
) -> Iterator[pa.RecordBatch]:
    """Yields the records between two bytes of a file, as READ_SCHEMA batches."""
    rows = None
    if isinstance(framing, CsvFraming):
        rows = CsvRows(file, framing, key, null_values)
    for at, data, bounds in _chunks(file, framing, begin, end):
        if rows is not None:
            columns = rows.columns(data, bounds)
        else:
            payloads = _payloads(data, bounds)
            columns = (payloads, None, {}) if format == "text" else _json_objects(payloads, key, parse)
        batch = _batch(file.place, bounds.starts + at, columns, structured=format != "text")
        for start in range(0, batch.num_rows, ROWS):
            yield batch.slice(start, ROWS)


def _chunks(file: SourceFile, framing: LineFraming, at: int, end: int) -> Iterator[tuple[int, bytes, Bounds]]:
    """Yields (offset in the file, bytes, bounds of their records), each from the end of the last record on."""
    length = CHUNK
    while at < end:
        data = file.bytes_at(at, min(length, end - at))
        whole = at + len(data) >= end
        bounds = framing.bounds(data, whole)
        if len(bounds.ends):
            used = int(bounds.ends[-1])
            yield at, data[:used], bounds
            at, length = at + used, CHUNK
        elif whole or not data:
            return
        else:
            length = file.grown(at, length)


def _payloads(data: bytes, bounds: Bounds) -> pa.Array:
    """Cuts the lines, without their ends, out of the bytes in one go."""
    starts, ends = bounds
    if b"\r" in data:
        stops = payload_ends(data, starts, ends)
        edges = np.zeros(len(data) + 1, np.int8)
        np.add.at(edges, starts, 1)
        np.subtract.at(edges, stops, 1)
        values = np.frombuffer(data, np.uint8)[np.cumsum(edges[:-1], dtype=np.int8).astype(bool)].tobytes()
        offsets = np.concatenate([[0], np.cumsum(stops - starts)])
    else:
        # Without the line ends the lines lie side by side: a line moves up by as many bytes as there are line
        # ends before it, and a blank line, which is no record, leaves nothing.
        values = data.replace(b"\n", b"")
        moved = np.arange(len(starts))
        if len(values) + len(starts) < len(data):
            moved = np.searchsorted(np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE), starts)
        offsets = np.append(starts - moved, len(values))
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(values)]
    )


def _json_objects(payloads: pa.Array, key: str | None, parse: bool) -> Columns:
    """Finds lines that are no JSON objects. Without `parse` (and `key`) it checks only their first and last bytes."""
    errors: dict[int, str] = {}
    if not parse and key is None:
        offsets = np.frombuffer(payloads.buffers()[1], np.int32, len(payloads) + 1)
        values = np.frombuffer(payloads.buffers()[2] or b"", np.uint8)
        sound = (values[offsets[:-1]] == ord("{")) & (values[offsets[1:] - 1] == ord("}"))
        for row in np.flatnonzero(~sound).tolist():
            _object(payloads[row].as_py(), row, errors, orjson.loads)
        return payloads, None, errors
    lines = payloads.to_pylist()
    if key is None:
        # Digits do not matter for whether a line is JSON; its depth is checked at a point that all records pass.
        for row, line in enumerate(lines):
            _object(line, row, errors, orjson.loads)
        return payloads, None, errors
    loads = jsons.exact if jsons.many_digits(b"".join(lines)) else orjson.loads
    keys = [_key_bytes(_object(line, row, errors, loads).get(key)) for row, line in enumerate(lines)]
    return payloads, pa.array(keys, pa.binary()), errors


def _object(line: bytes, row: int, errors: dict[int, str], loads: Callable[[bytes], Any]) -> dict[str, Any]:
    """Returns the object of a line; an empty one if it is none, with the reason in `errors`."""
    try:
        value = loads(line)
    except jsons.JSONDecodeError as e:
        errors[row] = f"not JSON: {e}"
        return {}
    if not isinstance(value, dict):
        errors[row] = "not a JSON object"
        return {}
    return value


def _key_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else jsons.raw(value)


def _batch(part: str, offsets: np.ndarray, columns: Columns, structured: bool) -> pa.RecordBatch:
    payloads, keys, errors = columns
    if len(offsets) < FEW:
        positions = pa.array([f"{part}:{offset}".encode() for offset in offsets.tolist()], pa.binary())
    else:
        positions = pc.binary_join_element_wise(pa.scalar(part), pa.array(offsets).cast(pa.string()), pa.scalar(":"))
    batch = read_batch(positions, after=payloads, key=keys, shape=AFTER_STRUCTURED if structured else 0)
    if not errors:
        return batch
    rows = len(payloads)
    shapes = np.full(rows, AFTER_STRUCTURED, np.int8)
    shapes[list(errors)] = 0
    metadata = [
        [(ERROR, f"{part} at byte {offsets[row]}: {errors[row]}")] if row in errors else None for row in range(rows)
    ]
    columns_by_name = {name: batch.column(name) for name in batch.schema.names}
    columns_by_name |= {"shape": pa.array(shapes), "metadata": pa.array(metadata, RECORD_FIELDS[2].type)}
    return pa.RecordBatch.from_arrays(list(columns_by_name.values()), schema=batch.schema)
