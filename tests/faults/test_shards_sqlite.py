"""A destination `sql` of which the file does not say that it is SQLite, which has one writer, and `parallelism`."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks import connections
from conduit_tasks.connections import Connection
from conduit_tasks.errors import ConnectionMissing
from conduit_tasks.micro_batch import dividing
from conduit_tasks.settings import forget
from tests.faults.beside import Beside
from tests.faults.grouped import sealed as several_sealed
from tests.faults.test_shards import beside, deliver, lanes, sealed  # noqa: F401 - a fixture
from tests.micro_batch.harness import state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: MOST}
    lag-budget: {records: 100000}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: to
        type: destination
        plugin: sql
        settings: {WHERE, table: t, mode: append}
        delivery: {order-by: ORDER, parallelism: 4}
"""


@pytest.fixture
def of_sqlite(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An Airflow connection `db`, in this process and in those that it starts."""
    connections.give({"db": Connection("db", "sqlite", str(home / "t.db"))})
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps({"conn_type": "sqlite", "host": str(home / "t.db")}))
    yield
    connections.give(None)


def pipeline(home: Path, where: str = "connection: db", order: str = "key", most: int = 5_000) -> None:
    text = PIPELINE.replace("WHERE", where).replace("ORDER", order).replace("MOST", str(most))
    write_pipeline(home, "p", text)


def all_there(home: Path, count: int) -> None:
    db = sqlite3.connect(home / "t.db")
    try:
        assert db.execute("SELECT count(*), count(DISTINCT position) FROM t").fetchone() == (count, count)
    finally:
        db.close()
    counters = state("p").deliveries.get("to").counters
    assert (counters["delivered"], counters["nacked"]) == (count, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("of_sqlite")
@pytest.mark.parametrize("order", ["key", "none"])
def test_one_task_writes_to_a_sqlite_that_only_the_connection_names(
    home: Path,
    beside: Beside,  # noqa: F811 - the fixture
    caplog: pytest.LogCaptureFixture,
    order: str,
) -> None:
    pipeline(home, order=order)
    lanes(home / "data", 1_000)
    sealed()
    with caplog.at_level(logging.WARNING):
        deliver(beside)
    # Then no two tasks stood in each other's way, and the log says why there was one
    assert beside.jobs == [[0]]
    assert "one task delivers to 'to', though parallelism is 4: SQLite has one writer" in caplog.text
    all_there(home, 1_000)


@pytest.mark.slow
@pytest.mark.usefixtures("of_sqlite")
def test_several_micro_batches_are_not_begun_at_once_for_a_sqlite(
    home: Path,
    beside: Beside,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CONDUIT_SMALL_RECORDS", "0")
    forget()
    pipeline(home, order="none", most=500)
    lanes(home / "data", 2_000)
    several_sealed(4)
    deliver(beside)
    assert beside.jobs == [[0]] * 4
    all_there(home, 2_000)


@pytest.mark.usefixtures("of_sqlite")
def test_what_several_tasks_have_begun_is_finished_by_one_once_the_connection_is_of_sqlite(
    home: Path,
    beside: Beside,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline(home)
    lanes(home / "data", 1_000)
    sealed()

    def begin(function: Any, pieces: Any) -> list[Any]:
        assert len(pieces) == 4
        raise KeyboardInterrupt

    # Given a micro-batch that was divided among four tasks
    with monkeypatch.context() as before:
        before.setattr(dividing, "resolved", lambda _, settings: settings)
        with pytest.raises(KeyboardInterrupt):
            deliver(begin)
    deliver(beside, "next")
    assert beside.jobs == [[0]]
    all_there(home, 1_000)


@pytest.mark.usefixtures("of_sqlite")
def test_a_connection_that_is_not_there_is_named(home: Path, beside: Beside) -> None:  # noqa: F811 - the fixture
    pipeline(home, where="connection: nowhere")
    lanes(home / "data", 1_000)
    sealed()
    with pytest.raises(ConnectionMissing, match="'nowhere'"):
        deliver(beside)


def test_one_task_writes_to_a_sqlite_that_a_variable_names(
    home: Path,
    beside: Beside,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{home}/t.db")
    pipeline(home, where='url: "${DATABASE_URL}"')
    lanes(home / "data", 1_000)
    sealed()
    deliver(beside)
    assert beside.jobs == [[0]]
    all_there(home, 1_000)
