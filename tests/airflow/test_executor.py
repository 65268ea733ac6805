"""The executor of the embedded stack, which lets an idle scheduler rest; with real workers, on a real SQLite file."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from conduit_tasks.airflow.executor import opened

DRIVE = """
import sqlite3, sys, threading, time
from conduit_tasks.airflow import executor

LONG = 200.0  # seconds: nobody waits for it, however slow the machine is

def heartbeat():
    began = time.monotonic()
    own.heartbeat()
    return time.monotonic() - began

def later(what):
    threading.Timer(0.3, what).start()

def write():
    other = sqlite3.connect(sys.argv[1])
    other.execute("INSERT INTO t VALUES (1)")
    other.commit()
    other.close()

own = executor.LocalExecutor(parallelism=1)
own.start()
try:
    own.heartbeat()
    # Whatever may give work ends a rest, however long it could be
    executor.REST = LONG
    later(write)
    assert heartbeat() < LONG, "somebody writes"
    later(lambda: own.result_queue.put((None, "success", None)))
    assert heartbeat() < LONG, "a task ends"
    own.result_queue.get()
    write()
    assert heartbeat() < LONG, "somebody wrote since the last rest"
    # And otherwise it lasts
    executor.REST = 0.5
    assert heartbeat() >= 0.5
    assert heartbeat() >= 0.5
finally:
    own.end()
"""


def test_a_scheduler_rests_until_something_may_give_it_work(tmp_path: Path) -> None:
    file = tmp_path / "airflow.db"
    made = sqlite3.connect(file)
    made.execute("PRAGMA journal_mode=WAL")
    made.execute("CREATE TABLE t (n)")
    made.close()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment |= {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{file}"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVE, str(file)], env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


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
