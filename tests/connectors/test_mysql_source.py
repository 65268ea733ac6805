"""The source of `mysql` on a real MariaDB: rows as they are, then their changes, exactly and in order."""

from __future__ import annotations

import base64
import json
import random
import struct
from typing import Any

import pytest

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.mysql.connector import MysqlSource
from conduit_tasks.errors import ConfigError, Missing, SourceError
from tests.connectors.mariadb import MariadbServer
from tests.connectors.mariadb_database import MyDatabase, database, drain, step
from tests.delivery.fakes import wait_for


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


@pytest.mark.parametrize("then", ["ALTER TABLE t ADD b int", "DROP TABLE t"])
def test_without_names_in_the_log_a_changed_table_is_refused(mydb: MyDatabase, then: str) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, a int)", "SET GLOBAL binlog_row_metadata = NO_LOG")
    try:
        _, start = drain(source(mydb), {})
        mydb.run("INSERT INTO t VALUES (1, 1)", then)
    finally:
        mydb.run("SET GLOBAL binlog_row_metadata = FULL")
    with pytest.raises(ConfigError, match="binlog_row_metadata = FULL"):
        drain(source(mydb), start)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("CREATE TABLE t (id int)", "no primary key"),
        ("CREATE TABLE t (id enum('b', 'a') PRIMARY KEY)", "key of type enum"),
        ("CREATE TABLE t (id int PRIMARY KEY, u uuid)", "column u .* uuid"),
        ("CREATE TABLE x (id int)", "no table t"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_at_the_plan(mydb: MyDatabase, table: str, said: str) -> None:
    mydb.run(table)
    with pytest.raises(ConfigError, match=said):
        source(mydb).plan({}, Limit())


def test_a_type_that_is_not_read_is_refused_in_the_log(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)")
    _, start = drain(source(mydb), {})
    mydb.run("ALTER TABLE t ADD u uuid", "INSERT INTO t VALUES (1, UUID())")
    with pytest.raises(ConfigError, match="uuid"):
        drain(source(mydb), start)
    mydb.run("CREATE TABLE z (id int PRIMARY KEY)")
    _, start = drain(source(mydb, tables="z"), {})
    mydb.run("ALTER TABLE z ADD c varchar(50) COMPRESSED")
    with pytest.raises(ConfigError, match="compressed"):
        source(mydb, tables="z").plan({}, Limit())
    mydb.run("INSERT INTO z VALUES (1, 'x')")
    with pytest.raises(SourceError, match="compressed"):
        drain(source(mydb, tables="z"), start)


# -- the log ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "statement", "said"),
    [
        ("SET SESSION binlog_format = STATEMENT", "INSERT INTO t (id, v) VALUES (5, 5)", "binlog_format = ROW"),
        ("SET SESSION binlog_row_image = MINIMAL", "UPDATE t SET v = 8", "binlog_row_image = FULL"),
        (
            "SELECT 1",
            "XA START 'x'; INSERT INTO t (id, v) VALUES (5, 5); XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x'",
            "XA",
        ),
        (
            "SET GLOBAL log_bin_compress = ON",
            "INSERT INTO t (id, v) SELECT seq + 9, 1 FROM seq_1_to_60",
            "log_bin_compress = OFF",
        ),
    ],
)
def test_changes_that_the_log_does_not_have_as_rows_are_refused(
    mydb: MyDatabase, session: str, statement: str, said: str
) -> None:
    wide = "w varchar(99) DEFAULT 'a row as long as the server compresses'"
    mydb.run(f"CREATE TABLE t (id int PRIMARY KEY, v int, {wide})", "INSERT INTO t (id, v) VALUES (1, 1)")
    _, start = drain(source(mydb), {})
    mydb.run("SET GLOBAL log_bin_compress_min_len = 10")
    try:
        mydb.run(session, *statement.split("; "))
    finally:
        mydb.run("SET GLOBAL log_bin_compress = OFF")
    with pytest.raises(SourceError, match=said):
        drain(source(mydb), start)


