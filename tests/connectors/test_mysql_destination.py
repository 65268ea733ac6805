"""The destination of `mysql` on a real MariaDB: rows by key, deletes, appends, each once and exact."""

from __future__ import annotations

import base64
import random
import threading
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pymysql
import pytest

from conduit_tasks.connectors.mysql.connector import MysqlDestination
from conduit_tasks.connectors.rows import RowNumbers, Rows
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import ConfigError, Fenced, Refused, Unavailable
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.topology import Delivery
from tests.connectors.mariadb import MariadbServer
from tests.connectors.mariadb_database import ORIGIN, MyDatabase, database
from tests.delivery.fakes import FakePort, work_of
from tests.waiting import until


def rows(records: Sequence[Record], first: int | None = None, pipeline: str = "p") -> Rows:
    batch = spool_batch([0] * len(records), list(range(len(records))), records)
    numbers = None if first is None else RowNumbers(pipeline, "d", 7, np.arange(first, first + len(records)))
    return Rows(batch, [ORIGIN], 1, 0, len(records) - 1, numbers)


def change(
    operation: str, after: Any = None, before: Any = None, key: Any = None, table: str = "t", **metadata: str
) -> Record:
    marks = {"opencdc.collection": table, **{name.replace("_", "."): value for name, value in metadata.items()}}
    return Record(b"1", operation, marks, key, before, after, origin=ORIGIN)


def opened(db: MyDatabase, **settings: str) -> MysqlDestination:
    destination = MysqlDestination({"url": db.url, **{n.replace("_", "-"): v for n, v in settings.items()}})
    destination.open(None)
    return destination


def write(db: MyDatabase, *records: Record, first: int | None = None, **settings: str) -> None:
    destination = opened(db, **settings)
    try:
        destination.write(rows(records, first))
    finally:
        destination.close()


def test_changes_of_several_tables_are_applied_in_their_order(mydb: MyDatabase, mariadb: MariadbServer) -> None:
    # Given two tables, one in another database
    with database(mariadb) as other:
        mydb.run(
            "CREATE TABLE t (id int PRIMARY KEY, v text, n int NOT NULL DEFAULT 5)",
            f"CREATE TABLE {other.name}.`U``x` (a int, b varchar(9), v longtext, PRIMARY KEY (a, b))",
            "INSERT INTO t VALUES (1, 'old', 1), (2, 'gone', 2), (3, 'stays', 3), (8, 'moves', 8)",
        )
        # When a key is written, deleted and written again, and rows move
        write(
            mydb,
            change("snapshot", {"id": 1, "v": "one"}),
            change("delete", key={"id": 2}),
            change("create", {"id": 4, "v": 'tab\t\\ "q"\n % \'😀'}),
            change("update", {"id": 4, "v": "four", "n": 44}),
            change("create", {"a": 1, "b": "x", "v": {"k": [1, None]}}, table=f"{other.name}.U`x"),
            change("create", {"a": 1, "b": "y"}, table=f"{other.name}.U`x"),
            change("delete", key={"a": 1, "b": "y"}, table=f"{other.name}.U`x"),
            change("update", {"id": 9, "v": "moved", "n": 9}, {"id": 8}),
            change("update", {"id": 3, "n": 33}),
            change("create", {"id": 6, "v": "x"}),
            change("delete", before={"id": 6, "v": "x"}),
            change("create", {"id": 7}),
            change("create", {"id": 7}),
            change("create", {"id": 10, "v": 'tab\t\\ "q"\n % \'😀', "n": 0}),
            change("create", {"id": 10, "v": 'tab\t\\ "q"\n % \'😀', "n": 1}),
        )
        # Then the tables are as they would be one by one
        assert mydb.run("SELECT * FROM t ORDER BY id") == [
            (1, "one", 1),
            (3, "stays", 33),
            (4, "four", 44),
            (7, None, 5),
            (9, "moved", 9),
            (10, 'tab\t\\ "q"\n % \'😀', 1),
        ]
        assert mydb.run(f"SELECT * FROM {other.name}.`U``x`") == [(1, "x", '{"k":[1,null]}')]
    for mark in ("mysql_truncate", "postgres_truncate"):
        write(mydb, change("create", {"id": 7}), change("delete", **{mark: "true"}), change("create", {"id": 8}))
        assert mydb.run("SELECT id FROM t") == [(8,)]


