"""`journal`: records in an append-only table of an SQLite file, numbered in the order in which they came.

Delivery is idempotent by record id. The table is `journal(number, id, record)`; the record is OpenCDC JSON.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.base import BatchDestination, Limit, Option, Position, Rows, Slice, Spec
from conduit_tasks.connectors.capabilities import Replayable
from conduit_tasks.errors import Refused, SourceError, Unavailable
from conduit_tasks.settings import settings as installation

if TYPE_CHECKING:
    import pyarrow as pa

# Modules of connectors are imported where DAG files are parsed: what is heavy is imported where it is used.

PATH = Option("path", "the file; relative to home", required=True)
BATCH = 1_000
"""Records per Arrow batch."""

CREATE = """
CREATE TABLE IF NOT EXISTS journal (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, record TEXT NOT NULL)
"""
WITHIN = """
SELECT max(number), count(*), sum(size) FROM (
    SELECT number, size, sum(size) OVER (ORDER BY number) AS through FROM (
        SELECT number, length(record) AS size FROM journal WHERE number > :after ORDER BY number LIMIT :records))
WHERE through <= :bytes OR through = size
"""
"""The last number within a limit, how many records that are, and their size. One record is always taken: a limit must
not stop the stream."""
UNLIMITED = 1 << 62


class JournalSource(Replayable):
    """Token: the number of the last record read. Numbers are never given again, so a slice is always the same."""

    spec = Spec("journal", "Reads an append-only table of an SQLite file.", (PATH,))

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        after = position.get("", 0)
        bounds = {
            "after": after,
            "records": UNLIMITED if limit.records is None else limit.records,
            "bytes": UNLIMITED if limit.bytes is None else limit.bytes,
        }
        with closing(self._connect()) as connection:
            last, records, size = connection.execute(WITHIN, bounds).fetchone()
        return [Slice("", "", after, last, records, size)] if records else []

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        import orjson
        import pyarrow as pa

        from conduit_tasks.record.record import Record
        from conduit_tasks.record.schema import READ_SCHEMA, record_columns

        query = "SELECT number, record FROM journal WHERE number > ? AND number <= ? ORDER BY number"
        with closing(self._connect()) as connection:
            cursor = connection.execute(query, (slice.start, slice.end))
            while rows := cursor.fetchmany(BATCH):
                records = [Record.from_opencdc(orjson.loads(text)) for _, text in rows]
                for (number, _), record in zip(rows, records, strict=True):
                    record.position = b"%d" % number
                yield pa.RecordBatch.from_arrays(record_columns(records), schema=READ_SCHEMA)

    def _connect(self) -> sqlite3.Connection:
        path = Path(installation().path(self.settings["path"]))
        try:
            return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        except sqlite3.OperationalError as error:
            raise SourceError(f"{path} cannot be read: {error}; correct 'path', or write a journal first") from error


class JournalDestination(BatchDestination):
    """A chunk is one transaction; a record whose id is there already is left out."""

    spec = Spec("journal", "Appends records to a table of an SQLite file, each id once.", (PATH,))

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._connection: sqlite3.Connection | None = None

    @classmethod
    def idempotent(cls, settings: Mapping[str, str]) -> bool:
        return True

    def open(self, state: dict[str, Any] | None) -> None:
        self.close()
        path = Path(installation().path(self.settings["path"]))
        try:
            self._connection = sqlite3.connect(path)
            self._connection.execute(CREATE)
        except sqlite3.OperationalError as error:
            self.close()
            raise Unavailable(f"{path} cannot be opened: {error}") from error

    def write(self, rows: Rows) -> dict[str, Any] | None:
        import orjson

        assert self._connection is not None, "open comes first"
        values = [(each.id, orjson.dumps(each.to_opencdc()).decode()) for each in rows.records()]
        try:
            # The transaction is durable when it is committed: SQLite's `synchronous` is FULL unless told otherwise.
            with self._connection:
                self._connection.executemany(
                    "INSERT INTO journal (id, record) VALUES (?, ?) ON CONFLICT (id) DO NOTHING", values
                )
        except sqlite3.OperationalError as error:
            raise Unavailable(f"the journal cannot be written: {error}") from error
        except sqlite3.DataError as error:
            raise Refused(f"a record does not fit into the journal: {error}") from error
        return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


SOURCE = JournalSource
DESTINATION = JournalDestination
