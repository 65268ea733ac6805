"""The sql destination on a real SQLite and a real PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks.postgres_server import PostgresServer
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.sql.connector import SqlDestination
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import ConfigError, PipelineStopped, Refused, Unavailable
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.settings import settings as installation
from conduit_tasks.topology import Delivery
from tests.delivery.fakes import FakePort, work_of

ORIGIN = Origin("p", "src", "")
QUICK: dict[str, Any] = {"backoff_delay": 0.001, "backoff_policy": "constant"}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/out/t.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    execute(server.url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    yield server.url


def execute(url: str, *statements: str) -> list[Any]:
    """Runs statements; the rows of the last one."""
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(exist_ok=True)
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            for statement in statements:
                result = connection.execute(sa.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []
    finally:
        engine.dispose()


def rows_of(records: Sequence[Record]) -> Rows:
    batch = spool_batch([0] * len(records), list(range(len(records))), records)
    return Rows(batch, [ORIGIN], 1, 0, len(records) - 1)


def event(n: int, **after: Any) -> Record:
    return Record(b"%d" % n, after={"carrier": "AA", "delay": n, **after}, key=b"k", origin=ORIGIN)


def write(url: str, *chunks: Sequence[Record], **settings: str) -> None:
    destination = SqlDestination({"url": url, "table": "events", **settings})
    try:
        destination.open(None)
        for chunk in chunks:
            assert destination.write(rows_of(chunk)) is None
    finally:
        destination.close()


@pytest.mark.proves("T8", "C10")
def test_a_table_of_whole_records_is_created_and_writing_again_changes_nothing(url: str) -> None:
    # Given no table
    records = [event(n) for n in range(50)] + [
        Record(b"\xff\x00", "delete", {"m": "1"}, {"id": 7}, b"raw", origin=ORIGIN)
    ]
    # When chunks are written, one of them twice
    write(url, records[:30], records[:30])
    write(url, records[20:])
    # Then each record is there once, with all its parts
    rows = {r[0]: r for r in execute(url, "SELECT id, position, operation, metadata, key, payload FROM events")}
    assert rows.keys() == {r.id for r in records}
    first, deleted = rows[records[0].id], rows[records[-1].id]
    assert (first[1], first[2], first[4]) == ("0", "create", "k")
    assert as_json(first[5]) == {"carrier": "AA", "delay": 0}
    assert (deleted[1], deleted[2], deleted[4]) == ("/wA=", "delete", '{"id":7}')
    assert (as_json(deleted[3]), as_json(deleted[5])) == ({"m": "1"}, "raw")


def as_json(value: Any) -> Any:
    """PostgreSQL hands out parsed JSON, SQLite its text."""
    import json

    return json.loads(value) if isinstance(value, str) and value[:1] in '{["' else value


def test_columns_are_taken_from_the_file_and_created_with_their_types(url: str) -> None:
    columns = (
        'carrier=.Payload.After.carrier, delay:int=.Payload.After.delay, "op"=.Operation, '
        'who=.Metadata["a,b"], all:json=.Payload.After, missing:float=.Payload.After.x.y'
    )
    record = event(3)
    record.metadata = {"a,b": "c"}
    write(url, [record], columns=columns)
    [(id, carrier, delay, op, who, everything, missing)] = execute(
        url, 'SELECT id, carrier, delay, op, who, "all", missing FROM events'
    )
    assert (id, carrier, delay, op, who, missing) == (record.id, "AA", 3, "create", "c", None)
    assert as_json(everything) == {"carrier": "AA", "delay": 3}


def test_a_table_that_exists_gets_the_payload_fields_that_it_has_columns_for(url: str) -> None:
    # Given a table with a text column for a number
    execute(url, "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, carrier TEXT, delay TEXT, at TIMESTAMP)")
    # When records are written, and one of them again with another payload
    write(url, [event(1, at="2013-01-01 05:00:00"), event(2, ignored=True)])
    write(url, [event(2, carrier="UA")])
    # Then the columns are filled by name, and the row is updated
    rows = execute(url, "SELECT carrier, delay FROM events ORDER BY delay")
    assert rows == [("AA", "1"), ("UA", "2")]


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_a_column_that_a_payload_has_no_field_for_gets_its_default_or_keeps_what_it_has(url: str, mode: str) -> None:
    # Given a table with defaults, of which one is asked for
    execute(
        url,
        "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, carrier TEXT DEFAULT 'none', "
        "state TEXT NOT NULL DEFAULT 'new')",
    )
    # When payloads have some of the fields, none, or a null
    records = [
        Record(str(n).encode(), after=after, origin=ORIGIN)
        for n, after in enumerate(
            [{"carrier": "AA"}, {"carrier": "UA", "state": "old"}, {"other": 1}, {"carrier": None}]
        )
    ]
    write(url, records, mode=mode)
    # Then a field that is missing is not a null
    rows = execute(url, "SELECT carrier, state FROM events")
    assert sorted(rows, key=str) == [("AA", "new"), ("UA", "old"), ("none", "new"), (None, "new")]
    if mode == "upsert":
        # And a row that comes again without a field keeps what it has there
        execute(url, "UPDATE events SET state = 'seen' WHERE carrier = 'AA'")
        write(url, [Record(b"0", after={"carrier": "DL"}, origin=ORIGIN)])
        assert execute(url, "SELECT carrier, state FROM events WHERE state = 'seen'") == [("DL", "seen")]


def test_rows_of_defaults_are_appended_to_a_table_without_an_id(url: str) -> None:
    execute(url, "CREATE TABLE events (carrier TEXT DEFAULT 'none')")
    write(url, [Record(b"1", after={"other": 1}, origin=ORIGIN), Record(b"2", after={}, origin=ORIGIN)], mode="append")
    assert execute(url, "SELECT carrier FROM events") == [("none",), ("none",)]


def test_ids_repeated_in_a_chunk_are_written_once_the_last_one_wins(url: str) -> None:
    write(url, [event(1, carrier="UA"), event(2), event(1, carrier="DL")], columns="carrier=.Payload.After.carrier")
    assert execute(url, "SELECT carrier FROM events ORDER BY carrier") == [("AA",), ("DL",)]


@pytest.mark.proves("C17", "C5", "C10")
def test_rows_that_the_database_refuses_are_dead_letters_one_by_one_and_the_rest_is_there(url: str) -> None:
    # Given a constraint that three records violate
    execute(url, "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, seq INTEGER CHECK (seq NOT IN (0, 700, 1999)))")
    port = FakePort(2000, list(range(2000)))
    # When they are delivered
    settings = {"url": url, "table": "events", "chunk": "500"}
    deliver(work_of(port), SqlDestination(settings), port, Delivery())
    # Then all others are in the table, and each of these is a dead letter with the database's words
    rows = execute(url, "SELECT count(*), count(DISTINCT seq), sum(seq) FROM events")
    assert rows == [(1997, 1997, sum(range(2000)) - 700 - 1999)]
    assert [key[2] for key in port.stored] == [0, 700, 1999]
    letter = port.stored[0, 7, 700, 0]
    assert "constraint" in letter.error.lower()
    assert letter.error_class in ("IntegrityError", "CheckViolation")
    assert port.complete


@pytest.mark.proves("T6")
@pytest.mark.parametrize("value", [2**80, "a\x00b" * 3, "\ud800"])
def test_a_value_that_cannot_be_stored_is_the_records_fault(url: str, value: Any) -> None:
    if url.startswith("sqlite") and value == "a\x00b" * 3:
        value = "\udfff"
    destination = SqlDestination({"url": url, "table": "events", "columns": "v:int=.Payload.After.v"})
    record = Record(b"1", after={"v": 1}, origin=ORIGIN)
    destination.open(None)
    try:
        rows = rows_of([record])
        destination._written = [c.__class__(c.name, lambda _: value) for c in destination._written or ()]
        with pytest.raises(Refused):
            destination.write(rows)
    finally:
        destination.close()


@pytest.mark.proves("T6")
def test_a_locked_sqlite_is_unavailable_and_goes_on_once_it_is_free(tmp_path: Path) -> None:
    # Given a database that somebody else has locked
    path = tmp_path / "t.db"
    url = f"sqlite:///{path}"
    write(url, [event(0)])
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    destination = SqlDestination({"url": url, "table": "events", "lock-timeout": "20ms"})
    try:
        # When a chunk is written, then it is unavailable
        with pytest.raises(Unavailable, match="locked"):
            destination.open(None)
        # And delivered with retries, it goes on when the lock is gone
        threading.Timer(0.2, lambda: other.execute("ROLLBACK")).start()
        port = FakePort(10, list(range(10)))
        deliver(work_of(port), destination, port, Delivery(retry=10_000, backoff_delay=0.01, backoff_policy="constant"))
        assert port.complete
        assert execute(url, "SELECT count(*) FROM events") == [(11,)]
    finally:
        destination.close()
        other.close()


@pytest.mark.proves("T6", "T7")
def test_a_database_that_goes_away_is_waited_for_and_nothing_is_there_twice(postgres: PostgresServer) -> None:
    # Given a delivery during which the server stops
    execute(postgres.url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    port = FakePort(3000, list(range(3000)))
    port.fail_at = lambda name: postgres.stop() if name == "confirm" and len(port.calls) == 2 else None  # type: ignore[func-returns-value]
    bare = postgres.url.replace("+psycopg2", "")
    settings = {"url": bare, "table": "events", "chunk": "500", "lock-timeout": "1s"}
    with pytest.raises(Unavailable):
        deliver(work_of(port), SqlDestination(settings), port, Delivery(retry=1, **QUICK))
    assert port.confirmed.ranges == ((0, 999),)
    assert not port.stored
    # When it is back, and one more chunk than confirmed may be there
    port.fail_at = lambda _: None
    postgres.start()
    deliver(work_of(port), SqlDestination(settings), port, Delivery())
    # Then all rows are there once
    assert execute(postgres.url, "SELECT count(*), count(DISTINCT id) FROM events") == [(3000, 3000)]
    assert port.complete


@pytest.mark.proves("C6")
def test_with_the_default_window_a_refused_row_stops_the_pipeline_with_the_rows_before_it_written(url: str) -> None:
    execute(url, "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, seq INTEGER CHECK (seq <> 40))")
    port = FakePort(100, list(range(100)), window=(1, 0))
    with pytest.raises(PipelineStopped):
        deliver(work_of(port), SqlDestination({"url": url, "table": "events"}), port, Delivery())
    assert execute(url, "SELECT max(seq), count(*) FROM events") == [(39, 40)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "sqlite:///x.db"}, "table"),
        ({"url": "nonsense", "table": "t"}, "url"),
        ({"url": "mysql://root:pw@h/d", "table": "t"}, "url"),
        ({"url": "sqlite:///x.db", "table": "t", "columns": "a"}, "columns"),
        ({"url": "sqlite:///x.db", "table": "t", "columns": "a=.Payload.Later.x"}, "columns"),
        ({"url": "sqlite:///x.db", "table": "t", "columns": "a:blob=.Key"}, "columns"),
        ({"url": "sqlite:///x.db", "table": "t", "columns": "id=.Key"}, "columns"),
        ({"url": "sqlite:///x.db", "table": "t", "chunk": "0"}, "chunk"),
    ],
)
def test_wrong_settings_are_named_and_show_no_password(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        SqlDestination(settings)
    assert "pw" not in str(raised.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("CREATE TABLE events (id VARCHAR(32), carrier TEXT)", "neither primary key nor unique"),
        ("CREATE TABLE events (carrier TEXT PRIMARY KEY)", "no column id"),
    ],
)
def test_a_table_that_cannot_keep_its_promise_is_refused(url: str, table: str, said: str) -> None:
    execute(url, table)
    with pytest.raises(ConfigError, match=said):
        SqlDestination({"url": url, "table": "events"}).open(None)


def test_a_relative_sqlite_path_lies_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_HOME", str(tmp_path))
    installation.cache_clear()
    try:
        write("sqlite:///out/here.db", [event(1)])
    finally:
        installation.cache_clear()
    assert (tmp_path / "out" / "here.db").exists()


def test_a_raw_payload_has_no_fields_for_columns(url: str) -> None:
    execute(url, "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, carrier TEXT)")
    raw: Callable[[], None] = lambda: write(url, [Record(b"1", after=b"raw", origin=ORIGIN)])  # noqa: E731
    with pytest.raises(Refused, match="raw"):
        raw()
