"""`iceberg` as a destination: makes the table, and appends rows, or replaces and deletes them by key, in one commit per
write, which is tried again after another writer's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.connection import ICEBERG
from conduit_tasks.connectors.iceberg import catalog
from conduit_tasks.connectors.iceberg.marks import Mark, mark_of
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.tables import PARTITION_BY, QUARANTINE, ROWS, ROWS_PER_COMMIT, SCHEMA, again
from conduit_tasks.errors import ConfigError, Refused

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.record.record import Record


class IcebergDestination(BatchDestination):
    """Sets the number of the last row in the commit of the rows, as a property of the table (`marks`): rows that come
    again are left out, and a commit is valid only on the table as it was read, so of two writers one commits (B8, O5).

    A shard (`delivery.parallelism`) has a property of its own: of which micro-batch its last commit was, and how far in
    it. If others changed the table at the same moment, the commit is made again.
    """

    effectively_once = True
    keeps_index = True
    forks = False
    """Threads of Arrow's clients of object stores do not exist in a fork."""

    spec = Spec(
        "iceberg",
        "Appends records to an Iceberg table, or upserts and deletes its rows by key.",
        (
            Option(
                "table",
                "namespace and name of the table, such as sales.orders; both are created if they are not there",
                required=True,
                example="x.y",
            ),
            Option(
                "catalog.*",
                "a property of pyiceberg's catalog: uri, type (rest, sql), warehouse, credential, s3.region, …; and "
                "name, by default `default`",
                secret=True,
            ),
            Option(
                "mode",
                "append: insert only; upsert: one row per key, deletes are applied",
                default="append",
                choices=("append", "upsert"),
            ),
            Option(
                "key", "columns that tell rows apart (upsert), comma-separated; default: the table's identifier fields"
            ),
            ROWS,
            PARTITION_BY,
            Option("properties.*", "a property of a new table, such as properties.write.parquet.compression-codec"),
            SCHEMA,
            ROWS_PER_COMMIT,
        ),
        connection=ICEBERG,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        catalog.check_catalog(self.settings)
        parts = self.settings["table"].strip().split(".")
        if len(parts) < 2 or not all(part.strip() for part in parts):
            raise ConfigError("iceberg: option 'table' must be a namespace and a name, such as sales.orders")
        self._name = tuple(parts)
        self.chunk = options.integer(self.settings, "rows-per-commit", least=1)  # type: ignore[misc]  # its own
        self._by = options.words(self.settings, "partition-by")
        self._key = options.words(self.settings, "key")
        self._upserts = self.settings["mode"] == "upsert"
        if self._key and not self._upserts:
            raise ConfigError("iceberg: option 'key' is of no use with 'mode: append'; write 'mode: upsert'")
        if self._upserts and self.settings["rows"] == "opencdc":
            raise ConfigError("iceberg: option 'rows' must be payload with 'mode: upsert': whole records are appended")
        self.quarantine = self.settings["schema"] == QUARANTINE
        self._catalog: Any = None
        self._table: Any = None

    @classmethod
    def idempotent(cls, settings: Mapping[str, str]) -> bool:
        return settings.get("mode", "append") == "upsert"

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        return (
            "an upsert writes files again that other tasks would write again, too" if cls.idempotent(settings) else ""
        )

    def open(self, state: dict[str, Any] | None) -> None:
        """Loads the table, if it is there. There is no state to restore: what was not committed is in no snapshot."""
        catalog.check_installed()
        try:
            with self._translated():
                if self._catalog is None:
                    self._catalog = catalog.loaded(self.settings)
                self._load()
        except Refused as error:
            # There are no rows yet that could be refused.
            raise ConfigError(f"{error}; correct options 'catalog.*' or 'table'") from None

    def _load(self) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        self._table = None
        with suppress(NoSuchTableError):
            self._table = self._catalog.load_table(self._name)

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Makes one commit. Raises Refused, Unavailable, ConfigError."""
        records = rows.records()
        for attempt in again(self.limit):
            with attempt, self._translated():
                if attempt.retry_state.attempt_number > 1:
                    # Columns that another writer added, or a commit of an earlier attempt at this one, are seen then.
                    self._load()
                self._commit(rows, records)
        return None

    def _commit(self, rows: Rows, records: list[Record]) -> None:
        """Commits the rows that are not there yet."""
        from conduit_tasks.connectors.iceberg.commit import Commit

        first = self._first_rows(records)
        if self._table is None and first is not None:
            self._create(first)
        if self._table is None:
            return
        mark = self._mark(rows, self._table.properties)
        if not records[mark.had :]:
            return

        def again(properties: Mapping[str, str]) -> bool:
            self.still_ours()
            return not self._upserts and self._mark(rows, properties).had == mark.had

        commit = Commit(self._table, again)
        (self._upsert if self._upserts else self._append)(commit, records[mark.had :], mark)
        if commit.empty:
            return
        if mark.name:
            commit.set_properties(mark.properties)
        # Invariant 4: a worker that lost the lease meanwhile does not commit (the mark covers what this check cannot).
        self.still_ours()
        commit.commit_transaction()

    def _mark(self, rows: Rows, properties: Mapping[str, str]) -> Mark:
        return mark_of(rows, self.shard, f"{self.pipeline}/{self.connector}", properties)

    def _append(self, commit: Any, records: list[Record], mark: Mark) -> None:
        from conduit_tasks.connectors.arrow_rows import table_of

        commit.append(self._fitted(commit, table_of(records, self.settings["rows"])), mark.properties)

    def _upsert(self, commit: Any, records: list[Record], mark: Mark) -> None:
        """Removes the rows of every key that is changed, and adds those that are left of the changes, in one commit."""
        import warnings

        import pyarrow as pa

        from conduit_tasks.connectors.arrow_rows import table_of
        from conduit_tasks.connectors.iceberg import changes as of
        from conduit_tasks.connectors.iceberg.columns import fitted

        names = self._key_of(self._table.schema())
        changes = [of.change_of(record, names) for record in records]
        written = [of.row_of(change.row, names) for change in changes if change.row is not None]
        new = self._fitted(commit, table_of(written, "payload")) if written else None
        schema = commit.table_metadata.schema()
        of.check_key(names, schema)
        folded = of.fold(changes, names, schema)
        if new is not None:
            new = new.take(folded.rows)
        if self._table.current_snapshot() is not None:
            where = of.ALL if folded.all else of.around(folded.keys, names)
            if len(names) > 1 and not folded.all:
                # The filter finds other rows as well, which are written again.
                found = of.others(self._table.scan(row_filter=where).to_arrow(), folded.keys, names)
                if found.num_rows:
                    found = fitted(schema, found)
                    new = found if new is None else pa.concat_tables([found, new], promote_options="default")
            with warnings.catch_warnings():
                # It warns if no row is found.
                warnings.simplefilter("ignore", UserWarning)
                commit.delete(where, mark.properties)
        if new is not None and new.num_rows:
            commit.append(new, mark.properties)

    def _fitted(self, commit: Any, table: pa.Table) -> pa.Table:
        """Returns rows in the types of the table, whose new columns are part of the commit. Raises Refused."""
        from conduit_tasks.connectors.iceberg import columns

        columns.grow(commit, table, self.settings)
        return columns.fitted(commit.table_metadata.schema(), table)

    def _key_of(self, schema: Any) -> list[str]:
        names = self._key or sorted(schema.identifier_field_names())
        if not names:
            raise ConfigError("iceberg: option 'key' is missing: the table has no identifier fields")
        return names

    def _first_rows(self, records: list[Record]) -> pa.Table | None:
        """Returns rows for the columns of a table that is not there; None if it is, or if nothing is to be written."""
        if self._table is not None:
            return None
        from conduit_tasks.connectors.arrow_rows import table_of

        if not self._upserts:
            return table_of(records, self.settings["rows"])
        if not self._key:
            raise ConfigError("iceberg: option 'key' is missing: the columns that tell the rows of a new table apart")
        from conduit_tasks.connectors.iceberg import changes as of

        changes = [of.change_of(record, self._key) for record in records]
        rows = [of.row_of(change.row, self._key) for change in changes if change.row is not None]
        return table_of(rows, "payload") if rows else None

    def _create(self, table: pa.Table) -> None:
        """Creates the table with these columns and no row, or loads the one that another writer created meanwhile. In
        either case the number of its last row is read before any is added, so that two writers that both found no
        table do not both write the same rows."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        from conduit_tasks.connectors.iceberg.columns import new_schema

        schema, partitions = new_schema(table, self._key, self._by)
        prefix = "properties."
        properties = {n.removeprefix(prefix): v for n, v in self.settings.items() if n.startswith(prefix)}
        self.still_ours()
        for depth in range(1, len(self._name)):
            catalog.create_namespace(self._catalog, self._name[:depth])
        with suppress(TableAlreadyExistsError):  # created at the same moment
            self._catalog.create_table(self._name, schema, partition_spec=partitions, properties=properties)
        self._load()

    def _hide(self, text: str) -> str:
        return catalog.secrets_of(self.settings)(text)

    def _translated(self) -> Any:
        return catalog.translated(self.settings["table"], self._hide)

    def close(self) -> None:
        self._table = None
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None
