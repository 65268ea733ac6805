"""`delta` as a destination: makes the table, adds columns before the rows, and commits once per write, with the number
of the last row, so that rows that come again are left out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.connection import STORE
from conduit_tasks.connectors.delta.columns import add, fitted, known_of, new_fields, untyped, whole
from conduit_tasks.connectors.delta.storage import check_storage, storage_options, table_uri
from conduit_tasks.connectors.delta.widen import REWRITE_UP_TO, NotRewritten, Widening, breaks_constraint
from conduit_tasks.connectors.rows import RowNumbers, Rows, ShardName
from conduit_tasks.connectors.tables import (
    EVOLVE,
    PARTITION_BY,
    QUARANTINE,
    ROWS,
    ROWS_PER_COMMIT,
    SCHEMA,
    Conflict,
    again,
    grows,
)
from conduit_tasks.errors import ConfigError, DoesNotFit, Refused, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa


NOT_WIDENED = (
    "new fields get columns, but no column is widened: the table would have to be rewritten. A value that its "
    "column is too narrow for is a dead letter of class schema"
)


LOOKS = 3
"""Looks at the columns in one attempt at a write: before new ones are added, after that, and one that is spare."""
REWRITING = 0.7
"""Share of the time of a write in which the rows of a table have to be rewritten."""


class DeltaDestination(BatchDestination):
    """Stores the number of the last row in the commit of the rows, as `txn` of its own application id (Delta protocol,
    "Transaction identifiers"): a repeated write is skipped, and only one of two writers commits (B8, O5).

    A shard (`delivery.parallelism`) has two application ids of its own: `conduit/<pipeline>/<destination>/<shard>/seal`
    says of which micro-batch its last commit was, `…/<shard>/records` how far in it. If others changed the table at the
    same moment, the commit is made again.
    """

    effectively_once = True
    keeps_index = True
    forks = False
    """The library's threads do not exist in a fork, and it refuses to go on."""

    spec = Spec(
        "delta",
        "Appends records to a Delta table.",
        (
            Option("path", "the table: a folder, relative to home, or a URI (s3://…); created if it is not there"),
            ROWS,
            PARTITION_BY,
            SCHEMA,
            REWRITE_UP_TO,
            ROWS_PER_COMMIT,
            Option("storage.*", "an option of the object store, such as storage.AWS_REGION", secret=True),
        ),
        connection=STORE,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        check_storage(self.settings)
        if not self.settings.get("path", "").strip():
            raise ConfigError("delta: option 'path' is missing: the table")
        self.chunk = options.integer(self.settings, "rows-per-commit", least=1)  # type: ignore[misc]  # its own
        self._by = options.words(self.settings, "partition-by")
        self.quarantine = self.settings["schema"] == QUARANTINE
        self._widening = Widening(self.settings)
        self._until = 0.0
        self._table: Any = None

    @classmethod
    def unkept(cls, settings: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
        name = REWRITE_UP_TO.name
        if settings.get("schema") != EVOLVE:
            said = "no column is widened, as that is what schema: evolve does", "write schema: evolve, or leave it out"
            return {name: said} if name in settings else {}
        hint = f"write schema: merge, which is the same; or a size that {name} allows"
        return {"schema": (NOT_WIDENED, hint)} if _never(settings) else {}

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        return ""

    def open(self, state: dict[str, Any] | None) -> None:
        from conduit_tasks.connectors.delta.log import library

        self._uri, self._options = table_uri(self.settings["path"]), storage_options(self.settings) or None
        deltalake = library()
        try:
            self._table = self._loaded()
        except deltalake.exceptions.TableNotFoundError:
            self._table = None
        except (OSError, deltalake.exceptions.DeltaError) as error:
            raise self._unavailable(error) from None

    def _loaded(self) -> Any:
        from conduit_tasks.connectors.delta.log import library

        return library().DeltaTable(self._uri, storage_options=self._options)

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Makes one commit. Raises Refused, Unavailable."""
        from conduit_tasks.connectors.arrow_rows import written_rows

        table = written_rows(rows, self.settings["rows"])
        self._until = time.monotonic() + REWRITING * self.limit
        for attempt in again(self.limit):
            with attempt:
                if attempt.retry_state.attempt_number > 1:
                    # Columns that another writer added, or a commit of an earlier attempt at this one, are seen then.
                    self.open(None)
                self._append(rows, table)
        return None

    def _append(self, rows: Rows, table: pa.Table) -> None:
        """Commits the rows that are not there yet. Raises Refused, Unavailable."""
        if self._table is None:
            self._create(self._fitting(table))
        for _ in range(LOOKS):
            had, transactions = self._advanced(rows)
            if had == table.num_rows:
                return
            fitting = self._fitting(table.slice(had))
            if not self._add_columns(fitting):
                return self._commit(fitting, transactions)
            # Others may have come before the new columns: with these rows (an earlier attempt), or with other types.
        raise Conflict(f"delta: others take columns of {self._uri} away")

    def _advanced(self, rows: Rows) -> tuple[int, list[Any]]:
        """Returns the number of rows that the table has already, and the transactions that record the others."""
        if rows.numbers is not None:
            had, transaction = self._advance(rows.numbers)
            return had, [transaction]
        return self._advance_shard(self.shard, rows) if self.shard is not None else (0, [])

    def _advance(self, numbers: RowNumbers) -> tuple[int, Any]:
        from conduit_tasks.connectors.delta.log import library

        application = f"conduit/{numbers.pipeline}/{numbers.destination}/{numbers.epoch}"
        had, last = numbers.received(self._table.transaction_version(application) or 0)
        return had, library().Transaction(application, last)

    def _advance_shard(self, shard: ShardName, rows: Rows) -> tuple[int, list[Any]]:
        """As `_advance`, for rows of a shard, by their seqs."""
        from conduit_tasks.connectors.delta.log import library

        transaction, seqs = library().Transaction, rows.seqs
        assert seqs is not None
        of = f"conduit/{self.pipeline}/{self.connector}/{shard}"
        seal, records = f"{of}/seal", f"{of}/records"
        had = 0
        if self._table.transaction_version(seal) == rows.seal:
            had = int((seqs < (self._table.transaction_version(records) or 0)).sum())
        return had, [transaction(seal, rows.seal), transaction(records, rows.last + 1)]

    def _fitting(self, table: pa.Table) -> pa.Table:
        """Returns the rows in the table's own types, with columns, and fields within them, for what is new. What has no
        value yet has no type either, and is left out. If a column is too narrow, and every row fits otherwise, the
        table is rewritten. Raises Refused, Unavailable."""
        import pyarrow as pa

        if self._table is None:
            return fitted(table, pa.schema([]), grows=True)
        known = known_of(self._table)
        wide = self._widening.wider(known, table)
        may = grows(self.settings)
        if wide == known:
            return fitted(table, known, grows=may)
        if not (why := self._widening.refuses(self._table)):
            rows = fitted(table, wide, grows=True)
            # Invariant 4, as at a commit: it is looked at again when the rows are written.
            self.still_ours()
            try:
                self._widening.rewrite(self._table, wide, self._until, self.still_ours)
                return rows
            except NotRewritten as error:
                why = str(error)
            except Unavailable as error:
                raise type(error)(self._hidden(str(error))) from None
        try:
            return fitted(table, known, grows=may)
        except DoesNotFit as error:
            said = self._hidden(f"{error}. The table is not rewritten for wider columns: {why}")
            raise DoesNotFit(said) from None

    def _create(self, table: pa.Table) -> None:
        """Creates the table with these columns and no row, or loads the one that another writer created meanwhile. In
        either case the number of its last row is read before any is added, so that two writers that both found no
        table do not both write the same rows."""
        from conduit_tasks.connectors.delta.log import library

        deltalake = library()
        self.still_ours()
        try:
            with suppress(deltalake.exceptions.CommitFailedError):  # created at the same moment
                deltalake.write_deltalake(
                    self._uri, table.slice(0, 0), mode="ignore", partition_by=self._by, storage_options=self._options
                )
            self._table = self._loaded()
        except (OSError, deltalake.exceptions.DeltaError) as error:
            raise self._unavailable(error) from None

    def _add_columns(self, rows: pa.Table) -> bool:
        """Adds what the rows have and the table does not have; returns whether there was anything. The table is then
        looked at again, with what others committed. Raises Unavailable."""
        from conduit_tasks.connectors.delta.log import library

        new = new_fields(known_of(self._table), rows.schema)
        if not new:
            return False
        # Invariant 4, as at a commit.
        self.still_ours()
        deltalake = library()
        try:
            add(self._table, new)
            self._table = self._loaded()
        except deltalake.exceptions.CommitFailedError as error:
            raise Conflict(str(self._unavailable(error))) from None
        except (OSError, deltalake.exceptions.DeltaError) as error:
            raise self._unavailable(error) from None
        return True

    def _commit(self, table: pa.Table, transactions: list[Any]) -> None:
        import pyarrow as pa

        from conduit_tasks.connectors.delta.log import library

        deltalake = library()
        known = known_of(self._table)
        # Invariant 4: a worker that lost the lease meanwhile does not commit (the txn covers what this check cannot).
        self.still_ours()
        try:
            deltalake.write_deltalake(
                self._table,
                whole(table, known),
                mode="append",
                schema_mode="merge" if untyped(pa.struct(known), pa.struct(table.schema)) else None,
                commit_properties=deltalake.CommitProperties(app_transactions=transactions or None),
            )
        except deltalake.exceptions.SchemaMismatchError as error:
            raise DoesNotFit(f"the rows do not fit the table: {error}") from None
        except deltalake.exceptions.CommitFailedError as error:
            raise Conflict(str(self._unavailable(error))) from None
        except (OSError, deltalake.exceptions.DeltaError) as error:
            if breaks_constraint(error):
                raise Refused("a row breaks a constraint of the table (CHECK, or NOT NULL within a column)") from None
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(f"delta: {self._uri} cannot be written: {self._hidden(str(error))}")

    def _hidden(self, text: str) -> str:
        """Returns a text in one line, without values of the options of the store."""
        said = " ".join(text.split())
        for name, value in (self._options or {}).items():
            if len(value) > 3 and "REGION" not in name.upper():
                said = said.replace(value, "…")
        return said

    def close(self) -> None:
        self._table = None


def _never(settings: Mapping[str, str]) -> bool:
    """Returns whether no table is rewritten, whatever its size."""
    try:
        return not options.size(settings, REWRITE_UP_TO.name, least=0) if REWRITE_UP_TO.name in settings else False
    except ConfigError:
        return False
