"""Rows cut for batch-wise destinations: pieces that end between seqs, so that each can be confirmed whole (C17), and a
check that no row got lost (invariant 10)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.connectors.portion import Portion
from conduit_tasks.errors import InvariantBroken
from conduit_tasks.record.batches import cut, joined, row_bytes
from conduit_tasks.record.counts import Counts
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.processors.chain import Chain

BLOCK = 512
"""Rows that become Python records at once: large enough to be cheap, small enough not to stall senders."""

Seqs = npt.NDArray[np.int64]
"""One number per row or record."""

NONE: Seqs = np.empty(0, np.int64)

Piece = tuple[Seqs, Seqs, pa.RecordBatch]
"""Rows in order: (seqs, ordinals, batch)."""


@dataclass(frozen=True)
class Chunk:
    """Rows in order, at least one: per row its seq, and the ordinal of the seq among the matched ones."""

    seqs: Seqs
    ordinals: Seqs
    batch: pa.RecordBatch

    def __post_init__(self) -> None:
        if not len(self.seqs) == len(self.ordinals) == self.batch.num_rows:
            raise InvariantBroken(
                f"invariant 10: {len(self.seqs)} seqs came with {self.batch.num_rows} rows; none of them is confirmed"
            )

    @property
    def rows(self) -> int:
        return len(self.seqs)

    @property
    def records(self) -> int:
        """Number of distinct seqs."""
        return len(distinct(self.seqs))

    def part(self, start: int, end: int) -> Chunk:
        """Returns the rows [start, end)."""
        return Chunk(self.seqs[start:end], self.ordinals[start:end], self.batch.slice(start, end - start))

    def take(self, rows: list[int]) -> Chunk:
        """Returns these rows."""
        return Chunk(self.seqs[rows], self.ordinals[rows], self.batch.take(pa.array(rows)))

    def after(self, kept: Chunk) -> int | None:
        """Returns the number of rows up to the end of the first seq of `kept`, some of these rows; None if that has no
        other."""
        if kept.seqs[0] == kept.seqs[-1]:
            return None
        return int(np.searchsorted(self.seqs, kept.seqs[0], side="right"))

    def halves(self) -> tuple[Chunk, Chunk] | None:
        """Returns two parts, cut between the two seqs nearest to the middle; None if there is only one seq."""
        cuts = np.flatnonzero(np.diff(self.seqs)) + 1
        if not len(cuts):
            return None
        cut = int(cuts[np.argmin(np.abs(cuts - self.rows // 2))])
        return self.part(0, cut), self.part(cut, self.rows)

    def around(self, row: int) -> tuple[Chunk, ...] | None:
        """Returns the rows before the seq of this row, those of the seq, and those behind it, where there are any; None
        if there is only one seq."""
        start, end = (int(np.searchsorted(self.seqs, self.seqs[row], side)) for side in ("left", "right"))
        if start == 0 and end == self.rows:
            return None
        return tuple(self.part(a, b) for a, b in ((0, start), (start, end), (end, self.rows)) if a < b)


def distinct(seqs: Seqs) -> Seqs:
    """Returns each of the ascending seqs once."""
    return seqs[np.concatenate([[True], np.diff(seqs) != 0])] if len(seqs) else seqs


class Handed:
    """Comparison, row by row, of the rows that were read and the rows that were handed over: no seq is confirmed whose
    row got lost in between (invariant 10)."""

    def __init__(self) -> None:
        self._came: deque[Seqs] = deque()

    def coming(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yields the same pieces, and notes their seqs."""
        for piece in pieces:
            if len(piece[0]):
                self._came.append(piece[0])
            yield piece

    def took(self, seqs: Seqs) -> None:
        """Notes rows that were handed over. Raises InvariantBroken if they are not the next ones that were read."""
        at = 0
        while at < len(seqs):
            if not self._came:
                raise InvariantBroken(f"invariant 10: {len(seqs) - at} rows from seq {seqs[at]} on were never read")
            came = self._came[0]
            n = min(len(came), len(seqs) - at)
            if not np.array_equal(came[:n], seqs[at : at + n]):
                raise InvariantBroken(
                    f"invariant 10: of the rows from seq {came[0]} on, others are handed over than were read"
                )
            at += n
            if n == len(came):
                self._came.popleft()
            else:
                self._came[0] = came[n:]

    def done(self) -> None:
        """Raises InvariantBroken if not everything that was read was handed over."""
        if self._came:
            left = sum(map(len, self._came))
            raise InvariantBroken(
                f"invariant 10: {left} rows from seq {self._came[0][0]} on were read and not handed over"
            )


