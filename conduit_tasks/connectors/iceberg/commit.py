"""Transaction of an Iceberg table that is valid only on the table as it was read: before the library makes it again
behind others, it is asked whether the rows are there by then."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSchemaUpdate, TableUpdate


class Commit(Transaction):
    """A transaction that is valid only on the table as it was read. The library makes a commit again if others came
    first; here it asks `again` before, with the table's properties by then: if another attempt at the same rows was
    among them, the rows would be there twice (B8, O5)."""

    def __init__(self, table: Table, again: Callable[[Mapping[str, str]], bool]) -> None:
        super().__init__(table)
        self._again = again
        self._made: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the updates so far. The library looks at it some twenty times in a commit, and
        copies all schemas and snapshots of the table each time; here they are copied once per change."""
        table, updates = self._table.metadata, self._updates
        if self._made is None or self._made[0] is not table or self._made[1] is not updates:
            self._made = table, updates, super().table_metadata
        return self._made[2]

    @property
    def empty(self) -> bool:
        """Whether nothing is changed."""
        return not self._updates

    def _rebuild_snapshot_updates(self) -> None:
        columns = any(isinstance(update, AddSchemaUpdate) for update in self._updates)
        if columns or not self._again(self._table.metadata.properties):
            raise CommitFailedException("others came first; the rows are compared with the table again")
        super()._rebuild_snapshot_updates()
