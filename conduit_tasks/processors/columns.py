"""A chain over rows in Arrow: only the parts of a record that it looks at become Python objects, and only those that it
may change are written back; everything else stays in its column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.processors.chain import Chain, Result
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import DATA, PARTS, part_column, part_values

BLOCK = 512
"""Rows that are Python objects at a time: few enough to stay in the processor's cache and to be freed before the cycle
collector looks at them twice (docs/benchmarks.md)."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Passed:
    """Output of a chain for a batch: `batch` has a row per record that goes on, in order, `rows` the number of the
    input row that each came from (repeated for derived records), `errors` the failures by input row.

    `ord` is as it came in: the caller numbers derived records, by `renumbered`.
    """

    batch: pa.RecordBatch
    rows: Rows
    errors: dict[int, Result]

    def without(self, rows: npt.NDArray[np.bool_]) -> Passed:
        """Returns the same without the records that came from these input rows (a flag per row)."""
        kept = ~rows[self.rows]
        return Passed(self.batch.filter(pa.array(kept)), self.rows[kept], self.errors)


def run(chain: Chain, batch: pa.RecordBatch, origins: Sequence[Origin]) -> Passed:
    """Runs the chain over the rows of a batch with the columns of SPOOL_SCHEMA; other columns are carried along.

    `origins`: by slice number. Results are those of `Chain.run` over the records of the rows.
    """
    kept: list[int] = []
    errors: dict[int, Result] = {}
    changed = [part for part in PARTS if part in chain.changes]
    columns: dict[str, list[pa.Array]] = {part: [] for part in changed}
    bits: list[npt.NDArray[np.int8]] = []
    for start in range(0, batch.num_rows or 1, BLOCK):
        out: list[list[Any]] = [[] for _ in changed]
        first = len(kept)
        _block(chain, batch.slice(start, BLOCK), origins, start, (kept, errors, list(zip(changed, out))))
        shape = np.zeros(len(out[0]) if out else 0, np.int8)
        bad: dict[int, str] = {}
        for part, values in zip(changed, out):
            column, structured = part_column(part, values, bad)
            columns[part].append(column)
            if structured is not None:
                shape |= structured
        bits.append(shape)
        for n, why in bad.items():
            errors[kept[first + n]] = chain.unwritable(why)
    rows = np.asarray(kept, np.int64)
    errors = dict(sorted(errors.items()))
    identity = len(rows) == batch.num_rows and bool((rows == np.arange(len(rows))).all())
    result = batch if identity else batch.take(pa.array(rows))
    for part, chunks in columns.items():
        result = _with(result, part, pa.concat_arrays(chunks))
    mask = sum(DATA[part] for part in changed if part in DATA)
    if mask:
        shape = result.column("shape").to_numpy() & np.int8(~mask) | np.concatenate(bits)
        result = _with(result, "shape", pa.array(shape))
    return Passed(result, rows, errors)


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
    batch: pa.RecordBatch,
    origins: Sequence[Origin],
    start: int,
    into: tuple[list[int], dict[int, Result], list[tuple[str, list[Any]]]],
) -> None:
    """Runs the chain over rows from number `start` on. Adds to `into`: the rows of records that go on, the failures,
    the values of changed parts."""
    kept, errors, changed = into
    keep, through = kept.append, chain.through
    # One object for all rows: a step copies what it keeps of it.
    record = Record(b"")
    single = changed[0] if len(changed) == 1 and changed[0][0] == "after" else None
    add = single[1].append if single else None
    for row in _filled(record, chain, batch, origins, start):
        made = through(record)
        if made is record:
            keep(row)
            if add is not None:
                add(record.after)
            else:
                for part, values in changed:
                    values.append(getattr(record, part))
        elif made is None:
            continue
        elif isinstance(made, Result):
            errors[row] = made
        else:
            for each in made if isinstance(made, list) else [made]:
                keep(row)
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
