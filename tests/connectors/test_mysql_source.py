"""The source of `mysql` on a real MariaDB: rows as they are, then their changes, exactly and in order."""

from __future__ import annotations

import base64
import random
import struct
from typing import Any

import pytest

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.mysql.connector import MysqlSource
from tests.connectors.mariadb import MariadbServer
from tests.connectors.mariadb_database import MyDatabase, database, drain, step


def source(db: MyDatabase, **settings: str) -> MysqlSource:
    return MysqlSource({"url": db.url, "tables": "t", **settings})


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


TYPES: list[tuple[str, str, Any]] = [
    ("tinyint", "-128", -128),
    ("tinyint unsigned", "255", 255),
    ("smallint", "-32768", -32768),
    ("smallint unsigned", "65535", 65535),
    ("mediumint", "-8388608", -8388608),
    ("mediumint unsigned", "16777215", 16777215),
    ("int unsigned", "4294967295", 4294967295),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("bigint unsigned", "18446744073709551615", 2**64 - 1),
    ("bit(1)", "1", 1),
    ("bit(40)", "1099511627775", 2**40 - 1),
    ("decimal(65, 30)", "-" + "9" * 35 + "." + "1" * 30, "-" + "9" * 35 + "." + "1" * 30),
    ("decimal(10, 0)", "-5", "-5"),
    ("decimal(9, 9)", "-0.000000001", "-0.000000001"),
    ("decimal(20, 10)", "0", "0.0000000000"),
    ("float", "16777217", 16777216.0),
    ("float", "0.1", 0.1),
    ("double", "-1.7976931348623157e308", -1.7976931348623157e308),
    ("double", "0.1", 0.1),
    ("char(5)", "'a ä'", "a ä"),
    ("char(200)", "'wide'", "wide"),
    ("varchar(300)", "'😀 % ''q'''", "😀 % 'q'"),
    ("varchar(9) CHARACTER SET latin1", "'äé'", "äé"),
    ("varchar(9) CHARACTER SET latin1 COLLATE latin1_bin", "X'81E4'", "\x81ä"),
    ("varchar(9) CHARACTER SET utf16", "'ä😀'", "ä😀"),
    ("varchar(9) CHARACTER SET koi8r", "'да'", "да"),
    ("text CHARACTER SET cp1251", "'да'", "да"),
    ("longtext COLLATE utf8mb4_uca1400_ai_ci", "'uca'", "uca"),
    ("binary(4)", "X'6100'", b64(b"a\0\0\0")),
    ("binary(4)", "X'00000000'", b64(b"\0\0\0\0")),
    ("varbinary(9)", "X'00FF'", b64(b"\0\xff")),
    ("varbinary(9)", "''", ""),
    ("tinyblob", "X'FF'", b64(b"\xff")),
    ("blob", "REPEAT(X'00', 300)", b64(b"\0" * 300)),
    ("mediumtext", "REPEAT('x', 70000)", "x" * 70000),
    ("json", "'{\"a\": [1, null]}'", '{"a": [1, null]}'),
    ("enum('a', 'it''s', 'ж')", "'it''s'", "it's"),
    ("enum('a', 'ö') CHARACTER SET latin1", "'ö'", "ö"),
    ("enum('a', 'b')", "NULL", None),
    ("set('x', 'y', 'ä')", "'ä,x'", "x,ä"),
    ("set('x', 'y')", "''", ""),
    ("date", "'2026-02-28'", "2026-02-28"),
    ("date", "'0000-00-00'", "0000-00-00"),
    ("date", "'2026-00-00'", "2026-00-00"),
    ("datetime", "'1000-01-01 00:00:00'", "1000-01-01T00:00:00"),
    ("datetime", "'0000-00-00 00:00:00'", "0000-00-00 00:00:00"),
    ("datetime(3)", "'2026-01-02 03:04:05.678'", "2026-01-02T03:04:05.678"),
    ("datetime(6)", "'9999-12-31 23:59:59.999999'", "9999-12-31T23:59:59.999999"),
    ("timestamp NULL", "'2026-01-02 03:04:05'", "2026-01-02T03:04:05Z"),
    ("timestamp(1) NULL", "'2026-01-02 03:04:05.5'", "2026-01-02T03:04:05.5Z"),
    ("timestamp NULL", "'0000-00-00 00:00:00'", "0000-00-00 00:00:00"),
    ("timestamp(2) NULL", "'0000-00-00 00:00:00'", "0000-00-00 00:00:00.00"),
    ("time", "'-838:59:59'", "-838:59:59"),
    ("time(1)", "'-00:00:00.5'", "-00:00:00.5"),
    ("time(4)", "'12:34:56.7891'", "12:34:56.7891"),
    ("time(6)", "'-01:00:00.000001'", "-01:00:00.000001"),
    ("year", "2026", 2026),
    ("year", "0", 0),
    ("point", "POINT(1, 2)", b64(bytes(4) + b"\x01\x01\0\0\0" + struct.pack("<dd", 1, 2))),
    ("int", "NULL", None),
]


