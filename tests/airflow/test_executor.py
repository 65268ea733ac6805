"""The executor of the embedded stack, which lets an idle scheduler rest; with real workers, on a real SQLite file."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from conduit_tasks.airflow.executor import opened
from tests.fork import AIRFLOW, script

DRIVE = """
import sqlite3, sys, threading, time
from airflow import settings
from conduit_tasks.airflow import executor

LONG = 240.0  # seconds: nobody waits for it, however slow the machine is

def heartbeat():
    began = time.monotonic()
    own.heartbeat()
    return time.monotonic() - began

def later(what):
    threading.Timer(0.3, what).start()

def loop_writes(what="UPDATE dag_run SET last_scheduling_decision=?, updated_at=? WHERE dag_run.id = ?"):
    with settings.engine.begin() as connection:
        # SQLite writes nothing where the row is the same.
        connection.exec_driver_sql(what, (time.time(), 2, 3))

def write(what="INSERT INTO task_instance (state, try_number) VALUES ('scheduled', 1)"):
    other = sqlite3.connect(sys.argv[1])
    other.execute(what)
    other.commit()
    other.close()

own = executor.LocalExecutor(parallelism=1)
own.start()
try:
    own.heartbeat()
    # Whatever may give work ends a rest, however long it could be
    executor.REST = LONG
    later(write)
    assert heartbeat() < LONG / 2, "somebody writes"
    later(lambda: own.result_queue.put((None, "success", None)))
    assert heartbeat() < LONG / 2, "a task ends"
    own.result_queue.get()
    write()
    assert heartbeat() < LONG / 2, "somebody wrote since the last rest"
    # So does what the loop itself has written, by a connection that is known, if it gives work
    executor.REST = 0.0
    loop_writes()
    heartbeat()
    executor.REST = LONG
    loop_writes("INSERT INTO task_instance (a, b, c) VALUES (?, ?, ?)")
    assert heartbeat() < LONG / 2, "the loop gives itself work"
    # And otherwise it lasts, also while the loop writes that it has looked, by one connection or another
    executor.REST = 1.5
    assert heartbeat() > 0.5
    for _ in range(3):
        loop_writes()
        assert heartbeat() > 0.5
    with settings.engine.connect(), settings.engine.connect():
        pass
    heartbeat()
    for _ in range(3):
        loop_writes()
        assert heartbeat() > 0.5
    # Also where somebody else writes before or after the loop does
    executor.REST = LONG
    write()
    loop_writes()
    assert heartbeat() < LONG / 2, "somebody wrote before the loop did"
    loop_writes()
    write()
    assert heartbeat() < LONG / 2, "somebody wrote after the loop did"
    # So does every change of what is under way
    for what in (
        "UPDATE task_instance SET state = 'success' WHERE state = 'scheduled' AND rowid = 1",
        "INSERT INTO task_instance (state, try_number) VALUES (NULL, 0)",
        "UPDATE task_instance SET try_number = 7 WHERE state IS NULL",
        "INSERT INTO dag_run (id, state) VALUES (4, 'queued')",
        "UPDATE dag_run SET state = 'failed' WHERE id = 4",
        "INSERT INTO asset_dag_run_queue VALUES (1)",
        "UPDATE asset_dag_run_queue SET created_at = 2",
    ):
        later(lambda what=what: write(what))
        assert heartbeat() < LONG / 2, what
    # But no heartbeat of another process, and no task that begins to run
    write("UPDATE task_instance SET state = 'queued' WHERE state IS NULL")
    heartbeat()
    executor.REST = 1.5
    heartbeat()
    for what in (
        "UPDATE job SET heartbeat = heartbeat + 1",
        "UPDATE task_instance SET state = 'running' WHERE state = 'queued'",
        "UPDATE job SET heartbeat = heartbeat + 1",
    ):
        later(lambda what=what: write(what))
        assert heartbeat() > 0.5, what
    executor.REST = LONG
    # And a connection of which nothing is known any more is not asked
    settings.engine.dispose()
    loop_writes()
    write()
    assert heartbeat() < LONG / 2, "somebody wrote, and connections are others"
    executor.REST = 1.5
    assert heartbeat() > 0.5
finally:
    own.end()
"""


ASKED = """
import os, signal, sys, weakref
from conduit_tasks.airflow.executor import LocalExecutor

def leave(number, frame):
    sys.exit(7)

class Thing:
    pass

signal.signal(signal.SIGTERM, leave)
own = LocalExecutor(parallelism=1)
own.start()
try:
    own.heartbeat()
    thing = Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del thing
    print("went on", flush=True)
    own.heartbeat()
    print("never", flush=True)
finally:
    own.end()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A database with what the loop writes to; the environment of a process that uses it."""
    file = tmp_path / "airflow.db"
    made = sqlite3.connect(file)
    made.execute("PRAGMA journal_mode=WAL")
    made.execute("CREATE TABLE job (heartbeat)")
    made.execute("CREATE TABLE asset_dag_run_queue (created_at)")
    made.execute("CREATE TABLE dag_run (last_scheduling_decision, updated_at, id, state)")
    made.execute("CREATE TABLE task_instance (a, b, c, state, try_number)")
    made.execute("INSERT INTO dag_run VALUES (1, 2, 3, 'running')")
    made.execute("INSERT INTO job VALUES (1)")
    made.commit()
    made.close()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return {**kept, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{file}"}


def test_a_scheduler_that_is_asked_to_end_while_a_callback_of_a_weak_reference_runs_ends(
    environment: dict[str, str],
) -> None:
    """Given a signal whose exception Python prints and forgets."""
    with script(AIRFLOW + ASKED, environment=environment) as scheduler:
        said = scheduler.stdout.read()
        assert "Exception ignored" in said
        assert ("went on" in said, "never" in said, scheduler.wait()) == (True, False, 7), said[-3000:]


def test_a_scheduler_rests_until_something_may_give_it_work(tmp_path: Path, environment: dict[str, str]) -> None:
    with script(AIRFLOW + DRIVE, tmp_path / "airflow.db", environment=environment) as scheduler:
        said = scheduler.stdout.read()
        assert scheduler.wait() == 0, said[-3000:]


@pytest.mark.parametrize("url", ["postgresql+psycopg2://airflow@nowhere/airflow", "sqlite://"])
def test_where_nobody_can_say_whether_something_was_written_the_loop_is_airflows_own(url: str) -> None:
    assert opened(url) is None


def test_a_database_is_found_whatever_its_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "50%20 #1"
    folder.mkdir()
    file = folder / "airflow.db"
    sqlite3.connect(file).execute("CREATE TABLE t (n)").connection.close()
    database = opened(f"sqlite:///{file}")
    assert database is not None
    assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("t",)]
    database.close()