def chunks(batches: Iterable[Piece], size: int, limit: int) -> Iterator[Chunk]:
    """Yields the rows in chunks of at most `size` rows and `limit` bytes, at least one seq each; derived rows of one
    seq are never split. At most two chunks, or one seq and a chunk, are held meanwhile.

    A batch that is a chunk by itself is handed on as it is, without copying. Raises InvariantBroken if a row that was
    read would not be in any chunk.
    """
    handed = Handed()
    held: list[Piece] = []
    rows = used = 0
    for piece in _small(handed.coming(batches), limit):
        left = Chunk(*piece)
        while True:
            fits = min(left.rows, max(0, size - rows))
            if used + left.batch.nbytes > limit:
                fits = min(fits, int(np.searchsorted(np.cumsum(row_bytes(left.batch)), limit - used, "right")))
            if fits == left.rows:
                held.append((left.seqs, left.ordinals, left.batch))
                rows, used = rows + left.rows, used + left.batch.nbytes
                break
            if held and not fits and held[-1][0][-1] != left.seqs[0]:
                done = _joined(held)
                handed.took(done.seqs)
                yield done
                held, rows, used = [], 0, 0
                continue
            # A seq may continue in the next piece: it is complete only if another one begins after it.
            whole = _joined([*held, (left.seqs, left.ordinals, left.batch)])
            starts = np.flatnonzero(np.diff(whole.seqs)) + 1
            fitting = starts[starts <= rows + fits]
            end = int(fitting[-1] if len(fitting) else starts[0] if len(starts) else 0)
            if not end:
                held, rows, used = [(whole.seqs, whole.ordinals, whole.batch)], whole.rows, whole.batch.nbytes
                break
            done = whole.part(0, end)
            handed.took(done.seqs)
            yield done
            left, held, rows, used = whole.part(end, whole.rows), [], 0, 0
    if held:
        done = _joined(held)
        handed.took(done.seqs)
    handed.done()
    if held:
        yield done


def portion_of(chain: Chain | None, chunk: Chunk) -> Portion:
    """Returns the number of rows of a chunk to process at a time: how large processors make them shows afterwards. All
    of them if there are no processors, or ones that take several records at a time (`processors.many`)."""
    if chain is not None and not chain.many:
        return Portion(BLOCK, max(1, settings().batch_bytes // 2))
    whole = Portion(chunk.rows)
    whole.size = chunk.rows
    return whole


def blocks(chunk: Chunk, portion: Portion) -> Iterator[Chunk]:
    """Yields a chunk in parts of about as many rows as the portion says before each, cut between seqs."""
    while chunk.rows:
        seqs, end = chunk.seqs, chunk.rows
        if portion.size < end:
            end = int(np.searchsorted(seqs, seqs[portion.size])) or int(np.searchsorted(seqs, seqs[0], side="right"))
        yield chunk.part(0, end)
        chunk = chunk.part(end, chunk.rows)


def _small(pieces: Iterable[Piece], limit: int) -> Iterator[Piece]:
    """Yields the same rows in pieces of at most `limit` bytes: joined with the held rows, no piece exceeds Arrow's
    limit."""
    for seqs, ordinals, batch in pieces:
        at = 0
        for part in cut(batch, limit):
            end = at + part.num_rows
            yield seqs[at:end], ordinals[at:end], part
            at = end


def _joined(pieces: list[Piece]) -> Chunk:
    if len(pieces) == 1:
        return Chunk(*pieces[0])
    return Chunk(
        np.concatenate([seqs for seqs, _, _ in pieces]),
        np.concatenate([ordinals for _, ordinals, _ in pieces]),
        joined([batch for _, _, batch in pieces]),
    )


def last_of(chunk: Chunk, filtered: Seqs) -> int:
    """Returns the last of the seqs that are written and of those that are filtered beside them."""
    return int(max(chunk.seqs[-1], filtered[-1])) if len(filtered) else int(chunk.seqs[-1])


def counts_of(filtered: Seqs, written: Chunk | None, parked: Seqs = NONE) -> Counts:
    """Counts seqs that are settled together: seqs with a parked row are parked, the other seqs among the written rows
    are delivered."""
    delivered = written.records if written is not None else 0
    if len(parked) and written is not None:
        delivered = len(np.setdiff1d(written.seqs, parked))
    matched = delivered + len(filtered) + len(parked)
    return Counts(matched=matched, delivered=delivered, filtered=len(filtered), parked=len(parked))
