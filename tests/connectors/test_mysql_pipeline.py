"""Tables replicated to another database by a whole pipeline, over servers and processes that die (C10, B8)."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.acks import Acks
from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.connectors.mysql.apply import Apply
from conduit_tasks.connectors.mysql.binlog import Log
from conduit_tasks.connectors.mysql.connector import MysqlDestination
from conduit_tasks.connectors.mysql.read import Chunk
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.errors import ConduitError
from tests.connectors.mariadb import MariadbServer
from tests.connectors.mariadb_database import MyDatabase, database
from tests.micro_batch.endings import end_at, lapse
from tests.micro_batch.harness import run_once, run_until_quiet, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 40}
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - id: in
        type: source
        plugin: builtin:mysql
        settings:
          url: "SOURCE"
          tables: a, b
      - id: out
        type: destination
        plugin: builtin:mysql
        settings: {url: "TARGET", chunk: "7", lock-timeout: 1s}
        delivery: {guarantee: GUARANTEE, max-redeliveries: 100}
"""
TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, v text, n decimal(9, 2))",
    "CREATE TABLE b (k varchar(9), id int, v varbinary(9), PRIMARY KEY (k, id))",
)


def contents(db: MyDatabase) -> list[Any]:
    return [db.run("SELECT * FROM a ORDER BY id"), db.run("SELECT * FROM b ORDER BY k, id")]


def transaction(chance: random.Random, db: MyDatabase) -> None:
    """Some random changes, committed or rolled back."""
    statements = ["BEGIN"]
    for _ in range(chance.randint(1, 8)):
        one, other = chance.randint(1, 30), chance.randint(1, 30)
        statements.append(
            chance.choice(
                (
                    f"INSERT INTO a VALUES ({one}, 'v{other}', {other}.10) ON DUPLICATE KEY UPDATE v = 'again'",
                    f"UPDATE a SET v = CONCAT(v, '{other}'), n = NULL WHERE id < {one}",
                    f"DELETE FROM a WHERE id = {one}",
                    f"UPDATE IGNORE a SET id = {other} WHERE id = {one}",
                    f"INSERT IGNORE INTO b VALUES ('k', {one}, X'00{other:02d}')",
                    f"DELETE FROM b WHERE id > {one}",
                    # It commits what comes before it.
                    "TRUNCATE b" if chance.random() < 0.1 else "SELECT 1",
                )
            )
        )
    db.run(*statements, chance.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")))


def run_and_die(run: str, at: int, after: bool, server: int) -> None:
    """One run, in whose operation number `at` this process dies, or the server of that id; before or after it."""

    def die() -> None:
        if server:
            os.kill(server, signal.SIGKILL)
        else:
            os._exit(9)

    operations = (
        (Log, "read"),
        (Chunk, "read"),
        (MysqlDestination, "write"),
        (Apply, "finish"),
        (MicroBatches, "open"),
        (MicroBatches, "stage"),
        (Deliveries, "confirm"),
        (Acks, "begin"),
        (Acks, "commit"),
    )
    end_at(operations, at, die, after=after)
    run_once("p", run)


def set_up(home: Path, source: MyDatabase, target: MyDatabase, guarantee: str) -> None:
    text = PIPELINE.replace("SOURCE", source.url).replace("TARGET", target.url).replace("GUARANTEE", guarantee)
    write_pipeline(home, "p", text)
    for each in (source, target):
        each.run(*TABLES)
    source.run("INSERT INTO a SELECT seq, 'x', seq FROM seq_1_to_20")


@pytest.mark.proves("C10", "B8")
@pytest.mark.parametrize(("guarantee", "seed"), [("at-least-once", 1), ("effectively-once", 2)])
def test_after_random_transactions_and_kills_the_replica_is_the_same(
    home: Path, mariadb: MariadbServer, guarantee: str, seed: int
) -> None:
    chance = random.Random(seed)
    with database(mariadb) as source, database(mariadb) as target:
        set_up(home, source, target, guarantee)
        deaths = 0
        for number in range(8):
            for _ in range(chance.randint(1, 6)):
                transaction(chance, source)
            assert mariadb.process is not None
            dies = chance.choice((0, 0, mariadb.process.pid))
            try:
                in_child(run_and_die, f"run-{number}", chance.randint(1, 16), chance.random() < 0.5, dies)
            except ChildDied:
                deaths += 1
            except (ConduitError, OSError, AssertionError):
                # What a server that is gone leads to; the runs after it show whether anything is lost.
                pass
            lapse()
            if dies:
                mariadb.kill()
                mariadb.start()
                deaths += 1
        assert deaths > 2, "too few deaths to show anything"
        run_until_quiet("p", most=60)
        assert contents(source) == contents(target)
        assert len(contents(source)[0]) > 5
