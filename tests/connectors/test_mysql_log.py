"""What a log has that is no change, or lacks though it is one, on a real MariaDB."""

from __future__ import annotations

from typing import Any

import pytest

from conduit_tasks.connectors.mysql.connector import MysqlSource
from conduit_tasks.connectors.mysql.statements import bare
from conduit_tasks.errors import ConfigError, SourceError
from tests.connectors.mariadb import MariadbServer
from tests.connectors.mariadb_database import MyDatabase, database, drain
from tests.connectors.test_mysql_source import source


def came(db: MyDatabase, *statements: str, **settings: str) -> list[tuple[str, Any]]:
    """What the source sends of statements in one session, of a table `t (id int PRIMARY KEY, v int)`."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (100, 0)")
    _, start = drain(source(db, **settings), {})
    db.run(*statements)
    records, _ = drain(source(db, **settings), start)
    return [(record.operation, (record.after or record.before or {}).get("id")) for record in records]


@pytest.mark.parametrize("other", ["CREATE TEMPORARY TABLE x (a int)", "INSERT INTO isam VALUES (1)"])
def test_what_is_rolled_back_does_not_come_although_the_log_has_it(mydb: MyDatabase, other: str) -> None:
    """Given transactions that also change what cannot be rolled back, for which the log keeps all of their rows."""
    mydb.run("CREATE TABLE isam (a int) ENGINE = MyISAM")
    sent = came(
        mydb,
        *("BEGIN", "INSERT INTO t VALUES (1, 1)", other, "ROLLBACK"),
        *("BEGIN", "INSERT INTO t VALUES (2, 2)", "SAVEPOINT s", "INSERT INTO t VALUES (3, 3)"),
        *("INSERT INTO isam VALUES (2)", "ROLLBACK TO s", "INSERT INTO t VALUES (4, 4)", "COMMIT"),
    )
    assert sent == [("create", 2), ("create", 4)]
    assert mydb.run("SELECT id FROM t ORDER BY id") == [(2,), (4,), (100,)]


@pytest.mark.parametrize(
    "statement",
    [
        *(
            "TRUNCATE`t`",
            "TRUNCATE TABLE`t`",
            "TRUNCATE /* x */ TABLE t",
            "-- hi\nTRUNCATE TABLE t",
            "# hi\nTRUNCATE t",
        ),
        *(
            "/*!50000 TRUNCATE TABLE t */",
            "/*M! TRUNCATE TABLE t */",
            "SET STATEMENT max_statement_time=9 FOR TRUNCATE t",
        ),
        *("SET sql_mode = 'ANSI_QUOTES'; TRUNCATE TABLE \"t\"",),
    ],
)
def test_a_table_is_emptied_however_that_is_written(mydb: MyDatabase, statement: str) -> None:
    assert came(mydb, statement) == [("delete", None)]


def test_a_statement_is_read_without_what_stands_before_it() -> None:
    assert bare("/* a */ /* b */ COMMIT") == "COMMIT"
    assert bare("INSERT INTO t VALUES ('-- no note')") == "INSERT INTO t VALUES ('-- no note')"


@pytest.mark.parametrize(
    ("by", "statement"),
    [
        ("VIEW way AS SELECT * FROM t", "INSERT INTO way VALUES (5, 5)"),
        ("TRIGGER g BEFORE INSERT ON way FOR EACH ROW INSERT INTO t VALUES (NEW.id, 0)", "INSERT INTO way VALUES (5)"),
        ("FUNCTION f() RETURNS int DETERMINISTIC BEGIN INSERT INTO t VALUES (5, 5); RETURN 1; END", "DO f()"),
    ],
)
def test_a_statement_that_reaches_a_table_without_naming_it_stops_the_source(
    mydb: MyDatabase, by: str, statement: str
) -> None:
    made = ["CREATE TABLE way (id int PRIMARY KEY)"] if "VIEW" not in by else []
    with pytest.raises(SourceError, match="binlog_format = ROW"):
        came(mydb, *made, f"CREATE {by}", "SET SESSION binlog_format = STATEMENT", statement)


def test_a_statement_on_another_table_is_passed_over(mydb: MyDatabase) -> None:
    other = ("CREATE TABLE x (id int)", "SET SESSION binlog_format = STATEMENT", "INSERT INTO x VALUES (1)")
    assert came(mydb, *other, "SET SESSION binlog_format = ROW", "INSERT INTO t VALUES (5, 5)") == [("create", 5)]


def test_rows_that_go_without_being_named_stop_the_source(mydb: MyDatabase) -> None:
    with pytest.raises(SourceError, match="the log does not name"):
        came(mydb, "CREATE OR REPLACE TABLE t (id int PRIMARY KEY, v int)")


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (["CREATE TABLE p (id int PRIMARY KEY)", "CREATE TABLE t (id int PRIMARY KEY, p int, {} ON DELETE CASCADE)"],
         "foreign key"),
        (["CREATE TABLE t (id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING"], "keeps the history of its rows"),
    ],
)  # fmt: skip
def test_a_table_whose_changes_the_log_lacks_is_refused(mydb: MyDatabase, tables: list[str], said: str) -> None:
    mydb.run(*(table.replace("{}", "FOREIGN KEY (p) REFERENCES p (id)") for table in tables))
    with pytest.raises(ConfigError, match=said):
        drain(source(mydb), {})


def test_a_key_of_the_first_letters_is_none(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id varchar(9), PRIMARY KEY (id(3)))")
    with pytest.raises(ConfigError, match="no primary key"):
        drain(source(mydb), {})


def test_the_servers_modes_do_not_change_what_is_read(mydb: MyDatabase) -> None:
    mode = mydb.run("SELECT @@global.sql_mode")[0][0]
    mydb.run("CREATE TABLE t (id char(5) PRIMARY KEY, d decimal(8,2) ZEROFILL)", "INSERT INTO t VALUES ('a', 5)")
    try:
        mydb.run("SET GLOBAL sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'")
        records, start = drain(source(mydb), {})
        mydb.run("UPDATE t SET d = 6")
        changes, _ = drain(source(mydb), start)
    finally:
        mydb.run(f"SET GLOBAL sql_mode = '{mode}'")
    assert [r.after for r in (*records, *changes)] == [{"id": "a", "d": "5.00"}, {"id": "a", "d": "6.00"}]


def test_a_server_that_writes_names_in_lower_case_has_changes_of_tables_named_otherwise() -> None:
    server = MariadbServer(more=("--lower-case-table-names=1",)).create().start()
    try:
        with database(server) as lower:
            lower.run("CREATE TABLE Orders (id int PRIMARY KEY)", "INSERT INTO Orders VALUES (1)")
            url = server.url(lower.name.upper())
            for tables in ("Orders", f"{lower.name.upper()}.ORDERS", "*"):
                made = MysqlSource({"url": url, "tables": tables})
                records, start = drain(made, {})
                lower.run("INSERT INTO Orders VALUES (2)", "DELETE FROM Orders WHERE id = 2")
                records += drain(made, start)[0]
                assert [(r.operation, r.metadata["opencdc.collection"]) for r in records] == [
                    ("snapshot", "orders"),
                    ("create", "orders"),
                    ("delete", "orders"),
                ]
    finally:
        server.remove()


def test_a_log_without_checksums_is_refused(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)")
    _, start = drain(source(mydb), {})
    try:
        mydb.run("SET GLOBAL binlog_checksum = NONE", "INSERT INTO t VALUES (1)")
        with pytest.raises(ConfigError, match="binlog_checksum is NONE"):
            drain(source(mydb), start)
    finally:
        mydb.run("SET GLOBAL binlog_checksum = CRC32")
    with pytest.raises(SourceError, match="has no checksums"):
        drain(source(mydb), start)
