"""Airflow's database of an embedded stack, SQLite: who waits for whom."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from conduit_tasks.stack import sqlite
from conduit_tasks.stack.environment import USER, load_secrets
from conduit_tasks.stack.layout import Layout
from tests.stack.conftest import PATIENCE, Stack, until

INSERT = "INSERT INTO t VALUES (1)"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    """Connections to a database with a table."""
    found = tuple(sqlite3.connect(tmp_path / "db", check_same_thread=False, **sqlite.CONNECT_ARGS) for _ in range(2))
    found[0].cursor().execute("PRAGMA journal_mode=WAL")
    found[0].cursor().execute("CREATE TABLE t (n)")
    yield found
    for connection in found:
        connection.close()


def test_a_savepoint_begins_what_writes_and_what_is_taken_back_as_a_whole(
    two: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    one, other = two
    # Given a savepoint in which something was read
    cursor = one.cursor()
    cursor.execute("SAVEPOINT s")
    cursor.execute("SELECT * FROM t").fetchall()
    # When somebody else would write, who waits, and it writes then
    other.execute("PRAGMA busy_timeout=100")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.cursor().execute(INSERT)
    cursor.execute("INSERT INTO t VALUES (2)")
    cursor.execute("RELEASE s")
    # Then nothing of it is there before it is committed
    one.rollback()
    assert other.cursor().execute("SELECT * FROM t").fetchall() == []


def test_an_event_loop_does_not_wait_for_a_transaction_that_needs_it_for_its_end(
    two: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    one, other = two
    # Given a transaction that has written
    one.cursor().execute(INSERT)

    async def writes(how: str) -> list[tuple[int]]:
        cursor = other.cursor()
        if how == "many":
            cursor.executemany("INSERT INTO t VALUES (?)", [(2,), (3,)])
        else:
            cursor.execute("SAVEPOINT s" if how == "savepoint" else f"\n {INSERT.lower()}")
        other.rollback()
        return []

    async def reads() -> list[tuple[int]]:
        return list(other.cursor().execute("SELECT * FROM t"))

    # When the event loop of the same process would write, then it is told at once that it cannot
    for how in ("one", "many", "savepoint"):
        began = time.monotonic()
        with pytest.raises(sqlite3.OperationalError, match="locked by this process"):
            asyncio.run(writes(how))
        assert time.monotonic() - began < 30
    # But it reads, and it writes once the other has ended
    assert asyncio.run(reads()) == []
    one.rollback()
    for how in ("one", "many", "savepoint"):
        assert asyncio.run(writes(how)) == []


def test_an_event_loop_that_waits_for_another_process_gives_way_to_its_own(
    two: tuple[sqlite3.Connection, sqlite3.Connection], tmp_path: Path
) -> None:
    one, other = two
    # Given another process that writes, and for which an event loop waits
    elsewhere = sqlite3.connect(tmp_path / "db", check_same_thread=False)
    elsewhere.execute(INSERT)

    async def writes() -> None:
        other.cursor().execute(INSERT)

    # When a thread of its own comes to wait, too, who may be the first to go on, and would then wait for the loop
    with ThreadPoolExecutor(1) as pool:
        ours = pool.submit(lambda: one.cursor().execute(INSERT))
        # Then the loop is told that it cannot write
        began = time.monotonic()
        with pytest.raises(sqlite3.OperationalError, match="locked by this process"):
            asyncio.run(writes())
        assert time.monotonic() - began < 30
        elsewhere.rollback()
        ours.result(PATIENCE)
    one.rollback()
    # And waits as long as before from then on
    assert other.execute("PRAGMA busy_timeout").fetchall() == [(60_000,)]
    asyncio.run(writes())
    elsewhere.close()


def test_it_waits_for_other_processes_and_whoever_has_no_event_loop_waits_for_all(
    two: tuple[sqlite3.Connection, sqlite3.Connection], tmp_path: Path
) -> None:
    one, other = two
    # Given a transaction of another process, as any connection of another kind is for it
    elsewhere = sqlite3.connect(tmp_path / "db")
    elsewhere.execute(INSERT)

    async def writes() -> None:
        other.cursor().execute("INSERT INTO t VALUES (2)")

    # Then the event loop waits for it
    other.execute("PRAGMA busy_timeout=200")
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked$"):
        asyncio.run(writes())
    elsewhere.close()
    # And so does whoever runs no event loop for a transaction of the same process
    one.cursor().execute(INSERT)
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked$"):
        other.cursor().execute(INSERT)
    # And a fork knows of no connection of its parent's
    if (pid := os.fork()) == 0:
        os._exit(len(sqlite._open))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1200)
def test_requests_that_write_together_hold_nobody_up(stack: Stack) -> None:
    # Given somebody who writes to Airflow's database for a moment
    secret = load_secrets(Layout(stack.home))["password"]
    login = httpx.post(
        f"{stack.state.api_url}/auth/token", json={"username": USER, "password": secret}, timeout=PATIENCE
    )
    headers = {"Authorization": f"Bearer {login.json()['access_token']}"}
    database = sqlite3.connect(Layout(stack.home).airflow / "airflow.db", isolation_level=None, timeout=PATIENCE)
    database.execute("BEGIN IMMEDIATE")

    def write(number: int) -> list[int]:
        """The answers of the API, up to the one that has done it."""
        answers: list[int] = []
        while 201 not in answers:
            body = {"key": f"together-{number}", "value": "1"}
            url = f"{stack.state.api_url}/api/v2/variables"
            answers.append(httpx.post(url, json=body, headers=headers, timeout=PATIENCE).status_code)
        return answers

    # When many ask the API for something that writes, and he ends once they have all reached it
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(write, number) for number in range(16)]
        # Asked of the machine, as an event loop that waits itself takes no connection from its queue
        port = int(stack.state.api_url.rpartition(":")[2])
        until(
            lambda: sum(c.laddr.port == port and c.status == "ESTABLISHED" for c in psutil.net_connections("tcp")) >= 16
        )
        database.execute("ROLLBACK")
        database.close()
        began = time.monotonic()
        answers = [each.result(PATIENCE) for each in asked]
    # Then each is done, before anybody has waited for as long as a writer waits
    assert time.monotonic() - began < sqlite.CONNECT_ARGS["timeout"]
    assert {each for tries in answers for each in tries} <= {201, 500}
