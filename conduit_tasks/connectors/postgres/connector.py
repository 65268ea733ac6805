"""`postgres` as a source: a slot that is made before the snapshot's first row, then its changes, as many as fit; acks
that move it; `mode: incremental`.

The source takes Conduit's names of options. This module is light: the code that reads and writes is imported when it is
used (docs/connectors/postgres.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

import orjson

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Source, Spec, Token
from conduit_tasks.connectors.connection import POSTGRES
from conduit_tasks.connectors.postgres.client import checked_url, connected, lsn_number, lsn_text
from conduit_tasks.connectors.postgres.destination import PostgresDestination
from conduit_tasks.connectors.postgres.slot import HEADS, Slot
from conduit_tasks.errors import ConfigError, SourceError, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.sql.source import SqlSource

_NO_BOUND = 1 << 62
_LOOK = 20_000
"""Least number of messages that a plan looks at first; it looks at more if all of them were read before."""
_BEHIND = 64 << 20
"""Bytes of log without a change of ours after which the position moves anyway, so that the server can drop them."""


class PostgresSource(Source):
    """Token: {"lsn", "skip": changes already read of the transaction that follows it}, and while the snapshot is taken
    also {"snapshot": tables left, "after": key of the row read last}. A snapshot's slices are open, because its rows
    change."""

    ack_on: ClassVar[Literal["delivered", "stored"]] = "stored"

    spec = Spec(
        "postgres",
        "Reads tables of PostgreSQL and then their changes, by logical replication.",
        (
            Option(
                "url",
                "database: postgresql://user:password@host:5432/name?sslmode=verify-full",
                secret=True,
                required=True,
                example="postgresql://localhost/x",
            ),
            Option("tables", "tables, optionally with their schema before a dot, comma-separated; * for all of public"),
            Option("table", "the same, as Conduit called it once"),
            Option(
                "mode",
                "cdc: the tables as they are, then their changes; snapshot: only as they are; incremental: rows of one "
                "table behind the highest value of `column`",
                default="cdc",
                choices=("cdc", "snapshot", "incremental"),
            ),
            Option("column", "incremental: the key or time that only grows, as the connector sql has it"),
            Option("lag", "incremental: leave rows alone whose time in `column` is younger"),
            Option(
                "snapshotMode",
                "initial: the rows that are there come first; never: changes only",
                default="initial",
                choices=("initial", "never"),
            ),
            Option(
                "cdcMode",
                "how changes are read: logrepl, logical replication",
                default="auto",
                choices=("auto", "logrepl"),
            ),
            Option("logrepl.publicationName", "publication; created where it is missing", default="conduitpub"),
            Option(
                "logrepl.slotName",
                "replication slot, of this connector alone; created where it is missing",
                default="conduitslot",
            ),
            Option(
                "logrepl.autoCleanup",
                "whether `conduit connectors teardown` may drop the slot, and the publication that was made here",
                default="true",
            ),
            Option("logrepl.withAvroSchema", "taken from Conduit's files; no schema is attached", default="true"),
            Option(
                "snapshot.fetchSize",
                "taken from Conduit's files; rows are fetched in pieces of fixed size",
                default="50000",
            ),
            Option("timeout", "how long one statement may take", default="1h"),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
        connection=POSTGRES,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._url = checked_url(self.settings["url"])
        self._tables = options.words(self.settings, "tables") or options.words(self.settings, "table")
        if not self._tables:
            raise ConfigError("postgres: option 'tables' is missing: the tables to read, comma-separated, or *")
        for name in ("logrepl.autoCleanup", "logrepl.withAvroSchema"):
            options.boolean(self.settings, name)
        if "lag" in self.settings:
            options.duration(self.settings, "lag")
        self._timeout = options.duration(self.settings, "timeout")
        self._slot = Slot(self.settings["logrepl.slotName"], self.settings["logrepl.publicationName"])
        self._cdc = self.settings["mode"] == "cdc"
        self._rows = self._incremental() if self.settings["mode"] == "incremental" else None
        self._ends: dict[bytes, Token] = {}

    def owned(self) -> list[str]:
        """Returns its slot, which every ack moves on."""
        if not self._cdc:
            return []
        at = urlsplit(self._url)
        return [f"the replication slot {self._slot.name} at {at.netloc.rpartition('@')[2]}{at.path}"]

    def _incremental(self) -> SqlSource:
        """Returns the source that reads the one table's rows, as the connector `sql` does. Raises ConfigError."""
        from conduit_tasks.connectors.sql.source import SqlSource

        if len(self._tables) != 1 or self._tables == ["*"] or not self.settings.get("column"):
            raise ConfigError("postgres: mode incremental reads one table of 'tables', in the order of option 'column'")
        more: dict[str, str] = {name: self.settings[name] for name in ("lag", "timeout") if name in self.settings}
        url = {"url": self.settings["url"], "table": self._tables[0], "column": self.settings["column"]}
        return SqlSource({**url, **more})

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        if self._rows is not None:
            return self._rows.plan(position, limit)
        with connected(self._url, SourceError, self._timeout) as connection:
            token = position.get("")
            if token is None:
                token = self._begin(connection)
            elif self._cdc:
                self._slot.check(connection, lsn_number(token["lsn"]))
            if token.get("snapshot"):
                hint = {"records": limit.records, "bytes": limit.bytes}
                return [Slice("", "", token, None, hint=hint, open=True)]
            return self._changes(connection, token, limit) if self._cdc else []

    def _begin(self, connection: Any) -> dict[str, Any]:
        """Returns the first token. The slot is made before the first row is read: a change is in the snapshot, or comes
        after it, or both."""
        from conduit_tasks.connectors.postgres.tables import resolved

        tables = resolved(connection, self._tables)
        token: dict[str, Any] = {}
        if self._cdc:
            token = {"lsn": lsn_text(self._slot.make(connection, tables)), "skip": 0}
        if not self._cdc or self.settings["snapshotMode"] == "initial":
            token["snapshot"] = tables
        return token

    def _changes(self, connection: Any, token: dict[str, Any], limit: Limit) -> list[Slice]:
        """Returns one slice or none: a slot has one reader at a time."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_wal_flush_lsn()::text")
            flushed = cursor.fetchone()[0]
        if lsn_number(flushed) <= lsn_number(token["lsn"]):
            return []
        look = max(_LOOK, 2 * min(limit.records or 0, _NO_BOUND))
        while True:
            found = _Found(token, limit)
            seen = found.take_all(self._slot.peek(connection, HEADS, flushed, look))
            if found.count:
                return [Slice("", "", token, found.end(), found.count, found.bytes, {"upto": lsn_text(found.upto)})]
            if seen < look:
                break
            look *= 4
        if lsn_number(flushed) - lsn_number(token["lsn"]) > _BEHIND:
            return [Slice("", "", token, {"lsn": flushed, "skip": 0}, 0, 0)]
        return []

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        from conduit_tasks.connectors.batches import batches
        from conduit_tasks.connectors.postgres.read import Chunk, changes

        if self._rows is not None:
            yield from self._rows.read(slice)
            return
        with connected(self._url, SourceError, self._timeout) as connection:
            if not slice.open:
                yield from batches(changes(connection, self._slot, slice))
                return
            chunk = Chunk(slice)
            yield from batches(chunk.read(connection))
            self._ends[orjson.dumps(slice.start)] = chunk.end

    def reached(self, slice: Slice) -> Token:
        return self._ends[orjson.dumps(slice.start)]

    def metadata(self, slice: Slice) -> dict[str, str]:
        return self._rows.metadata(slice) if self._rows is not None else {}

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()

    def teardown(self) -> list[str]:
        """Drops the slot, and the publication if it was made here. Raises ConfigError, Unavailable."""
        if not self._cdc:
            return []
        if not options.boolean(self.settings, "logrepl.autoCleanup"):
            raise ConfigError(
                f"postgres: option 'logrepl.autoCleanup' is false, so slot {self.settings['logrepl.slotName']} stays; "
                "set it to true, or drop the slot by hand"
            )
        with connected(self._url, Unavailable, self._timeout) as connection:
            return self._slot.drop(connection, Unavailable)

    def ack(self, position: Position) -> None:
        """Moves the slot; the changes before it are then gone for good. Raises Unavailable, SourceError."""
        token = position.get("")
        if self._cdc and token:
            with connected(self._url, Unavailable, self._timeout) as connection:
                self._slot.advance(connection, token["lsn"], Unavailable)


class _Found:
    """Changes that one slice takes: whole transactions, and of one that does not fit as many as fit."""

    def __init__(self, token: dict[str, Any], limit: Limit) -> None:
        self._start, self._skip = lsn_number(token["lsn"]), token["skip"]
        self._records = _NO_BOUND if limit.records is None else limit.records
        self._size = _NO_BOUND if limit.bytes is None else limit.bytes
        self._ended, self._n, self._lsn = self._start, 0, 0
        self._left = 0
        self.count = self.bytes = self.upto = 0

    def take_all(self, messages: Iterator[tuple[Any, ...]]) -> int:
        """Takes messages as long as there is room, and returns their number."""
        seen = 0
        for message in messages:
            if not self.take(*message):
                break
            seen += 1
        return seen

    def take(self, kind: int, size: int, head: Any) -> bool:
        """Returns whether there is room for this message, and if so takes it."""
        from conduit_tasks.connectors.postgres.pgoutput import (
            BEGIN,
            COMMIT,
            DELETE,
            INSERT,
            TRUNCATE,
            UPDATE,
            truncated,
        )

        if kind == BEGIN:
            self._lsn, self._n = int.from_bytes(head[1:9], "big"), 0
        elif self._lsn < self._start:
            return True
        elif kind == COMMIT:
            self._ended, self._left, self._skip = int.from_bytes(head[10:18], "big"), 0, 0
        elif kind in (INSERT, UPDATE, DELETE, TRUNCATE):
            if self._n < self._skip:
                self._n += 1
                return True
            records = truncated(bytes(head), size) if kind == TRUNCATE else 1
            if self.count and (self.count + records > self._records or self.bytes + size > self._size):
                self._left = self._n
                return False
            self._n += 1
            self.count += records
            self.bytes += size
            # Behind the beginning of the commit: the server stops after it.
            self.upto = self._lsn + 1
        return True

    def end(self) -> dict[str, Any]:
        """Returns the token after the slice."""
        return {"lsn": lsn_text(self._ended), "skip": self._left}


SOURCE = PostgresSource
DESTINATION = PostgresDestination
