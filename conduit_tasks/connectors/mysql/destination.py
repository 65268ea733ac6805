"""`mysql` as a destination: a session in strict mode, one transaction per write, which is made again after a deadlock,
and the meaning of errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.connectors.connection import MYSQL
from conduit_tasks.connectors.mysql import client
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.sql.options import TRANSACTIONS
from conduit_tasks.connectors.table_destination import OPTIONS, TableDestination, table_option
from conduit_tasks.connectors.tables import Conflict, again
from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.record.record import Record

_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
"""sql_mode of every write: nothing is cut to fit, 0 is no new number, a zero date is what it is."""
_WARNS = "sql_notes = 1, max_error_count = 65535"
"""Every warning is told: a statement of many rows may have more than the 64 (MySQL 8: 1,024) that a server keeps."""


class MysqlDestination(TableDestination):
    """Rows of MySQL's and MariaDB's tables, see `TableDestination`."""

    engine = "mysql+pymysql"
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
            table_option("database"),
            *OPTIONS,
            *TRANSACTIONS,
        ),
        connection=MYSQL,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._server = client.server(self.settings["url"])
        self._packet = 0

    def open(self, state: dict[str, Any] | None) -> None:
        client.library()
        super().open(state)

    def _opened(self, raw: Any) -> None:
        with raw.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            self._packet = int(cursor.fetchone()[0])

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

    def _connect(self) -> Any:
        from pymysql.constants import CLIENT

        # Ends the statement before the process is ended because its write takes too long. An update counts rows that it
        # found, also if they had these values.
        limit = 0.9 * self.limit
        connection = self._server.connect(limit, autocommit=False, client_flag=CLIENT.FOUND_ROWS, sql_mode=_MODE)
        with connection.cursor() as cursor:
            client.limit_statements(cursor, limit)
            seconds = max(1, round(self._lock_timeout))
            cursor.execute(f"SET innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}, {_WARNS}")
        return connection

    def _described(self, raw: Any, name: str) -> Any:
        from conduit_tasks.connectors.mysql.tables import described, parted

        table = described(raw, *parted(name, self._server.database))
        if not table.transactions:
            raise ConfigError(
                f"mysql: table {name} has an engine without transactions, so a write could be there in part; "
                f"ALTER TABLE {name} ENGINE = InnoDB"
            )
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
