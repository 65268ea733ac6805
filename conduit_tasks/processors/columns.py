"""A chain over rows in Arrow: only the parts of a record that it looks at become Python objects, and only those that it
may change are written back; everything else stays in its column.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.errors import Oversize
from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.derived import Derived, refused, too_much
from conduit_tasks.processors.result import Result
from conduit_tasks.processors.weighing import Weighing
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import DATA, PARTS, part_column, part_values

BLOCK = 512
"""Rows that are Python objects at a time: few enough to stay in the processor's cache and to be freed before the cycle
collector looks at them twice (docs/benchmarks.md)."""

BLOCK_BYTES = 1 << 20
"""Bytes of such rows: what a step makes of them is many times as large at most."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Passed:
    """Output of a chain for a batch: `batch` has a row per record that goes on, in order, `rows` the number of the
    input row that each came from (repeated for derived records), `errors` the failures by input row, `filtered` the
    input rows of which no record goes on because a processor said so.

    `ord` is as it came in: the caller numbers derived records, by `renumbered`.
    """

    batch: pa.RecordBatch
    rows: Rows
    errors: dict[int, Result]
    filtered: Rows

    def fates(self, came: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Returns for each of the rows that came whether a record of it goes on, and whether it was filtered."""
        on, filtered = np.zeros(came, bool), np.zeros(came, bool)
        on[self.rows] = filtered[self.filtered] = True
        return on, filtered

    def without(self, rows: npt.NDArray[np.bool_]) -> Passed:
        """Returns the same without the records that came from these input rows (a flag per row)."""
        kept = ~rows[self.rows]
        return Passed(self.batch.filter(pa.array(kept)), self.rows[kept], self.errors, self.filtered)


def parts(
    chain: Chain, batch: pa.RecordBatch, origins: Sequence[Origin], keys: Rows, limit: int
) -> Iterator[tuple[int, int, Passed]]:
    """Runs the chain over the rows of a batch with the columns of SPOOL_SCHEMA; other columns are carried along.

    Yields (first row, row after the last, output) of parts of the rows, in order, at least one. An output has about
    `limit` bytes of what was made; one part is the usual case. `keys`: one number per row, ascending, the same for rows
    that were derived from one record, which are never parted. `origins`: by slice number. Results are those of
    `Chain.run` over the records of the rows.
    """
    changed = [part for part in PARTS if part in chain.changes]
    held: list[_Made] = []
    size = 0
    for made in _blocks(chain, batch, origins, keys, limit):
        if held and size + made.bytes > limit:
            yield _joined(batch, changed, held)
            held, size = [], 0
        held.append(made)
        size += made.bytes
    yield _joined(batch, changed, held)


@dataclass
class _Made:
    """Output of the rows from `start` to `end`: `kept`, `filtered` and `errors` by row of the whole batch, a column per
    changed part, and the bits of `shape`."""

    start: int
    end: int
    kept: list[int]
    filtered: list[int]
    errors: dict[int, Result]
    columns: list[pa.Array]
    bits: npt.NDArray[np.int8]
    bytes: int


def _joined(batch: pa.RecordBatch, changed: Sequence[str], held: Sequence[_Made]) -> tuple[int, int, Passed]:
    start, end = held[0].start, held[-1].end
    rows = np.concatenate([np.asarray(made.kept, np.int64) for made in held]) - start
    filtered = np.concatenate([np.asarray(made.filtered, np.int64) for made in held]) - start
    errors = {row - start: error for made in held for row, error in sorted(made.errors.items())}
    came = batch.slice(start, end - start)
    identity = len(rows) == came.num_rows and bool((rows == np.arange(len(rows))).all())
    taken = None if identity else pa.array(rows)
    new = {part: pa.concat_arrays([made.columns[n] for made in held]) for n, part in enumerate(changed)}
    # What is replaced is not repeated first: an array that `split` took apart can be large.
    cells = [
        new[name] if name in new else column if taken is None else column.take(taken)
        for name, column in zip(came.schema.names, came.columns, strict=True)
    ]
    result = pa.RecordBatch.from_arrays(cells, schema=came.schema)
    mask = sum(DATA[part] for part in changed if part in DATA)
    if mask:
        shape = result.column("shape").to_numpy() & np.int8(~mask) | np.concatenate([made.bits for made in held])
        result = _with(result, "shape", pa.array(shape))
    return start, end, Passed(result, rows, errors, filtered)


def _blocks(chain: Chain, batch: pa.RecordBatch, origins: Sequence[Origin], keys: Rows, limit: int) -> Iterator[_Made]:
    """Yields the outputs of about `BLOCK` rows each, fewer if they are large or become many."""
    changed = [part for part in PARTS if part in chain.changes]
    rows = batch.num_rows
    most = max(1, min(BLOCK, BLOCK_BYTES * rows // max(1, batch.nbytes)))
    weighing = Weighing(chain, batch, keys, limit)
    # One object for all rows: a step copies what it keeps of it.
    record = Record(b"")
    start = 0
    while start < (rows or 1):
        end = min(start + most, rows)
        if end < rows and keys[end] == keys[end - 1]:
            first = int(keys.searchsorted(keys[end]))
            end = first if first > start else int(keys.searchsorted(keys[end], "right"))
        filled = _filled(record, chain, batch.slice(start, end - start), origins, start)
        while True:
            kept: list[int] = []
            filtered: list[int] = []
            errors: dict[int, Result] = {}
            out: list[list[Any]] = [[] for _ in changed]
            weighing.bytes = 0
            stop = _block(chain, record, filled, (kept, filtered, errors, list(zip(changed, out))), weighing)
            stop = end if stop is None else stop
            block = (start, stop, kept, filtered, errors)
            yield from _written(chain, keys, weighing.bytes, block, dict(zip(changed, out)))
            start = stop
            if start >= end:
                break
        start = end if rows else 1


def _written(
    chain: Chain,
    keys: Rows,
    weight: int,
    block: tuple[int, int, list[int], list[int], dict[int, Result]],
    values: dict[str, list[Any]],
) -> Iterator[_Made]:
    """Yields what a block made, as columns: at once, or in halves if an array cannot hold it."""
    start, stop, kept, filtered, errors = block
    bits = np.zeros(len(kept), np.int8)
    bad: dict[int, str] = {}
    columns: list[pa.Array] = []
    try:
        for part, each in values.items():
            column, structured = part_column(part, each, bad)
            columns.append(column)
            if structured is not None:
                bits |= structured
    except Oversize:
        columns.clear()
        cut = middle(keys, start, stop)
        if cut is None:
            # All of it is of one record.
            errors[start] = chain.unwritable(str(too_much()))
            yield from _written(chain, keys, 0, (start, stop, [], filtered, errors), {part: [] for part in values})
            return
        at, out = bisect_left(kept, cut), bisect_left(filtered, cut)
        halves = (
            (start, cut, slice(0, at), filtered[:out]),
            (cut, stop, slice(at, None), filtered[out:]),
        )
        for first, last, span, gone in halves:
            own = {row: error for row, error in errors.items() if first <= row < last}
            some = {part: each[span] for part, each in values.items()}
            yield from _written(chain, keys, weight, (first, last, kept[span], gone, own), some)
        return
    for n, why in bad.items():
        errors[kept[n]] = chain.unwritable(why)
    size = max(weight, sum(column.nbytes for column in columns))
    yield _Made(start, stop, kept, filtered, errors, columns, bits, size)


def middle(keys: Rows, start: int, stop: int) -> int | None:
    """Returns the row between `start` and `stop` that begins a key, nearest to the middle; None if there is none."""
    cuts = np.flatnonzero(np.diff(keys[start:stop])) + start + 1
    return int(cuts[np.argmin(np.abs(cuts - (start + stop) // 2))]) if len(cuts) else None


def renumbered(batch: pa.RecordBatch, ordinals: npt.NDArray[np.integer[Any]]) -> pa.RecordBatch:
    """Returns the batch with these values of `ord`."""
    return _with(batch, "ord", pa.array(ordinals, pa.int32()))


def places(groups: npt.NDArray[np.integer[Any]]) -> Rows:
    """Returns each number's place among its equals, from 0; equal numbers must follow each other."""
    at = np.arange(len(groups), dtype=np.int64)
    if not len(groups):
        return at
    starts = np.concatenate([[True], groups[1:] != groups[:-1]])
    return at - np.maximum.accumulate(np.where(starts, at, 0))


def _with(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), column)


