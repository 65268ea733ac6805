"""Connections to Airflow's database if that is SQLite, for many processes on a busy machine."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import weakref
from collections.abc import Iterable
from typing import Any

WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "SAVEPOINT")
"""Beginnings of the statements with which a transaction that writes begins."""
LOOK = 50
"""Milliseconds between two looks of an event loop that waits."""
_open: dict[int, weakref.ref[Connection]] = {}
"""This process's connections."""


class Cursor(sqlite3.Cursor):
    """A cursor for a process whose transactions wait for each other.

    It begins a write transaction before a savepoint outside of a transaction. Python begins none by itself there, and
    the transaction that SQLite begins reads first. Its first write is refused at once, whatever the timeout, if another
    process has written meanwhile (SQLITE_BUSY_SNAPSHOT); and its writes are committed when the savepoint is released,
    so that a later rollback does not undo them. `airflow backfill create` failed by this and removed runs that the
    scheduler had begun, and then the scheduler failed.

    An event loop does not wait for its own process. Airflow's api-server writes in threads, and has its event loop
    commit; but the loop itself writes who did what ("audit log"). If it waited there for a thread that has written,
    and that waits for the loop, both would wait for the whole timeout, and with them everybody else who writes. So the
    loop is told at once that the database is locked: that request fails (500), and can be sent again.
    """

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        self._begin(sql)
        super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Cursor:
        self._begin(sql)
        super().executemany(sql, parameters)
        return self

    def _begin(self, sql: str) -> None:
        """Begins the transaction of a statement that would begin it later, or wait where it must not."""
        if self.connection.in_transaction:
            return
        if _runs_loop() and sql.lstrip()[:9].upper().startswith(WRITES):
            self._begin_on_loop()
        elif sql.startswith("SAVEPOINT"):
            super().execute("BEGIN IMMEDIATE")

    def _begin_on_loop(self) -> None:
        """Waits for other processes as long as the connection does, and looks all the while whether a transaction of
        this one has come meanwhile. Raises OperationalError."""
        [(limit,)] = super().execute("PRAGMA busy_timeout").fetchall()
        deadline = time.monotonic() + limit / 1000
        super().execute(f"PRAGMA busy_timeout={min(limit, LOOK)}")
        try:
            while True:
                found = [each() for each in list(_open.values())]
                if any(_in_transaction(other) for other in found if other is not self.connection):
                    raise sqlite3.OperationalError("database is locked by this process, which is to commit: try again")
                try:
                    super().execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                        raise
        finally:
            super().execute(f"PRAGMA busy_timeout={limit}")


def _runs_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_transaction(connection: sqlite3.Connection | None) -> bool:
    try:
        return connection is not None and connection.in_transaction
    except sqlite3.ProgrammingError:  # closed
        return False


class Connection(sqlite3.Connection):
    """A connection with such cursors, whose commits do not wait for the disk.

    Whoever commits has everybody else wait who writes; where the disk is busy with something else, a commit that waits
    for it takes long. Without that a power cut may take the last commits along, all of each (Airflow uses the
    write-ahead log): Airflow then does again what it has forgotten, and what was delivered is known to the broker.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        number = id(self)
        _open[number] = weakref.ref(self, lambda _: _open.pop(number, None))
        self.execute("PRAGMA synchronous=NORMAL")

    def cursor(self, factory: Any = Cursor) -> Any:
        return super().cursor(factory)


# A forked process leaves its parent's connections alone.
os.register_at_fork(after_in_child=_open.clear)

CONNECT_ARGS = {"timeout": 60.0, "factory": Connection}
"""Value of `[database] sql_alchemy_connect_args`. `timeout`: seconds that writers wait for each other. With SQLite's
default of five, a busy machine gets "database is locked", and a scheduler that gets it ends."""
