"""LocalExecutor that ends runs in order, and on SQLite lets the scheduler rest until there is something to do.

Airflow's scheduler polls its database in a loop. If it polls often, an idle scheduler costs a fifth of a core; if it
polls rarely, a task that could start waits. SQLite says at next to no cost whether others have written since
(`PRAGMA data_version`). Everything that gives a scheduler work is written there, or comes from this executor's own
tasks. So the loop is held here until one of the two happens, for REST seconds at most: timetables and timeouts come due
although nobody writes.

The loop itself writes, too, whenever a run is under way. A connection does not count its own writes, so all connections
of this process are asked: a write by another process is new to every one of them. Everything that the loop writes gives
the next loop work, except the time at which it last looked at a run, and its own heartbeat.

Others write about three times a second while a run is under way, and most of that is heartbeats, of tasks and of
Airflow's other components. So after a write by somebody else the executor looks at what should not wait (WORK): tasks
that are not finished, runs, and runs that assets ask for. Everything else may wait for the end of the rest.

The scheduler ends by an exception that its handler of SIGTERM raises. If the signal comes while Python runs a callback
of a weak reference or a `__del__`, the exception is printed and forgotten, and the scheduler goes on; so the executor
remembers the signal and has the handler raise again.
"""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from airflow import settings
from airflow.configuration import conf
from airflow.executors import local_executor
from airflow.utils.state import State
from sqlalchemy import event

from conduit_tasks.airflow.wind_up import wind_up

NO_WORK = ("SELECT", "PRAGMA", "UPDATE dag_run SET last_scheduling_decision=?, updated_at=? WHERE", "UPDATE job ")
"""Beginnings of the statements, on one line, that give the loop itself nothing to do."""
_TASKS = (
    "SELECT CASE state WHEN 'running' THEN 'queued' ELSE state END AS stage, count(*), total(rowid), total(try_number) "
    "FROM task_instance WHERE state"
)
"""A queued task that begins to run gives no work: it has had its slots since it was queued."""
WORK = (
    f"{_TASKS} IN ({', '.join(repr(str(s)) for s in sorted(filter(None, State.unfinished)))}) GROUP BY stage",
    f"{_TASKS} IS NULL",
    "SELECT state, count(*), total(rowid) FROM dag_run WHERE state IN ('queued', 'running') GROUP BY state",
    "SELECT count(*), total(rowid), max(created_at) FROM asset_dag_run_queue",
)
"""Questions whose answers change if the scheduler gets work that should not wait; each reads what is under way."""
REST = 1.0
"""Seconds that the loop is held at most. The rest ends with a whole second: SQLite's clock, by which runs are due, has
whole seconds."""
LOOK = 0.02
"""Seconds between two looks."""


class LocalExecutor(local_executor.LocalExecutor):
    """Airflow's LocalExecutor, with rests. It has the same name, because under another one the simple auth manager
    takes an installation for one of several machines, and warns of it."""

    _dags: set[str]
    """DAGs of which it was given tasks."""
    _asked: Callable[[], Any] | None = None
    """Ends the scheduler; None until SIGTERM asks for it."""
    _own: sqlite3.Connection | None = None
    _work = False
    """Whether the loop has written something that gives it work."""
    _known: Any = None
    """Answers to WORK at the end of the last rest."""

    def start(self) -> None:
        super().start()
        self._dags = set()
        self._remember_signal()
        # Only after the workers were forked: they must not have the connection.
        self._own = opened(conf.get("database", "sql_alchemy_conn"))
        if self._own is None:
            return
        self._connections = {id(self._own): self._own}
        self._seen: dict[int, int] = {}
        for name, heard in self._events.items():
            event.listen(settings.engine, name, heard)

    def heartbeat(self) -> None:
        if self._asked is not None:
            self._asked()
        super().heartbeat()
        if self._own is not None:
            self._rest()

    def queue_workload(self, workload: Any, session: Any = None) -> None:
        super().queue_workload(workload, session)
        if (task := getattr(workload, "ti", None)) is not None:
            self._dags.add(task.dag_id)

    def end(self) -> None:
        # It waits for its tasks; those of a run that drains would go on until everything is delivered.
        wind_up(self._dags)
        super().end()
        if self._own is not None:
            for name, heard in self._events.items():
                event.remove(settings.engine, name, heard)
            self._own.close()
            self._own = None

    def _remember_signal(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        if not callable(before):
            return  # no scheduler has set a handler

        def asked(number: int, frame: FrameType | None) -> None:
            self._asked = lambda: before(number, frame)
            before(number, frame)

        signal.signal(signal.SIGTERM, asked)

    def _rest(self) -> None:
        deadline = time.monotonic() + REST - time.time() % 1
        while not (self._work or not self.result_queue.empty() or (self._written() and self._comes_work())):
            if time.monotonic() >= deadline:
                break
            time.sleep(LOOK)
        # The loop sees all changes up to here: a change that comes later ends the next rest at once.
        self._seen, self._work = self._versions(), False
        self._known = self._under_way()

    def _comes_work(self) -> bool:
        """Returns whether what others have written gives work that should not wait; if not, it is seen by that."""
        versions, found = self._versions(), self._under_way()
        if found is None or found != self._known:
            return True
        self._seen = versions
        return False

    def _under_way(self) -> Any:
        """Returns the answers to WORK; None if the database does not give them."""
        assert self._own is not None
        try:
            return [self._own.execute(question).fetchall() for question in WORK]
        except sqlite3.Error:
            return None

    def _written(self) -> bool:
        """Returns whether another process has written since the last rest; True as well if no connection can say."""
        now = self._versions()
        return not any(now.get(connection) == version for connection, version in self._seen.items())

    def _versions(self) -> dict[int, int]:
        versions = {key: _version(connection) for key, connection in self._connections.items()}
        return {key: version for key, version in versions.items() if version is not None}

    @property
    def _events(self) -> dict[str, Callable[..., None]]:
        return {"checkout": self._comes, "close": self._goes, "before_cursor_execute": self._says}

    def _says(self, _: object, __: object, statement: str, *___: object) -> None:
        self._work = self._work or not " ".join(statement.split()).startswith(NO_WORK)

    def _comes(self, connection: sqlite3.Connection, *_: object) -> None:
        self._connections[id(connection)] = connection

    def _goes(self, connection: sqlite3.Connection, *_: object) -> None:
        self._connections.pop(id(connection), None)
        self._seen.pop(id(connection), None)


def opened(url: str) -> sqlite3.Connection | None:
    """Opens the database read-only; None for a database other than SQLite, or one in memory."""
    path = url.partition("sqlite:///")[2].partition("?")[0]
    return sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True, timeout=0) if path else None


def _version(database: sqlite3.Connection) -> int | None:
    """Returns the database's `data_version`; None if the file is locked or the connection closed."""
    try:
        return int(database.execute("PRAGMA data_version").fetchone()[0])
    except sqlite3.Error:
        return None