def typed(db: MyDatabase) -> tuple[str, dict[str, Any]]:
    """A table with a column of each type, a statement that adds a row, and the row's values."""
    columns = ", ".join(f"c{n} {type_} NULL" for n, (type_, _, _) in enumerate(TYPES)).replace("NULL NULL", "NULL")
    db.run(f"CREATE TABLE t (id int PRIMARY KEY, g int AS (id + 1), h int AS (id + 2) STORED, {columns})")
    names = ", ".join(f"c{n}" for n in range(len(TYPES)))
    insert = f"SET sql_mode = ''; INSERT INTO t (id, {names}) VALUES (NEW, {', '.join(v for _, v, _ in TYPES)})"
    return insert, {f"c{n}": value for n, (_, _, value) in enumerate(TYPES)}


@pytest.mark.proves("I3")
@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_values_of_every_type_are_the_same_in_the_snapshot_and_in_the_log(
    mydb: MyDatabase, mariadb: MariadbServer, metadata: str
) -> None:
    insert, wanted = typed(mydb)
    mydb.run(insert.replace("NEW", "1"), f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        snapshot, position = drain(source(mydb), {})
        mydb.run(insert.replace("NEW", "2"), "UPDATE t SET id = 3 WHERE id = 2", "DELETE FROM t WHERE id = 3")
    finally:
        mydb.run("SET GLOBAL binlog_row_metadata = FULL")
    changes, _ = drain(source(mydb), position)
    assert [(r.operation, r.key) for r in [*snapshot, *changes]] == [
        ("snapshot", {"id": 1}),
        ("create", {"id": 2}),
        ("update", {"id": 3}),
        ("delete", {"id": 3}),
    ]
    for record, before, after in ((snapshot[0], 0, 1), (changes[0], 0, 2), (changes[1], 2, 3), (changes[2], 3, 0)):
        assert record.before == ({"id": before, **wanted} if before else None)
        assert record.after == ({"id": after, **wanted} if after else None)


@pytest.mark.proves("I3")
def test_texts_of_every_charset_of_one_byte_are_the_same_in_the_snapshot_and_in_the_log(mydb: MyDatabase) -> None:
    # Given a column of each charset with each byte that there is
    there = "FROM information_schema.character_sets WHERE maxlen = 1 AND character_set_name <> 'binary'"
    charsets = [name for (name,) in mydb.run(f"SELECT character_set_name {there}")]
    assert {"hebrew", "greek", "koi8u", "cp866", "latin1"} <= {*charsets}
    mydb.run(
        f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(f'{n} varchar(256) CHARACTER SET {n}' for n in charsets)})"
    )
    row = f"INSERT INTO t VALUES (NEW, {', '.join([f'0x{bytes(range(256)).hex()}'] * len(charsets))})"
    mydb.run(row.replace("NEW", "1"))
    [snapshot], start = drain(source(mydb), {})
    mydb.run(row.replace("NEW", "2"))
    [change], _ = drain(source(mydb), start)
    assert isinstance(change.after, dict)
    assert isinstance(snapshot.after, dict)
    assert change.after == {**snapshot.after, "id": 2}
    assert change.after["hebrew"][0xE0] == "א"


def test_numbers_of_the_snapshot_are_those_of_the_log(mydb: MyDatabase) -> None:
    chance = random.Random(5)
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, f float, d double, n decimal(30, 12), t time(5))")
    rows = ", ".join(
        f"({n}, {chance.uniform(-1, 1) * 10 ** chance.randint(-30, 30)!r}, "
        f"{chance.uniform(-1, 1) * 10 ** chance.randint(-300, 300)!r}, {chance.randint(-(10**29), 10**29)}e-12, "
        f"SEC_TO_TIME({chance.randint(-(10**11), 10**11)}e-5))"
        for n in range(300)
    )
    start = drain(source(mydb), {})[1]
    mydb.run(f"INSERT INTO t VALUES {rows}")
    changes, _ = drain(source(mydb), start)
    snapshot, _ = drain(source(mydb, mode="snapshot"), {})
    assert [r.after for r in changes] == [r.after for r in snapshot]
    assert len(changes) == 300


