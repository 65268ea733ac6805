"""Outcome of messages as a whole: acked once every destination that wants them acked, nacked once one nacked (C4).

It is derived, never stored: from the ledger's rows of each destination, the sealed manifest (the destinations that want
any of it, the records that failed before the fan-out) and the dead letters. A redelivery, a redrive and a replay
(epochs above 0) are messages of their own, and change nothing of the first (C3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, DeadLetterStore
from conduit_tasks.ledger.entry import scattered
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.spool.names import known_as, names

if TYPE_CHECKING:
    from conduit_tasks.spool.manifest import SealedManifest
    from conduit_tasks.spool.spool import Spool
    from conduit_tasks.topology import Destination, Pipeline

State = Literal["acked", "nacked", "open"]
COLUMNS = ("micro_batch", "first", "last", "records", "state")
"""Columns of `rows`."""


@dataclass(frozen=True)
class Messages:
    """Records of one micro-batch, by their outcome as a whole; records in neither range set are open."""

    micro_batch: int
    total: int
    acked: RangeSet
    nacked: RangeSet

    def state(self, seq: int) -> State:
        """Returns the state of one record, by its number in the micro-batch."""
        return "nacked" if seq in self.nacked else "acked" if seq in self.acked else "open"

    def rows(self) -> list[tuple[int, int, int, int, State]]:
        """Returns one row for each range with the same state, in order; see COLUMNS."""
        whole = RangeSet(((0, self.total - 1),)) if self.total else RangeSet()
        of: dict[State, RangeSet] = {"acked": self.acked, "nacked": self.nacked}
        of["open"] = whole.subtract(self.acked).subtract(self.nacked)
        found = [(first, last, state) for state, ranges in of.items() for first, last in ranges]
        return [(self.micro_batch, first, last, last - first + 1, state) for first, last, state in sorted(found)]


@dataclass
class _Said:
    """Outcomes at one destination: settled ranges, the nacks among them, and the ranges only known to be settled.

    `records`: number of settled records; `some`: the last seq of a range in which only some are settled, which has to
    be told by their number.
    """

    records: int = 0
    some: int | None = None
    settled: RangeSet = field(default_factory=RangeSet)
    nacked: RangeSet = field(default_factory=RangeSet)
    unrecorded: RangeSet = field(default_factory=RangeSet)


class Overall:
    """Look-up of the outcomes in one pipeline's micro-batches. Raises SpoolError.

    `root`: of the dead-letter store. `rows`: of the ledger, all destinations, if they are read already. `nacks`:
    micro-batch → numbers of further records known to be nacked, as the broker's index has them.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        spool: Spool,
        root: str,
        rows: pa.Table | None = None,
        nacks: Mapping[int, Iterable[int]] | None = None,
    ) -> None:
        self._pipeline, self._spool, self._nacks = pipeline, spool, nacks or {}
        self._ledger = Ledger(spool, pipeline.id)
        self._rows = None if rows is None else _grouped(rows)
        self._letters = DeadLetterStore(root, pipeline.id)
        self._now = {was: now for now, earlier in names(spool, pipeline.id).items() for was in earlier}

    def of(self, number: int) -> Messages:
        """Returns the messages of one micro-batch; `total` is 0 if nothing is known of it any more."""
        path = self._spool.sealed(self._pipeline.id, number)
        manifest = self._spool.read_sealed(path) if path is not None else None
        said = self._said(number)
        ends = [each.settled.ranges[-1][1] + 1 for each in said.values() if each.settled]
        ends += [each.some + 1 for each in said.values() if each.some is not None]
        total = manifest.total if manifest else max(ends, default=0)
        whole = RangeSet(((0, total - 1),)) if total else RangeSet()
        nacked = self._before(number, manifest).add(_points(self._nacks.get(number, ())))
        acked = whole
        for destination in self._pipeline.destinations:
            known = said.get(destination.id, _Said())
            if known.unrecorded:
                letters = _points(self._letters.nacked(destination.id, number))
                known.nacked = known.nacked.add(letters.intersect(known.unrecorded))
            nacked = nacked.add(known.nacked)
            settled = known.settled
            if manifest is None:
                # Collected: every destination that wanted any of it has confirmed it.
                continue
            matched = manifest.matched.get(known_as(self._spool, self._pipeline.id, destination.id, manifest.matched))
            if not matched:
                continue
            if known.some is not None and known.records >= matched:
                settled = whole
            if not settled.contains(whole):
                settled = settled.add(whole.subtract(self._wanted(manifest, destination)))
            acked = acked.intersect(settled)
        return Messages(number, total, acked.subtract(nacked), nacked.intersect(whole))

    def _said(self, number: int) -> dict[str, _Said]:
        """Returns destination (by its present id) → its outcomes in epoch 0, by the ledger."""
        rows = _grouped(self._ledger.read(micro_batch=number)) if self._rows is None else self._rows
        out: dict[str, _Said] = {}
        for row in rows.get(number, ()):
            known = out.setdefault(self._now.get(row["destination"], row["destination"]), _Said())
            piece = ((row["first"], row["last"]),)
            known.records += row["records"]
            if scattered(row):
                known.some = max(known.some or 0, row["last"])
            else:
                known.settled = known.settled.add(piece)
            if row["outcome"] == "nacked":
                known.nacked = known.nacked.add(piece)
            elif row["outcome"] == "confirmed":
                known.unrecorded = known.unrecorded.add(piece)
        return out

    def _before(self, number: int, manifest: SealedManifest | None) -> RangeSet:
        """Returns the records that failed before the fan-out."""
        if manifest is None:
            return _points(self._letters.nacked(BEFORE_FAN_OUT, number))
        found: list[int] = []
        for file in manifest.nacked_files:
            for batch in self._spool.read(file, columns=["slice", "n"]):
                found += manifest.seqs(batch).tolist()
        return _points(found)

    def _wanted(self, manifest: SealedManifest, destination: Destination) -> RangeSet:
        """Returns the records of the micro-batch that this destination's trigger matched."""
        name = f"to.{known_as(self._spool, self._pipeline.id, destination.id, manifest.matched)}"
        out = RangeSet()
        for file in manifest.files:
            row_filter = name if name in self._spool.columns(file) else None
            for batch in self._spool.read(file, columns=["slice", "n"], row_filter=row_filter):
                out = out.add(_points(manifest.seqs(batch)))
        return out


