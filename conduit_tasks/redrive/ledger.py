"""Entries of a redrive in the delivery ledger (SEMANTICS X5): one attempt per micro-batch of its letters."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.progress import Settled
from conduit_tasks.errors import SpoolError
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context

log = logging.getLogger(__name__)


class Entries:
    """Settled letters of a redrive, written to the ledger when it ends, well or not. `attempt`: unique."""

    def __init__(self, config: str, destination: str, attempt: str, by: str, epoch: int) -> None:
        self._config, self._destination, self._attempt = config, destination, attempt
        self._run, self._epoch = f"redrive by {by}", epoch
        self._acked: dict[int, set[int]] = defaultdict(set)
        self._nacked: dict[int, list[DeadLetter]] = defaultdict(list)
        self._counts = Counts()

    def told(self, acked: Sequence[DeadLetter], nacked: Sequence[DeadLetter], counts: Counts) -> None:
        """Adds letters that were settled."""
        from conduit_tasks.delivery.work import add

        for letter in acked:
            self._acked[letter.micro_batch].add(letter.seq)
        for letter in nacked:
            self._nacked[letter.micro_batch].append(letter)
        self._counts = add(self._counts, counts)

    @contextmanager
    def written(self, context: Context, letters: Sequence[DeadLetter]) -> Iterator[None]:
        """Writes the entries after the sending of these letters, which runs inside. A ledger that cannot be written
        stops nothing."""
        began = time.time()
        try:
            yield
        except Exception as error:
            self._write(context, letters, began, error)
            raise
        self._write(context, letters, began, None)

    def _write(self, context: Context, letters: Sequence[DeadLetter], began: float, error: Exception | None) -> None:
        from conduit_tasks.ledger.entry import Attempt, Tally
        from conduit_tasks.ledger.store import Ledger

        asked: dict[int, set[int]] = defaultdict(set)
        for letter in letters:
            asked[letter.micro_batch].add(letter.seq)
        # The counts are of the whole redrive: they are written with its first micro-batch only, so that sums are right.
        counts = self._counts
        for number, seqs in sorted(asked.items()):
            id = f"{self._attempt}-{number}"
            attempt = Attempt(self._destination, number, id, self._run, self._config, _ranges(seqs), self._epoch, began)
            nacks = self._nacked[number]
            tally = Tally(attempt)
            tally.told(Settled(_ranges(self._acked[number] | {n.seq for n in nacks}), counts, nacks))
            counts = Counts()
            try:
                Ledger(context.spool, context.pipeline.id).write(tally.table(error))
            except SpoolError as problem:
                log.warning("a redrive is missing in the ledger: %s", problem)


def _ranges(seqs: set[int]) -> RangeSet:
    return RangeSet.of((seq, seq) for seq in sorted(seqs))
