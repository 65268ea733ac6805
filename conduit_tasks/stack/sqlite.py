"""Connections to Airflow's database where that is SQLite, as many processes of a busy machine need them."""

from __future__ import annotations

import sqlite3
from typing import Any


class Cursor(sqlite3.Cursor):
    """Begins a transaction that writes where a savepoint begins one.

    Python begins none by itself there, and SQLite's own reads first: its first write is refused at once, however long
    one would wait, if anybody else has written meanwhile (SQLITE_BUSY_SNAPSHOT); and what it wrote is committed when
    the savepoint is released, which no later rollback takes back. `airflow backfill create` fell over it, removed runs
    that the scheduler had begun, and the scheduler fell over that.
    """

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        if sql.startswith("SAVEPOINT") and not self.connection.in_transaction:
            super().execute("BEGIN IMMEDIATE")
        super().execute(sql, parameters)
        return self


class Connection(sqlite3.Connection):
    """Its cursors are as above."""

    def cursor(self, factory: Any = Cursor) -> Any:
        return super().cursor(factory)


CONNECT_ARGS = {"timeout": 60.0, "factory": Connection}
"""`[database] sql_alchemy_connect_args`. `timeout`: seconds that those who write wait for each other. After SQLite's
five a busy machine says "database is locked", and the scheduler that hears it ends."""
