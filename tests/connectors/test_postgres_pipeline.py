"""A table replicated to another database by a whole pipeline, over servers and processes that die (C10, T2)."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from benchmarks.postgres_server import PostgresServer
from conduit_tasks.broker.acks import Acks
from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.connectors.postgres.apply import Apply
from conduit_tasks.connectors.postgres.client import lsn_number
from conduit_tasks.connectors.postgres.connector import PostgresDestination
from conduit_tasks.connectors.postgres.read import Chunk
from conduit_tasks.connectors.postgres.slot import Slot
from conduit_tasks.connectors.registry import ack_on
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.errors import ConduitError
from conduit_tasks.pipeline.load import get_pipeline
from tests.connectors.postgres_database import Database, database
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
        plugin: builtin:postgres
        settings:
          url: "SOURCE"
          tables: a, s.b
          logrepl.publicationName: pub
          logrepl.slotName: p_in
          sdk.schema.extract.key.enabled: "false"
      - id: out
        type: destination
        plugin: builtin:postgres
        settings: {url: "TARGET", chunk: "7", lock-timeout: 300ms}
        delivery: {guarantee: GUARANTEE, max-redeliveries: 100}
"""
TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, v text, n numeric)",
    "CREATE SCHEMA s",
    "CREATE TABLE s.b (k text, id int, v int[], PRIMARY KEY (k, id))",
)


def contents(db: Database) -> list[Any]:
    return [db.run("SELECT * FROM a ORDER BY id"), db.run("SELECT * FROM s.b ORDER BY k, id")]


def transaction(chance: random.Random, db: Database) -> None:
    """Some random changes, committed or rolled back."""
    statements = ["BEGIN"]
    for _ in range(chance.randint(1, 8)):
        one, other = chance.randint(1, 30), chance.randint(1, 30)
        statements.append(
            chance.choice(
                (
                    f"INSERT INTO a VALUES ({one}, 'v{other}', {other}.10) ON CONFLICT (id) DO UPDATE SET v = 'again'",
                    f"UPDATE a SET v = v || '{other}', n = NULL WHERE id < {one}",
                    f"DELETE FROM a WHERE id = {one}",
                    f"UPDATE a SET id = {other} WHERE id = {one} AND NOT EXISTS (SELECT 1 FROM a WHERE id = {other})",
                    f"INSERT INTO s.b VALUES ('k', {one}, ARRAY[{other}, NULL]) ON CONFLICT DO NOTHING",
                    f"DELETE FROM s.b WHERE id > {one}",
                    "TRUNCATE s.b" if chance.random() < 0.1 else "SELECT 1",
                )
            )
        )
    db.run(*statements, chance.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")))


def run_and_die(run: str, at: int, after: bool, server: int) -> None:
    """One run, in whose operation number `at` this process dies, or the server of that id; before or after it."""

    def die() -> None:
        if server:
            os.kill(server, signal.SIGQUIT)
        else:
            os._exit(9)

    operations = (
        (Slot, "make"),
        (Slot, "peek"),
        (Slot, "advance"),
        (Chunk, "read"),
        (PostgresDestination, "write"),
        (Apply, "finish"),
        (MicroBatches, "open"),
        (MicroBatches, "stage"),
        (Deliveries, "confirm"),
        (Acks, "begin"),
        (Acks, "commit"),
    )
    end_at(operations, at, die, after=after)
    run_once("p", run)


def set_up(home: Path, source: Database, target: Database, guarantee: str) -> None:
    text = PIPELINE.replace("SOURCE", source.url).replace("TARGET", target.url).replace("GUARANTEE", guarantee)
    write_pipeline(home, "p", text)
    for each in (source, target):
        each.run(*TABLES)
    source.run("INSERT INTO a SELECT n, 'x', n FROM generate_series(1, 20) n")


@pytest.mark.proves("T2")
@pytest.mark.usefixtures("redis_server")
def test_changes_are_acked_when_they_are_stored(home: Path, postgres: PostgresServer) -> None:
    # Given a replica that is up to date
    with database(postgres) as source, database(postgres) as target:
        set_up(home, source, target, "at-least-once")
        assert ack_on(get_pipeline("p").source("in")) == "stored"
        run_until_quiet("p")
        assert contents(source) == contents(target)
        before = source.confirmed("p_in")
        # When a change comes while the target is locked
        source.run("UPDATE a SET v = 'y'")
        lock = psycopg2.connect(target.url)
        try:
            lock.cursor().execute("LOCK TABLE a")
            run_once("p", "locked")
        finally:
            lock.close()
        # Then it is acked, and delivered later
        assert lsn_number(source.confirmed("p_in")) > lsn_number(before)
        assert contents(source) != contents(target)
        run_until_quiet("p")
        assert contents(source) == contents(target)


@pytest.mark.proves("C10", "C12", "B8", "I1")
@pytest.mark.parametrize(("guarantee", "seed"), [("at-least-once", 1), ("effectively-once", 2)])
def test_after_random_transactions_and_kills_the_replica_is_the_same(
    home: Path, postgres: PostgresServer, guarantee: str, seed: int
) -> None:
    chance = random.Random(seed)
    with database(postgres) as source, database(postgres) as target:
        set_up(home, source, target, guarantee)
        deaths = 0
        for number in range(8):
            for _ in range(chance.randint(1, 6)):
                transaction(chance, source)
            assert postgres.process is not None
            dies = chance.choice((0, 0, postgres.process.pid))
            try:
                in_child(run_and_die, f"run-{number}", chance.randint(1, 16), chance.random() < 0.5, dies)
            except ChildDied:
                deaths += 1
            except (ConduitError, OSError, AssertionError):
                # What a server that is gone leads to; the runs after it show whether anything is lost.
                pass
            lapse()
            if dies:
                postgres.kill()
                postgres.start()
                deaths += 1
        assert deaths > 2, "too few deaths to show anything"
        run_until_quiet("p", most=60)
        assert contents(source) == contents(target)
        assert len(contents(source)[0]) > 5
