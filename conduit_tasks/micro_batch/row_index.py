"""The index of a part file, written by the pass that writes the file: by it records are found later."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from conduit_tasks.record.sought import Columns
from conduit_tasks.spool import index
from conduit_tasks.spool.index import IndexWriter, path_of

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.micro_batch.pass_plan import Pass
    from conduit_tasks.record.record import Origin
    from conduit_tasks.spool.spool import Spool

log = logging.getLogger(__name__)


class RowIndex:
    """Index of the fields that the pipeline file names, of a part that is not small (`index.LEAST`). A part without its
    index is searched row by row, so an index that cannot be written stops nothing: it is left out, and logged."""

    def __init__(self, plan: Pass, spool: Spool, origins: Sequence[Origin]) -> None:
        self._fields, self._store = plan.index, spool.store
        self._columns = Columns(plan.index, origins)
        self._writer: IndexWriter | None = None
        self._given_up = False
        self._rows = 0
        self._held: list[tuple[int, Any]] = []
        """Rows that come before the part is known not to be small."""

    def add(self, batch: pa.RecordBatch, part: str) -> None:
        """Adds rows that were added to a part file. `part`: its path."""
        if self._given_up:
            return
        self._rows += batch.num_rows
        try:
            self._held.append((batch.num_rows, self._columns.of(batch)))
            if self._rows < index.LEAST:
                return
            if self._writer is None:
                self._writer = IndexWriter(self._store.create(path_of(part)), self._fields)
            for rows, columns in self._held:
                self._writer.add(rows, columns)
        except (OSError, ValueError) as error:  # a text that says that it is JSON, and is not
            self._give_up(error)
        self._held.clear()

    def close(self) -> None:
        """Makes the index visible, after the part."""
        if self._writer is None or self._given_up:
            return
        try:
            self._writer.close()
        except OSError as error:
            self._give_up(error)

    def abort(self) -> None:
        """Leaves no index."""
        if self._writer is not None:
            self._writer.abort()

    def _give_up(self, error: Exception) -> None:
        self._given_up = True
        self.abort()
        log.warning("an index of records cannot be written (%s); they are searched without it", error)
