"""Rows cut for batch-wise destinations: pieces that end between seqs, so that each can be confirmed whole (C17)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Seqs = npt.NDArray[np.int64]
"""One number per row or record."""


@dataclass(frozen=True)
class Chunk:
    """Some rows in order: per row its seq and the ordinal of that among the matched; never empty."""

    seqs: Seqs
    ordinals: Seqs
    batch: pa.RecordBatch

    @property
    def rows(self) -> int:
        return len(self.seqs)

    @property
    def records(self) -> int:
        """Distinct seqs."""
        return int(np.count_nonzero(np.diff(self.seqs))) + 1

    def part(self, start: int, end: int) -> Chunk:
        """The rows [start, end)."""
        return Chunk(self.seqs[start:end], self.ordinals[start:end], self.batch.slice(start, end - start))

    def take(self, rows: list[int]) -> Chunk:
        """These rows."""
        return Chunk(self.seqs[rows], self.ordinals[rows], self.batch.take(pa.array(rows)))

    def halves(self) -> tuple[Chunk, Chunk] | None:
        """Cut between two seqs nearest to the middle; None where there is only one seq."""
        cuts = np.flatnonzero(np.diff(self.seqs)) + 1
        if not len(cuts):
            return None
        cut = int(cuts[np.argmin(np.abs(cuts - self.rows // 2))])
        return self.part(0, cut), self.part(cut, self.rows)


def chunks(batches: Iterable[tuple[Seqs, Seqs, pa.RecordBatch]], size: int) -> Iterator[Chunk]:
    """The rows in chunks of about `size`, at least one seq each; derived rows of one seq are never parted.

    A batch that is a chunk by itself is handed on as it is, without copying.
    """
    held: list[tuple[Seqs, Seqs, pa.RecordBatch]] = []
    rows = 0
    for piece in batches:
        held.append(piece)
        rows += len(piece[0])
        # A seq may go on in the next batch: only what ends before the newest seq is whole.
        while rows > size:
            whole = _joined(held)
            starts = np.flatnonzero(np.diff(whole.seqs)) + 1
            fitting = starts[starts <= size]
            cut = int(fitting[-1] if len(fitting) else starts[0] if len(starts) else 0)
            if not cut:
                held = [(whole.seqs, whole.ordinals, whole.batch)]
                break
            yield whole.part(0, cut)
            rest = whole.part(cut, whole.rows)
            held, rows = [(rest.seqs, rest.ordinals, rest.batch)], rest.rows
    if held:
        yield _joined(held)


def _joined(pieces: list[tuple[Seqs, Seqs, pa.RecordBatch]]) -> Chunk:
    if len(pieces) == 1:
        return Chunk(*pieces[0])
    table = pa.Table.from_batches([batch for _, _, batch in pieces]).combine_chunks()
    return Chunk(
        np.concatenate([seqs for seqs, _, _ in pieces]),
        np.concatenate([ordinals for _, ordinals, _ in pieces]),
        table.to_batches()[0],
    )
