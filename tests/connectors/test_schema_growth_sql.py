"""Tables that `sql` makes and changes, on SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors.sql import growth
from conduit_tasks.connectors.sql.connector import SqlDestination
from conduit_tasks.errors import ConfigError, DoesNotFit, Refused
from tests.connectors.test_schema_growth import fresh
from tests.connectors.test_sql import ORIGIN, execute, rows_of, url  # noqa: F401 - a fixture


def test_a_table_that_evolves_is_made_of_the_fields_that_come(url: str) -> None:  # noqa: F811
    out = SqlDestination({"url": url, "table": "events", "schema": "evolve"})
    out.open(None)
    out.write(fresh({"a": 1}, {"A": None, "b": "x"}))
    out.close()
    assert execute(url, "SELECT a, b FROM events") == [(1, None), (None, "x")]


def test_columns_that_the_setting_names_are_added_and_nothing_else(url: str) -> None:  # noqa: F811
    execute(url, "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, n SMALLINT)")
    columns = "n=.Payload.After.n, d:float=.Payload.After.d"
    for schema in ("freeze", "quarantine"):
        with pytest.raises(ConfigError, match="no column d"):
            SqlDestination({"url": url, "table": "events", "columns": columns, "schema": schema}).open(None)
    out = SqlDestination({"url": url, "table": "events", "columns": columns, "schema": "evolve"})
    out.open(None)
    out.write(fresh({"n": 100_000, "d": 0.5, "other": 1}))
    out.close()
    assert execute(url, "SELECT n, d FROM events") == [(100_000, 0.5)]
    with pytest.raises(Exception, match="other"):
        execute(url, "SELECT other FROM events")


@pytest.mark.parametrize("mode", ["upsert", "append"])
@pytest.mark.parametrize("schema", ["evolve", "freeze"])
def test_a_field_with_the_name_of_the_ids_column_has_no_column(url: str, schema: str, mode: str) -> None:  # noqa: F811
    execute(url, "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, n INTEGER)", "CREATE TABLE plain (n INTEGER)")
    for table in ("events", "plain") if mode == "append" else ("events",):
        out = SqlDestination({"url": url, "table": table, "schema": schema, "mode": mode})
        out.open(None)
        with pytest.raises(DoesNotFit, match=r"no column id.*holds the record's id"):
            out.write(fresh({"n": 1, "id": 7}))
        out.close()
        assert execute(url, f"SELECT * FROM {table}") == []


def test_a_table_of_whole_records_has_a_place_for_every_field(url: str) -> None:  # noqa: F811
    for schema in ("freeze", "evolve"):
        if schema == "freeze":
            SqlDestination({"url": url, "table": "events"}).open(None)
        out = SqlDestination({"url": url, "table": "events", "schema": schema})
        out.open(None)
        out.write(fresh({"any": schema}))
        out.close()
    assert len(execute(url, "SELECT payload FROM events")) == 2


def test_columns_that_differ_in_case_only_are_one_to_sqlite(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    execute(f"sqlite:///{db}", "CREATE TABLE t (id TEXT PRIMARY KEY, a INT, must TEXT NOT NULL DEFAULT 'x')")
    out = SqlDestination({"url": f"sqlite:///{db}", "table": "t", "schema": "evolve"})
    out.open(None)
    for payload in ({"A": 1}, {"new": 1, "NEW": 2}, {"new": 1, "": 2}, {"new": 2**70}, {"new": 1, "must": None}):
        with pytest.raises(DoesNotFit):
            out.write(fresh(payload))
    out.close()
    connection = sqlite3.connect(db)
    names = [row[1] for row in connection.execute("PRAGMA table_info(t)")]
    connection.close()
    assert names == ["id", "a", "must"], "a write that is refused leaves no column"


def test_two_writers_add_one_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a writer that looks at the columns while another one is about to add the same
    db = tmp_path / "t.db"
    execute(f"sqlite:///{db}", "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, n INTEGER)")
    other = sqlite3.connect(db, check_same_thread=False)
    began, run = threading.Event(), growth._run

    def told(connection: Any, statement: str) -> Any:
        if statement == "BEGIN IMMEDIATE":
            began.set()
        return run(connection, statement)

    monkeypatch.setattr(growth, "_run", told)
    columns = "n=.Payload.After.n, new:int=.Payload.After.new"
    for name, n, more in (("new", 1, {"columns": columns}), ("newer", 2, {})):
        other.execute("BEGIN IMMEDIATE")
        other.execute(f"ALTER TABLE events ADD COLUMN {name} BIGINT")
        given = {"url": f"sqlite:///{db}", "table": "events", "schema": "evolve", "lock-timeout": "60s", **more}
        out = SqlDestination(given)
        writer = threading.Thread(target=_opened_and_written, args=(out, {"n": n, name: 7}))
        writer.start()
        # When that one has added it
        assert began.wait(60)
        other.commit()
        writer.join(60)
        out.close()
        began.clear()
    other.close()
    # Then the rows are there
    assert execute(f"sqlite:///{db}", "SELECT n, new, newer FROM events ORDER BY n") == [(1, 7, None), (2, None, 7)]


def _opened_and_written(out: SqlDestination, payload: Any) -> None:
    out.open(None)
    out.write(fresh(payload))


def test_without_the_option_fields_without_a_column_are_left_out_as_before(url: str) -> None:  # noqa: F811
    execute(url, "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, n INTEGER)")
    out = SqlDestination({"url": url, "table": "events"})
    out.open(None)
    out.write(fresh({"n": 1, "other": 1}))
    out.close()
    assert execute(url, "SELECT n FROM events") == [(1,)]


def test_a_column_of_a_write_that_is_refused_is_added_by_the_next_one(url: str) -> None:  # noqa: F811
    execute(url, "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, n INTEGER CHECK (n <> 2))")
    out = SqlDestination({"url": url, "table": "events", "schema": "evolve"})
    out.open(None)
    with pytest.raises(Refused) as raised:
        out.write(fresh({"n": 1, "new": "x"}, {"n": 2, "new": "x"}))
    assert not isinstance(raised.value, DoesNotFit)
    out.open(None)
    out.write(fresh({"n": 3, "new": "x"}))
    out.close()
    assert execute(url, "SELECT n, new FROM events") == [(3, "x")]
