"""Connections to Airflow's database if that is SQLite, for many processes on a busy machine."""

from __future__ import annotations

import sqlite3
from typing import Any


class Cursor(sqlite3.Cursor):
    """A cursor that begins a write transaction before a savepoint outside of a transaction.

    Python begins none by itself there, and the transaction that SQLite begins reads first. Its first write is refused
    at once, whatever the timeout, if another process has written meanwhile (SQLITE_BUSY_SNAPSHOT); and its writes are
    committed when the savepoint is released, so that a later rollback does not undo them. `airflow backfill create`
    failed by this and removed runs that the scheduler had begun, and then the scheduler failed.
    """

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        if sql.startswith("SAVEPOINT") and not self.connection.in_transaction:
            super().execute("BEGIN IMMEDIATE")
        super().execute(sql, parameters)
        return self


class Connection(sqlite3.Connection):
    """A connection with such cursors, whose commits do not wait for the disk.

    Whoever commits has everybody else wait who writes; where the disk is busy with something else, a commit that waits
    for it takes minutes. Without that a power cut may take the last commits along, all of each (Airflow uses the
    write-ahead log): Airflow then does again what it has forgotten, and what was delivered is known to the broker.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute("PRAGMA synchronous=NORMAL")

    def cursor(self, factory: Any = Cursor) -> Any:
        return super().cursor(factory)


CONNECT_ARGS = {"timeout": 60.0, "factory": Connection}
"""Value of `[database] sql_alchemy_connect_args`. `timeout`: seconds that writers wait for each other. With SQLite's
default of five, a busy machine gets "database is locked", and a scheduler that gets it ends."""
