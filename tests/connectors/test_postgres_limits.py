"""A server that takes its time: statements end by themselves, before anybody's process has to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from conduit_tasks.connectors.base import BatchDestination, Limit
from conduit_tasks.connectors.postgres.connector import PostgresDestination, PostgresSource
from conduit_tasks.connectors.sql.connector import SqlDestination
from conduit_tasks.connectors.sql.source import SqlSource
from conduit_tasks.errors import SourceError, Unavailable
from conduit_tasks.processors.enrich import Enrich
from conduit_tasks.record.record import Record
from tests.connectors.postgres_database import Database
from tests.connectors.test_postgres_destination import rows

SLOW = (
    "CREATE TABLE t (id text PRIMARY KEY, v int)",
    "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END'",
    "CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()",
)
VIEW = "CREATE VIEW u AS SELECT pg_sleep(60)::text AS s, 1 AS id"


@pytest.mark.proves("T5")
@pytest.mark.parametrize("cls", [PostgresDestination, SqlDestination])
def test_a_write_that_hangs_in_the_server_is_failed_in_time(db: Database, cls: type[BatchDestination]) -> None:
    # Given a table whose trigger sleeps for a minute, and some seconds for a write
    db.run(*SLOW)
    destination = cls({"url": db.url, "table": "t"})
    destination.limit = 4.0
    try:
        # When a row is written, then the server says that it takes too long, which may pass
        destination.open(None)
        with pytest.raises(Unavailable, match="statement timeout"):
            destination.write(rows([Record(b"1", after={"id": "a", "v": 1})]))
    finally:
        destination.close()
    assert db.run("SELECT count(*) FROM t") == [(0,)]


def incremental(url: str) -> Any:
    return PostgresSource({"url": url, "tables": "u", "mode": "incremental", "column": "id", "timeout": "1s"})


def rows_of(url: str) -> Any:
    return SqlSource({"url": url, "query": "SELECT * FROM u WHERE s IS NOT NULL", "column": "id", "timeout": "1s"})


@pytest.mark.parametrize("source", [incremental, rows_of])
def test_a_question_that_hangs_in_the_server_ends_in_time(db: Database, source: Callable[[str], Any]) -> None:
    db.run(VIEW)
    made = source(db.url)
    try:
        with pytest.raises(SourceError, match="statement timeout"):
            _ = [list(made.read(slice)) for slice in made.plan({}, Limit())]
    finally:
        made.close()


def test_a_snapshot_that_hangs_in_the_server_ends_in_time(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    settings = {"url": db.url, "tables": "t", "mode": "snapshot"}
    with closing(PostgresSource(settings)) as planning:
        [slice] = planning.plan({}, Limit())
    made = PostgresSource({**settings, "timeout": "1s"})
    other = Database(db.server, db.name)
    import psycopg2

    holding = psycopg2.connect(other.url)
    try:
        # Given somebody who keeps the table for himself
        holding.cursor().execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceError, match="statement timeout"):
            list(made.read(slice))
    finally:
        holding.close()
        made.close()


def test_the_table_of_enrich_is_not_waited_for_for_ever(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks.processors import enrich

    monkeypatch.setattr(enrich, "QUERY", 1.0)
    db.run(VIEW)
    made = Enrich({"on": ".Payload.After.k", "key": "id", "url": db.url, "query": "SELECT * FROM u"})
    with pytest.raises(SourceError, match="option 'query' failed: OperationalError"):
        made.process(Record(b"1", after={"k": "1"}))
