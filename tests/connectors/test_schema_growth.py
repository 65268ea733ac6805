"""Columns that grow (`schema: evolve`), each with the particulars of its system; and what a column would change."""

from __future__ import annotations

import os
import threading
from decimal import Decimal
from typing import Any

import psycopg2
import pytest
import sqlalchemy as sa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StructType,
)

from conduit_tasks.connectors.postgres.connector import PostgresDestination
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.sql.connector import SqlDestination
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import ConfigError, DoesNotFit, Unavailable
from conduit_tasks.record.record import Record
from conduit_tasks.topology import Delivery
from tests.connectors.iceberg_lake import Lake
from tests.connectors.postgres_database import Database
from tests.connectors.test_delta import rows as numbered
from tests.connectors.test_postgres_destination import change, opened, rows
from tests.connectors.test_sql import ORIGIN, execute, rows_of, url  # noqa: F401 - a fixture
from tests.delivery.fakes import FakePort, work_of
from tests.waiting import until


def fresh(*payloads: Any) -> Rows:
    """Rows of records that have an id each."""
    return rows_of([Record(repr(payload).encode(), after=payload, origin=ORIGIN) for payload in payloads])


# -- iceberg ------------------------------------------------------------------------------------------------------


def test_types_that_iceberg_promotes_are_promoted_also_within_columns(lake: Lake) -> None:
    lake.catalog.create_namespace("lake")
    within = StructType(NestedField(7, "i", IntegerType(), required=False))
    fields = (
        NestedField(1, "n", IntegerType()),
        NestedField(2, "f", FloatType()),
        NestedField(3, "d", DecimalType(5, 2)),
        NestedField(4, "o", within),
        NestedField(5, "l", ListType(6, FloatType(), element_required=False)),
    )
    lake.catalog.create_table("lake.t", Schema(*fields))
    out = lake.destination(schema="evolve")
    first = {"n": 1, "f": 0.5, "d": 1.25, "o": {"i": 1}, "l": [0.5, None]}
    out.write(numbered(first, numbered=False))
    wide = {"n": 2**40, "f": 0.1234567890123, "d": "123456.78", "o": {"i": -(2**40)}, "l": [0.1234567890123]}
    # When only new columns are asked for, then the types stay
    for name, value in wide.items():
        with pytest.raises(DoesNotFit):
            lake.destination(schema="merge").write(numbered({name: value}, numbered=False))
    # When a write has values that are too wide, then all of it is one commit
    before = len(lake.table.snapshots())
    out.write(numbered(wide, {"n": 3}, numbered=False))
    assert len(lake.table.snapshots()) == before + 1
    there = {field.name: field.field_type for field in lake.table.schema().fields}
    assert (there["n"], there["f"], there["d"]) == (LongType(), DoubleType(), DecimalType(8, 2))
    found = {row["n"]: row for row in lake.rows()}
    assert found[1] == {**first, "d": Decimal("1.25")}
    assert found[2**40] == {**wide, "d": Decimal("123456.78")}
    # And a fraction with more digits, which would give all others another scale, is refused
    with pytest.raises(DoesNotFit, match="'d' is no decimal"):
        out.write(numbered({"d": 1.555}, numbered=False))
    with pytest.raises(DoesNotFit, match="'n' is no int64"):
        out.write(numbered({"n": 1.5}, numbered=False))


def test_a_column_that_is_promoted_may_be_the_key(lake: Lake) -> None:
    lake.catalog.create_namespace("lake")
    lake.catalog.create_table("lake.t", Schema(NestedField(1, "id", IntegerType(), required=True)))
    out = lake.upserts(schema="evolve")
    out.write(numbered({"id": 1}, {"id": 2}, numbered=False))
    out.write(numbered({"id": 2, "v": "x"}, {"id": 2**40, "v": "y"}, numbered=False))
    assert lake.by_id() == {1: None, 2: "x", 2**40: "y"}


# -- postgres -----------------------------------------------------------------------------------------------------