@pytest.mark.parametrize("unique", ["", ", UNIQUE (n)"])
def test_a_row_whose_key_changes_takes_along_what_the_record_leaves_out(mydb: MyDatabase, unique: str) -> None:
    """Given changes of `postgres`, which leaves out large values that did not change."""
    mydb.run(f"CREATE TABLE t (id int PRIMARY KEY, big text, n int{unique})", "INSERT INTO t VALUES (1, 'large', 1)")
    moves = change("update", {"id": 2, "n": 2}, {"id": 1}, postgres_unchanged="big")
    write(mydb, moves)
    assert mydb.run("SELECT * FROM t") == [(2, "large", 2)]
    # Also if it is written again, with another row of the old key by then
    write(mydb, moves, change("create", {"id": 1, "big": "other", "n": 1}))
    assert mydb.run("SELECT * FROM t ORDER BY id") == [(1, "other", 1), (2, "large", 2)]
    write(mydb, change("update", {"id": 1, "big": "large", "n": 1}), moves)
    assert mydb.run("SELECT * FROM t") == [(2, "large", 2)]


@pytest.mark.proves("T6")
def test_what_a_server_that_keeps_no_warnings_would_change_is_refused(mydb: MyDatabase) -> None:
    # Given a value of which the server cuts a blank, which it says in a note only, and a server that keeps none
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, v tinytext)", "SET GLOBAL max_error_count = 0")
    try:
        with pytest.raises(Refused, match="another value: Data truncated"):
            write(mydb, change("create", {"id": 1, "v": "x" * 255 + " "}))
    finally:
        mydb.run("SET GLOBAL max_error_count = 64")
    assert mydb.run("SELECT count(*) FROM t") == [(0,)]


def test_keys_that_the_collation_holds_equal_are_one_row(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (k varchar(9) PRIMARY KEY, n decimal(9, 2))")
    write(
        mydb,
        change("create", {"k": "a", "n": 1}),
        change("create", {"k": "A", "n": 2}),
        change("delete", key={"k": "A"}),
        change("create", {"k": "a", "n": "3.50"}),
    )
    assert mydb.run("SELECT * FROM t") == [("a", Decimal("3.50"))]


def test_another_unique_index_is_never_overwritten(mydb: MyDatabase) -> None:
    # Given a row that has the unique value that another row wants
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, v int UNIQUE, w int DEFAULT 3)", "INSERT INTO t VALUES (1, 1, 1)")
    with pytest.raises(Refused, match="Duplicate"):
        write(mydb, change("create", {"id": 2, "v": 1}))
    # Then neither changed, and rows that go together are written
    write(mydb, change("create", {"id": 2, "v": 2}), change("update", {"id": 1, "v": 4}), change("create", {"id": 1}))
    assert mydb.run("SELECT * FROM t ORDER BY id") == [(1, 4, 1), (2, 2, 3)]


def test_rows_are_told_apart_by_the_columns_of_key(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, k int, v int)")
    write(mydb, change("create", {"k": 1, "v": 1}), change("create", {"k": 1, "v": 2}), key="k")
    write(mydb, change("update", {"k": 1, "v": 2}), change("delete", key=b"9"), key="k")
    assert mydb.run("SELECT k, v FROM t") == [(1, 2)]


def test_append_only_adds(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int)")
    write(mydb, change("create", {"id": 1}), change("update", {"id": 1}), mode="append")
    assert mydb.run("SELECT * FROM t") == [(1,), (1,)]
    with pytest.raises(Refused, match="mode: upsert"):
        write(mydb, change("delete", key={"id": 1}), mode="append")
    with pytest.raises(Refused, match="no field"):
        write(mydb, change("create", {"x": 1}), mode="append", unknown_fields="ignore")


