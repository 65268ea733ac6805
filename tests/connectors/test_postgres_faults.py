"""What the source of `postgres` does when a slot, the publication, a table or the server is not as it must be."""

from __future__ import annotations

import itertools
import threading

import pytest

from benchmarks.postgres_server import PostgresServer
from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.postgres import slot as postgres_slot
from conduit_tasks.connectors.postgres.connector import PostgresSource
from conduit_tasks.errors import ConfigError, SourceError, Unavailable
from tests.connectors.postgres_database import Database
from tests.connectors.postgres_reading import drain, read, source
from tests.waiting import until


def test_a_slot_that_is_gone_anew_or_anothers_is_named(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    made = source(db)
    _, position = drain(made, {})
    db.run("INSERT INTO t VALUES (1)", "SELECT pg_drop_replication_slot('conduitslot')")
    with pytest.raises(SourceError, match="slot conduitslot is gone"):
        made.plan(position, Limit())
    with pytest.raises(SourceError, match="slot conduitslot is gone"):
        made.ack(position)
    db.run("SELECT pg_create_logical_replication_slot('conduitslot', 'pgoutput')")
    with pytest.raises(SourceError, match="slot conduitslot is ahead"):
        made.plan(position, Limit())
    db.run("SELECT pg_create_logical_replication_slot('mine', 'test_decoding')")
    with pytest.raises(ConfigError, match=r"logrepl\.slotName"):
        source(db, **{"logrepl.slotName": "mine"}).plan({}, Limit())


def test_a_slot_that_lost_its_log_is_named(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    made = source(db)
    _, position = drain(made, {})
    db.reload("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    rows = itertools.count()

    def lost() -> bool:
        for _ in range(4):
            db.run(f"INSERT INTO t VALUES ({next(rows)})", "SELECT pg_switch_wal()")
        # Who writes checkpoints reads the settings in its own time.
        db.run("CHECKPOINT")
        status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'conduitslot'"
        return bool(db.run(status) == [("lost",)])

    try:
        until(lost)
        with pytest.raises(SourceError, match="slot conduitslot lost log"):
            made.plan(position, Limit())
    finally:
        db.reload("ALTER SYSTEM RESET max_slot_wal_keep_size")


def test_a_slot_in_use_is_waited_for_and_then_named(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given another reader that streams from the slot
    import psycopg2.extras

    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    made = source(db)
    _, position = drain(made, {})
    db.run("INSERT INTO t VALUES (1)")
    other = psycopg2.connect(db.url, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    other.cursor().start_replication(
        slot_name="conduitslot", options={"proto_version": "1", "publication_names": "conduitpub"}
    )
    try:
        monkeypatch.setattr(postgres_slot, "BUSY", 0.3)
        with pytest.raises(SourceError, match="conduitslot"):
            made.plan(position, Limit())
        monkeypatch.setattr(postgres_slot, "BUSY", 240.0)
        # When it goes away, then reading goes on
        threading.Timer(0.3, other.close).start()
        assert len(drain(made, position)[0]) == 1
    finally:
        other.close()


def test_a_publication_without_the_table_is_named(db: Database) -> None:
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int)", "CREATE PUBLICATION conduitpub FOR TABLE u"
    )
    with pytest.raises(ConfigError, match=r"conduitpub has no table public\.t"):
        source(db).plan({}, Limit())


def test_a_table_without_a_primary_key_cannot_be_read_as_it_is(db: Database) -> None:
    db.run("CREATE TABLE t (id int)")
    [slice] = source(db).plan({}, Limit())
    with pytest.raises(ConfigError, match=r"public\.t has no primary key"):
        read(source(db), slice)
    db.run("INSERT INTO t VALUES (1)")
    made = source(db, snapshotMode="never", **{"logrepl.slotName": "other"})
    assert drain(made, {})[0] == []


@pytest.mark.proves("C8")
def test_a_server_that_is_down_or_dies_while_it_is_read_is_an_error_and_reading_goes_on(
    db: Database, postgres: PostgresServer
) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    db.run("INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 12000) n")
    made = source(db)
    [slice] = made.plan({}, Limit())

    def dies(slice: Slice) -> None:
        batches = made.read(slice)
        next(batches)
        postgres.kill()
        with pytest.raises(SourceError):
            list(batches)
        with pytest.raises(SourceError, match="no connection"):
            made.plan({}, Limit())
        with pytest.raises(Unavailable):
            made.ack({"": slice.start})
        postgres.start()

    dies(slice)
    records, position = drain(made, {})
    assert len(records) == 12000
    db.run("UPDATE t SET v = v || 'y'")
    [slice] = made.plan(position, Limit())
    dies(slice)
    assert len(drain(made, position)[0]) == 12000


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "mysql://u:pw@h/d"}, "url"),
        ({"tables": " , "}, "tables"),
        ({"logrepl.autoCleanup": "maybe"}, "autoCleanup"),
        ({"cdcMode": "long_polling"}, "cdcMode"),
    ],
)
def test_wrong_settings_are_named_and_show_no_password(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        PostgresSource({"url": "postgresql://h/d", "tables": "t", **settings})
    assert "pw" not in str(raised.value)


def test_a_url_that_libpq_cannot_read_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        PostgresSource({"url": "postgresql://u:se%cret@h/d", "tables": "t"}).plan({}, Limit())
    assert "cret" not in str(raised.value)


def test_the_connector_keeps_its_contract(db: Database) -> None:
    columns = "id text PRIMARY KEY, n int, text text, value float8"
    db.run(f"CREATE TABLE t ({columns})")
    accept(
        "postgres", {"url": db.url}, source={"tables": "t"}, destination={"table": "t", "unknown-fields": "ignore"}
    ).require()