def test_every_type_of_postgres_that_can_be_widened_is(db: Database) -> None:
    db.run(
        "CREATE TABLE t (id smallint PRIMARY KEY, r real, d numeric(5,2), v varchar(2), at timestamp(0), day date)",
        "INSERT INTO t VALUES (1, 0.5, 1.25, 'ab', '2026-01-02 03:04:05', '2026-01-02')",
    )
    out = opened(db, schema="evolve")
    more = {
        "r": 0.123456789,
        "d": 12345.678,
        "v": "abcde",
        "at": "2026-01-02T03:04:05.123456",
        "day": "2026-01-02T01:00",
    }
    out.write(rows([change("create", {"id": 40_000, **more})]))
    out.close()
    assert db.run("SELECT r, d::text, v, at::text, day::text FROM t ORDER BY id") == [
        (0.5, "1.250", "ab", "2026-01-02 03:04:05", "2026-01-02 00:00:00"),
        (0.123456789, "12345.678", "abcde", "2026-01-02 03:04:05.123456", "2026-01-02 01:00:00"),
    ]


def test_a_real_that_is_widened_shows_the_digits_that_it_showed(db: Database) -> None:
    # Given a server that shows six digits of a real, unless it is asked for all
    db.run("CREATE TABLE t (id int PRIMARY KEY, r real)", "INSERT INTO t VALUES (1, 0.1), (2, 0.12345679), (3, 'NaN')")
    out = opened(db, schema="evolve", url=f"{db.url}?options=-c%20extra_float_digits%3D0")
    out.write(rows([change("create", {"id": 4, "r": 0.123456789})]))
    out.close()
    found = [text for (text,) in db.run("SELECT r::text FROM t ORDER BY id")]
    assert found == ["0.1", "0.12345679", "NaN", "0.123456789"]


@pytest.mark.parametrize(
    "after",
    [
        {"": 1},
        {"n" * 64: 1},
        {"xmin": 1},
        {"twice": 1},
        {"v": "longer"},
        {"seen": 2**40},
    ],
)
def test_a_column_that_the_server_does_not_take_is_a_letter_and_the_table_stays(db: Database, after: Any) -> None:
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(3)[], seen int, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE VIEW w AS SELECT seen FROM t",
    )
    out = opened(db, schema="evolve")
    with pytest.raises(DoesNotFit):
        out.write(rows([change("create", {"id": 1, "new": 1, **after})]))
    out.write(rows([change("create", {"id": 2, "new": 1})]))
    out.close()
    assert db.run("SELECT id, new FROM t") == [(2, 1)]


def test_a_table_that_another_writer_made_wider_meanwhile_does_not_become_narrower(db: Database) -> None:
    # Given another transaction that widens the column, while a writer looks at the table as it was
    db.run("CREATE TABLE t (id int PRIMARY KEY, v varchar(2))")
    out = opened(db, schema="evolve", lock_timeout="60s")
    other = psycopg2.connect(db.url)
    with other.cursor() as cursor:
        cursor.execute("ALTER TABLE t ALTER v TYPE varchar(50)")
        writer = threading.Thread(target=out.write, args=(rows([change("create", {"id": 1, "v": "abcd"})]),))
        writer.start()
        until(lambda: db.run("SELECT 1 FROM pg_locks WHERE NOT granted"))
    # When that transaction ends
    other.commit()
    other.close()
    writer.join(60.0)
    out.close()
    # Then the row is there, and the column is as the other one left it
    assert db.run("SELECT v, (SELECT character_maximum_length FROM information_schema.columns WHERE table_name = 't' "
                  "AND column_name = 'v') FROM t") == [("abcd", 50)]  # fmt: skip


@pytest.mark.proves("T6")
def test_a_table_that_is_locked_is_waited_for_and_no_right_to_change_it_is_an_error(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)", "DROP ROLE IF EXISTS writer", "CREATE ROLE writer LOGIN",
           "GRANT ALL ON t TO writer")  # fmt: skip
    record = change("create", {"id": 1, "new": "x"})
    out = opened(db, schema="evolve", lock_timeout="10ms")
    other = psycopg2.connect(db.url)
    other.cursor().execute("LOCK TABLE t IN ACCESS SHARE MODE")
    with pytest.raises(Unavailable, match="lock timeout"):
        out.write(rows([record]))
    other.close()
    out.close()
    weak = opened(db, schema="evolve", url=db.url.replace("postgres@", "writer@"))
    with pytest.raises(ConfigError, match="owner"):
        weak.write(rows([record]))
    weak.close()
    db.run("DROP OWNED BY writer", "DROP ROLE writer")


