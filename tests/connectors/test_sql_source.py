"""Rows of SQLite and PostgreSQL, behind the highest value of a column that only grows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks.postgres_server import PostgresServer
from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.postgres.connector import PostgresSource
from conduit_tasks.connectors.sql import source as sql_source
from conduit_tasks.connectors.sql.connector import SqlSource
from conduit_tasks.errors import ConfigError, SourceError
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import to_records
from tests.micro_batch.harness import payloads, run_until_quiet, write_pipeline

ORIGIN = Origin("p", "in", "")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer().create().start()
    yield made
    made.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, home: Path) -> Iterator[sa.Engine]:
    """An engine of an empty database."""
    url = f"sqlite:///{home}/d.db" if request.param == "sqlite" else request.getfixturevalue("server").url
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    yield engine
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS t"))
    engine.dispose()


def do(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def url_of(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def step(engine: sa.Engine, position: dict[str, Any], most: int | None = None, **more: str) -> tuple[list[Record], Any]:
    settings = {"url": url_of(engine), "column": "n", **({} if "query" in more else {"table": "t"})}
    with closing(SqlSource({**settings, **{k.replace("_", "-"): v for k, v in more.items()}})) as source:
        records: list[Record] = []
        for slice in source.plan(position, Limit(records=most)):
            again = Slice(**json.loads(json.dumps(slice.__dict__)))
            read = [r for batch in source.read(again) for r in to_records(batch, ORIGIN)]
            assert [r.after for b in source.read(again) for r in to_records(b, ORIGIN)] == [r.after for r in read]
            records += read
            position = {"": again.end}
    return records, position


def values(records: list[Record], name: str = "n") -> list[Any]:
    return [r.after[name] for r in records if isinstance(r.after, dict)]


@pytest.mark.proves("C9", "I3")
def test_rows_come_in_order_and_those_of_one_value_together(
    database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_source, "SLICE", 3)
    do(database, "CREATE TABLE t (n INTEGER, x TEXT)")
    do(
        database,
        *(f"INSERT INTO t VALUES ({n // 2}, 'x{n}')" for n in reversed(range(10))),
        "INSERT INTO t (x) VALUES ('no')",
    )
    first, position = step(database, {}, 3, key="x")
    assert values(first) == [0, 0, 1, 1]  # the fourth shares its value with the third
    assert {r.key for r in first} == {b"x0", b"x1", b"x2", b"x3"}
    rest, position = step(database, position)
    assert values(rest) == [2, 2, 3, 3, 4, 4]
    assert len({r.position for r in first + rest}) == 10
    assert step(database, position) == ([], position)
    do(database, "INSERT INTO t VALUES (5, 'more')")
    assert values(step(database, position)[0]) == [5]


@pytest.mark.parametrize("kind", ["TIMESTAMP", "DATE", "NUMERIC(20, 5)", "TEXT", "BIGINT"])
def test_every_kind_of_column_goes_on_where_it_was(database: sa.Engine, kind: str) -> None:
    texts = {
        "TIMESTAMP": "'2013-03-01 00:00:00.00000{}'",
        "DATE": "'2013-03-0{}'",
        "NUMERIC(20, 5)": "1234567890.0000{}",
        "TEXT": "'k{}'",
        "BIGINT": "900719925474099{}",
    }
    do(database, f"CREATE TABLE t (n {kind}, i INTEGER)")
    do(database, *(f"INSERT INTO t VALUES ({texts[kind].format(i)}, {i})" for i in range(1, 7)))
    got: list[Any] = []
    position: dict[str, Any] = {}
    while True:
        records, position = step(database, position, 2, columns="i")
        if not records:
            break
        got += values(records, "i")
    assert got == [1, 2, 3, 4, 5, 6]


@pytest.mark.proves("C9")
def test_a_column_whose_numbers_are_not_what_they_print_is_read_to_its_last_row(database: sa.Engine) -> None:
    # As text 0.3, in a real 0.300000012: neither below its own end nor behind the one before
    do(database, "CREATE TABLE t (n REAL, i INTEGER)", "INSERT INTO t VALUES (0.1, 1), (0.2, 2), (0.3, 3)")
    got, position = [], {}
    for _ in range(2):
        records, position = step(database, position, 2)
        got.append(values(records, "i"))
    assert got == [[1, 2], [3]]
    assert step(database, position) == ([], position)


@pytest.mark.parametrize("kind", ["DOUBLE PRECISION", "REAL", "NUMERIC"])
def test_a_value_behind_which_nothing_comes_is_refused(server: PostgresServer, home: Path, kind: str) -> None:
    engine = sa.create_engine(server.url, poolclass=sa.pool.NullPool)
    do(engine, f"CREATE TABLE t (n {kind})", "INSERT INTO t VALUES (1), ('NaN')")
    try:
        with pytest.raises(SourceError, match=r"[nN]a[nN] there"):
            step(engine, {})
        assert values(step(engine, {}, query="SELECT * FROM t WHERE n < 'NaN'")[0]) in ([1], [1.0], ["1"])
    finally:
        do(engine, "DROP TABLE t")
        engine.dispose()


def test_a_query_takes_the_place_of_a_table_and_values_are_faithful(database: sa.Engine) -> None:
    do(database, "CREATE TABLE t (n INTEGER, price NUMERIC(9, 2), at DATE, none TEXT)")
    do(database, "INSERT INTO t VALUES (1, 1.10, '2013-03-01', NULL), (2, 2, '2013-03-02', NULL)")
    query = "SELECT n, CAST(n AS TEXT) AS text, none FROM t WHERE n < 9;"
    records, _ = step(database, {}, query=query, start_after="1")
    assert [r.after for r in records] == [{"n": 2, "text": "2", "none": None}]
    [first, _] = step(database, {})[0]
    assert isinstance(first.after, dict)
    if database.dialect.name == "postgresql":
        assert first.after == {"n": 1, "price": "1.10", "at": "2013-03-01", "none": None}


def test_columns_of_one_name_are_told_apart_or_named(database: sa.Engine) -> None:
    do(database, "CREATE TABLE a (id int, v text)", "INSERT INTO a VALUES (1, 'a')")
    do(database, "CREATE TABLE b (id int, v text)", "INSERT INTO b VALUES (1, 'b')")
    query = "SELECT a.id, a.v, b.v FROM a JOIN b ON a.id = b.id"
    if database.dialect.name == "sqlite":
        assert step(database, {}, query=query, column="id")[0][0].after == {"id": 1, "v": "a", "v:1": "b"}
        return
    with pytest.raises(SourceError, match="sql query: two columns have the name 'v'"):
        step(database, {}, query=query, column="id")


def test_rows_that_are_too_young_wait(database: sa.Engine) -> None:
    do(database, "CREATE TABLE t (n TIMESTAMP, i INTEGER)")
    do(database, "INSERT INTO t VALUES ('2013-03-01 00:00:00', 1), (CURRENT_TIMESTAMP, 2)")
    assert values(step(database, {}, lag="1h")[0], "i") == [1]
    assert values(step(database, {}, lag="0s")[0], "i") == [1, 2]


def test_what_is_not_there_is_named_and_secrets_are_not(database: sa.Engine) -> None:
    with pytest.raises(SourceError, match="sql table t") as raised:
        step(database, {})
    do(database, "CREATE TABLE t (n INTEGER, ok BOOLEAN)")
    do(database, "INSERT INTO t VALUES (1, TRUE)")
    with pytest.raises(SourceError, match="no column 'nosuch'"):
        step(database, {}, key="nosuch")
    away = {"url": "postgresql://u:s3cret@127.0.0.1:1/x", "table": "t", "column": "n"}
    with closing(SqlSource(away)) as source, pytest.raises(SourceError) as gone:
        source.plan({}, Limit())
    assert "s3cret" not in f"{raised.value}{gone.value}"
    for wrong, said in (
        ({"table": "t", "query": "SELECT 1"}, "one of"),
        ({}, "one of"),
        ({"table": "t", "lag": "x"}, "lag"),
    ):
        with pytest.raises(ConfigError, match=said):
            SqlSource({"url": url_of(database), "column": "n", **wrong})


def test_the_connector_keeps_its_contract(home: Path) -> None:
    url = f"sqlite:///{home}/d.db"
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    do(engine, "CREATE TABLE t (n INTEGER PRIMARY KEY, id TEXT)")

    def feed(records: Sequence[Record]) -> None:
        ids = [r.after["id"] for r in records if isinstance(r.after, dict)]
        do(engine, *(f"INSERT INTO t (id) VALUES ('{id}')" for id in ids))

    accept("sql", source={"url": url, "table": "t", "column": "n"}, feed=feed).require()
    engine.dispose()


def test_the_postgres_connector_reads_a_table_in_the_same_way(home: Path, server: PostgresServer) -> None:
    engine = sa.create_engine(server.url, poolclass=sa.pool.NullPool)
    do(engine, "CREATE TABLE orders (id BIGINT PRIMARY KEY, x TEXT)", "INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    settings = {"url": server.url, "tables": "public.orders", "mode": "incremental", "column": "id"}
    with closing(PostgresSource(settings)) as source:
        [slice] = source.plan({}, Limit())
        assert source.metadata(slice) == {"opencdc.collection": "public.orders"}
        records = [r for batch in source.read(slice) for r in to_records(batch, ORIGIN)]
        assert [r.after for r in records] == [{"id": 1, "x": "a"}, {"id": 2, "x": "b"}]
        assert source.plan({"": slice.end}, Limit()) == []
        source.ack({"": slice.end})
    do(engine, "DROP TABLE orders")
    engine.dispose()
    for wrong in ({"tables": "a, b"}, {"column": ""}, {"tables": "*"}):
        with pytest.raises(ConfigError, match="mode incremental"):
            PostgresSource({**settings, **wrong})


@pytest.mark.proves("C10")
def test_a_pipeline_copies_a_table_as_it_grows(home: Path, database: sa.Engine) -> None:
    do(database, "CREATE TABLE t (n INTEGER)", *(f"INSERT INTO t VALUES ({n})" for n in range(7)))
    write_pipeline(
        home,
        "p",
        f"""
version: "2.2"
pipelines:
  - id: p
    micro-batch: {{max-records: 3}}
    connectors:
      - {{id: in, type: source, plugin: sql, settings: {{url: "{url_of(database)}", table: t, column: n}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.jsonl, format: payload}}}}
""",
    )
    run_until_quiet("p")
    do(database, "INSERT INTO t VALUES (7)")
    run_until_quiet("p")
    assert [row["n"] for row in payloads(home / "out.jsonl")] == list(range(8))
