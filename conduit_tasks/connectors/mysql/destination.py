"""Writes records to tables of MySQL and MariaDB: upserted and deleted by key, or appended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.connection import MYSQL
from conduit_tasks.connectors.mysql import client
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.sql.options import TRANSACTIONS, index_table
from conduit_tasks.connectors.tables import Conflict, again
from conduit_tasks.errors import ConfigError, RecordError, Refused, Unavailable
from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    from conduit_tasks.templates.template import Template

_COLLECTION = '{{ index .Metadata "opencdc.collection" }}'
_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
"""sql_mode of every write: nothing is cut to fit, 0 is no new number, a zero date is what it is."""


class MysqlDestination(BatchDestination):
    """A write is one transaction, in the records' order. If rows are numbered, the last number is stored in it, and
    rows that come again are left out (SEMANTICS B8, O5)."""

    effectively_once = True
    keeps_index = True

    spec = Spec(
        "mysql",
        "Upserts, deletes or appends rows of MySQL's and MariaDB's tables.",
        (
            Option(
                "url",
                "database: mysql://user:password@host:3306/name?ssl_ca=ca.pem&ssl_verify_identity=true",
                required=True,
                example="mysql://localhost/x",
                secret=True,
            ),
            Option(
                "table",
                "table, optionally with its database before a dot; a constant or a template",
                default=_COLLECTION,
            ),
            Option("key", "columns that tell rows apart, comma-separated; default: the table's primary key"),
            Option(
                "mode",
                "upsert: one row per key, deletes are applied; append: insert only",
                default="upsert",
                choices=("upsert", "append"),
            ),
            Option(
                "unknown-fields",
                "a field that the table has no column for: refuse the record, or ignore the field",
                default="refuse",
                choices=("refuse", "ignore"),
            ),
            *TRANSACTIONS,
        ),
        connection=MYSQL,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._server = client.server(self.settings["url"])
        try:
            self._template  # noqa: B018 - compiled once, and checked
        except ConfigError as error:
            raise ConfigError(f"mysql: option 'table': {error}") from None
        self._key = tuple(options.words(self.settings, "key"))
        self._append = self.settings["mode"] == "append"
        self._ignore = self.settings["unknown-fields"] == "ignore"
        self.chunk = options.integer(self.settings, "chunk", least=1)  # type: ignore[misc]  # its own
        self._lock_timeout = options.duration(self.settings, "lock-timeout")
        self._index_table = index_table(self.settings, "mysql")
        self._engine: Any = None
        self._index: Any = None
        self._tables: dict[str, Any] = {}
        self._packet = 0

    @classmethod
    def idempotent(cls, settings: Mapping[str, str]) -> bool:
        return settings.get("mode", "upsert") == "upsert"

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        return ""

    def open(self, state: dict[str, Any] | None) -> None:
        """Connects, and looks at the table if its name is a constant. There is no state to restore: a transaction that
        was not committed left nothing."""
        client.library()
        import sqlalchemy as sa

        from conduit_tasks.connectors.sql.index import SqlIndex

        self._tables = {}
        if self._engine is None:
            self._engine = sa.create_engine("mysql+pymysql://", creator=self._connect, pool_pre_ping=True)
            schema, name = self._index_table
            self._index = SqlIndex(name, schema, "mysql")
        with self._translated(), self._engine.connect() as connection:
            raw = connection.connection.dbapi_connection
            with raw.cursor() as cursor:
                cursor.execute("SELECT @@max_allowed_packet")
                self._packet = int(cursor.fetchone()[0])
            if self._template.constant is not None:
                self._table(raw, self._template.constant)

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Writes the rows in one transaction, again if it met a deadlock. Raises Refused, Unavailable."""
        records = rows.records()
        with self._translated():
            if rows.numbers is not None:
                self._index.create(self._engine)
        for attempt in again(self.limit):
            with attempt, self._translated():
                self._write(rows, records)
        return None

    def _write(self, rows: Rows, records: list[Record]) -> None:
        from conduit_tasks.connectors.mysql.apply import Apply

        with self._engine.begin() as connection:
            known = self._index.advance(connection, rows.numbers) if rows.numbers is not None else 0
            raw = connection.connection.dbapi_connection
            with raw.cursor() as cursor:
                apply = Apply(cursor, self._append, self._packet)
                for record in records[known:]:
                    apply.take(record, *self._place(raw, record))
                apply.finish()
            # Invariant 4: a writer that lost the lease meanwhile must not overwrite its successor's newer rows.
            self.still_ours()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @property
    def _template(self) -> Template:
        """Template of the table's name. It is cached by `compile`, not here, because it cannot be sent to an
        executor."""
        from conduit_tasks.templates.template import compile

        return compile(self.settings["table"])

    def _connect(self) -> Any:
        from pymysql.constants import CLIENT

        # Ends the statement before the process is ended because its write takes too long. An update counts rows that it
        # found, also if they had these values.
        limit = 0.9 * self.limit
        connection = self._server.connect(limit, autocommit=False, client_flag=CLIENT.FOUND_ROWS, sql_mode=_MODE)
        with connection.cursor() as cursor:
            client.limit_statements(cursor, limit)
            seconds = max(1, round(self._lock_timeout))
            cursor.execute(f"SET innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}, sql_notes = 1")
        return connection

    def _place(self, raw: Any, record: Record) -> tuple[Any, tuple[str, ...]]:
        """Returns (table, key) for a record. Raises Refused, ConfigError."""
        try:
            name = self._template.render(record)
        except RecordError as error:
            raise Refused(str(error)) from None
        if not name.strip() or name == "<no value>":
            raise Refused("the record names no table: it has no metadata opencdc.collection; write option 'table'")
        try:
            table = self._table(raw, name)
            fields = record.after if isinstance(record.after, dict) and not self._ignore else {}
            if unknown := sorted(fields.keys() - table.columns.keys()):
                # The column may have been added since.
                self._tables.pop(name)
                table = self._table(raw, name)
                unknown = sorted(fields.keys() - table.columns.keys())
        except ConfigError as error:
            if self._template.constant is not None:
                raise
            raise Refused(str(error)) from None
        if unknown:
            raise Refused(f"table {name} has no column {', '.join(unknown)}; add it, or write 'unknown-fields: ignore'")
        return table, self._key or table.key

    def _table(self, raw: Any, name: str) -> Any:
        from conduit_tasks.connectors.mysql.tables import described, parted

        table = self._tables.get(name)
        if table is None:
            table = described(raw, *parted(name, self._server.database))
            if missing := sorted(set(self._key) - table.columns.keys()):
                raise ConfigError(f"mysql: table {name} has no column {', '.join(missing)}; change option 'key'")
            if not self._append and not (self._key or table.key):
                raise ConfigError(
                    f"mysql: table {name} has no primary key; add one, or write option 'key' or 'mode: append'"
                )
            if not table.transactions:
                raise ConfigError(
                    f"mysql: table {name} has an engine without transactions, so a write could be there in part; "
                    f"ALTER TABLE {name} ENGINE = InnoDB"
                )
            self._tables[name] = table
        return table

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raises the project's errors for the database's (SEMANTICS T6), also for those that SQLAlchemy passes on."""
        from sqlalchemy import exc

        pymysql = client.library()
        try:
            yield
        except exc.DBAPIError as error:
            raise self._meant(error.orig) from error
        except exc.SQLAlchemyError as error:
            raise Unavailable(f"{self._where}: {client.said(error)}") from error
        except (pymysql.Error, OSError) as error:
            raise self._meant(error) from error

    @property
    def _where(self) -> str:
        return f"mysql table {self.settings['table']}"

    def _meant(self, error: Any) -> Exception:
        text, code = f"{self._where}: {client.said(error)}", client.code_of(error)
        if code in client.LOCKED:
            return Conflict(text)
        if code in (client.NO_TABLE, client.NO_COLUMN) and self._tables:
            return Unavailable(f"{self._where}: changed meanwhile: {client.said(error)}")
        kind = client.kind_of(error)
        if kind == "rows":
            return Refused(text)
        return ConfigError(f"{text}; fix the table, the rights or the options") if kind == "file" else Unavailable(text)
