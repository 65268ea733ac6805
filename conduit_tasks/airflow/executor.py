"""LocalExecutor for a scheduler on SQLite, which it lets rest until there is something to do.

Airflow's scheduler looks at its database in a loop: often, and an idle one costs a fifth of a core; rarely, and a task
that could start waits. SQLite says at next to no cost whether anything was written since (`PRAGMA data_version`).
Everything that gives a scheduler work is written there, or comes from this executor's own tasks. So the loop is held
here until one of the two happens, for REST seconds at most: timetables and timeouts come due without anybody writing.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from airflow.configuration import conf
from airflow.executors import local_executor

REST = 1.0
"""Seconds that a loop is held at most."""
LOOK = 0.02
"""Seconds between two looks."""


class LocalExecutor(local_executor.LocalExecutor):
    """Named as Airflow's own, because it is that one: by another name the simple auth manager takes an installation for
    one of several machines, and warns of it."""

    _database: sqlite3.Connection | None = None
    _seen = -1

    def start(self) -> None:
        super().start()
        # After its workers were forked, which must not have the connection.
        where = conf.get("database", "sql_alchemy_conn")
        self._database = opened(where)

    def heartbeat(self) -> None:
        super().heartbeat()
        if self._database is not None:
            self._seen = self._rest(self._database)

    def _rest(self, database: sqlite3.Connection) -> int:
        """Returns the version that what follows will see: a change that comes later ends the next rest at once, and so
        does what the scheduler itself writes in between."""
        deadline = time.monotonic() + REST
        while (version := _version(database)) == self._seen and self.result_queue.empty():
            if time.monotonic() >= deadline:
                break
            time.sleep(LOOK)
        return version

    def end(self) -> None:
        super().end()
        if self._database is not None:
            self._database.close()
            self._database = None


def opened(url: str) -> sqlite3.Connection | None:
    """For reading alone; None for another database than SQLite, or one in memory."""
    path = url.partition("sqlite:///")[2].partition("?")[0]
    return sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True, timeout=0) if path else None


def _version(database: sqlite3.Connection) -> int:
    try:
        return int(database.execute("PRAGMA data_version").fetchone()[0])
    except sqlite3.OperationalError:
        return -2  # locked while somebody writes: something has happened