@pytest.mark.proves("B8", "O5")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_attempts_that_die_at_any_place_and_begin_again_leave_each_row_once(mydb: MyDatabase, mode: str) -> None:
    chance = random.Random(3)
    mydb.run("CREATE TABLE t (n int)" if mode == "append" else "CREATE TABLE t (n int PRIMARY KEY)")
    events = [change("create", {"n": n}) for n in range(120)]
    confirmed = 0
    while confirmed < len(events):
        destination, at = opened(mydb, mode=mode), confirmed
        for _ in range(chance.randint(1, 4)):
            chunk = events[at : at + chance.randint(1, 25)]
            if chunk:
                destination.write(rows(chunk, at + 1))
            at += len(chunk)
        destination.close()
        confirmed = chance.randint(confirmed, at)
    assert [n for (n,) in mydb.run("SELECT n FROM t ORDER BY n")] == list(range(120))
    assert mydb.run("SELECT pipeline, destination, epoch, number FROM conduit_index") == [("p", "d", 7, 120)]
    # A name in other letters is another pipeline.
    destination = opened(mydb, mode=mode)
    destination.write(rows([change("create", {"n": 500})], 1, "P"))
    destination.close()
    assert mydb.run("SELECT pipeline FROM conduit_index ORDER BY number") == [("P",), ("p",)]


@pytest.mark.proves("B8", "I4")
def test_a_writer_that_lost_its_lease_changes_nothing(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (n int PRIMARY KEY)")
    destination = opened(mydb)

    def lost() -> None:
        raise Fenced("a newer token exists")

    destination.still_ours = lost
    with pytest.raises(Fenced):
        destination.write(rows([change("create", {"n": 1})], 1))
    destination.close()
    assert mydb.run("SELECT n FROM t") == []
    assert mydb.run("SELECT * FROM conduit_index") == []


@pytest.mark.proves("C17", "C5")
def test_rows_that_the_server_refuses_are_dead_letters_one_by_one(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (seq int PRIMARY KEY CHECK (seq NOT IN (0, 700, 1999)))")
    port = FakePort(2000, list(range(2000)))
    settings = {"url": mydb.url, "table": "t", "chunk": "500", "unknown-fields": "ignore"}
    deliver(work_of(port), MysqlDestination(settings), port, Delivery())
    assert mydb.run("SELECT count(*), sum(seq) FROM t") == [(1997, sum(range(2000)) - 700 - 1999)]
    assert [key[2] for key in port.stored] == [0, 700, 1999]
    assert "CONSTRAINT" in port.stored[0, 7, 700, 0].error
    assert port.complete


def locking(db: MyDatabase) -> Any:
    return pymysql.connect(host="127.0.0.1", port=db.server.port, user="root", database=db.name, ssl_disabled=True)


def test_a_deadlock_is_tried_again(mydb: MyDatabase) -> None:
    # Given another transaction that has row 2 and waits for row 1, which the write has when it wants row 2
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 0), (2, 0)")
    other = locking(mydb)
    cursor = other.cursor()
    # It has changed much, so that the server ends the write instead.
    cursor.execute("INSERT INTO t SELECT seq + 10, 0 FROM seq_1_to_200")
    cursor.execute("UPDATE t SET v = 2 WHERE id = 2")
    destination = opened(mydb, lock_timeout="60s")
    # innodb_trx is not renewed for who asks more often than each tenth of a second.
    waits = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"

    def meanwhile() -> None:
        until(lambda: mydb.run(waits)[0][1] == "1")
        cursor.execute("UPDATE t SET v = 1 WHERE id = 1")
        other.commit()

    thread = threading.Thread(target=meanwhile)
    thread.start()
    destination.write(rows([change("update", {"id": 1, "v": 10}), change("delete", key={"id": 2})]))
    thread.join()
    destination.close()
    other.close()
    assert mydb.run("SELECT * FROM t WHERE id < 10") == [(1, 10)]


def test_a_lock_or_a_server_that_is_gone_fails_and_may_recover(mydb: MyDatabase, mariadb: MariadbServer) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    destination = opened(mydb, lock_timeout="1s")
    destination.limit = 3.0
    other = locking(mydb)
    other.cursor().execute("DELETE FROM t")
    with pytest.raises(Unavailable, match=r"[Ll]ock wait"):
        destination.write(rows([change("create", {"id": 1})]))
    other.close()
    mariadb.stop()
    try:
        with pytest.raises(Unavailable):
            destination.write(rows([change("create", {"id": 2})]))
        with pytest.raises(Unavailable):
            destination.open(None)
    finally:
        mariadb.start()
    destination.open(None)
    destination.write(rows([change("create", {"id": 2})]))
    destination.close()
    assert mydb.run("SELECT * FROM t ORDER BY id") == [(1,), (2,)]


def test_a_table_that_is_changed_meanwhile_is_looked_at_again(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)")
    destination = opened(mydb)
    destination.write(rows([change("create", {"id": 1})]))
    mydb.run("ALTER TABLE t ADD v text")
    destination.write(rows([change("create", {"id": 2, "v": "x"})]))
    mydb.run("ALTER TABLE t DROP v")
    with pytest.raises(Unavailable, match="changed meanwhile"):
        destination.write(rows([change("create", {"id": 3, "v": "x"})]))
    destination.open(None)
    with pytest.raises(Refused, match="no column v"):
        destination.write(rows([change("create", {"id": 3, "v": "x"})]))
    destination.close()
    assert mydb.run("SELECT * FROM t ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"table": "nowhere"}, "no table t.*.nowhere"),
        ({"table": "k", "key": "x"}, "no column x"),
        ({"table": "k"}, "no primary key"),
        ({"table": "m", "mode": "append"}, "InnoDB"),
    ],
)
def test_a_table_that_does_not_fit_is_an_error_of_the_file(
    mydb: MyDatabase, settings: dict[str, str], said: str
) -> None:
    mydb.run("CREATE TABLE k (v int)", "CREATE TABLE m (v int) ENGINE = MyISAM")
    with pytest.raises(ConfigError, match=said):
        opened(mydb, **settings)


