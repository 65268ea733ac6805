"""Writes records to tables of PostgreSQL: upserted and deleted by key, or appended, with `COPY`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.connection import POSTGRES
from conduit_tasks.connectors.postgres.client import checked_url, connect, library, said
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.sql.options import TRANSACTIONS, index_table
from conduit_tasks.connectors.tables import EVOLVE, FREEZE, QUARANTINE, no_column, schema_option
from conduit_tasks.errors import ConfigError, DoesNotFit, RecordError, Refused, Unavailable
from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    from conduit_tasks.connectors.postgres.apply import Apply
    from conduit_tasks.templates.template import Template

_COLLECTION = '{{ index .Metadata "opencdc.collection" }}'


class PostgresDestination(BatchDestination):
    """A write is one transaction, in the records' order. If rows are numbered, the last number is stored in it, and
    rows that come again are left out (SEMANTICS B8, O5)."""

    effectively_once = True
    keeps_index = True

    spec = Spec(
        "postgres",
        "Upserts, deletes or appends rows of PostgreSQL's tables.",
        (
            Option(
                "url",
                "database: postgresql://user:password@host:5432/name?sslmode=verify-full",
                required=True,
                example="postgresql://localhost/x",
                secret=True,
            ),
            Option(
                "table", "table, optionally with its schema before a dot; a constant or a template", default=_COLLECTION
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
            schema_option(FREEZE),
            *TRANSACTIONS,
        ),
        connection=POSTGRES,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._url = checked_url(self.settings["url"])
        try:
            self._template  # noqa: B018 - compiled once, and checked
        except ConfigError as error:
            raise ConfigError(f"postgres: option 'table': {error}") from None
        self._key = tuple(options.words(self.settings, "key"))
        self._append = self.settings["mode"] == "append"
        self._ignore = self.settings["unknown-fields"] == "ignore"
        self._evolves = self.settings["schema"] == EVOLVE
        self.quarantine = self.settings["schema"] == QUARANTINE
        if self._ignore and self._evolves:
            raise ConfigError("postgres: with 'schema: evolve' no field is unknown; leave out 'unknown-fields: ignore'")
        self.chunk = options.integer(self.settings, "chunk", least=1)  # type: ignore[misc]  # its own
        self._lock_timeout = int(options.duration(self.settings, "lock-timeout") * 1000)
        self._index_table = index_table(self.settings, "postgres")
        self._engine: Any = None
        self._index: Any = None
        self._tables: dict[str, Any] = {}

    @classmethod
    def idempotent(cls, settings: Mapping[str, str]) -> bool:
        return settings.get("mode", "upsert") == "upsert"

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        return ""

    def open(self, state: dict[str, Any] | None) -> None:
        """Connects, and looks at the table if its name is a constant. There is no state to restore: a transaction that
        was not committed left nothing."""
        library()
        import sqlalchemy as sa

        from conduit_tasks.connectors.sql.index import SqlIndex

        self._tables = {}
        if self._engine is None:
            self._engine = sa.create_engine("postgresql+psycopg2://", creator=self._connect, pool_pre_ping=True)
            schema, name = self._index_table
            self._index = SqlIndex(name, schema, "postgresql")
        with self._translated(), self._engine.connect() as connection:
            if self._template.constant is not None:
                self._table(connection.connection.dbapi_connection, self._template.constant)

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Writes the rows in one transaction, with the change of a table that they need. Raises Refused,
        Unavailable."""
        records = rows.records()
        with self._translated():
            if rows.numbers is not None:
                self._index.create(self._engine)
            with self._engine.begin() as connection:
                known = self._index.advance(connection, rows.numbers) if rows.numbers is not None else 0
                raw = connection.connection.dbapi_connection
                with raw.cursor() as cursor:
                    self._changes(raw, cursor, records, known).finish()
                # Invariant 4: a writer that lost the lease meanwhile must not overwrite its successor's newer rows.
                self.still_ours()
        return None

    def _changes(self, raw: Any, cursor: Any, records: list[Record], known: int) -> Apply:
        """Returns the changes of the records behind the first `known`; tables that evolve take them by then."""
        try:
            return self._taken(raw, cursor, records, known)
        except DoesNotFit:
            # A change of a table that is rolled back is not one to remember.
            if not self._evolves or not self._grown(raw, cursor, records[known:]):
                raise
        try:
            return self._taken(raw, cursor, records, known)
        finally:
            self._tables = {}

    def _taken(self, raw: Any, cursor: Any, records: list[Record], known: int) -> Apply:
        from conduit_tasks.connectors.postgres.apply import Apply

        apply = Apply(cursor, self._append)
        for n, record in enumerate(records[known:], known):
            try:
                apply.take(record, *self._place(raw, record))
            except Refused as error:
                error.row = n
                raise
        return apply

    def _grown(self, raw: Any, cursor: Any, records: list[Record]) -> bool:
        """Returns whether a table was changed for these records."""
        from conduit_tasks.connectors.postgres.growth import grow

        payloads: dict[str, list[dict[str, Any]]] = {}
        for record in records:
            with suppress(RecordError):
                if record.operation != "delete" and isinstance(record.after, dict):
                    payloads.setdefault(self._template.render(record), []).append(record.after)
        changed = False
        for name, fields in payloads.items():
            with suppress(ConfigError):  # there is no such table
                self._table(raw, name)
                changed |= grow(cursor.execute, raw, name if "." in name else f"public.{name}", fields)
        self._tables = {}
        return changed

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
        from conduit_tasks.connectors.postgres.values import SETTINGS

        connection = connect(self._url)
        with connection.cursor() as cursor:
            # Ends the statement before the process is ended because its write takes too long.
            limit = int(900 * self.limit)
            cursor.execute(f"{SETTINGS}; SET lock_timeout = {self._lock_timeout}; SET statement_timeout = {limit}")
        connection.commit()
        return connection

    def _place(self, raw: Any, record: Record) -> tuple[str, Any, tuple[str, ...]]:
        """Returns (name, table, key) for a record. Raises Refused, ConfigError."""
        try:
            name = self._template.render(record)
        except RecordError as error:
            raise Refused(str(error)) from None
        if not name.strip() or name == "<no value>":
            raise Refused("the record names no table: it has no metadata opencdc.collection; write option 'table'")
        try:
            table = self._table(raw, name)
            after = record.after if isinstance(record.after, dict) and not self._ignore else {}
            # Null says nothing that would be lost.
            fields = {field for field, value in after.items() if value is not None}
            if unknown := sorted(fields - table.columns.keys()):
                # The column may have been added since.
                self._tables.pop(name)
                table = self._table(raw, name)
                unknown = sorted(fields - table.columns.keys())
        except ConfigError as error:
            if self._template.constant is not None:
                raise
            raise DoesNotFit(str(error)) from None
        if unknown:
            raise no_column(unknown, "" if self._evolves else " or 'unknown-fields: ignore'")
        return name, table, self._key or table.key

    def _table(self, raw: Any, name: str) -> Any:
        from conduit_tasks.connectors.postgres.tables import described

        table = self._tables.get(name)
        if table is None:
            table = described(raw, name if "." in name else f"public.{name}")
            if missing := sorted(set(self._key) - table.columns.keys()):
                raise ConfigError(f"postgres: table {name} has no column {', '.join(missing)}; change option 'key'")
            if not self._append and not (self._key or table.key):
                raise ConfigError(
                    f"postgres: table {name} has no primary key; add one, or write option 'key' or 'mode: append'"
                )
            self._tables[name] = table
        return table

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raises the project's errors for the database's (SEMANTICS T6); those of SQLAlchemy as `sql_errors` does."""
        from conduit_tasks.connectors.sql.errors import of_the_rows, refused, translated

        psycopg2 = library()
        where = f"postgres table {self.settings['table']}"
        try:
            with translated(where):
                yield
        except psycopg2.Error as error:
            if isinstance(error, psycopg2.IntegrityError | psycopg2.DataError) or of_the_rows(error):
                raise refused(error)(f"{where}: {said(error)}") from error
            if isinstance(error, psycopg2.errors.UndefinedTable | psycopg2.errors.UndefinedColumn):
                raise Unavailable(f"{where}: changed meanwhile: {said(error)}") from error
            if isinstance(error, psycopg2.ProgrammingError):
                raise ConfigError(f"{where}: {said(error)}; fix the table, the rights or the options") from error
            raise Unavailable(f"{where}: {said(error)}") from error
