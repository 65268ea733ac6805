"""`postgres` as a destination: one transaction per write, with the change of a table that it needs (`schema: evolve`),
limits of time, and the meaning of errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.connectors.connection import POSTGRES
from conduit_tasks.connectors.postgres.client import checked_url, connect, library, said
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.sql.options import TRANSACTIONS
from conduit_tasks.connectors.table_destination import OPTIONS, TableDestination, table_option
from conduit_tasks.connectors.tables import EVOLVE, FREEZE, QUARANTINE, no_column, schema_option
from conduit_tasks.errors import ConfigError, DoesNotFit, RecordError, Refused, Unavailable
from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    from conduit_tasks.connectors.postgres.apply import Apply


class PostgresDestination(TableDestination):
    """Rows of PostgreSQL's tables, see `TableDestination`."""

    engine = "postgresql+psycopg2"
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
            table_option("schema"),
            *OPTIONS,
            schema_option(FREEZE),
            *TRANSACTIONS,
        ),
        connection=POSTGRES,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._url = checked_url(self.settings["url"])
        self._evolves = self.settings["schema"] == EVOLVE
        self.quarantine = self.settings["schema"] == QUARANTINE
        if self._ignore and self._evolves:
            raise ConfigError("postgres: with 'schema: evolve' no field is unknown; leave out 'unknown-fields: ignore'")

    def open(self, state: dict[str, Any] | None) -> None:
        library()
        super().open(state)

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

    def _connect(self) -> Any:
        from conduit_tasks.connectors.postgres.values import SETTINGS

        connection = connect(self._url)
        with connection.cursor() as cursor:
            # Ends the statement before the process is ended because its write takes too long.
            limit, lock = int(900 * self.limit), int(1000 * self._lock_timeout)
            cursor.execute(f"{SETTINGS}; SET lock_timeout = {lock}; SET statement_timeout = {limit}")
        connection.commit()
        return connection

    def _described(self, raw: Any, name: str) -> Any:
        from conduit_tasks.connectors.postgres.tables import described

        return described(raw, name if "." in name else f"public.{name}")

    def _unknown(self, names: list[str]) -> Refused:
        return no_column(names, "" if self._evolves else " or 'unknown-fields: ignore'")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raises the project's errors for the database's (SEMANTICS T6); those of SQLAlchemy as `sql.errors` does."""
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
