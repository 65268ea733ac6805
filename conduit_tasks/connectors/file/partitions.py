"""Rows as Parquet files: columns of payloads, split by the values of `partition-by` into folders, which are named as
Hive and Spark name them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conduit_tasks.connectors.file.folder import Piece
from conduit_tasks.errors import ConfigError, Refused

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The partition of rows without a value, as Hive and Spark name it."""
PARTITIONS = 1_000
"""Files that one write may make."""


def pieces(table: pa.Table, partition_by: Sequence[str]) -> list[Piece]:
    """Returns a file per combination of values. Raises Refused, ConfigError."""
    return [Piece(folder, _Written(rows)) for folder, rows in parts(table, partition_by)]


class _Written:
    """Writes a table as a Parquet file. Raises Refused, OSError."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __call__(self, path: Path) -> None:
        try:
            pq.write_table(self._table, path, compression="zstd")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise Refused(f"these rows are no Parquet: {error}") from None


def parts(table: pa.Table, partition_by: Sequence[str]) -> list[tuple[str, pa.Table]]:
    """Returns (folder, rows in their order) per combination of values, without the columns of `partition_by`, as Hive
    does. Raises Refused, ConfigError."""
    missing = [name for name in partition_by if name not in table.column_names]
    if missing:
        raise Refused(f"there is no field '{missing[0]}' to partition by")
    parts = [("", table)]
    for name in partition_by:
        parts = [(f"{folder}{each}/", rows) for folder, of in parts for each, rows in _by(of, name)]
    if len(parts) > PARTITIONS:
        raise ConfigError(f"{len(parts)} partitions in one write, more than {PARTITIONS}: choose a coarser field")
    kept = [name for name in table.column_names if name not in partition_by]
    return [(folder, rows.select(kept)) for folder, rows in parts]


def _by(table: pa.Table, name: str) -> list[tuple[str, pa.Table]]:
    column = table.column(name)
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        raise Refused(f"field '{name}' holds no value that can name a partition")
    if pa.types.is_string(column.type):
        # In a folder's name, an empty text cannot be told from a missing one.
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    # Rows are grouped by the name of their folder, not by equality: NaN does not equal itself, -0.0 equals 0.0.
    codes = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    folders: dict[str, list[int]] = {}
    for code, value in enumerate(codes.dictionary.to_pylist()):
        folders.setdefault(f"{quote(name, safe='')}={_as_folder(value)}", []).append(code)
    return [
        (folder, table.filter(pc.is_in(codes.indices, pa.array(of, codes.indices.type))))
        for folder, of in folders.items()
    ]


def _as_folder(value: Any) -> str:
    """Returns a value as a folder's name: `..` or a value with a slash does not lead elsewhere, and no value is taken
    for a missing one."""
    if value is None:
        return NULL
    text = quote(str(value), safe=" ").replace(".", "%2E")
    return text if text != NULL else text.replace("_", "%5F", 1)