def _block(
    chain: Chain,
    record: Record,
    filled: Iterator[int],
    into: tuple[list[int], list[int], dict[int, Result], list[tuple[str, list[Any]]]],
    weighing: Weighing,
) -> int | None:
    """Runs the chain over rows. Adds to `into`: the rows of records that go on, those that were filtered, the failures,
    the values of changed parts. Returns the row to go on with if derived records have enough bytes; None at the end.

    `record`: holds the parts of the row that `filled` yielded last.
    """
    kept, filtered, errors, changed = into
    keep, through = kept.append, chain.through
    single = changed[0] if len(changed) == 1 and changed[0][0] == "after" else None
    add = single[1].append if single else None
    for row in filled:
        made = through(record)
        if made is record:
            keep(row)
            if add is not None:
                add(record.after)
            else:
                for part, values in changed:
                    values.append(getattr(record, part))
        elif made is None:
            filtered.append(row)
        elif isinstance(made, Result):
            errors[row] = made
        elif isinstance(made, Derived) and not weighing.admits(row, made):
            errors[row] = refused(made.step)
        else:
            _keep_several(row, made if isinstance(made, Derived) else (made,), kept, changed)
            if (end := weighing.end(row)) is not None:
                # The rows of this key that follow belong to it.
                weighing.ending = True
                _block(chain, record, islice(filled, end - row - 1), into, weighing)
                weighing.ending = False
                return end
    return None


def _keep_several(row: int, made: Iterable[Record], kept: list[int], changed: list[tuple[str, list[Any]]]) -> None:
    for each in made:
        kept.append(row)
        for part, values in changed:
            values.append(getattr(each, part))


def _filled(
    record: Record, chain: Chain, batch: pa.RecordBatch, origins: Sequence[Origin], start: int
) -> Iterator[int]:
    """Yields each row's number, with the row's parts that the chain looks at set in `record`."""
    parts = [part for part in PARTS if part in chain.reads]
    numbers = range(start, start + batch.num_rows)
    if parts == ["after"]:
        for row, record.after in zip(numbers, part_values(batch, "after")):
            yield row
        return
    columns = [part_values(batch, part) for part in parts]
    # The metadata of its slice is looked up through the record's origin.
    slices = batch.column("slice").to_pylist() if "metadata" in parts else None
    for i, values in enumerate(zip(*columns)) if columns else ((i, ()) for i in range(batch.num_rows)):
        for part, value in zip(parts, values):
            setattr(record, part, value)
        if slices is not None:
            record.origin = origins[slices[i]]
        yield start + i
