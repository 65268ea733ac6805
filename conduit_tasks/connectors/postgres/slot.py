"""A logical replication slot: created with its publication, read without moving it, and moved by an ack only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from conduit_tasks.connectors.postgres.client import library, lsn_number, said
from conduit_tasks.errors import ConfigError, SourceError

T = TypeVar("T")

BUSY = 60.0
"""Seconds to wait if another reader has the slot: a reader that died keeps it until the server notices."""
FETCH = 500
"""Changes fetched at a time, each as large as its row."""

OURS = "made by conduit"
"""Comment of a publication that was made here, and so is dropped here."""

HEADS = (
    "get_byte(data, 0), length(data), CASE WHEN get_byte(data, 0) IN (66, 67) THEN data "
    "WHEN get_byte(data, 0) = 84 THEN substring(data FOR 5) END"
)
"""Columns that a plan needs of a message: its kind, its size, the whole of Begin and Commit, and the head of
Truncate."""


@dataclass(frozen=True)
class Slot:
    """One slot, by name. It has one reader at a time."""

    name: str
    publication: str

    def make(self, connection: Any, tables: Sequence[str]) -> int:
        """Creates publication and slot if they are missing, and returns the place in the log at which its changes
        begin. The publication comes first: changes are decoded by the catalogue of the time when they were made."""
        sql = library().sql
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [self.publication])
            if cursor.fetchone() is None:
                names = sql.SQL(", ").join(sql.Identifier(*table.split(".", 1)) for table in tables)
                statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)")
                cursor.execute(statement.format(sql.Identifier(self.publication), names))
                comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}")
                cursor.execute(comment.format(sql.Identifier(self.publication), sql.Literal(OURS)))
            if self._state(cursor) is None:
                cursor.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self.name])
        self.published(connection, tables)
        return self.confirmed(connection)

    def published(self, connection: Any, tables: Sequence[str]) -> None:
        """Raises ConfigError if the publication does not hold every table."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s",
                [self.publication],
            )
            missing = sorted(set(tables) - {row[0] for row in cursor})
        if missing:
            raise ConfigError(
                f"postgres: publication {self.publication} has no table {', '.join(missing)}; add it "
                "(ALTER PUBLICATION … ADD TABLE …). The rows that it has are only read by a connector of a new id "
                "with a slot of its own"
            )

    def confirmed(self, connection: Any) -> int:
        """Returns the place in the log that it was moved to. Raises SourceError if it is gone or lost log that it
        needs, and ConfigError if it is another's."""
        with connection.cursor() as cursor:
            state = self._state(cursor)
        if state is None:
            raise SourceError(
                f"postgres: slot {self.name} is gone, and with it the changes since it was read last. Begin "
                "again under a new connector id: it makes a slot of its own and takes a snapshot first"
            )
        plugin, here, status, confirmed = state
        if plugin != "pgoutput" or not here:
            raise ConfigError(
                f"postgres: slot {self.name} is another's ({plugin or 'physical'}, or of another database); "
                "name one with option 'logrepl.slotName'"
            )
        if status == "lost":
            raise SourceError(
                f"postgres: slot {self.name} lost log that it needs (max_slot_wal_keep_size). Drop it, raise "
                "that limit, and begin again under a new connector id, which takes a snapshot first"
            )
        return lsn_number(confirmed)

    def check(self, connection: Any, reached: int) -> None:
        """Raises SourceError if another reader took changes after `reached`."""
        if self.confirmed(connection) > reached:
            raise SourceError(
                f"postgres: slot {self.name} is ahead of what this pipeline read: Redis knows an older position, the "
                "slot was created again, or something else reads it too. First try `conduit broker rebuild PIPELINE "
                "--replace`, which takes the position from the spool. If that does not help, give each connector its "
                "own slot ('logrepl.slotName'), and begin again under a new connector id, which takes a snapshot first"
            )

    def peek(self, connection: Any, what: str, upto: str, changes: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Yields columns `what` of the messages from the slot's place up to `upto`, in whole transactions, in the order
        of their commits; `changes`: not many more than that. The server keeps them on its disk; they are fetched in
        portions."""
        statement = (
            f"SELECT {what} FROM pg_logical_slot_peek_binary_changes(%s, %s, %s, "  # noqa: S608 - `what` is ours
            "'proto_version', '1', 'publication_names', %s)"
        )
        # A list of names, each quoted as an identifier.
        quoted = '"' + self.publication.replace('"', '""') + '"'
        psycopg2 = library()

        def begun() -> tuple[Any, Any]:
            # A cursor of the server needs a transaction; the attempt before may have left a broken one.
            connection.rollback()
            connection.autocommit = False
            cursor = connection.cursor("conduit_changes")
            cursor.itersize = FETCH
            cursor.execute(statement, [self.name, upto, changes, quoted])
            return cursor, cursor.fetchone()

        try:
            cursor, first = self._alone(begun, SourceError)
            yield from chain([first] if first is not None else [], cursor)
        except (psycopg2.errors.UndefinedObject, psycopg2.errors.ObjectNotInPrerequisiteState) as error:
            raise SourceError(
                f"postgres: slot {self.name} cannot be read: {said(error)}. What is gone comes back only with "
                "a new snapshot: begin again under a new connector id"
            ) from None
        finally:
            if not connection.closed:
                connection.rollback()
                connection.autocommit = True

    def advance(self, connection: Any, reached: str, busy: type[Exception]) -> None:
        """Moves it to `reached`, never back. Raises `busy` if another reader has it for too long."""
        if self.confirmed(connection) >= lsn_number(reached):
            return

        def move() -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_replication_slot_advance(%s, %s)", [self.name, reached])

        self._alone(move, busy)

    def drop(self, connection: Any, busy: type[Exception]) -> list[str]:
        """Drops the slot, and the publication if it was made here, and returns what it dropped. Raises ConfigError if
        the slot is another's, `busy` if another reader has it."""
        sql, done = library().sql, []
        with connection.cursor() as cursor:
            state = self._state(cursor)
            if state is not None:
                if state[0] != "pgoutput" or not state[1]:
                    raise ConfigError(f"postgres: slot {self.name} is another's; it is not dropped")
                self._alone(lambda: cursor.execute("SELECT pg_drop_replication_slot(%s)", [self.name]), busy)
                done.append(f"slot {self.name}")
            cursor.execute(
                "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s",
                [self.publication],
            )
            if cursor.fetchone() == (OURS,):
                cursor.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(self.publication)))
                done.append(f"publication {self.publication}")
        return done

    def _alone(self, act: Callable[[], T], busy: type[Exception]) -> T:
        deadline = time.monotonic() + BUSY
        while True:
            try:
                return act()
            except library().errors.ObjectInUse as error:
                if time.monotonic() > deadline:
                    raise busy(
                        f"postgres: {said(error)}; end what reads it, or give this connector another 'logrepl.slotName'"
                    ) from None
                time.sleep(0.1)

    def _state(self, cursor: Any) -> Any:
        cursor.execute(
            "SELECT plugin, database = current_database(), wal_status, confirmed_flush_lsn::text "
            "FROM pg_replication_slots WHERE slot_name = %s",
            [self.name],
        )
        return cursor.fetchone()