@pytest.mark.parametrize(
    ("name", "bad", "good"), [("binlog_format", "MIXED", "ROW"), ("binlog_row_image", "MINIMAL", "FULL")]
)
def test_a_server_that_logs_no_whole_rows_is_refused(mydb: MyDatabase, name: str, bad: str, good: str) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)", f"SET GLOBAL {name} = {bad}")
    try:
        with pytest.raises(ConfigError, match=f"{name} is {bad}; SET GLOBAL {name} = {good}"):
            source(mydb).plan({}, Limit())
    finally:
        mydb.run(f"SET GLOBAL {name} = {good}")


def test_a_log_that_was_purged_is_missing_and_the_error_says_how_to_go_on(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    _, start = drain(source(mydb), {})
    mydb.run("INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS")
    [(file, *_)] = mydb.run("SHOW MASTER STATUS")
    # A file that the server, or a reader that has just ended, still uses stays.
    wait_for(lambda: mydb.run(f"PURGE BINARY LOGS TO '{file}'", "SHOW BINARY LOGS")[0][0] == file)
    for by in (start[""], {**start[""], "gtid": ""}):
        made = source(mydb)
        made.pipeline, made.connector = "p", "in"
        with pytest.raises(Missing, match="takes a snapshot first") as raised:
            made.plan({"": by}, Limit())
        # The commands set the position that they name.
        text = str(raised.value)
        assert "`conduit stop p --force`, `conduit positions p --source in --set '=" in text
        token = json.loads(text.partition("--set '=")[2].partition("'`")[0])
        mydb.run(f"INSERT INTO t VALUES ({len(text) + len(by['gtid'])})")
        records, _ = drain(source(mydb), {"": token})
        assert [r.operation for r in records] == ["create"]


def test_a_position_by_file_is_of_one_server(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)")
    _, start = drain(source(mydb), {})
    by_file = {**start[""], "gtid": "", "server": "1"}
    mydb.run("INSERT INTO t VALUES (1)")
    records, position = drain(source(mydb), {"": by_file})
    assert [r.after for r in records] == [{"id": 1}]
    # From there on it is one by GTID, which MariaDB knows of every place in its log.
    assert position[""]["gtid"]
    other = {**position[""], "gtid": "", "server": "2"}
    mydb.run("INSERT INTO t VALUES (2)")
    with pytest.raises(SourceError, match="another server"):
        source(mydb).plan({"": {**other, "file": "bin.000000"}}, Limit())


@pytest.mark.proves("C10")
def test_a_replica_takes_over_by_gtid(mydb: MyDatabase, mariadb: MariadbServer) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT seq, 0 FROM seq_1_to_3")
    [(gtid,)] = mydb.run("SELECT @@gtid_binlog_pos")
    replica = MariadbServer(number=2, more=("--log-bin=other",)).create().start()
    try:
        far = MyDatabase(replica, mydb.name)
        whole = MyDatabase(replica)
        whole.name = ""
        # A replica that begins here, made from a copy.
        whole.run(f"CREATE DATABASE {mydb.name}", f"CREATE TABLE {mydb.name}.t (id int PRIMARY KEY, v int)")
        far.run("INSERT INTO t SELECT seq, 0 FROM seq_1_to_3", "RESET MASTER")
        whole.run(
            f"SET GLOBAL gtid_slave_pos = '{gtid}'",
            f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {mariadb.port}, master_user = 'root', "
            "master_use_gtid = slave_pos",
            "START SLAVE",
        )
        mydb.run("SET GLOBAL gtid_domain_id = 3")
        mydb.run("INSERT INTO t VALUES (4, 0)", "SET GLOBAL gtid_domain_id = 0")
        mydb.run("UPDATE t SET v = 5 WHERE id = 4")
        _, start = drain(source(mydb), {})
        # When one micro-batch ends within a transaction that the old server gave, and the replica goes on
        mydb.run("INSERT INTO t VALUES (9, 9)", "UPDATE t SET v = 1", "SET GLOBAL gtid_domain_id = 3")
        mydb.run("DELETE FROM t WHERE id = 1", "SET GLOBAL gtid_domain_id = 0")
        found = step(source(mydb), start, Limit(records=3))
        assert found is not None
        rest_there, _ = drain(source(mydb), found[1])
        wait_for(lambda: far.run("SELECT count(*) FROM t") == [(4,)])
        rest, _ = drain(source(far), found[1])
        # Then it gives the same, with the same positions, and no more
        assert [(r.position, r.before, r.after) for r in rest] == [(r.position, r.before, r.after) for r in rest_there]
        assert len(found[0]) + len(rest) == 7
    finally:
        replica.remove()


def test_a_reader_without_rights_is_told_which(mydb: MyDatabase) -> None:
    user = f"r_{mydb.name}"
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", f"CREATE USER {user}")
    made = MysqlSource({"url": f"mysql://{user}@127.0.0.1:{mydb.server.port}/{mydb.name}", "tables": "t"})
    with pytest.raises(ConfigError, match="Access denied"):
        made.plan({}, Limit())
    mydb.run(f"GRANT SELECT ON {mydb.name}.* TO {user}")
    with pytest.raises(ConfigError, match="GRANT BINLOG MONITOR"):
        made.plan({}, Limit())
    mydb.run(f"GRANT BINLOG MONITOR ON *.* TO {user}")
    _, position = drain(made, {})
    mydb.run("INSERT INTO t VALUES (2)")
    with pytest.raises(ConfigError, match="GRANT REPLICATION SLAVE"):
        made.plan(position, Limit())
    mydb.run(f"GRANT REPLICATION SLAVE ON *.* TO {user}")
    records, _ = drain(made, position)
    assert [r.after for r in records] == [{"id": 2}]
    mydb.run(f"DROP USER {user}")


def test_a_server_that_is_gone_is_an_error_of_the_source(mydb: MyDatabase, mariadb: MariadbServer) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    _, position = drain(source(mydb), {})
    mariadb.stop()
    with pytest.raises(SourceError, match="Can't connect"):
        source(mydb).plan(position, Limit())
    mariadb.start()
    # A restart begins a new file, and gives tables other numbers.
    mydb.run("CREATE TABLE a (id int)", "INSERT INTO a VALUES (1)", "INSERT INTO t VALUES (2)")
    records, _ = drain(source(mydb), position)
    assert [r.after for r in records] == [{"id": 2}]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "mysql://h/d", "tables": ","}, "names nothing"),
        ({"url": "mysql://h/d", "tables": "t, t"}, "more than once"),
        ({"url": "mysql://h/d", "tables": "t, *"}, "stands alone"),
        ({"url": "mysql://h", "tables": "*"}, "names"),
        ({"url": "mysql://u:pw9@h@x/d", "tables": "t"}, "cannot be read"),
        ({"url": "mysql://h/d", "tables": "t", "mode": "x"}, "mode"),
        ({"url": "mysql://h/d", "tables": "t", "snapshotMode": "x"}, "snapshotMode"),
        ({"url": "mysql://h/d", "tables": "t", "timeout": "soon"}, "timeout"),
    ],
)
def test_wrong_options_are_named(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        MysqlSource(settings)
    assert "pw9" not in str(raised.value)


def test_a_table_without_a_database_is_refused(mydb: MyDatabase) -> None:
    with pytest.raises(ConfigError, match="name the database of table t"):
        MysqlSource({"url": mydb.server.url(), "tables": "t"}).plan({}, Limit())


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_the_connector_keeps_its_contract(mydb: MyDatabase, mode: str) -> None:
    mydb.run("CREATE TABLE t (id varchar(64) PRIMARY KEY, mark varchar(64), n int, text longtext)")
    more = {"table": "t", "unknown-fields": "ignore", "mode": mode}
    accept("mysql", source={"url": mydb.url, "tables": "t"}, destination={"url": mydb.url, **more}).require()