@pytest.mark.proves("C9", "I3", "I7")
@pytest.mark.parametrize("most", [1, 3, None])
def test_changes_come_in_the_order_of_commits_and_again_with_the_same_positions(
    mydb: MyDatabase, mariadb: MariadbServer, most: int | None
) -> None:
    # Given transactions of several tables, one rolled back, and one of another database
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE u (id int PRIMARY KEY)")
    _, start = drain(source(mydb, tables="t, u"), {})
    with database(mariadb) as other:
        other.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (100)")
        mydb.run(
            "BEGIN",
            "INSERT INTO t VALUES (1, 1), (2, 2)",
            "SAVEPOINT s",
            "INSERT INTO u VALUES (1)",
            f"INSERT INTO {other.name}.t VALUES (101)",
            "UPDATE t SET v = 9",
            "COMMIT",
            "BEGIN",
            "INSERT INTO t VALUES (3, 3)",
            "ROLLBACK",
            "FLUSH BINARY LOGS",
            "DELETE FROM t WHERE id = 1",
            "TRUNCATE u",
        )
    # When they are read in micro-batches of any size
    records, position = drain(source(mydb, tables="t, u"), start, most)
    # Then they are all there, in order
    assert [(r.operation, r.metadata["opencdc.collection"], r.before, r.after) for r in records] == [
        ("create", "t", None, {"id": 1, "v": 1}),
        ("create", "t", None, {"id": 2, "v": 2}),
        ("create", "u", None, {"id": 1}),
        ("update", "t", {"id": 1, "v": 1}, {"id": 1, "v": 9}),
        ("update", "t", {"id": 2, "v": 2}, {"id": 2, "v": 9}),
        ("delete", "t", {"id": 1, "v": 9}, None),
        ("delete", "u", None, None),
    ]
    assert records[-1].metadata["mysql.truncate"] == "true"
    assert len({r.position for r in records}) == len(records)
    again, _ = drain(source(mydb, tables="t, u"), start)
    assert [r.position for r in again] == [r.position for r in records]
    # And nothing is left; a change of a table that is not ours makes no slice
    mydb.run("CREATE TABLE w (id int)", "INSERT INTO w VALUES (1)")
    assert source(mydb, tables="t, u").plan(position, Limit()) == []
    # The end of the log that a plan saw is where its slice ends.
    mydb.run("INSERT INTO t VALUES (7, 7)")
    [slice] = source(mydb, tables="t, u").plan(position, Limit())
    mydb.run("INSERT INTO t VALUES (8, 8)")
    reading = source(mydb, tables="t, u")
    assert sum(batch.num_rows for batch in reading.read(slice)) == 1
    assert reading.reached(slice)["skip"] == 0


def test_a_slice_has_a_bounded_size(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    mydb.run("INSERT INTO t SELECT seq, REPEAT('x', 1000) FROM seq_1_to_30")
    found = step(source(mydb), {}, Limit(bytes=5_000))
    assert found is not None
    assert len(found[0]) == 5
    _, start = drain(source(mydb), {})
    mydb.run("UPDATE t SET v = REPEAT('y', 500)")
    found = step(source(mydb), start, Limit(bytes=5_000))
    assert found is not None
    assert len(found[0]) == 4
    assert found[1][""]["skip"] == 4


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("varchar(9)", ["'b'", "'A'", "'c%''\\\\'", "'ö'", "''"]),
        ("varchar(9) CHARACTER SET latin1", ["'b'", "'A'", "'ö'"]),
        ("bigint unsigned", ["0", "9223372036854775807", "9223372036854775808", "18446744073709551615"]),
        ("decimal(30, 5)", ["-1", "12345678901234567890.00001", "12345678901234567890.00002", "0"]),
        ("varbinary(9)", ["''", "X'00'", "X'FF00'", "X'FF'"]),
        ("bit(20)", ["1", "2", "1000000"]),
        ("datetime(3)", ["'2026-01-01'", "'2026-01-01 00:00:00.001'", "'0000-00-00'"]),
        ("timestamp(3)", ["'2026-01-01'", "'2026-01-01 00:00:00.001'"]),
        ("time", ["'-800:00:00'", "'-00:00:01'", "'10:00:00'", "'800:00:00'"]),
    ],
)
def test_a_snapshot_goes_on_behind_a_key_of_any_type(mydb: MyDatabase, type_: str, values: list[str]) -> None:
    mydb.run(f"CREATE TABLE t (k {type_}, n int, PRIMARY KEY (k, n))", "SET sql_mode = ''")
    rows = ", ".join(f"({value}, {n})" for value in values for n in (1, 2))
    mydb.run(f"SET sql_mode = ''; INSERT INTO t VALUES {rows}")
    records, _ = drain(source(mydb, mode="snapshot"), {}, 1)
    assert len(records) == 2 * len(values)
    whole, _ = drain(source(mydb, mode="snapshot"), {})
    assert [r.position for r in records] == [r.position for r in whole]
    assert [r.after for r in records] == [r.after for r in whole]


