"""Writing part files, in executors: each attempt uses names of its own; a file is visible only once it is complete."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_tasks.errors import InvariantBroken
from conduit_tasks.record.batches import cut
from conduit_tasks.record.schema import SPOOL_SCHEMA
from conduit_tasks.settings import settings
from conduit_tasks.spool.manifest import PartFile
from conduit_tasks.spool.store import Sink, Store

ROW_GROUP = 65_536
"""Limit of rows in a row group; it also has at most CONDUIT_BATCH_BYTES bytes, unless a single row is larger. A reader
holds one row group in memory, and skips one without a matching row."""

_DICTIONARY = ["slice", "ord", "operation", "shape", "metadata.key_value.key", "metadata.key_value.value"]
"""Columns with repeated values. Payloads and positions have none: a dictionary for them cost 8 % and gained nothing."""


class Writer:
    """Writer of the part files of one attempt (`token`) of one node."""

    def __init__(self, store: Store, folder: str, explain: Callable[[str, OSError], Exception]) -> None:
        self._store, self._folder, self._explain = store, folder, explain

    def part(self, k: int, schema_extra: Sequence[str] = ()) -> PartWriter:
        """Opens part `k`, with a boolean column `to.<destination>` for each of `schema_extra`. Rows must be sorted."""
        extra = [pa.field(f"to.{destination}", pa.bool_()) for destination in schema_extra]
        return self._open(f"part-{k:05d}", pa.schema([*SPOOL_SCHEMA, *extra]), ordered=True)

    def nacked(self, k: int, schema: pa.Schema) -> PartWriter:
        """Opens the file for rows of part `k` that failed, in any order. `schema`: SPOOL_SCHEMA and columns for the
        error."""
        return self._open(f"nacked-{k:05d}", schema, ordered=False)

    def _open(self, stem: str, schema: pa.Schema, ordered: bool) -> PartWriter:
        # Spark may run a task twice under one token: a unique name keeps the second from changing files that the first
        # has already reported (invariant 6).
        path = f"{self._folder}/{stem}-{secrets.token_hex(4)}.parquet"
        try:
            return PartWriter(self._store.create(path), path, schema, ordered, self._explain)
        except OSError as e:
            raise self._explain(path, e) from e


class PartWriter:
    """One Parquet file that is being written. Ends with `close` or `abort`; after an error nothing is left behind."""

    def __init__(
        self, sink: Sink, path: str, schema: pa.Schema, ordered: bool, explain: Callable[[str, OSError], Exception]
    ) -> None:
        self._sink, self.path, self._schema, self._explain = sink, path, schema, explain
        self._ordered, self._rows = ordered, 0
        self._first: tuple[int, int, int] | None = None
        self._last: tuple[int, int, int] | None = None
        self._parquet = pq.ParquetWriter(
            sink,
            schema,
            compression="lz4",
            use_dictionary=_DICTIONARY,
            write_statistics=["slice", "n"],
            column_encoding={"n": "DELTA_BINARY_PACKED"},
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows. Raises SpoolError (a full disk, …), or InvariantBroken if rows are not in order."""
        if not batch.num_rows:
            return
        if batch.schema != self._schema:
            batch = batch.select(self._schema.names).cast(self._schema)
        with self._whole():
            self._number(batch)
            for part in cut(batch, settings().batch_bytes):
                self._parquet.write_batch(part, row_group_size=ROW_GROUP)
        self._rows += batch.num_rows

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Leaves nothing of the file behind if the block fails. An OSError is raised as SpoolError."""
        try:
            yield
        except OSError as e:
            self.abort()
            raise self._explain(self.path, e) from e
        except BaseException:
            self.abort()
            raise

    def _number(self, batch: pa.RecordBatch) -> None:
        slices, numbers, ords = (batch.column(name).to_numpy() for name in ("slice", "n", "ord"))
        ends = [(int(slices[i]), int(numbers[i]), int(ords[i])) for i in (0, -1)]
        if self._ordered:
            same = slices[1:] == slices[:-1]
            rising = (slices[1:] > slices[:-1]) | (
                same & ((numbers[1:] > numbers[:-1]) | ((numbers[1:] == numbers[:-1]) & (ords[1:] > ords[:-1])))
            )
            if not rising.all() or (self._last is not None and ends[0] <= self._last):
                raise InvariantBroken(
                    f"C9: rows of {self.path} are not sorted by (slice, n, ord), or one is there twice; "
                    "a processor that reorders or repeats records must number them"
                )
        self._first = self._first or ends[0]
        self._last = ends[1]

    def close(self) -> PartFile:
        """Makes the file durable under its name. Raises SpoolError."""
        with self._whole():
            self._parquet.close()
            self._sink.commit()
        return PartFile(
            self.path,
            self._rows,
            self._sink.size,
            self._sink.crc,
            self._first[:2] if self._first else None,
            self._last[:2] if self._last else None,
        )

    def abort(self) -> None:
        """Leaves no file. Harmless after `close` or another `abort`."""
        self._sink.abort()
        # An unclosed Parquet writer would write its footer when it is garbage collected.
        self._parquet.is_open = False
