"""Reads the rows of a `Work` that are still to be done, as batches, or as entries after the destination's own
processors; gives derived records their ordinals, of which there are 32,768 at most for one record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.chunks import BLOCK, Chunk, Seqs, blocks, chunks, portion_of
from conduit_tasks.delivery.work import Entry, Work
from conduit_tasks.errors import InvariantBroken, Unwritable
from conduit_tasks.processors.derived import in_parts, record_bytes
from conduit_tasks.processors.result import Result
from conduit_tasks.record.accounts import accounted
from conduit_tasks.record.batches import row_bytes
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import to_records
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    pass

DERIVED_STRIDE = 1 << 16
"""The k-th further record that a destination processor derives from ordinal o has ordinal o + k · stride: unique in its
position and the same at every attempt, whatever became of the other records of that position."""

MOST_ORDINAL = (1 << 31) - 1
"""The largest ordinal that `ord` holds."""

KILLED = "killed its worker"
"""Error class of a record whose delivery ended its process (SEMANTICS C10)."""


class First(list[Entry]):
    """Entries of the next `rows` rows of a chunk; their own `row` counts from the first of these."""

    rows = 0


class Reading:
    """One pass over the rows of a `Work` that are still to be done. `matched` counts the seqs passed so far."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.matched = 0
        self._done = RangeSet.of(work.confirmed)
        self._newest = -1

    def batches(self) -> Iterator[tuple[Seqs, Seqs, pa.RecordBatch]]:
        """Yields (seqs, ordinals, rows) that are to be delivered; never empty.

        Raises InvariantBroken if rows are out of order, or are not the number that was sealed.
        """
        work = self.work
        for seqs, batch in work.rows():
            if not len(seqs):
                continue
            before = np.concatenate([[self._newest], seqs[:-1]])
            if (seqs < before).any():
                raise InvariantBroken(
                    f"micro-batch {work.micro_batch} is not in order at {work.node} (SEMANTICS C9): "
                    f"{int(seqs[np.argmax(seqs < before)])} follows a higher number"
                )
            ordinals = self.matched - 1 + np.cumsum(seqs != before)
            todo = (seqs >= work.first) & (seqs <= work.last) & ~inside(seqs, self._done)
            reached = int(np.searchsorted(seqs, work.last, side="right"))
            if reached:
                self.matched, self._newest = int(ordinals[reached - 1]) + 1, int(seqs[reached - 1])
            if todo.all():
                yield seqs, ordinals, batch
            elif todo.any():
                yield seqs[todo], ordinals[todo], batch.filter(pa.array(todo))
            if reached < len(seqs):
                return
        if work.last == work.total - 1 and work.matched not in (None, self.matched):
            raise InvariantBroken(
                f"invariant 10: micro-batch {work.micro_batch} has {self.matched} records for {work.node}, "
                f"but {work.matched} were sealed"
            )

    def entries(self) -> Iterator[list[Entry]]:
        """Yields the same as records in small blocks, after the destination's own processors."""
        for chunk in chunks(self.batches(), BLOCK, max(1, settings().batch_bytes // 8)):
            portion = portion_of(self.work.chain, chunk)
            for block in blocks(chunk, portion):
                size = 0
                for _, entries in processed(self.work, block):
                    if self.work.chain is not None:
                        for entry in entries:
                            entry.bytes = record_bytes(entry.record)
                            size += entry.bytes
                    yield entries
                portion.came(block.rows, size)


def processed(work: Work, chunk: Chunk) -> Iterator[tuple[Chunk, list[Entry]]]:
    """Yields the chunk in parts, each with what `process` makes of it; one part is the usual case. Raises
    InvariantBroken if a row has no entry."""
    left = chunk
    for entries in process(work, chunk):
        rows = {entry.row for entry in entries}
        accounted(work.node, work.micro_batch, entries.rows, "rows", processed=len(rows))
        yield left.part(0, entries.rows), entries
        left = left.part(entries.rows, left.rows)
    if left.rows:
        accounted(work.node, work.micro_batch, left.rows, "rows", processed=0)


def process(work: Work, chunk: Chunk) -> Iterator[First]:
    """Yields the rows as entries in order, after the destination's own processors: of some seqs after the others, as
    soon as their derived records have CONDUIT_BATCH_BYTES bytes.

    Records derived from one position are nacked together, as they came in; culprits are not processed at all.
    """
    alive = [i for i, seq in enumerate(chunk.seqs.tolist()) if seq not in work.culprits]
    if work.chain is None or not alive:
        yield _entries(work, chunk, {})
        return
    rows = chunk if len(alive) == chunk.rows else chunk.take(alive)
    start = done = 0
    for answers in in_parts(work.chain, to_records(rows.batch, work.origins), rows.seqs, settings().batch_bytes):
        results = {row - start: made for row, made in zip(alive[done:], answers)}
        done += len(answers)
        end = alive[done] if done < len(alive) else chunk.rows
        yield _entries(work, chunk.part(start, end), results)
        start = end


def _entries(work: Work, chunk: Chunk, results: dict[int, Result]) -> First:
    """Returns the entries of all rows. `results`: of the rows that were processed."""
    seqs, ordinals, sizes = chunk.seqs.tolist(), chunk.ordinals.tolist(), row_bytes(chunk.batch).tolist()
    out = First()
    out.rows = len(seqs)
    if work.chain is None and not work.culprits:
        rows = zip(seqs, ordinals, to_records(chunk.batch, work.origins), sizes, strict=True)
        out.extend(Entry(s, o, r, bytes=size, row=i) for i, (s, o, r, size) in enumerate(rows))
        return out
    ords = chunk.batch.column("ord").to_pylist()
    said = "its delivery ended the worker process again and again; look at the worker's log"
    errors = {seq: (said, KILLED, "") for seq in seqs if seq in work.culprits}
    for i, made in results.items():
        assert work.chain is not None
        results[i] = checked = numbered(work.chain.writable(made), int(ords[i]))
        if checked.error is not None:
            node = f"{work.node}/{checked.processor}"
            errors[seqs[i]] = (checked.error, checked.error_class or "processor", node)
    originals = to_records(chunk.batch, work.origins) if errors or work.chain is None else []
    for i, (seq, ordinal) in enumerate(zip(seqs, ordinals)):
        result = results.get(i)
        if seq in errors:
            error, kind, node = errors[seq]
            letter = work.letter(seq, originals[i], error, kind, node=node)
            out.append(Entry(seq, ordinal, originals[i], letter=letter, bytes=sizes[i], row=i))
        elif result is None:
            out.append(Entry(seq, ordinal, originals[i], bytes=sizes[i], row=i))
        elif not result.records:
            out.append(Entry(seq, ordinal, Record(b"", ordinal=ords[i]), filtered=True, row=i))
        else:
            for record in result.records:
                out.append(Entry(seq, ordinal, record, bytes=sizes[i], row=i))
    return out


def numbered(result: Result, ord: int) -> Result:
    """Gives the records of a result their ordinals, `ord` being that of the record that they were made of. Returns the
    result, or a failure if there are too many."""
    if len(result.records) > 1 and (why := overflow(len(result.records), ord)) is not None:
        return Result.failure(why, Unwritable.error_class, getattr(result.records, "step", None))
    for k, record in enumerate(result.records):
        record.ordinal = ord + k * DERIVED_STRIDE
    return result


def overflow(count: int, ord: int) -> str | None:
    """Returns why so many records cannot be derived from one with this ordinal; None if they can."""
    # 32,768, as 2^31 ordinals are shared out at a distance of 2^16.
    most = (MOST_ORDINAL - ord) // DERIVED_STRIDE + 1
    if count <= most:
        return None
    return f"{count:,} records were derived from this one; processors of a destination may derive {most:,} at most"


def inside(seqs: Seqs, ranges: RangeSet) -> npt.NDArray[np.bool_]:
    """Returns for each seq whether it lies in `ranges`."""
    if not ranges:
        return np.zeros(len(seqs), dtype=bool)
    bounds = np.asarray(ranges.ranges, dtype=np.int64)
    at = np.searchsorted(bounds[:, 0], seqs, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (seqs <= bounds[np.maximum(at, 0), 1])
    return inside
