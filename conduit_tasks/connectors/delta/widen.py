"""Wider columns of a Delta table: whether it may be rewritten for them, and how that is done and given up. The
library changes no type in place, so the table is rewritten, in one commit that is valid only on the version that was
read."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option
from conduit_tasks.connectors.tables import EVOLVE, Conflict
from conduit_tasks.errors import Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.column_types import ColumnType

REWRITE_UP_TO = Option(
    "rewrite-up-to",
    "with schema: evolve, size of a table (its files) up to which it is rewritten for wider columns; 0: none is",
    default="1GiB",
)
TIMES = 3
"""Limit of the times that others may come before the commit of a table that was rewritten, per micro-batch."""
MOST_PARTITIONS = 64
"""Limit of the partitions of a table that is rewritten: the library holds a file of each in memory, 5 to 10 MB."""
BUFFERED = 256 << 20
"""Bytes of the files that are under way, of all partitions."""
AHEAD = 4
"""Limit of the batches that are read and not written yet."""
STOP = 5.0
"""Seconds to wait for the thread that reads, at the end."""
_FEATURES = {"appendOnly", "invariants", "checkConstraints", "timestampNtz", "changeDataFeed", "generatedColumns"}
"""Features of a table that a rewritten table keeps, or that `_unkept` looks at."""
_DIGITS = 38
"""Limit of the digits of a decimal."""
_INVALID = "Invalid data found"
"""How the library says that rows break a constraint: it has no error of its own for that."""


def breaks_constraint(error: BaseException) -> bool:
    """Returns whether an error says that a row breaks a constraint."""
    return _INVALID in str(error)


class NotRewritten(Exception):
    """The table stays as it is; says why."""


class Widening:
    """Rewrites a table for wider columns, as far as the options say; of one destination."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._most = options.size(settings, REWRITE_UP_TO.name, least=0) if settings["schema"] == EVOLVE else 0
        self._wanted = settings["schema"] == EVOLVE
        self._lost = 0
        self._gave_up = ""

    def wider(self, known: pa.Schema, rows: pa.Table) -> pa.Schema:
        """Returns the columns, with wider types for those that are too narrow for a value of these rows."""
        import pyarrow as pa

        from conduit_tasks.connectors.arrow_fit import too_narrow, with_types

        if not self._wanted:
            return known
        fields = {field.name: field for field in known}
        for name in set(known.names).intersection(rows.column_names):
            of = fields[name].type
            found = {path: _arrow(type_) for path, type_ in too_narrow((), of, rows.column(name), _may)}
            fields[name] = fields[name].with_type(with_types(of, found))
        return pa.schema(list(fields.values()))

    def refuses(self, table: Any) -> str:
        """Returns why the table is not rewritten; "": it may be."""
        import pyarrow as pa

        if self._gave_up:
            return self._gave_up
        if not self._most:
            return f"{REWRITE_UP_TO.name} is 0; raise it, or rewrite the table with wider columns"
        if said := _unkept(table):
            return f"it {said}, which a table rewritten here would not keep; widen its columns by another program"
        files = pa.table(table.get_add_actions(flatten=False))
        size = sum(files.column("size_bytes").to_pylist())
        if size > self._most:
            return (
                f"its files have {size} bytes, and {REWRITE_UP_TO.name} is {self._most}; raise that, or rewrite the "
                "table with wider columns"
            )
        if _partitions(files) > MOST_PARTITIONS:
            return f"it has more than {MOST_PARTITIONS} partitions; rewrite it with wider columns"
        return ""

    def rewrite(self, table: Any, wide: pa.Schema, until: float, still_ours: Callable[[], None]) -> None:
        """Rewrites the table in one commit, which holds no other change. Raises NotRewritten, Conflict, Unavailable.

        `until`: when it has to be written (time.monotonic()). `still_ours` is called when all rows are written, before
        the commit.
        """
        import pyarrow as pa

        from conduit_tasks.connectors.delta.log import REWRITTEN, library

        deltalake = library()
        ahead: _Ahead | None = None
        try:
            files = pa.table(table.get_add_actions(flatten=False))
            # It reads the files of this version only.
            ahead = _Ahead(_batches(table.to_pyarrow_dataset(), wide, until, still_ours), until)
            deltalake.write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(wide, ahead),
                mode="overwrite",
                schema_mode="overwrite",
                target_file_size=_target(table, files),
                # No retry: with one the library would commit on top of rows that others added meanwhile, if it took
                # them for no conflict. Without, the commit is that of the version after the one that was read.
                commit_properties=deltalake.CommitProperties(
                    max_commit_retries=0, custom_metadata={REWRITTEN: "wider columns"}
                ),
            )
        except Exception as error:  # noqa: BLE001 - of any library that reads or writes; it is raised again
            self._translate(ahead.error if ahead is not None and ahead.error is not None else error)
        finally:
            if ahead is not None:
                ahead.stop()

    def _translate(self, error: BaseException) -> NoReturn:
        from conduit_tasks.connectors.delta.log import library

        exceptions = library().exceptions
        if isinstance(error, exceptions.CommitFailedError):
            self._lost += 1
            if self._lost >= TIMES:
                raise self._given_up("others changed it each time before it was written; redrive the letter later")
            raise Conflict(f"delta: another writer came first: {error}") from None
        if isinstance(error, TimeoutError):
            raise self._given_up("it takes too long; raise delivery.timeout, or rewrite the table with wider columns")
        if isinstance(error, exceptions.DeltaProtocolError | exceptions.SchemaMismatchError):
            raise self._given_up(f"the library cannot: {error}")
        if breaks_constraint(error):
            raise self._given_up("rows that it has break a constraint of the table")
        if isinstance(error, Unavailable) or not isinstance(error, OSError | exceptions.DeltaError | ValueError):
            raise error
        raise Unavailable(f"delta: the table cannot be rewritten: {error}") from None

    def _given_up(self, why: str) -> NotRewritten:
        # For each part of the rows it would take as long again.
        self._gave_up = why
        return NotRewritten(why)


