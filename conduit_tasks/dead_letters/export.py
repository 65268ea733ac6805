"""Export of dead letters to files: OpenCDC JSON Lines, or the columns of the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_tasks.dead_letters.book import LetterEntry
from conduit_tasks.dead_letters.store import SCHEMA, DeadLetterStore, letters_table
from conduit_tasks.record import jsons
from conduit_tasks.spool.durable import replace_file


def write_jsonl(path: Path, entries: Sequence[LetterEntry]) -> None:
    """Writes a record per line, with the details of its failure in its metadata (`conduit.dlq.*`). Raises OSError."""
    lines = b"".join(jsons.dumps(opencdc(entry)) + b"\n" for entry in entries)
    replace_file(path, lines)


def write_parquet(path: Path, store: DeadLetterStore, entries: Sequence[LetterEntry]) -> None:
    """Writes the store's columns, with `destination`. Raises OSError."""
    rows = [entry.row for entry in entries]
    table = letters_table(list(store.load(rows))) if rows else SCHEMA.empty_table()
    table = table.add_column(0, "destination", pa.array([e.destination for e in entries], pa.string()))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    replace_file(path, sink.getvalue().to_pybytes())


def opencdc(entry: LetterEntry) -> dict[str, Any]:
    """Returns the record as OpenCDC JSON, with Conduit's names for the error and the node, and ours for the rest."""
    row = entry.row
    record: dict[str, Any] = jsons.exact(row["record"])
    record["metadata"] = {
        **record["metadata"],
        "conduit.dlq.nack.error": row["error"],
        "conduit.dlq.nack.node.id": row["node"],
        "conduit.dlq.nack.error.class": row["error_class"],
        "conduit.dlq.attempts": str(row["attempts"]),
        "conduit.dlq.at": row["at"].isoformat(),
        "conduit.dlq.destination": entry.destination,
        "conduit.dlq.record.id": row["id"],
    }
    return record