def rows_of(pipeline: Pipeline, spool: Spool, root: str, micro_batches: Collection[int]) -> list[Any]:
    """Returns the rows of these micro-batches, in order; see COLUMNS. Raises SpoolError."""
    if not micro_batches:
        return []
    overall = Overall(pipeline, spool, root, Ledger(spool, pipeline.id).read())
    return [row for number in sorted(micro_batches) for row in overall.of(number).rows()]


def _grouped(table: pa.Table) -> dict[int, list[dict[str, Any]]]:
    """Returns micro-batch → its rows of epoch 0 that settle something."""
    out: dict[int, list[dict[str, Any]]] = {}
    for row in table.select(["destination", "micro_batch", "first", "last", "records", "outcome", "epoch"]).to_pylist():
        if not row["epoch"] and row["outcome"] != "open":
            out.setdefault(row["micro_batch"], []).append(row)
    return out


def _points(seqs: Any) -> RangeSet:
    """Converts numbers, which may be unordered and repeated, to ranges."""
    found = np.unique(np.asarray(seqs if isinstance(seqs, np.ndarray) else list(seqs), dtype=np.int64))
    if not len(found):
        return RangeSet()
    cuts = np.flatnonzero(np.diff(found) > 1)
    firsts, lasts = found[np.concatenate([[0], cuts + 1])], found[np.concatenate([cuts, [len(found) - 1]])]
    return RangeSet.of(zip(firsts.tolist(), lasts.tolist()))