def test_rows_that_change_while_the_snapshot_is_taken_come_again_behind_it(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT seq, 0 FROM seq_1_to_6")
    found = step(source(mydb), {}, Limit(records=3))
    assert found is not None
    mydb.run("UPDATE t SET v = 1 WHERE id IN (2, 5)", "DELETE FROM t WHERE id = 6", "INSERT INTO t VALUES (7, 7)")
    rest, _ = drain(source(mydb), found[1], 3)
    kept: dict[int, Any] = {}
    for record in [*found[0], *rest]:
        row = record.after or record.before
        kept[row["id"]] = record.after["v"] if record.after else None  # type: ignore[index]
    assert kept == {1: 0, 2: 1, 3: 0, 4: 0, 5: 1, 6: None, 7: 7}
    assert [r.operation for r in rest] == ["snapshot"] * 3 + ["update", "update", "delete", "create"]


def test_without_a_snapshot_changes_come_from_the_first_plan_on(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    records, position = drain(source(mydb, snapshotMode="never"), {})
    assert records == []
    mydb.run("INSERT INTO t VALUES (2)")
    records, _ = drain(source(mydb, snapshotMode="never"), position)
    assert [r.after for r in records] == [{"id": 2}]


def test_all_tables_of_a_database_are_read_also_new_ones(mydb: MyDatabase, mariadb: MariadbServer) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "CREATE VIEW v AS SELECT * FROM t")
    records, position = drain(source(mydb, tables="*"), {})
    with database(mariadb) as other:
        other.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        mydb.run("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (2)")
        more, _ = drain(source(mydb, tables="*"), position)
        assert [r.metadata["opencdc.collection"] for r in [*records, *more]] == ["t", "u"]
        # The collection has the database's name where it is not the URL's.
        far, _ = drain(source(mydb, tables=f"{other.name}.t", mode="snapshot"), {})
        assert [r.metadata["opencdc.collection"] for r in far] == [f"{other.name}.t"]


# -- changes of the tables -------------------------------------------------------------------------------------------


def test_columns_have_the_names_that_they_had_when_the_row_changed(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    _, start = drain(source(mydb), {})
    mydb.run(
        "INSERT INTO t VALUES (1, 2, 'x')",
        "ALTER TABLE t RENAME COLUMN a TO c, ADD d int UNSIGNED DEFAULT 7 FIRST",
        "INSERT INTO t VALUES (4294967295, 2, 3, 'y')",
        "ALTER TABLE t DROP PRIMARY KEY",
        "DELETE FROM t WHERE id = 1",
        "DROP TABLE t",
    )
    records, _ = drain(source(mydb), start)
    assert [(r.key, r.before or r.after) for r in records] == [
        ({"id": 1}, {"id": 1, "a": 2, "b": "x"}),
        ({"id": 2}, {"d": 4294967295, "id": 2, "c": 3, "b": "y"}),
        (None, {"d": 7, "id": 1, "c": 2, "b": "x"}),
    ]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_the_connector_keeps_its_contract(mydb: MyDatabase, mode: str) -> None:
    mydb.run("CREATE TABLE t (id varchar(64) PRIMARY KEY, mark varchar(64), n int, text longtext)")
    more = {"table": "t", "unknown-fields": "ignore", "mode": mode}
    accept("mysql", source={"url": mydb.url, "tables": "t"}, destination={"url": mydb.url, **more}).require()
