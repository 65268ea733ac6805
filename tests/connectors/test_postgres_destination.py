"""The destination of `postgres` on a real server: rows by key, deletes, appends, each once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks.postgres_server import PostgresServer
from conduit_tasks.connectors.postgres.connector import PostgresDestination
from conduit_tasks.connectors.rows import RowNumbers, Rows
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.topology import Delivery
from tests.connectors.postgres_database import Database
from tests.delivery.fakes import FakePort, work_of

ORIGIN = Origin("p", "in", "")


def rows(records: Sequence[Record], first: int | None = None) -> Rows:
    batch = spool_batch([0] * len(records), list(range(len(records))), records)
    numbers = None if first is None else RowNumbers("p", "d", 7, np.arange(first, first + len(records)))
    return Rows(batch, [ORIGIN], 1, 0, len(records) - 1, numbers)


def change(
    operation: str, after: Any = None, before: Any = None, key: Any = None, table: str = "t", **metadata: str
) -> Record:
    marks = {"opencdc.collection": table, **{f"postgres.{name}": value for name, value in metadata.items()}}
    return Record(b"1", operation, marks, key, before, after, origin=ORIGIN)


def opened(db: Database, **settings: str) -> PostgresDestination:
    destination = PostgresDestination({"url": db.url, **{n.replace("_", "-"): v for n, v in settings.items()}})
    destination.open(None)
    return destination


def write(db: Database, *records: Record, **settings: str) -> None:
    destination = opened(db, **settings)
    try:
        destination.write(rows(records))
    finally:
        destination.close()


def test_changes_of_several_tables_are_applied_in_their_order(db: Database) -> None:
    # Given two tables, one in a schema of its own
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int NOT NULL DEFAULT 5)",
        'CREATE SCHEMA s; CREATE TABLE s."U" (a int, b text, v jsonb, PRIMARY KEY (a, b))',
        "INSERT INTO t VALUES (1, 'old', 1), (2, 'gone', 2), (3, 'stays', 3), (8, 'moves', 8)",
    )
    # When a key is written, deleted and written again, rows move, and a large value stays as it is
    write(
        db,
        change("snapshot", {"id": 1, "v": "one"}),
        change("delete", key={"id": 2}),
        change("create", {"id": 4, "v": 'tab\t\\ "q"\n'}),
        change("update", {"id": 4, "v": "four", "n": 44}),
        change("create", {"a": 1, "b": "x", "v": {"k": [1, None]}}, table="s.U"),
        change("update", {"id": 9, "v": "moved", "n": 9}, {"id": 8}),
        change("update", {"id": 3, "n": 33}, unchanged="v"),
        change("create", {"id": 5, "v": "five", "n": 0}),
        change("update", {"id": 5, "n": 55}, unchanged="v"),
        change("create", {"id": 6, "v": "x"}),
        change("delete", before={"id": 6, "v": "x"}),
    )
    # Then the tables are as they would be one by one
    assert db.run("SELECT * FROM t ORDER BY id") == [
        (1, "one", 1),
        (3, "stays", 33),
        (4, "four", 44),
        (5, "five", 55),
        (9, "moved", 9),
    ]
    assert db.run('SELECT * FROM s."U"') == [(1, "x", {"k": [1, None]})]
    # Whichever database a table was emptied in
    for id, mark in ((8, "postgres.truncate"), (9, "mysql.truncate")):
        emptied = Record(b"1", "delete", {"opencdc.collection": "t", mark: "true"}, origin=ORIGIN)
        write(db, change("create", {"id": 7, "v": "x"}), emptied, change("create", {"id": id}))
        assert db.run("SELECT id FROM t") == [(id,)]


def test_values_go_into_columns_of_every_type(db: Database) -> None:
    db.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n numeric, f float8, b bool, y bytea, "
        "j json, a int[], ta text[], ts timestamptz, e mood, s text, o text)",
    )
    after = {"id": 5, "n": "1.10", "f": "NaN", "b": True, "y": "AP8=", "j": ["x"], "a": [[1, None]], "s": {"k": 1}}
    write(
        db,
        change(
            "create", {**after, "ta": ["a,b", None, '"', "\\"], "ts": "2026-01-02T03:04:05Z", "e": "glad", "o": False}
        ),
    )
    [row] = db.run("SELECT id, n::text, f::text, b, encode(y, 'hex'), j, a, ta, ts, e, s, o FROM t")
    assert row[:8] == (5, "1.10", "NaN", True, "00ff", ["x"], [[1, None]], ["a,b", None, '"', "\\"])
    assert row[9:] == ("glad", '{"k":1}', "false")
    assert db.run("SELECT ts = '2026-01-02 03:04:05Z' FROM t") == [(True,)]


@pytest.mark.proves("B8", "O5")
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("seed", range(2))
def test_attempts_that_die_at_any_place_and_begin_again_leave_each_row_once(db: Database, mode: str, seed: int) -> None:
    chance = random.Random(seed)
    db.run("CREATE TABLE t (n int)" if mode == "append" else "CREATE TABLE t (n int PRIMARY KEY)")
    events = [change("create", {"n": n}) for n in range(120)]
    confirmed = 0
    while confirmed < len(events):
        destination, at = opened(db, mode=mode), confirmed
        for _ in range(chance.randint(1, 4)):
            chunk = events[at : at + chance.randint(1, 25)]
            if chunk:
                destination.write(rows(chunk, at + 1))
            at += len(chunk)
        destination.close()
        confirmed = chance.randint(confirmed, at)
    assert [n for (n,) in db.run("SELECT n FROM t ORDER BY n")] == list(range(120))
    assert db.run("SELECT pipeline, destination, epoch, number FROM conduit_index") == [("p", "d", 7, 120)]


@pytest.mark.proves("C17", "C5")
def test_rows_that_the_server_refuses_are_dead_letters_one_by_one(db: Database) -> None:
    db.run("CREATE TABLE t (seq int PRIMARY KEY CHECK (seq NOT IN (0, 700, 1999)))")
    port = FakePort(2000, list(range(2000)))
    settings = {"url": db.url, "table": "t", "chunk": "500", "unknown-fields": "ignore"}
    deliver(work_of(port), PostgresDestination(settings), port, Delivery())
    assert db.run("SELECT count(*), sum(seq) FROM t") == [(1997, sum(range(2000)) - 700 - 1999)]
    assert [key[2] for key in port.stored] == [0, 700, 1999]
    assert "constraint" in port.stored[0, 7, 700, 0].error
    assert port.complete


@pytest.mark.proves("T6")
@pytest.mark.parametrize(
    ("record", "said"),
    [
        (change("create", {"id": "x"}), "invalid input syntax"),
        (change("create", {"id": 2**40}), "out of range"),
        (change("create", {"id": 1, "v": "a\0b"}), "0x00"),
        (change("create", {"id": 1, "z": 1}), "no column z"),
        (change("create", {"v": "x"}), "has no id"),
        (change("create", {"id": 1, "y": "#"}), "base64"),
        (change("create", b"raw"), "json.decode"),
        (change("delete"), "names no id"),
        (change("create", {"id": 1}, table="nowhere"), "no table nowhere|no table public.nowhere"),
        (Record(b"1", after={"id": 1}, origin=ORIGIN), "names no table"),
    ],
)
def test_what_is_the_records_fault_is_refused(db: Database, record: Record, said: str) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text, y bytea)")
    with pytest.raises(Refused, match=said):
        write(db, record)
    assert db.run("SELECT * FROM t") == []


def test_a_delete_cannot_be_appended(db: Database) -> None:
    db.run("CREATE TABLE t (id int)")
    with pytest.raises(Refused, match="mode: upsert"):
        write(db, change("delete", key={"id": 1}), mode="append")


def test_values_that_change_places_are_left_to_bisection(db: Database) -> None:
    # Given two rows that take each other's unique value by way of a third
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int UNIQUE)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    swap = [change("update", {"id": i, "v": v}) for i, v in ((1, 9), (2, 1), (1, 2))]
    with pytest.raises(Refused, match="unique"):
        write(db, *swap)
    for record in swap:
        write(db, record)
    assert db.run("SELECT * FROM t ORDER BY id") == [(1, 2), (2, 1)]


def test_a_column_that_is_added_meanwhile_is_seen(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    destination = opened(db)
    destination.write(rows([change("create", {"id": 1})]))
    db.run("ALTER TABLE t ADD v text")
    destination.write(rows([change("create", {"id": 2, "v": "x"})]))
    db.run("ALTER TABLE t DROP v")
    with pytest.raises(Unavailable, match="changed meanwhile"):
        destination.write(rows([change("create", {"id": 3, "v": "x"})]))
    destination.open(None)
    with pytest.raises(Refused, match="no column v"):
        destination.write(rows([change("create", {"id": 3, "v": "x"})]))
    destination.close()
    assert db.run("SELECT * FROM t ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"table": "nowhere"}, "no table public.nowhere"),
        ({"table": "k", "key": "x"}, "no column x"),
        ({"table": "k"}, "no primary key"),
    ],
)
def test_a_table_that_cannot_keep_its_promise_is_named_at_once(
    db: Database, settings: dict[str, str], said: str
) -> None:
    db.run("CREATE TABLE k (id int)")
    with pytest.raises(ConfigError, match=said):
        opened(db, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"url": "mysql://u:pw@h/d"}, "url"), ({"table": "{{ .Nothing"}, "table"), ({"chunk": "0"}, "chunk")],
)
def test_wrong_settings_are_named_and_show_no_password(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        PostgresDestination({"url": "postgresql://h/d", **settings})
    assert "pw" not in str(raised.value)


def test_the_password_and_the_certificates_are_those_of_the_url(db: Database) -> None:
    # Given a server that asks for a password, and has no TLS
    hba = db.server.folder / "data" / "pg_hba.conf"
    before = hba.read_text()
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE ROLE clerk LOGIN PASSWORD 's3cret'", "GRANT ALL ON t TO clerk"
    )
    hba.write_text("host all clerk 127.0.0.1/32 scram-sha-256\n" + before)
    db.reload()
    try:
        base = db.url.replace("postgres@", "clerk:{}@")
        write(db, change("create", {"id": 1}), url=base.format("s3cret"))
        for url, said in (
            (base.format("wr0ng"), "password authentication failed"),
            (base.format("s3cret") + "?sslmode=require", "SSL"),
        ):
            with pytest.raises(Unavailable, match=said) as raised:
                write(db, change("create", {"id": 2}), url=url)
            assert "s3cret" not in str(raised.value)
            assert "wr0ng" not in str(raised.value)
    finally:
        hba.write_text(before)
        db.reload()
        db.run("DROP OWNED BY clerk", "DROP ROLE clerk")


@pytest.mark.proves("T6", "T7")
def test_a_server_that_is_killed_is_waited_for_and_nothing_is_there_twice(
    db: Database, postgres: PostgresServer
) -> None:
    db.run("CREATE TABLE t (seq int)")
    port = FakePort(3000, list(range(3000)))
    port.fail_at = lambda name: postgres.kill() if name == "confirm" and len(port.calls) == 2 else None  # type: ignore[func-returns-value]
    settings = {"url": db.url, "table": "t", "mode": "append", "chunk": "500", "unknown-fields": "ignore"}
    quick: dict[str, Any] = {"backoff_delay": 0.001, "backoff_policy": "constant"}
    with pytest.raises(Unavailable):
        deliver(work_of(port), PostgresDestination(settings), port, Delivery(retry=1, **quick))
    assert not port.stored
    port.fail_at = lambda _: None
    postgres.start()
    deliver(work_of(port), PostgresDestination(settings), port, Delivery())
    assert db.run("SELECT count(*), count(DISTINCT seq) FROM t") == [(3000, 3000)]
    assert port.complete
