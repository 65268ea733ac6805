"""Bookkeeping of a delivery that works strictly in order: the batch-wise counterpart of `progress`.

Each flush covers everything up to a seq, so nothing is kept per record but the seqs of the chunk under way: counts come
from the caller's arrays, and must be those of the seqs that came.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.connectors.rows import ALL
from conduit_tasks.delivery.chunks import Seqs, distinct
from conduit_tasks.delivery.progress import Flush, Nack, run_lengths
from conduit_tasks.delivery.reading import Reading
from conduit_tasks.delivery.work import Work
from conduit_tasks.record.accounts import accounted
from conduit_tasks.record.counts import Counts


class InOrder:
    """Progress of an in-order delivery. Each method but `coming` returns the flush to tell; the caller tells it before
    the next call. Each raises InvariantBroken if a seq that came is neither among those that are settled nor open."""

    def __init__(self, work: Work, reading: Reading) -> None:
        self._work, self._last, self._reading = work, work.last, reading
        self._coming: Seqs = np.empty(0, np.int64)
        span = RangeSet(((work.first, work.last),)) if work.first <= work.last else RangeSet()
        self._gaps = span.subtract(RangeSet.of(work.confirmed))
        before = RangeSet(((0, work.first - 1),)) if work.first else RangeSet()
        confirmed = RangeSet.of(work.confirmed)
        self._before = before.subtract(confirmed).ranges
        self._behind = RangeSet(((work.last + 1, ALL),)).subtract(confirmed).ranges
        self._voted = 0

    @property
    def confirmed(self) -> bool:
        """Whether the whole span is confirmed."""
        return not self._gaps

    @property
    def pending(self) -> tuple[tuple[int, int], ...]:
        """Ranges of seqs of the micro-batch that are not confirmed, also before and behind the span."""
        return (*self._before, *self._gaps.ranges, *self._behind)

    def coming(self, seqs: Seqs) -> None:
        """Notes the rows of a chunk, after every seq of the one before it was settled."""
        self._came(len(self._coming), 0)
        self._coming = distinct(seqs)

    def acks(self, through: int, counts: Counts) -> Flush:
        """Returns the flush if every matched seq up to `through` is complete and none is a nack."""
        return self._flush(through, [], counts)

    def nacks(self, nacks: Sequence[tuple[int, Nack]], through: int, acks: Counts) -> Flush:
        """Returns the flush if every matched seq up to `through` is complete. `nacks`: (seq, nack) in order; `acks`:
        the others."""
        return self._flush(through, list(nacks), acks)

    def rest(self) -> Flush:
        """Returns the flush for the rest of the span after everything was read: seqs that nothing matched."""
        return self._flush(self._last, [], Counts())

    def told(self, flush: Flush, accepted: int | None, ranges: RangeSet) -> None:
        """Notes the result of a flush, as `Committer.tell` answered."""
        self._voted = flush.first + (sum(n for _, n in flush.votes) if accepted is None else accepted)
        self._gaps = self._gaps.subtract(ranges)

    def _came(self, count: int, settled: int) -> None:
        accounted(self._work.node, self._work.micro_batch, count, settled=settled)
        self._coming = self._coming[count:]

    def _flush(self, through: int, nacks: list[tuple[int, Nack]], acks: Counts) -> Flush:
        self._came(int(np.searchsorted(self._coming, through, side="right")), acks.matched + len(nacks))
        gaps = RangeSet(tuple((first, min(last, through)) for first, last in self._gaps if first <= through))
        # Acks are voted with the next nack, or with the confirm that completes the span: the last moment for it.
        # By then everything was read, because the last chunk is handed out after that.
        end = nacks[-1][1].ordinal + 1 if nacks else self._voted
        if gaps == self._gaps:
            end = max(end, self._reading.matched)
        votes = run_lengths(self._voted, end, [n.ordinal for _, n in nacks if n.counts])
        return Flush(self._voted, votes, gaps, [], acks, nacks)