def test_tables_of_one_write_grow_each_on_its_own(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    out = opened(db, schema="evolve")
    out.write(rows([change("create", {"id": 1, "a": 1}), change("create", {"id": 2, "b": [1]}, table="u"),
                    change("delete", key={"id": 7}), change("update", {"id": 1, "c": 0.5})]))  # fmt: skip
    with pytest.raises(DoesNotFit, match="no table public"):
        out.write(rows([change("create", {"id": 2, "d": 1}), change("create", {"id": 3}, table="nowhere")]))
    out.close()
    assert db.run("SELECT * FROM t") == [(1, 1, 0.5)]
    assert db.run("SELECT * FROM u") == [(2, [1])]


def test_fields_that_are_ignored_need_no_column(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(ConfigError, match="unknown-fields"):
        opened(db, schema="evolve", unknown_fields="ignore")
    out = opened(db, schema="quarantine", unknown_fields="ignore")
    out.write(rows([change("create", {"id": 1, "a": 1})]))
    with pytest.raises(DoesNotFit, match="out of range"):
        out.write(rows([change("create", {"id": 2**40, "a": 1})]))
    out.close()
    assert db.run("SELECT * FROM t") == [(1,)]


DOMAINS = ("CREATE DOMAIN price AS numeric(10,2)", "CREATE DOMAIN net AS price CHECK (VALUE > 0)")
CHANGED = [
    ("price", 1.555),
    ("net", 1.555),
    ("numeric(10,2)", 1.555),
    ("integer", 1.5),
    ("real", 0.123456789),
    ("double precision", 2**53 + 1),
    ("date", "2026-01-02T12:00:00"),
    ("timestamp", "2026-01-02T12:00:00+02:00"),
    ("varchar(3)", "abc "),
]


def test_a_value_that_postgres_would_change_is_refused_by_both_connectors(db: Database) -> None:
    db.run(*DOMAINS)
    for n, (type_, value) in enumerate(CHANGED):
        db.run(f"CREATE TABLE t{n} (id varchar(32) PRIMARY KEY, v {type_})")
        ours = opened(db, table=f"t{n}")
        with pytest.raises(DoesNotFit, match="'v' does not fit") as raised:
            ours.write(rows([change("create", {"id": "a"}), change("create", {"id": "b", "v": value})]))
        ours.close()
        assert raised.value.row == 1
        sql = SqlDestination({"url": db.url, "table": f"t{n}"})
        sql.open(None)
        with pytest.raises(DoesNotFit, match="'v' does not fit") as raised:
            sql.write(fresh({"a": 1}, {"v": value}))
        sql.close()
        assert raised.value.row == 1
        assert db.run(f"SELECT * FROM t{n}") == []


def test_a_domain_takes_what_its_type_takes_and_is_not_widened(db: Database) -> None:
    db.run(*DOMAINS, "CREATE DOMAIN picture AS bytea", "CREATE DOMAIN facts AS json")
    db.run("CREATE TABLE t (id int PRIMARY KEY, n net, p picture, f facts)")
    out = opened(db, schema="evolve")
    out.write(rows([change("create", {"id": 1, "n": "1.50", "p": "AP8=", "f": "text"})]))
    with pytest.raises(DoesNotFit, match="'n' does not fit the column, which is numeric"):
        out.write(rows([change("create", {"id": 2, "n": 1.555})]))
    out.close()
    assert db.run("SELECT n::text, encode(p, 'hex'), f FROM t") == [("1.50", "00ff", "text")]


@pytest.mark.parametrize(("type_", "key"), [("numeric(10,2)", b"1.555"), ("text", b"\xff"), ("real", b"0.123456789")])
def test_a_raw_key_fits_or_is_refused_as_any_value(db: Database, type_: str, key: bytes) -> None:
    db.run(f"CREATE TABLE t (id {type_} PRIMARY KEY)", "INSERT INTO t VALUES (1.56), (0.12345679)")
    out = opened(db)
    with pytest.raises(DoesNotFit, match="'id'"):
        out.write(rows([change("delete", key=key)]))
    out.write(rows([change("delete", key=b"1.56")]))
    out.close()
    assert len(db.run("SELECT * FROM t")) == 1


def test_elements_of_arrays_and_whole_fractions_are_written_exactly_or_not_at_all(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, d numeric(5,2)[])")
    out = opened(db)
    with pytest.raises(DoesNotFit, match="'d' does not fit"):
        out.write(rows([change("create", {"id": 1, "d": [1.5, 1.555]})]))
    out.write(rows([change("create", {"id": 2.0, "d": [1.5, None]})]))
    out.close()
    assert db.run("SELECT id, d::text FROM t") == [(2, "{1.50,NULL}")]


@pytest.mark.parametrize(
    "record", [{"id": "x"}, {"id": None}, {"id": 1, "at": "later"}, {"id": 1, "y": "#"}, {"id": 1}]
)
def test_what_the_server_says_of_its_columns_is_of_the_class_schema(db: Database, record: Any) -> None:
    db.run("CREATE TABLE t (id int, at date, y bytea, must int NOT NULL)")
    out = opened(db, mode="append")
    with pytest.raises(DoesNotFit):
        out.write(rows([change("create", {"must": 1, **record} if "id" in record and len(record) > 1 else record)]))
    out.close()


def test_the_row_at_fault_is_counted_from_the_first_of_the_write_also_if_some_are_there(db: Database) -> None:
    db.run("CREATE TABLE t (n int)")
    out = opened(db, mode="append")
    good = [change("create", {"n": n}) for n in range(2)]
    out.write(rows(good, 1))
    with pytest.raises(DoesNotFit) as raised:
        out.write(rows([*good, change("create", {"n": 2**40})], 1))
    out.close()
    assert raised.value.row == 2


# -- sql ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("B8", "C10")
def test_a_writer_that_is_killed_before_its_commit_leaves_neither_column_nor_row(url: str) -> None:  # noqa: F811
    # Given a table, and rows that it needs another column for
    execute(url, "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, n SMALLINT)")
    found = fresh({"n": 1}, {"n": 100_000, "new": "x"})

    def write() -> None:
        out = SqlDestination({"url": url, "table": "events", "schema": "evolve"})
        out.still_ours = lambda: os._exit(9)
        out.open(None)
        out.write(found)

    # When the process ends with everything written, and nothing committed
    if (child := os.fork()) == 0:
        try:
            write()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    # Then the table is as it was
    columns = {each["name"] for each in described(url)}
    assert (columns, execute(url, "SELECT * FROM events")) == ({"id", "n"}, [])
    # And the next attempt has it all, once
    for _ in range(2):
        out = SqlDestination({"url": url, "table": "events", "schema": "evolve"})
        out.open(None)
        out.write(found)
        out.close()
    assert execute(url, "SELECT n, new FROM events ORDER BY n") == [(1, None), (100_000, "x")]


def described(url: str) -> list[Any]:  # noqa: F811
    engine = sa.create_engine(url)
    try:
        return list(sa.inspect(engine).get_columns("events"))
    finally:
        engine.dispose()


# -- the nack window ----------------------------------------------------------------------------------------------


@pytest.mark.proves("C6", "C5", "I8")
@pytest.mark.parametrize("schema", ["quarantine", "freeze"])
def test_the_window_does_not_count_what_a_quarantine_sets_aside_and_counts_everything_else(
    db: Database, schema: str
) -> None:
    # Given a table that 60 of 160 records do not fit, and that refuses one for another reason
    db.run("CREATE TABLE t (seq numeric(2,0) PRIMARY KEY CHECK (seq <> 50))")
    port = FakePort(160, list(range(160)), window=(10, 1))
    settings = {"url": db.url, "table": "t", "schema": schema}
    # When they are delivered
    if schema == "freeze":
        with pytest.raises(Exception, match="does not tolerate"):
            deliver(work_of(port), PostgresDestination(settings), port, Delivery())
        assert len(port.stored) == 2
        return
    deliver(work_of(port), PostgresDestination(settings), port, Delivery())
    # Then all are dead letters, of which the window has seen one
    assert db.run("SELECT count(*) FROM t") == [(99,)]
    classes = [letter.error_class for letter in port.stored.values()]
    assert (classes.count("schema"), len(classes)) == (60, 61)
    assert port.votes.count("n") == 1
    assert port.complete
