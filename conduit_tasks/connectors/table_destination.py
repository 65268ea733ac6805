"""Base of the destinations `postgres` and `mysql`: table and key of each record, upsert or append, unknown fields, one
transaction per write, rows that come again left out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination, Option
from conduit_tasks.connectors.sql.options import index_table
from conduit_tasks.errors import ConfigError, DoesNotFit, RecordError, Refused
from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    from conduit_tasks.templates.template import Template

OPTIONS = (
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
)


def table_option(place: str) -> Option:
    """Returns the option `table`; `place`: what may stand before a dot."""
    meaning = f"table, optionally with its {place} before a dot; a constant or a template"
    return Option("table", meaning, default='{{ index .Metadata "opencdc.collection" }}')


class TableDestination(BatchDestination):
    """A write is one transaction, in the records' order. If rows are numbered, the last number is stored in it, and
    rows that come again are left out (SEMANTICS B8, O5)."""

    effectively_once = True
    keeps_index = True
    engine: ClassVar[str]
    """Dialect and driver, as SQLAlchemy writes them."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._system = self.spec.name
        try:
            self._template  # noqa: B018 - compiled once, and checked
        except ConfigError as error:
            raise ConfigError(f"{self._system}: option 'table': {error}") from None
        self._key = tuple(options.words(self.settings, "key"))
        self._append = self.settings["mode"] == "append"
        self._ignore = self.settings["unknown-fields"] == "ignore"
        self.chunk = options.integer(self.settings, "chunk", least=1)  # type: ignore[misc]  # its own
        self._lock_timeout = options.duration(self.settings, "lock-timeout")
        self._index_table = index_table(self.settings, self._system)
        self._engine: Any = None
        self._index: Any = None
        self._tables: dict[str, Any] = {}

    @classmethod
    def idempotent(cls, settings: Mapping[str, str]) -> bool:
        return settings.get("mode", "upsert") == "upsert"

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        return ""

    @classmethod
    def in_any_order(cls, settings: Mapping[str, str]) -> bool:
        return settings.get("mode") == "append"

    def open(self, state: dict[str, Any] | None) -> None:
        """Connects, and looks at the table if its name is a constant. There is no state to restore: a transaction that
        was not committed left nothing."""
        import sqlalchemy as sa

        from conduit_tasks.connectors.sql.index import SqlIndex

        self._tables = {}
        if self._engine is None:
            self._engine = sa.create_engine(f"{self.engine}://", creator=self._connect, pool_pre_ping=True)
            schema, name = self._index_table
            self._index = SqlIndex(name, schema, self.engine.partition("+")[0])
        with self._translated(), self._engine.connect() as connection:
            raw = connection.connection.dbapi_connection
            self._opened(raw)
            if self._template.constant is not None:
                self._table(raw, self._template.constant)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _connect(self) -> Any:
        """Returns a connection of the driver."""
        raise NotImplementedError

    def _opened(self, raw: Any) -> None:
        """Looks at the server, once it is connected."""

    def _described(self, raw: Any, name: str) -> Any:
        """Returns a table, with `columns` by name and its primary `key`. Raises ConfigError if there is none."""
        raise NotImplementedError

    def _translated(self) -> AbstractContextManager[None]:
        """Raises the project's errors for the database's (SEMANTICS T6)."""
        raise NotImplementedError

    @property
    def _template(self) -> Template:
        """Template of the table's name. It is cached by `compile`, not here, because it cannot be sent to an
        executor."""
        from conduit_tasks.templates.template import compile

        return compile(self.settings["table"])

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
            raise self._unknown(unknown)
        return name, table, self._key or table.key

    def _unknown(self, names: list[str]) -> Refused:
        """Returns the error of fields that the table has no column for."""
        return DoesNotFit(f"the table has no column {', '.join(names)}; add it, or write 'unknown-fields: ignore'")

    def _table(self, raw: Any, name: str) -> Any:
        table = self._tables.get(name)
        if table is None:
            table = self._described(raw, name)
            if missing := sorted(set(self._key) - table.columns.keys()):
                raise ConfigError(
                    f"{self._system}: table {name} has no column {', '.join(missing)}; change option 'key'"
                )
            if not self._append and not (self._key or table.key):
                raise ConfigError(
                    f"{self._system}: table {name} has no primary key; add one, or write option 'key' or 'mode: append'"
                )
            self._tables[name] = table
        return table
