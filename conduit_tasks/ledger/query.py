"""SQL over the ledger, in memory, by the SQLite that comes with Python: no server, no JVM.

The table `ledger` has the columns of `entry.SCHEMA`, times as ISO text in UTC; the view `attempts` has one row per
attempt, with its counts; the table `messages` has the outcome of records as a whole.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.errors import ConfigError
from conduit_tasks.ledger.entry import COUNTS, SCHEMA
from conduit_tasks.ledger.messages import COLUMNS as MESSAGES

_ATTEMPTS = (  # the names are the schema's
    "CREATE VIEW attempts AS SELECT destination, micro_batch, attempt, run, epoch, config, status, began, ended, "
    "seconds, SUM(records) AS records, SUM(outcome = 'open') > 0 AS left_open, MAX(error_class) AS error_class, "
    "MAX(error) AS error, " + ", ".join(f"SUM({name}) AS {name}" for name in COUNTS) + " "
    "FROM ledger GROUP BY attempt"
)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Returns the rows, in the order of the columns, times as `2026-01-31T09:00:00.000000+00:00`."""
    columns = []
    for name, column in zip(table.column_names, table.columns):
        if pa.types.is_timestamp(column.type):
            columns.append([at.isoformat(timespec="microseconds") if at else None for at in column.to_pylist()])
        else:
            columns.append(column.to_pylist())
        assert name in SCHEMA.names
    return list(zip(*columns))


def select(
    table: pa.Table, sql: str, messages: Callable[[], list[tuple[Any, ...]]] = list
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Runs one query over `ledger`; returns column names and rows. Raises ConfigError with SQLite's message.

    `messages`: returns the rows of the table of that name (`ledger.messages`); called if the query names it.
    """
    with closing(sqlite3.connect(":memory:")) as db:
        columns = ", ".join(f'"{f.name}" {_affinity(f.type)}' for f in table.schema)
        db.execute(f"CREATE TABLE ledger ({columns})")
        marks = ", ".join("?" * table.num_columns)
        db.executemany(f"INSERT INTO ledger VALUES ({marks})", rows_of(table))  # noqa: S608 - names are the schema's
        db.execute(_ATTEMPTS)
        db.execute(f"CREATE TABLE messages ({', '.join(MESSAGES)})")
        if "messages" in sql.lower():
            db.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?)", messages())
        db.commit()
        db.execute("PRAGMA query_only = ON")
        try:
            found = db.execute(sql)
            rows = found.fetchall()
        except sqlite3.Error as error:
            raise ConfigError(
                f"--sql: {error}; the table is `ledger` ({', '.join(SCHEMA.names)}), the view `attempts`, "
                f"and the table `messages` ({', '.join(MESSAGES)})"
            ) from error
        return [d[0] for d in found.description or ()], rows


def covering(table: pa.Table, seq: int) -> pa.Table:
    """Returns the rows whose range holds this record."""
    return table.filter(pc.and_(pc.less_equal(table["first"], seq), pc.greater_equal(table["last"], seq)))


def _affinity(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "INTEGER"
    return "REAL" if pa.types.is_floating(kind) else "TEXT"
