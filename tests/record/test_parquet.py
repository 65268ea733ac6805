"""Rows of Parquet files come in portions of a bounded size, whatever a file says of itself."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.file import parquet as file_parquet
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.record.parquet import FASTER, FIRST, batches_of, opened
from tests.fork import Fork
from tests.limits import batch_bytes

LIMIT = 4 << 20
ROWS = 5_000
TEXT = "x" * 20_000
"""Of every row: 100 MB together, in a file of some KB."""


def texts() -> pa.Array:
    return pa.array([TEXT] * ROWS)


def each(size: int) -> pa.Array:
    """Where lists of so many values begin and end."""
    return pa.array(range(0, size * (ROWS + 1), size), pa.int32())


# Made where they are wanted: a module's arrays would be in memory for all tests of the process.
ENCODINGS: dict[str, tuple[Callable[[], pa.Array], dict[str, Any]]] = {
    "dictionary": (texts, {}),
    "stored as a dictionary": (
        lambda: pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array([TEXT])),
        {},
    ),
    "bytes": (lambda: texts().cast(pa.binary()), {}),
    "large": (lambda: texts().cast(pa.large_string()), {}),
    "differences": (texts, {"use_dictionary": False, "column_encoding": {"t": "DELTA_BYTE_ARRAY"}}),
    "packed": (texts, {"use_dictionary": False, "compression": "zstd", "write_batch_size": 16}),
    "within a list": (lambda: pa.ListArray.from_arrays(each(1), texts()), {}),
    "within a struct": (lambda: pa.StructArray.from_arrays([texts()], names=["s"]), {}),
    "within a map": (lambda: pa.MapArray.from_arrays(each(1), pa.array(["k"] * ROWS), texts()), {}),
    "numbers in lists": (lambda: pa.ListArray.from_arrays(each(1000), pa.array([7] * 1000 * ROWS)), {}),
}


def written(path: Path, column: pa.Array, **options: Any) -> Path:
    pq.write_table(pa.table({"n": range(len(column)), "t": column}), path, row_group_size=len(column), **options)
    return path


def batches(path: Path, limit: int = LIMIT) -> Iterator[pa.RecordBatch]:
    with opened(path) as parquet:
        yield from batches_of(parquet, limit, file_parquet.ROWS)


def held(path: Path) -> tuple[int, list[int]]:
    """The most bytes that Arrow had in memory at once, and the numbers of the rows."""
    pool, before = pa.default_memory_pool(), pa.total_allocated_bytes()
    most, numbers = 0, []
    for batch in batches(path):
        most = max(most, pool.bytes_allocated() - before)
        numbers += batch.column("n").to_pylist()
    return most, numbers


@pytest.mark.proves("C13")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_held_at_once_is_bounded_whatever_the_encoding(encoding: str, tmp_path: Path) -> None:
    # Given a file that is small because its texts repeat themselves
    make, options = ENCODINGS[encoding]
    path = written(tmp_path / "a.parquet", column := make(), **options)
    decoded = column.nbytes if encoding != "stored as a dictionary" else len(TEXT) * ROWS
    assert decoded > 8 * LIMIT
    del column
    # When it is read
    most, numbers = held(path)
    # Then every row comes once, in order, and a few portions are in memory at a time
    assert numbers == list(range(ROWS))
    assert most < 4 * LIMIT
    assert all(b.num_rows == 1 or b.nbytes <= LIMIT for b in batches(path))


@pytest.mark.proves("C13")
@pytest.mark.parametrize("groups", [1, 2])
def test_texts_that_are_large_after_many_that_are_small_are_no_more_at_once(groups: int, tmp_path: Path) -> None:
    # Given so many small texts that many rows are read at once, and then large ones
    small = 40_000
    column = pa.array(["s"] * small + [TEXT] * ROWS)
    table = pa.table({"n": range(len(column)), "t": column})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=small if groups == 2 else len(column))
    # Then those are cut before they are decoded
    most, numbers = held(path)
    assert numbers == list(range(small + ROWS))
    assert most < 4 * LIMIT
    sizes = [b.num_rows for b in batches(path)]
    assert max(sizes) == file_parquet.ROWS
    assert sum(LIMIT // len(TEXT) - 5 <= n <= LIMIT // len(TEXT) for n in sizes) > 10


def test_portions_grow_where_rows_are_small(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", pa.array(["s"] * 100_000))
    sizes = [b.num_rows for b in batches(path)]
    assert sizes[0] == FIRST
    assert all(after <= FASTER * before for before, after in pairwise(sizes))
    assert sizes.count(file_parquet.ROWS) >= 4


@pytest.mark.proves("C13")
def test_rows_of_many_columns_are_fewer_at_once(tmp_path: Path) -> None:
    # Given 1,000 columns with a bit per row, which as JSON are names
    table = pa.table({f"column_of_a_wide_table_{n}": [True] * 3_000 for n in range(1_000)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert max(b.num_rows for b in batches(tmp_path / "a.parquet")) <= LIMIT / 1_000 / 20


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_values_are_those_that_were_written(encoding: str, tmp_path: Path) -> None:
    make, options = ENCODINGS[encoding]
    column = make()
    path = written(tmp_path / "a.parquet", column.slice(0, 500), **options)
    read = [value for batch in batches(path) for value in batch.column("t").to_pylist()]
    assert read == column.slice(0, 500).to_pylist()


def test_nothing_and_empty_texts_are_kept_apart(tmp_path: Path) -> None:
    values = [None, "", "a", None, "b" * 100] * 200
    for column in (pa.array(values), pa.array(values).dictionary_encode(), pa.array([None] * 1000, pa.string())):
        path = written(tmp_path / "a.parquet", column)
        read = [value for batch in batches(path, 300) for value in batch.column("t").to_pylist()]
        assert read == column.to_pylist()


@pytest.mark.proves("C13")
def test_a_small_file_of_large_rows_comes_in_batches_of_records_that_fit(home: Path) -> None:
    # Given a file source with a slice in the middle of a row group
    written(home / "a.parquet", texts())
    source = FileSource({"path": "a.parquet", "format": "parquet", "settle": "0s"})
    with batch_bytes(LIMIT):
        [first] = source.plan({}, Limit(records=1_000))
        [second] = source.plan({"a.parquet": first.end}, Limit(records=1_500))
        # When it is read
        found = [batch for slice in (first, second) for batch in source.read(slice)]
    # Then every record is there, and none of the batches is larger than the setting says
    numbers = [json.loads(text)["n"] for batch in found for text in batch.column("after").to_pylist()]
    assert numbers == list(range(2_500))
    assert max(batch.nbytes for batch in found) <= LIMIT + (64 << 10)


@pytest.mark.slow
def test_no_byte_of_a_files_description_that_is_damaged_ends_the_process() -> None:
    """pyarrow ends it, if it is asked about a column of which the sizes are described wrongly."""
    out = BytesIO()
    pq.write_table(pa.table({"t": ["s" * 600] * 50}), out, store_schema=False)
    sound = out.getvalue()
    described = range(len(sound) - 8 - int.from_bytes(sound[-8:-4], "little"), len(sound) - 8)

    def read_all() -> int:
        refused = 0
        for at in described:
            damaged = bytearray(sound)
            damaged[at] = (damaged[at] + 1) % 256
            try:
                with opened(BytesIO(damaged)) as parquet:
                    deque(batches_of(parquet, LIMIT, ROWS), 0)
            except (pa.ArrowException, OSError, ValueError):
                refused += 1
        return refused

    reading = Fork(read_all)
    try:
        assert reading.answer(120) > 10
        assert reading.end() == 0
    finally:
        reading.kill()


class Counted(BytesIO):
    """A file that counts the bytes that are read of it."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.taken += len(found)
        return found


def test_a_slice_of_a_file_costs_its_row_groups_and_opening_it_no_more_than_their_first_pages() -> None:
    # Given eight row groups of a megabyte, of texts that differ
    out = BytesIO()
    rows = 1_000
    with pq.ParquetWriter(out, pa.schema([("t", pa.string())]), compression="none", use_dictionary=False) as writer:
        for _ in range(8):
            writer.write_table(pa.table({"t": [f"{n:01000}" for n in range(rows)]}), row_group_size=rows)
    whole = len(out.getvalue())
    file = Counted(out.getvalue())
    # When a slice of the rows of one is read
    with opened(file, 3 * rows, 4 * rows) as parquet:
        assert sum(len(batch) for _, batch in file_parquet.rows_between(parquet, 3 * rows, 4 * rows)) == rows
    # Then others are not
    assert file.taken < whole / 3

    # Given a single row group of eight megabytes
    out = BytesIO()
    table = pa.table({"t": [f"{n:01000}" for n in range(8 * rows)]})
    pq.write_table(table, out, compression="none", use_dictionary=False, row_group_size=8 * rows)
    file = Counted(out.getvalue())
    # When it is opened, then the most of it is not read
    with opened(file):
        assert file.taken < whole / 3