def _batches(there: Any, wide: pa.Schema, until: float, still_ours: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Yields the rows in the wider types; asks at last whether they may be committed."""
    import pyarrow as pa

    for batch in there.to_batches(batch_size=32_768, batch_readahead=2, fragment_readahead=1):
        if time.monotonic() > until:
            raise TimeoutError
        columns = zip((batch.column(field.name) for field in wide), wide, strict=True)
        yield pa.RecordBatch.from_arrays(
            [column if column.type == field.type else column.cast(field.type) for column, field in columns],
            schema=wide,
        )
    still_ours()


class _Ahead:
    """Batches that a thread of its own makes: the library asks for them in a thread in which it cannot be called, and
    tells of an error there as text only. `until`: when the last has to be there (time.monotonic())."""

    def __init__(self, batches: Iterator[pa.RecordBatch], until: float) -> None:
        self.error: BaseException | None = None
        self._until = until
        self._made: queue.Queue[pa.RecordBatch | None] = queue.Queue(AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._make, args=(batches,), name="delta-rewrite", daemon=True)
        self._thread.start()

    def _make(self, batches: Iterator[pa.RecordBatch]) -> None:
        try:
            for batch in batches:
                self._put(batch)
                if self._stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self.error = error
        self._put(None)

    def _put(self, batch: pa.RecordBatch | None) -> None:
        while not self._stopped.is_set():
            with suppress(queue.Full):
                return self._made.put(batch, timeout=0.1)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._next()) is not None:
            yield batch
        if self.error is not None:
            raise RuntimeError("the rows cannot be read")  # so that nothing is committed

    def _next(self) -> pa.RecordBatch | None:
        try:
            return self._made.get(timeout=max(self._until - time.monotonic(), 0))
        except queue.Empty:
            self.error = TimeoutError()
            return None

    def stop(self) -> None:
        """Ends the thread. One that is within a read that does not end is left; what it reads goes nowhere."""
        self._stopped.set()
        self._thread.join(timeout=STOP)


def _unkept(table: Any) -> str:
    """Returns what the table has that an overwrite does not keep, or that the library does not write; "" if nothing."""
    had, protocol = table.metadata().configuration, table.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())} - _FEATURES
    if had.get("delta.columnMapping.mode", "none") != "none":
        return "maps its columns"
    if features:
        return f"has features ({', '.join(sorted(features))})"
    if had.get("delta.enableChangeDataFeed", "").lower() == "true":
        return "has a change data feed"
    if had.get("delta.appendOnly", "").lower() == "true":
        return "may only be appended to (delta.appendOnly)"
    marks = [name for field in table.schema().fields for name in field.metadata if name.startswith("delta.")]
    if marks := [name for name in marks if name != "delta.invariants"]:
        return f"has columns that are made by rules ({', '.join(sorted(set(marks)))})"
    return ""


def _partitions(files: pa.Table) -> int:
    """Returns how many partitions the files are in."""
    import pyarrow as pa

    if "partition" not in files.column_names or not pa.types.is_struct(files.schema.field("partition").type):
        return 1
    return len({tuple(row.items()) for row in files.column("partition").to_pylist() if row})


def _target(table: Any, files: pa.Table) -> int | None:
    """Returns the size of the files to write; None: as the table says."""
    many = _partitions(files)
    if many <= 2 or "delta.targetFileSize" in table.metadata().configuration:
        return None
    return BUFFERED // many


def _may(one: ColumnType, other: ColumnType) -> bool:
    """Returns whether one type may become the other. Not a date: a time without a zone is a feature of tables."""
    return other.kind in ("int", "float") or (other.kind == "decimal" and (other.size or 0) <= _DIGITS)


def _arrow(type_: ColumnType) -> pa.DataType:
    import pyarrow as pa

    if type_.kind == "decimal":
        return pa.decimal128(type_.size or 0, type_.scale)
    return pa.int64() if type_.kind == "int" else pa.float64()
