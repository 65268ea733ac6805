"""Storage of the ledger: Parquet files beside the spool's micro-batches, one per delivery attempt, rolled into one for
a day, and removed after their retention.

    <spool>/<pipeline>/ledger/<day>/<micro-batch:010d>@<destination>@<attempt>.parquet
    <spool>/<pipeline>/ledger/<day>/rolled-<micro-batch:010d>-<hex>.parquet     many of them together

Files are written aside, fsynced and renamed. A day that is over is rolled into one file; the day under way is rolled
whenever it has many files. A rolled file is named by its newest micro-batch, and its parts are removed after it is
written. A reader that finds both (a crash in between, two rolls at once) counts an attempt once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conduit_tasks.errors import SpoolError
from conduit_tasks.ledger.entry import SCHEMA
from conduit_tasks.spool.names import names
from conduit_tasks.spool.spool import Spool, folder_name

ROLLED = "rolled-"
FILES, GROUP, ENOUGH = 200, 50_000, 1_000
"""Attempts read at a time, rows of a rolled file read at a time, and number of rows after which the search ends."""
MANY = 1_000
"""Number of attempts from which the day under way is rolled: a pipeline that never rests makes some per second."""
EPOCH = date(1970, 1, 1)
RECENT_DAYS = 3
"""Number of newest days that are checked for rolling: older ones have been rolled already."""


class Ledger:
    """Ledger of one pipeline. Every method raises SpoolError naming the file."""

    def __init__(self, spool: Spool, pipeline: str) -> None:
        self._spool, self._pipeline, self._folder = spool, pipeline, f"{folder_name(pipeline)}/ledger"

    def write(self, entry: pa.Table) -> None:
        """Adds the rows of one attempt; durable on return. Writes nothing if there are none."""
        if not entry.num_rows:
            return
        row = entry.slice(0, 1).to_pylist()[0]
        name = f"{row['micro_batch']:010d}@{quote(row['destination'], safe='-_.')}@{row['attempt']}.parquet"
        self._put(f"{self._folder}/{row['ended'].date()}/{name}", entry)

    def read(
        self, destination: str | None = None, since: float | None = None, micro_batch: int | None = None
    ) -> pa.Table:
        """Returns rows in order of `ended`. `since`: only attempts that ended then or later, seconds since the epoch.
        `destination`: also under the ids that it had before."""
        first = _day(since) if since is not None else None
        ids = None if destination is None else [destination, *names(self._spool, self._pipeline).get(destination, ())]
        tables = [SCHEMA.empty_table()]
        for day in self._days():
            if first is None or day >= first:
                tables += self._read_day(day, ids, micro_batch)
        found = _chosen(pa.concat_tables(tables), ids, since, micro_batch)
        return found.sort_by([("ended", "ascending"), ("micro_batch", "ascending"), ("first", "ascending")])

    def newest(
        self,
        count: int,
        destination: str | None = None,
        since: float | None = None,
        micro_batch: int | None = None,
    ) -> tuple[pa.Table, bool]:
        """Returns at least `count` rows of `read`, or all, newest first (by day, micro-batch and end), and whether
        these are all. Reads no more of the ledger than that takes, some hundred attempts at a time."""
        first = _day(since) if since is not None else None
        ids = None if destination is None else [destination, *names(self._spool, self._pipeline).get(destination, ())]
        tables, rows = [SCHEMA.empty_table()], 0
        for day in reversed(self._days()):
            if first is not None and day < first:
                break
            for table in self._backwards(day, ids, micro_batch):
                if rows >= max(count, ENOUGH):
                    return pa.concat_tables(tables), False
                found = _chosen(table, ids, since, micro_batch)
                order = [("micro_batch", "descending"), ("ended", "descending"), ("first", "descending")]
                tables.append(found.sort_by(order))
                rows += found.num_rows
        return pa.concat_tables(tables), True

    def _backwards(self, day: date, ids: list[str] | None, micro_batch: int | None) -> Iterator[pa.Table]:
        """Yields a day's rows in portions, newest micro-batches first; an attempt in several files only once."""
        seen: set[str] = set()
        listed = [name for name in self._names(day) if _wanted(name, ids, micro_batch)]
        parts = sorted((name for name in listed if not name.startswith(ROLLED)), reverse=True)
        for at in range(0, len(parts), FILES):
            some = [table for name in parts[at : at + FILES] for table in self._part(day, name)]
            tables = [_unseen(table, seen) for table in some]
            seen |= {attempt for table in tables for attempt in pc.unique(table["attempt"]).to_pylist()}
            yield pa.concat_tables([SCHEMA.empty_table(), *tables])
        # Parts that were rolled meanwhile are in a rolled file that is listed now.
        for name in sorted((name for name in self._names(day) if name.startswith(ROLLED)), reverse=True):
            with self._opened(day, name) as file:
                own: set[str] = set()
                for group in reversed(range(file.num_row_groups)):
                    table = _unseen(file.read_row_group(group).select(SCHEMA.names).cast(SCHEMA), seen)
                    own |= set(pc.unique(table["attempt"]).to_pylist())
                    yield table
                seen |= own

    def _part(self, day: date, name: str) -> list[pa.Table]:
        """Reads the file of one attempt; returns [] if it was rolled or removed meanwhile."""
        try:
            with self._opened(day, name) as file:
                return [file.read().select(SCHEMA.names).cast(SCHEMA)]
        except SpoolError:
            if name in self._names(day):
                raise
            return []

    @contextmanager
    def _opened(self, day: date, name: str) -> Iterator[pq.ParquetFile]:
        path = f"{self._folder}/{day}/{name}"
        try:
            with self._spool.store.open(path) as file:
                yield pq.ParquetFile(file)
        except (OSError, KeyError, pa.ArrowException) as error:
            where = self._spool.uri(path)
            raise SpoolError(f"{where} is no file of the ledger ({error}); restore or remove it") from error

    def collect(self, retention: float) -> None:
        """Removes days that ended more than `retention` seconds ago, and rolls the others: days that are over, and the
        day under way if it has many attempts."""
        days = self._days()
        oldest, today = _day(time.time() - retention), _day(time.time())
        for day in days:
            if day < oldest:
                self._spool.remove(f"{self._folder}/{day}")
        for day in days[-RECENT_DAYS:]:
            if oldest <= day < today:
                self._roll(day, self._names(day))
            elif day == today and len(parts := [n for n in self._names(day) if not n.startswith(ROLLED)]) >= MANY:
                # Files rolled before stay as they are: otherwise they would be rewritten again and again.
                self._roll(day, parts)

    def _roll(self, day: date, names: list[str]) -> None:
        if len(names) < 2:
            return
        rows = pa.concat_tables([SCHEMA.empty_table(), *self._tables(day, names)])
        newest = pc.max(rows["micro_batch"]).as_py() or 0
        self._put(f"{self._folder}/{day}/{ROLLED}{newest:010d}-{secrets.token_hex(4)}.parquet", rows)
        for name in names:
            self._spool.remove(f"{self._folder}/{day}/{name}")

    def _read_day(self, day: date, ids: list[str] | None, micro_batch: int | None) -> list[pa.Table]:
        for last in (False, True):
            try:
                return list(self._tables(day, [name for name in self._names(day) if _wanted(name, ids, micro_batch)]))
            except SpoolError:
                # A file was rolled or removed between listing and reading: list again, and read what is there now.
                if last:
                    raise
        raise AssertionError("unreachable")

    def _tables(self, day: date, names: list[str]) -> Iterator[pa.Table]:
        """Yields the files' rows, rolled files first; an attempt already seen in one file is left out of the next."""
        seen: set[str] = set()
        for name in sorted(names, key=lambda name: (not name.startswith(ROLLED), name)):
            with self._opened(day, name) as file:
                table = _unseen(file.read().select(SCHEMA.names).cast(SCHEMA), seen)
            seen |= set(pc.unique(table["attempt"]).to_pylist())
            yield table

    def _days(self) -> list[date]:
        out = []
        for name, is_folder in self._spool.entries(self._folder):
            if is_folder:
                try:
                    out.append(date.fromisoformat(name))
                except ValueError:
                    continue
        return sorted(out)

    def _names(self, day: date) -> list[str]:
        found = self._spool.entries(f"{self._folder}/{day}")
        return [name for name, is_folder in found if not is_folder and name.endswith(".parquet") and name[0] != "."]

    def _put(self, path: str, rows: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        # An attempt has a handful of rows, so metadata would be most of a default file: 6.7 kB instead of 2.6.
        options = {"store_schema": False, "use_dictionary": False, "write_statistics": False}
        pq.write_table(rows, sink, compression="zstd", row_group_size=GROUP, **options)
        self._spool.put(path, sink.getvalue())


def _wanted(name: str, ids: list[str] | None, micro_batch: int | None) -> bool:
    """Returns whether a file may hold rows of these destinations and this micro-batch."""
    if name.startswith(ROLLED):
        return True
    number, owner, _ = name.split("@")
    same = ids is None or owner in [quote(id, safe="-_.") for id in ids]
    return same and (micro_batch is None or int(number) == micro_batch)


def _chosen(table: pa.Table, ids: list[str] | None, since: float | None, micro_batch: int | None) -> pa.Table:
    if ids is not None:
        table = table.filter(pc.is_in(table["destination"], pa.array(ids)))
    if micro_batch is not None:
        table = table.filter(pc.equal(table["micro_batch"], micro_batch))
    if since is not None:
        at = pa.scalar(int(since * 1e6), SCHEMA.field("ended").type)
        table = table.filter(pc.greater_equal(table["ended"], at))
    return table


def _unseen(table: pa.Table, seen: set[str]) -> pa.Table:
    again = set(pc.unique(table["attempt"]).to_pylist()) & seen
    return table.filter(pc.invert(pc.is_in(table["attempt"], pa.array(sorted(again))))) if again else table


def _day(at: float) -> date:
    # A time may lie outside of what a date can be: the time of an operator, rounded or in a far zone.
    return EPOCH + timedelta(days=min(max(at // 86_400, (date.min - EPOCH).days), (date.max - EPOCH).days))