def test_missing_rights_say_what_to_do(mydb: MyDatabase) -> None:
    mydb.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"CREATE USER w_{mydb.name} IDENTIFIED BY 'pw@1'",
        f"GRANT SELECT ON {mydb.name}.* TO w_{mydb.name}",
    )
    url = f"mysql://w_{mydb.name}:pw%401@127.0.0.1:{mydb.server.port}/{mydb.name}"
    destination = MysqlDestination({"url": url})
    destination.open(None)
    with pytest.raises(ConfigError, match="INSERT"):
        destination.write(rows([change("create", {"id": 1})]))
    destination.close()
    with pytest.raises(ConfigError, match="Access denied") as raised:
        MysqlDestination({"url": url.replace("pw%401", "secret9")}).open(None)
    assert "secret9" not in str(raised.value)
    mydb.run(f"DROP USER w_{mydb.name}")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "postgresql://u:pw9@h/d"}, "no MySQL URL"),
        ({"url": "mysql://u:pw9@h:x/d"}, "cannot be read"),
        ({"url": "mysql://u:pw9@h/d?sslmode=require"}, "'sslmode' is not known"),
        ({"url": "mysql://u:pw9@h/d?ssl_disabled=maybe"}, "true or false"),
        ({"table": "{{ .Nothing"}, "option 'table'"),
        ({"chunk": "0"}, "chunk"),
        ({"index-table": ""}, "names no table"),
    ],
)
def test_wrong_options_are_named_without_the_password(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        MysqlDestination({"url": "mysql://h/d", **settings})
    assert "pw9" not in str(raised.value)


def test_bytes_are_what_they_were(mydb: MyDatabase) -> None:
    data = bytes(range(256)) * 40
    mydb.run("CREATE TABLE t (id int PRIMARY KEY, v blob)")
    write(mydb, *(change("create", {"id": n, "v": base64.b64encode(data + bytes([n])).decode()}) for n in range(200)))
    assert mydb.run("SELECT count(*), sum(length(v)) FROM t") == [(200, 200 * (len(data) + 1))]
    assert mydb.run("SELECT v FROM t WHERE id = 7") == [(data + b"\x07",)]
