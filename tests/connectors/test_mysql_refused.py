"""What the source of `mysql` refuses, and what it says of servers that are gone, others, or set otherwise."""

from __future__ import annotations

import json

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.mysql.connector import MysqlSource
from conduit_tasks.errors import ConfigError, Missing, SourceError
from tests.connectors.mariadb import MariadbServer
from tests.connectors.mariadb_database import MyDatabase, drain, step
from tests.connectors.test_mysql_source import source
from tests.waiting import until


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


@pytest.mark.parametrize(("option", "left_out"), [("--binlog-ignore-db=b", "b"), ("--binlog-do-db=a", "b")])
def test_a_log_that_leaves_out_a_database_is_refused(option: str, left_out: str) -> None:
    server = MariadbServer(more=(option,)).create().start()
    try:
        for name in ("a", "b"):
            db = MyDatabase(server)
            db.name = ""
            db.run(f"CREATE DATABASE {name}", f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
        _, start = drain(source(MyDatabase(server, "a")), {})
        for position in ({}, start):
            with pytest.raises(
                ConfigError, match=f"leaves out database {left_out} \\({option.strip('-').split('=')[0]}"
            ):
                source(MyDatabase(server, "a"), tables="t, b.t").plan(position, Limit())
    finally:
        server.remove()


def test_a_log_that_was_purged_is_missing_and_the_error_says_how_to_go_on(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    _, start = drain(source(mydb), {})
    mydb.run("INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS")
    [(file, *_)] = mydb.run("SHOW MASTER STATUS")
    # A file that the server, or a reader that has just ended, still uses stays.
    until(lambda: mydb.run(f"PURGE BINARY LOGS TO '{file}'", "SHOW BINARY LOGS")[0][0] == file)
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
        until(lambda: far.run("SELECT count(*) FROM t") == [(4,)])
        rest, _ = drain(source(far), found[1])
        # Then it gives the same, with the same positions, and no more
        assert [(r.position, r.before, r.after) for r in rest] == [(r.position, r.before, r.after) for r in rest_there]
        assert len(found[0]) + len(rest) == 7
    finally:
        replica.remove()


@pytest.mark.proves("C10", "I3")
def test_a_server_with_another_order_of_transactions_takes_over_within_one(
    mydb: MyDatabase, mariadb: MariadbServer
) -> None:
    # Given two transactions of two domains, of which the first one was read in part
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)", "SET SESSION gtid_domain_id = 3; INSERT INTO t VALUES (0)")
    _, start = drain(source(mydb), {})
    mydb.run("INSERT INTO t VALUES (1), (2), (3)", "SET SESSION gtid_domain_id = 3; INSERT INTO t VALUES (4), (5)")
    found = step(source(mydb), start, Limit(records=2))
    assert found is not None
    rest_there, _ = drain(source(mydb), found[1])
    one, two = ([int(n) for n in r.position.split(b"/")[0].split(b"-")] for r in (rest_there[0], rest_there[-1]))
    other = MariadbServer(number=2).create().start()
    try:
        whole = MyDatabase(other)
        whole.name = ""
        state = f"SET GLOBAL gtid_binlog_state = '{start['']['gtid']}'"
        whole.run(
            f"CREATE DATABASE {mydb.name}", f"CREATE TABLE {mydb.name}.t (id int PRIMARY KEY)", "RESET MASTER", state
        )
        # When a server goes on that has them the other way round
        far = MyDatabase(other, mydb.name)
        for (domain, server, number), values in ((two, "(4), (5)"), (one, "(1), (2), (3)")):
            as_there = f"SET SESSION gtid_domain_id = {domain}, server_id = {server}, gtid_seq_no = {number}"
            far.run(f"{as_there}; INSERT INTO t VALUES {values}")
        for most in (1, 2, None):
            rest, end = drain(source(far), found[1], most)
            # Then what was not read comes, and nothing that was
            assert [r.after for r in rest] == [{"id": 4}, {"id": 5}, {"id": 3}]
            assert {r.position for r in rest} == {r.position for r in rest_there}
            assert (end[""]["skip"], source(far).plan(end, Limit())) == (0, [])
    finally:
        other.remove()


def test_other_tables_wait_until_a_transaction_is_read_to_its_end(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    _, start = drain(source(mydb), {})
    mydb.run("BEGIN", "INSERT INTO u VALUES (7)", "INSERT INTO t VALUES (1), (2)", "COMMIT")
    found = step(source(mydb), start, Limit(records=1))
    assert found is not None
    with pytest.raises(ConfigError, match=r"'tables' was changed while transaction .* read in part"):
        source(mydb, tables="t, u").plan(found[1], Limit())
    rest, end = drain(source(mydb), found[1])
    assert [r.after for r in rest] == [{"id": 2}]
    assert source(mydb, tables="t, u").plan(end, Limit()) == []


def test_a_position_within_a_transaction_of_before_is_that_of_the_next_one(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)")
    _, start = drain(source(mydb), {})
    mydb.run("INSERT INTO t VALUES (1), (2), (3)", "INSERT INTO t VALUES (4), (5)")
    records, _ = drain(source(mydb), {"": {**start[""], "skip": 2}})
    assert [r.after for r in records] == [{"id": 3}, {"id": 4}, {"id": 5}]


@pytest.mark.parametrize("type_", ["varchar(9) CHARACTER SET gbk", "text CHARACTER SET ucs2"])
def test_a_value_that_cannot_be_decoded_names_its_place(mydb: MyDatabase, type_: str) -> None:
    # Given bytes that the server takes for text, and Python does not
    mydb.run(f"CREATE TABLE t (id int PRIMARY KEY, v {type_})")
    _, start = drain(source(mydb), {})
    mydb.run(f"INSERT INTO t VALUES (1, 'x'), (2, {'0xD800' if 'ucs2' in type_ else '0xA240'})")
    with pytest.raises(SourceError, match=r"\.t: change .*/2 cannot be decoded: column v .*leave the table out"):
        drain(source(mydb), start)


def test_the_log_is_not_read_to_know_where_it_ends(mydb: MyDatabase) -> None:
    mydb.run("CREATE TABLE t (id int PRIMARY KEY)")
    _, start = drain(source(mydb), {})
    mydb.run("SET GLOBAL log_output = 'TABLE', GLOBAL general_log = ON")
    try:
        mydb.run("INSERT INTO t VALUES (1)")
        assert len(drain(source(mydb), start)[0]) == 1
        asked = " ".join(str(text).lower() for (text,) in mydb.run("SELECT argument FROM mysql.general_log"))
    finally:
        mydb.run("SET GLOBAL log_output = 'FILE', GLOBAL general_log = OFF", "TRUNCATE mysql.general_log")
    assert "gtid_binlog_pos" in asked
    assert "binlog_gtid_pos" not in asked


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
