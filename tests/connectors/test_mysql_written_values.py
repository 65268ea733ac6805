"""Values that the destination `mysql` writes exactly, or refuses."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from conduit_tasks.errors import Refused
from conduit_tasks.record.record import Record
from tests.connectors.mariadb_database import ORIGIN, MyDatabase
from tests.connectors.test_mysql_destination import change, write

VALUES: list[tuple[str, Any, Any]] = [
    ("int", "7", 7),
    ("int", True, 1),
    ("int", 2.0, 2),
    ("bigint unsigned", 2**64 - 1, 2**64 - 1),
    ("bit(9)", 257, b"\x01\x01"),
    ("decimal(38, 10)", "1234567890123456789012345678.0123456789", Decimal("1234567890123456789012345678.0123456789")),
    ("decimal(4, 1)", "1.50", Decimal("1.5")),
    ("double", 0.1, 0.1),
    ("double", "0.1", 0.1),
    ("double", "1.50", 1.5),
    ("double", True, 1.0),
    ("float", 0.1, 0.1),
    ("varchar(3)", "äöü", "äöü"),
    ("text", False, "false"),
    ("text", [1], "[1]"),
    ("varbinary(9)", "AP8=", b"\x00\xff"),
    ("date", "2026-01-02", dt.date(2026, 1, 2)),
    ("datetime", "2026-01-02T03:04:05", dt.datetime(2026, 1, 2, 3, 4, 5)),
    ("datetime(6)", "2026-01-02T03:04:05.123456+02:00", dt.datetime(2026, 1, 2, 1, 4, 5, 123456)),
    ("timestamp NULL", "2026-01-02T03:04:05Z", dt.datetime(2026, 1, 2, 3, 4, 5)),
    ("datetime", "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    ("date", "2026-00-00", "2026-00-00"),
    ("time(2)", "-100:02:03.5", -dt.timedelta(hours=100, minutes=2, seconds=3.5)),
    ("year", 2026, 2026),
    ("enum('a', 'it''s')", "it's", "it's"),
    ("set('a', 'b')", "b,a", "a,b"),
    ("set('a', 'b')", "", ""),
    ("json", {"a": 1}, '{"a":1}'),
    ("int", None, None),
]


def test_values_go_into_columns_of_every_type(mydb: MyDatabase) -> None:
    columns = ", ".join(f"c{n} {type_}" for n, (type_, _, _) in enumerate(VALUES))
    mydb.run(f"CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, g int AS (id + 1), {columns})")
    write(mydb, change("create", {"id": 0, "g": 9, **{f"c{n}": value for n, (_, value, _) in enumerate(VALUES)}}))
    [(number, _, *row)] = mydb.run("SELECT * FROM t")
    # 0 is no wish for a new number.
    assert number == 0
    assert row == [there for _, _, there in VALUES]


@pytest.mark.parametrize(
    ("type_", "value", "said"),
    [
        ("int", "x", "a number"),
        ("int", 1.5, "a whole number"),
        ("int", "1e999", "a number"),
        ("int", 2**40, "[Oo]ut of range"),
        ("int unsigned", -1, "[Oo]ut of range"),
        ("decimal(4, 1)", "1.55", "1 digits behind the point"),
        ("decimal(4, 1)", "10000", "[Oo]ut of range"),
        ("float", 0.123456789012, "too many digits"),
        ("float", 1e39, "too many digits"),
        ("double", 2**53 + 1, "too many digits"),
        ("double", "1e310", "a double"),
        ("double", "9007199254740993", "too many digits"),
        ("double", "0.12345678901234567890", "too many digits"),
        ("float", "0.1234567890123456789", "too many digits"),
        ("varchar(3)", "abc  ", "3 characters"),
        ("tinytext", "x" * 256, "too long"),
        ("varchar(9) CHARACTER SET latin1", "😀", "Incorrect string"),
        ("char(9) CHARACTER SET utf8mb3", "😀", "Incorrect string"),
        ("varbinary(1)", "#", "base64"),
        ("varbinary(1)", "AAAA", "too long"),
        ("date", "2026-02-30", "Incorrect date"),
        ("date", "2026-01-02T03:04:05", "without a time"),
        ("date", "tomorrow", "takes a date"),
        ("datetime", "2026-01-02T03:04:05.5", "0 digits behind the second"),
        ("datetime", "9999-12-31T23:59:59-05:00", "takes a datetime"),
        ("time(3)", "01:02:03.1234", "3 digits"),
        ("time", "999:00:00", "Incorrect time|store another"),
        ("year", 26, "a year from 1901"),
        ("enum('a', 'b')", "1", "one of its labels"),
        ("set('a', 'b')", "a,3", "one of its labels"),
        ("json", "x" * 3 + '"', None),
        ("int NOT NULL", None, "cannot be null"),
        ("int CHECK (v < 5)", 9, "CONSTRAINT"),
    ],
)
@pytest.mark.proves("T6")
def test_a_value_that_the_server_would_change_is_refused(
    mydb: MyDatabase, type_: str, value: Any, said: str | None
) -> None:
    mydb.run(f"CREATE TABLE t (id int PRIMARY KEY, v {type_})")
    if said is None:
        # Any JSON value goes into a column of JSON: MariaDB's is text.
        write(mydb, change("create", {"id": 1, "v": {"t": value}}))
        return
    with pytest.raises(Refused, match=said):
        write(mydb, change("create", {"id": 1, "v": value}))
    assert mydb.run("SELECT * FROM t") == []


@pytest.mark.proves("T6")
@pytest.mark.parametrize(
    ("record", "said"),
    [
        (change("create", {"id": 1, "z": 1}), "no column z"),
        (change("create", {"v": "x"}), "has no id"),
        (change("create", b"raw"), "json.decode"),
        (change("delete"), "names no id"),
        (change("create", {"id": 1}, table="nowhere"), "no table t.*.nowhere"),
        (change("create", {"id": 1}, table="m"), "ENGINE = InnoDB"),
        (change("create", {"id": 1, "v": "x" * 40_000_000}), "max_allowed_packet"),
        (Record(b"1", after={"id": 1}, origin=ORIGIN), "names no table"),
        (change("create", {"id": 666}), "not this one"),
    ],
)
def test_what_is_the_records_fault_is_refused(mydb: MyDatabase, record: Record, said: str) -> None:
    mydb.run(
        "CREATE TABLE t (id int PRIMARY KEY, v longtext)",
        "CREATE TABLE m (id int PRIMARY KEY) ENGINE = MyISAM",
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW IF NEW.id = 666 THEN SIGNAL SQLSTATE '45000' "
        "SET MESSAGE_TEXT = 'not this one'; END IF",
    )
    with pytest.raises(Refused, match=said):
        write(mydb, record)
    assert mydb.run("SELECT * FROM t") == []
