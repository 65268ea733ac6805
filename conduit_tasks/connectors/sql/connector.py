"""`sql` as a destination: makes the table if it is missing, and upserts rows by record id, or appends them, one
transaction per chunk (SEMANTICS B8, C17, T8).

Required: `url` (SQLAlchemy; a relative SQLite path is taken from the project's home) and `table`.

Without `columns`: a table that exists gets `id` and those of its columns that the payload has fields for; the others
get the table's default, or keep what they have. One that does not exist is created with `id`, `position`, `operation`,
`metadata`, `key` and `payload` (the last three as JSON text).
`columns` names each column and where it comes from, and its type if the table is to be created with one:

```yaml
plugin: sql
settings:
  url: "sqlite:///out/carriers.db"
  table: carriers
  columns: "carrier=.Payload.After.carrier, delay:float=.Payload.After.dep_delay"
```

A chunk is one transaction, in the records' order. `mode: upsert` is `INSERT … ON CONFLICT (id) DO UPDATE`: sent again,
a chunk changes nothing; it needs a primary key or unique constraint on the id column. `mode: append` only inserts.

If the guarantee is effectively-once, or the pipe has an index, the number of the last row is stored in the same
transaction, in `index-table`, and a chunk that comes again is dropped, in either mode. SQLite and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress
from itertools import compress, groupby
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.connection import SQL
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.sql.columns import (
    ABSENT,
    RECORD_TYPES,
    Column,
    columns_of_setting,
    columns_of_table,
    payload,
    row_of,
    whole_records,
)
from conduit_tasks.connectors.sql.creation import create
from conduit_tasks.connectors.sql.errors import translated
from conduit_tasks.connectors.sql.growth import add, grow, types_of
from conduit_tasks.connectors.sql.index import SqlIndex
from conduit_tasks.connectors.sql.options import TRANSACTIONS, index_table
from conduit_tasks.connectors.sql.source import SqlSource
from conduit_tasks.connectors.sql.url import address, limits
from conduit_tasks.connectors.tables import EVOLVE, QUARANTINE, no_column, schema_option
from conduit_tasks.errors import ConfigError, DoesNotFit, RecordError, Refused, Unavailable
from conduit_tasks.record.record import Record
from conduit_tasks.spool.durable import make_folders

DIALECTS = ("sqlite", "postgresql")


_WHERE = sa.text(
    "SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relname = :name AND pg_catalog.pg_table_is_visible(c.oid)"
)
"""The schema in which PostgreSQL finds a table that is named without one."""


class SqlDestination(BatchDestination):
    """Writes records into one table."""

    effectively_once = True
    keeps_index = True

    spec = Spec(
        "sql",
        "Rows of a table in SQLite or PostgreSQL, idempotent by record id",
        (
            Option(
                "url",
                "database, as SQLAlchemy writes it: sqlite:///path or postgresql://user@host/name",
                required=True,
                example="sqlite:///x",
                secret=True,
            ),
            Option("table", "table, optionally with its schema before a dot", required=True),
            Option("columns", "name[:type]=reference, comma-separated; types: text, int, float, bool, json"),
            Option(
                "mode",
                "upsert: one row per record id; append: insert only, the id where there is a column for it",
                default="upsert",
                choices=("upsert", "append"),
            ),
            Option("id-column", "column of the record's id", default="id"),
            schema_option(None, "; default: freeze, but fields without a column are left out"),
            *TRANSACTIONS,
        ),
        connection=SQL,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        self._url = address(s["url"])
        self._dialect = self._url.get_backend_name()
        if self._dialect not in DIALECTS:
            raise ConfigError(
                f"sql: option 'url' names {self._dialect}; this connector writes {' and '.join(DIALECTS)}"
            )
        schema, _, name = s["table"].rpartition(".")
        self._table, self._schema = name, schema or None
        self._id = s["id-column"]
        self._append = s["mode"] == "append"
        index_schema, index_name = index_table(s, "sql")
        self._index = SqlIndex(index_name, index_schema, self._dialect)
        self._with_id = True
        self._columns: list[Column] | None = columns_of_setting(s["columns"]) if s.get("columns") else None
        if any(c.name == self._id for c in self._columns or ()):
            raise ConfigError(f"sql: option 'columns' must not name '{self._id}', which holds the record's id")
        self.chunk = options.integer(s, "chunk", least=1)  # type: ignore[misc]  # a setting here, a class's constant elsewhere
        self._lock_timeout = options.duration(s, "lock-timeout")
        self._schema_is = s.get("schema", "")
        self.quarantine = self._schema_is == QUARANTINE
        self._engine: sa.Engine | None = None
        self._written: list[Column] | None = None
        self._whole = False

    @classmethod
    def idempotent(cls, settings: Mapping[str, str]) -> bool:
        return settings.get("mode", "upsert") == "upsert"

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        sqlite = settings.get("url", "").startswith("sqlite")
        return "SQLite has one writer at a time" if sqlite else ""

    @classmethod
    def in_any_order(cls, settings: Mapping[str, str]) -> bool:
        return settings.get("mode") == "append"

    def open(self, state: dict[str, Any] | None) -> None:
        """Connects and looks at the table, which is created if it is missing. There is no state to restore: a
        transaction that was not committed left nothing."""
        with translated(self._named()):
            if self._engine is None:
                self._engine = self._connect()
            if self._written is None:
                with self._engine.begin() as connection:
                    self._written = self._prepare(connection)

    def write(self, rows: Rows) -> dict[str, Any] | None:
        assert self._engine is not None
        if self._written is None:
            self.open(None)
        try:
            with translated(self._named()):
                if rows.numbers is not None:
                    self._index.create(self._engine)
                records = rows.records()
                with self._engine.begin() as connection:
                    known = self._index.advance(connection, rows.numbers) if rows.numbers is not None else 0
                    new = self._cells(connection, records, known)
                    names = [*([self._id] if self._with_id else []), *(c.name for c in self._written or ())]
                    for named, group in groupby(new, key=lambda cells: tuple(c is not ABSENT for c in cells)):
                        written = list(compress(names, named))
                        values = [dict(zip(written, compress(cells, named))) for cells in group]
                        self._execute(connection, written, values)
                    # Invariant 4: a writer that lost the lease meanwhile must not overwrite its successor's newer rows.
                    self.still_ours()
        except (Unavailable, Refused) as error:
            if not isinstance(error, Refused) or isinstance(error, DoesNotFit) or self._schema_is == EVOLVE:
                # The next `open` looks at the table again: the database may have been restored without it, a column may
                # have been added or changed since, or a change of ours was rolled back.
                self._written = None
            raise
        return None

    def _cells(self, connection: sa.Connection, records: list[Record], known: int) -> list[list[Any]]:
        """Returns the cells of each row to write, of the records behind the first `known`. A table that evolves takes
        them by then. Raises Refused if a record lacks a field, or does not fit."""
        numbered = list(enumerate(records))[known:]
        if not self._append:
            # The last record of an id wins: PostgreSQL updates no row twice in one statement.
            numbered = list({record.id: (n, record) for n, record in numbered}.values())
        try:
            return self._fitting(numbered)
        except DoesNotFit:
            if self._schema_is != EVOLVE or not self._grown(connection, [record for _, record in numbered]):
                raise
        self._written = self._prepare(connection)
        return self._fitting(numbered)

    def _fitting(self, numbered: list[tuple[int, Record]]) -> list[list[Any]]:
        assert self._written is not None
        known = {c.name for c in self._written}
        strict = bool(self._schema_is) and self._columns is None and not self._whole
        cells = []
        for n, record in numbered:
            try:
                if strict and (unknown := sorted(self._unknown(record, known))):
                    also = f"; column {self._id} holds the record's id" if self._id in unknown else ""
                    raise no_column(unknown, also)
                row = row_of(record, self._written)
            except Refused as error:
                error.row = n
                raise
            cells.append([record.id, *row] if self._with_id else row)
        return cells

    def _unknown(self, record: Record, known: Container[str]) -> list[str]:
        data = payload(record)
        fields = data.items() if isinstance(data, dict) else ()
        # Null says nothing that would be lost.
        return [name for name, value in fields if value is not None and name not in known]

    def _grown(self, connection: sa.Connection, records: list[Record]) -> bool:
        """Returns whether the table was changed for these records."""
        written = self._written or []
        known = {c.name for c in written}
        rows = []
        for record in records:
            with suppress(RecordError):
                cells = {c.name: c.cell(record) for c in written}
                new = () if self._columns is not None or self._whole else self._unknown(record, known)
                data = payload(record)
                row = {name: value for name, value in cells.items() if value is not ABSENT}
                rows.append({**row, **{name: data[name] for name in new if isinstance(data, dict)}})
        return grow(connection, self._place(connection), rows, but=self._id)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _connect(self) -> sa.Engine:
        if self._dialect == "sqlite" and self._url.database and self._url.database != ":memory:":
            make_folders(Path(self._url.database).parent)
        # Ends the statement before the process is ended because its write takes too long.
        arguments = limits(self._url, 0.9 * self.limit, self._lock_timeout)
        return sa.create_engine(self._url, connect_args=arguments, pool_pre_ping=self._dialect != "sqlite")

    def _place(self, connection: sa.Connection) -> tuple[str | None, str]:
        """Returns the schema and the name of the table."""
        if self._schema is None and self._dialect == "postgresql":
            # The first of `search_path` that has it, as PostgreSQL itself takes it.
            found = connection.scalar(_WHERE, {"name": self._table})
            return found or sa.inspect(connection).default_schema_name, self._table
        return self._schema, self._table

    def _prepare(self, connection: sa.Connection) -> list[Column]:
        """Returns the columns to write. Raises ConfigError if the table cannot take them."""
        if not sa.inspect(connection).has_table(self._table, self._schema):
            self._create(connection)
        inspector = sa.inspect(connection)
        present = {c["name"]: c["type"] for c in inspector.get_columns(self._table, self._schema)}
        absent = [c for c in self._columns or () if c.name not in present]
        if absent and self._schema_is == EVOLVE:
            add(connection, self._place(connection), {c.name: c.type for c in absent})
            inspector = sa.inspect(connection)
            present = {c["name"]: c["type"] for c in inspector.get_columns(self._table, self._schema)}
        self._check(inspector, list(present))
        self._with_id = not self._append or self._id in present
        self._whole = self._columns is None and whole_records(present)
        columns = self._columns or columns_of_table([name for name in present if name != self._id])
        types = types_of(connection, self._place(connection))
        return [c.stored_as(present[c.name], types.get(c.name)) for c in columns]

    def _check(self, inspector: sa.Inspector, present: list[str]) -> None:
        where = self.settings["table"]
        needed = [] if self._append else [self._id]
        missing = [n for n in (*needed, *(c.name for c in self._columns or ())) if n not in present]
        if missing:
            raise ConfigError(f"sql: table {where} has no column {', '.join(missing)}; add it, or change `columns`")
        if self._append:
            return
        keys = [inspector.get_pk_constraint(self._table, self._schema)["constrained_columns"]]
        keys += [u["column_names"] for u in inspector.get_unique_constraints(self._table, self._schema)]
        keys += [
            [str(n) for n in i["column_names"]] for i in inspector.get_indexes(self._table, self._schema) if i["unique"]
        ]
        if [self._id] not in [list(k) for k in keys]:
            raise ConfigError(
                f"sql: column {self._id} of {where} is neither primary key nor unique, so a record sent twice would be "
                "there twice; add a unique constraint, or name another `id-column`"
            )

    def _create(self, connection: sa.Connection) -> None:
        # A table that evolves gets the payload's fields as they come.
        names = [] if self._schema_is == EVOLVE else list(RECORD_TYPES)
        columns = self._columns if self._columns is not None else columns_of_table(names)
        table = sa.Table(
            self._table,
            sa.MetaData(),
            sa.Column(self._id, sa.String(32), primary_key=not self._append),
            *(sa.Column(c.name, c.sql_type()) for c in columns),
            schema=self._schema,
        )
        create(connection, table)

    def _execute(self, connection: sa.Connection, names: list[str], values: list[dict[str, Any]]) -> None:
        """Writes rows that have values for the same columns."""
        if names:
            connection.execute(self._insert(names), values)
            return
        # A row of defaults has no statement for many of them.
        for _ in values:
            connection.execute(self._insert(names).values({}))

    def _insert(self, names: list[str]) -> Any:
        """Returns the statement. Its columns are untyped: values go to the driver as they are, and the table's own
        types decide."""
        target = sa.table(self._table, *(sa.column(n) for n in names), schema=self._schema)
        if self._dialect == "sqlite":
            from sqlalchemy.dialects.sqlite import insert
        else:
            from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
        statement = insert(target)
        if self._append:
            return statement
        updates = {n: statement.excluded[n] for n in names if n != self._id}
        if not updates:
            return statement.on_conflict_do_nothing(index_elements=[self._id])
        return statement.on_conflict_do_update(index_elements=[self._id], set_=updates)

    def _named(self) -> str:
        return f"sql table {self.settings['table']}"


SOURCE = SqlSource
DESTINATION = SqlDestination
