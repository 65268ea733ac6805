"""Transaction of an Iceberg table that is valid only on the table as it was read: before the library makes it again
behind others, it is asked whether the rows are there by then."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AddSchemaUpdate


class Commit(Transaction):
    """A transaction that is valid only on the table as it was read. The library makes a commit again if others came
    first; here it asks `again` before, with the table's properties by then: if another attempt at the same rows was
    among them, the rows would be there twice (B8, O5)."""

    def __init__(self, table: Table, again: Callable[[Mapping[str, str]], bool]) -> None:
        super().__init__(table)
        self._again = again

    @property
    def empty(self) -> bool:
        """Whether nothing is changed."""
        return not self._updates

    def _rebuild_snapshot_updates(self) -> None:
        columns = any(isinstance(update, AddSchemaUpdate) for update in self._updates)
        if columns or not self._again(self._table.metadata.properties):
            raise CommitFailedException("others came first; the rows are compared with the table again")
        super()._rebuild_snapshot_updates()
