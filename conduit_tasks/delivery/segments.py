"""The processors of a batch-wise delivery: what becomes of a chunk, in parts that end where a record was nacked."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from conduit_tasks.delivery.chunks import NONE, Chunk, Seqs, blocks, portion_of
from conduit_tasks.delivery.reading import DERIVED_STRIDE, MOST_ORDINAL, overflow, processed
from conduit_tasks.delivery.work import Entry, Work
from conduit_tasks.errors import Oversize
from conduit_tasks.processors import columns
from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.result import Result
from conduit_tasks.record.accounts import accounted
from conduit_tasks.record.batches import joined
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.schema import spool_batch, to_records
from conduit_tasks.settings import settings

Segment = tuple[Chunk | None, Seqs, list[DeadLetter]]


def cut_at_nacks(work: Work, chunk: Chunk) -> Iterator[Segment]:
    """Yields a chunk after its processors, cut at each nack: the rows to write (None if there are none), the seqs among
    theirs that were filtered, and the dead letters of the nacked seq that follows. Raises InvariantBroken if the
    processors leave a row without an outcome."""
    if work.chain is not None and work.chain.columnar and not work.culprits:
        yield from _column_segments(work, work.chain, chunk)
        return
    held: list[Segment] = []
    used, limit = 0, _limit()
    portion = portion_of(work.chain, chunk)
    for block in blocks(chunk, portion):
        came = 0
        for segment in (each for some in processed(work, block) for each in _entry_segments(*some)):
            size = 0 if segment[0] is None else segment[0].batch.nbytes
            came += size
            if held and (segment[2] or used + size > limit):
                yield _together(held)
                held, used = [], 0
            if segment[2]:
                yield segment
            else:
                held.append(segment)
                used += size
        portion.came(block.rows, came)
    if held:
        yield _together(held)


def _together(held: list[Segment]) -> Segment:
    """Returns consecutive segments without dead letters as one."""
    if len(held) == 1:
        return held[0]
    chunks = [chunk for chunk, _, _ in held if chunk is not None]
    gone = np.concatenate([seqs for _, seqs, _ in held])
    if not chunks:
        return None, gone, []
    seqs, ordinals = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("seqs", "ordinals"))
    return Chunk(seqs, ordinals, joined([chunk.batch for chunk in chunks])), gone, []


def _limit() -> int:
    # A chunk has the limit already: what processors add to it is no reason to write it in two.
    return 2 * settings().batch_bytes


def _entry_segments(chunk: Chunk, entries: list[Entry]) -> Iterator[Segment]:
    slices, numbers = chunk.batch.column("slice").to_numpy(), chunk.batch.column("n").to_numpy()

    def made(kept: list[Entry]) -> Chunk | None:
        if not kept:
            return None
        seqs = np.array([e.seq for e in kept], dtype=np.int64)
        rows = [e.row for e in kept]
        batch = spool_batch(slices[rows], numbers[rows], [e.record for e in kept])
        return Chunk(seqs, np.array([e.ordinal for e in kept], dtype=np.int64), batch)

    for nacked, group in groupby(entries, key=lambda e: e.seq if e.letter is not None else None):
        part = list(group)
        if nacked is not None:
            yield None, NONE, [e.letter for e in part if e.letter is not None]
            continue
        todo = [part]
        while todo:
            some = todo.pop()
            kept = [e for e in some if not e.filtered]
            try:
                out = made(kept)
            except Oversize:
                seqs = np.array([e.seq for e in some], dtype=np.int64)
                cut = columns.middle(seqs, 0, len(seqs))
                if cut is None:
                    raise
                todo += [some[cut:], some[:cut]]
            else:
                gone = sorted({e.seq for e in some if e.filtered} - {e.seq for e in kept})
                yield out, np.array(gone, dtype=np.int64), []


def _column_segments(work: Work, chain: Chain, chunk: Chunk) -> Iterator[Segment]:
    for start, end, made in columns.parts(chain, chunk.batch, work.origins, chunk.seqs, _limit()):
        yield from _part_segments(work, chain, chunk.part(start, end), made)


def _part_segments(work: Work, chain: Chain, chunk: Chunk, passed: columns.Passed) -> Iterator[Segment]:
    seqs = chunk.seqs
    ords = chunk.batch.column("ord").to_numpy()
    places = columns.places(passed.rows)
    if places.max(initial=0) >= MOST_ORDINAL // DERIVED_STRIDE:
        for row in np.unique(passed.rows[places >= MOST_ORDINAL // DERIVED_STRIDE]).tolist():
            if why := overflow(int(np.count_nonzero(passed.rows == row)), int(ords[row])):
                passed.errors[row] = chain.unwritable(why)
    bad = np.unique(seqs[list(passed.errors)]) if passed.errors else NONE
    failed = np.isin(seqs, bad)
    if len(bad):
        passed = passed.without(failed)
    rows = passed.rows
    on, filtered = passed.fates(chunk.rows)
    filtered &= ~failed
    fates = {"went_on": on, "filtered": filtered, "nacked": failed}
    became = {name: int(np.count_nonzero(flags)) for name, flags in fates.items()}
    accounted(work.node, work.micro_batch, chunk.rows, "rows", **became)
    gone = np.setdiff1d(seqs[filtered], seqs[on]) if became["filtered"] else NONE
    ordinals = ords[rows] + columns.places(rows) * DERIVED_STRIDE
    out = Chunk(seqs[rows], chunk.ordinals[rows], columns.renumbered(passed.batch, ordinals))
    start = row = first = 0
    for seq in [*bad.tolist(), None]:
        end, at = (
            (out.rows, chunk.rows)
            if seq is None
            else (int(np.searchsorted(out.seqs, seq)), int(np.searchsorted(seqs, seq)))
        )
        if at > row:
            last = len(gone) if seq is None else int(np.searchsorted(gone, seq))
            yield out.part(start, end) if end > start else None, gone[first:last], []
            first = last
        if seq is not None:
            row = int(np.searchsorted(seqs, seq, side="right"))
            error = next(passed.errors[r] for r in range(at, row) if r in passed.errors)
            yield None, NONE, _letters(work, chunk.part(at, row), error)
        start = end


def _letters(work: Work, rows: Chunk, failure: Result) -> list[DeadLetter]:
    """Returns the dead letters of the records of one seq that a processor of the destination nacked, as they came
    in."""
    node, kind = f"{work.node}/{failure.processor}", failure.error_class or "processor"
    records = to_records(rows.batch, work.origins)
    return [work.letter(int(rows.seqs[0]), record, failure.error or "", kind, node=node) for record in records]
