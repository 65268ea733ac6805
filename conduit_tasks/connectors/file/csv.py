"""CSV rows as structured records: values are strings, or null; whole columns become JSON text at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from conduit_tasks.connectors.file.framing import Bounds, CsvFraming, payload_ends
from conduit_tasks.connectors.file.on_disk import SourceFile

_ESCAPED = np.zeros(256, bool)
"""Bytes that JSON strings must escape."""
_ESCAPED[:32] = _ESCAPED[ord('"')] = _ESCAPED[ord("\\")] = True


class CsvRows:
    """Turns rows into payloads. The header is the file's first row; `key` names one of its columns.

    An empty cell and the words of `null_values` are null, unless quoted.
    """

    def __init__(self, file: SourceFile, framing: CsvFraming, key: str | None, null_values: tuple[bytes, ...]) -> None:
        self.framing = framing
        self.nulls = {b"", *null_values}
        found = file.first_record(framing, settled=lambda: True)
        if found is None:
            raise file.error("has no header row; its first row names the columns")
        row = file.bytes_at(found[0], found[1] - found[0]).rstrip(b"\r\n")
        try:
            self.names = [value.decode() for value, _ in framing.fields(row)]
        except UnicodeDecodeError as e:
            raise file.error(f"has a header that is not UTF-8: {e}; convert the file") from e
        twice = {name for name in self.names if self.names.count(name) > 1}
        if twice:
            raise file.error(f"names the column {sorted(twice)[0]!r} twice in its header; rename one")
        if key is not None and key not in self.names:
            raise file.error(f"has no column {key!r} (option 'key'); it has {', '.join(self.names)}")
        self.key = None if key is None else self.names.index(key)

    def columns(self, data: bytes, bounds: Bounds) -> tuple[pa.Array, pa.Array | None, dict[int, str]]:
        """Returns (payloads, keys, errors by row). A row that cannot be decoded keeps its bytes as payload."""
        return self._fast(data, len(bounds.starts)) or self._slow(data, bounds)

    def _fast(self, data: bytes, rows: int) -> tuple[pa.Array, pa.Array | None, dict[int, str]] | None:
        """Decodes with Arrow; None if it does not find exactly these rows (a damaged one, a lone `\\r`, no UTF-8)."""
        names = [str(i) for i in range(len(self.names))]
        try:
            table = pacsv.read_csv(
                pa.BufferReader(data),
                pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
                pacsv.ParseOptions(
                    delimiter=self.framing.delimiter.decode(),
                    quote_char=self.framing.quote.decode() or False,
                    newlines_in_values=True,
                ),
                pacsv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=[word.decode() for word in self.nulls],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != rows:
            return None
        columns = [column.combine_chunks() for column in table.columns]
        key = None if self.key is None else columns[self.key].cast(pa.binary())
        return self._objects(columns), key, {}

    def _objects(self, columns: Sequence[pa.Array]) -> pa.Array:
        pieces: list[pa.Array | pa.Scalar] = []
        literal = "{"
        for name, column in zip(self.names, columns):
            literal += f"{orjson.dumps(name).decode()}:"
            if not column.null_count and not _needs_escape(column):
                pieces += [pa.scalar(f'{literal}"'), column]
                literal = '",'
            else:
                pieces += [pa.scalar(literal), _json_strings(column)]
                literal = ","
        pieces.append(pa.scalar(literal.removesuffix(",") + "}"))
        return pc.binary_join_element_wise(*pieces, "").cast(pa.binary())

    def _slow(self, data: bytes, bounds: Bounds) -> tuple[pa.Array, pa.Array | None, dict[int, str]]:
        """Decodes row by row, so that a row that cannot be decoded does not hold up the others."""
        payloads: list[bytes] = []
        keys: list[bytes | None] = []
        errors: dict[int, str] = {}
        stops = payload_ends(data, *bounds)
        for row, (start, stop) in enumerate(zip(bounds.starts.tolist(), stops.tolist())):
            raw = data[start:stop]
            fields = self.framing.fields(raw)
            key = None
            try:
                if len(fields) != len(self.names):
                    raise ValueError(f"the row has {len(fields)} cells, the header {len(self.names)}")
                cells = [None if not quoted and v in self.nulls else v.decode() for v, quoted in fields]
                payload = orjson.dumps(dict(zip(self.names, cells)))
                if self.key is not None and cells[self.key] is not None:
                    key = fields[self.key][0]
            except ValueError as e:
                errors[row], payload = str(e), raw
            payloads.append(payload)
            keys.append(key)
        return pa.array(payloads, pa.binary()), None if self.key is None else pa.array(keys, pa.binary()), errors


def _needs_escape(column: pa.Array) -> bool:
    buffer = column.buffers()[2]
    return buffer is not None and bool(_ESCAPED[np.frombuffer(buffer, np.uint8)].any())


def _json_strings(column: pa.Array) -> pa.Array:
    """Returns each value as a JSON string, null as `null`."""
    if _needs_escape(column):
        values = column.to_pylist()
        return pa.array(["null" if v is None else orjson.dumps(v).decode() for v in values], pa.string())
    return pc.fill_null(pc.binary_join_element_wise(pa.scalar('"'), column, pa.scalar('"'), ""), "null")
