"""Types of a table's columns as its database has them, and columns that are added or made wider (`schema: evolve`).

SQLite needs no wider types: it keeps the type of each value. PostgreSQL's part is that of the connector `postgres`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from conduit_tasks.connectors.column_types import ColumnType, new_kind, of_postgres, of_sqlite
from conduit_tasks.connectors.outcome import clip
from conduit_tasks.connectors.postgres import growth as postgres
from conduit_tasks.connectors.postgres.growth import identifier
from conduit_tasks.connectors.postgres.tables import Table, described
from conduit_tasks.errors import DoesNotFit, Unavailable

Place = tuple[str | None, str]
"""Schema and name of a table."""

SQLITE = {"bool": "BOOLEAN", "int": "BIGINT", "float": "DOUBLE", "decimal": "NUMERIC", "text": "TEXT", "json": "JSON"}
_ERROR = 1
"""SQLITE_ERROR: the statement is wrong for this table, in contrast to a lock or a full disk."""


def types_of(connection: sa.Connection, place: Place) -> dict[str, ColumnType | None]:
    """Returns the types of the columns that may not hold a value exactly."""
    if connection.dialect.name == "postgresql":
        found = _described(connection, place)
        return {name: of_postgres(type_) for name, type_ in found.values.items()}
    return {name: of_sqlite(type_) for name, type_ in _declared(connection, place).items()}


def grow(connection: sa.Connection, place: Place, rows: Sequence[Mapping[str, Any]], *, but: str) -> bool:
    """Changes the table in the transaction under way, so that it takes the rows as far as it can. `but`: the column of
    the id, which no field is. Returns whether anything was changed. Raises DoesNotFit if the database does not take the
    change."""
    if connection.dialect.name == "postgresql":
        return postgres.grow(
            lambda statement: _run(connection, statement),
            connection.connection.dbapi_connection,
            _named(place),
            rows,
            but,
        )
    there = {but.lower(), *(name.lower() for name in _declared(connection, place))}
    new: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            # Names of columns that differ in case only are one to SQLite.
            if value is not None and name.lower() not in there and name and "\0" not in name:
                new.setdefault(name, []).append(value)
    names = {name.lower(): name for name in new}
    add(connection, place, {name: new_kind(new[name]) for name in names.values()})
    return bool(names)


def add(connection: sa.Connection, place: Place, kinds: Mapping[str, str]) -> None:
    """Adds columns, given as name → kind, in the transaction under way. Raises DoesNotFit if SQLite does not take
    one."""
    if connection.dialect.name == "postgresql":
        for name, kind in kinds.items():
            new = f"ADD COLUMN IF NOT EXISTS {identifier(name)} {postgres.NEW[kind]}"
            _run(connection, f"ALTER TABLE {_quoted(place)} {new}")
        return
    if kinds and not connection.connection.dbapi_connection.in_transaction:  # type: ignore[union-attr]  # sqlite3's
        # Python begins a transaction before rows only, and the columns would stay if the rows are refused.
        _run(connection, "BEGIN IMMEDIATE")
    # Another writer may have added some before this transaction began.
    there = {name.lower() for name in _declared(connection, place)} if kinds else set()
    for name, kind in kinds.items():
        if name.lower() in there:
            continue
        try:
            _run(connection, f"ALTER TABLE {_quoted(place)} ADD COLUMN {identifier(name)} {SQLITE[kind]}")
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "sqlite_errorcode", None) != _ERROR:
                raise
            said = clip(str(error.orig))
            raise DoesNotFit(f"the columns of {place[1]} cannot be changed for the record: {said}") from error


def _described(connection: sa.Connection, place: Place) -> Table:
    """Returns the table as PostgreSQL's catalogue has it. Raises Unavailable for the errors of the driver, which
    SQLAlchemy does not see here."""
    driver: Any = connection.dialect.loaded_dbapi
    try:
        return described(connection.connection.dbapi_connection, _named(place))
    except driver.Error as error:
        raise Unavailable(f"sql table {place[1]}: {clip(str(error))}") from error


def _declared(connection: sa.Connection, place: Place) -> dict[str, str]:
    schema = "" if place[0] is None else f"{identifier(place[0])}."
    found = _run(connection, f"PRAGMA {schema}table_info({identifier(place[1])})")
    return {row[1]: row[2] for row in found}


def _run(connection: sa.Connection, statement: str) -> Any:
    # Without parameters a % in a name means itself.
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _named(place: Place) -> str:
    return f"{place[0] or 'public'}.{place[1]}"


def _quoted(place: Place) -> str:
    return ".".join(identifier(part) for part in place if part is not None)
