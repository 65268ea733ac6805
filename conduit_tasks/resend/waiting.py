"""Records that wait behind dead letters, and the choice of records that may follow when the letters are sent again
(SEMANTICS X4)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.broker.redrive import Place
from conduit_tasks.dead_letters.columns import SCHEMA, Columns
from conduit_tasks.dead_letters.store import KEY, Key, as_field
from conduit_tasks.record.dead_letter import DeadLetter

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.topology import Destination

PLACE = KEY[1:]
"""Columns that are the position of a record."""
LAST: Place = (sys.maxsize, 0, 0)
"""A position behind all others."""


class Waiting:
    """Parked records of one destination, and the choice of records that may follow a redrive. Of letters and of parked
    records, their extracts are held; a row is made of those that are chosen. `letters`: a look at the letters of the
    destination, or of all, if there is one already."""

    def __init__(self, context: Context, destination: Destination, letters: pa.Table | None = None) -> None:
        self._context, self._node = context, destination.node
        self._broker, self._destination = context.broker, destination.id
        root, pipeline = context.settings.path(context.settings.dead_letters), context.pipeline.id
        self._parked = context.parked(destination)
        self._letters, self._known = Columns(root, pipeline, destination.id), letters
        self._copies = Columns(root, pipeline, destination.id, parked=True)

    def released(self, settled: set[Key] | Callable[[], set[Key]]) -> list[dict[str, Any]]:
        """Returns rows of parked records, in order, that nothing holds back once the letters `settled` are redriven
        (a function is asked for them only if a key is parked)."""
        through = self._broker.redrives.parked(self._destination)
        held = self._held(settled() if callable(settled) else settled) if through else set()
        found = self._waiting({key: at for key, at in through.items() if key not in held})
        # A Redis that forgets confirms while their sender goes on leaves a gap: what is delivered again comes first.
        return [row for row in found.rows() if row_position(row) < found.first_open.get(row["hash"], LAST)]

    def load(self, rows: Sequence[dict[str, Any]]) -> Iterator[DeadLetter]:
        """Returns the records of such rows."""
        return self._parked.load(rows)

    def unpark(self, lease: Lease) -> int:
        """Unparks the keys without an open letter or a waiting record. Returns the number of parked records that are
        left to wait. Raises Fenced, and has removed nothing then that the lease's next holder has parked."""
        from conduit_tasks.micro_batch.checkpoint import Marker

        through = self._broker.redrives.parked(self._destination)
        done, found = self._done(through)
        if done:
            # From here on only Redis knows that they were sent, and it may forget: a mark says so first (X7).
            Marker(self._context, self._node, lease.token).mark()
            # Who still has the lease here was alone when it looked for copies: others of these keys may come later.
            lease.renew()
            # The copies are removed first: if a key is parked again later, it must not find these old copies.
            old = found.copies.filter(pc.is_in(found.copies["hash"], value_set=pa.array(done, pa.string())))
            self._parked.remove(self._destination, set(zip(*(old[name].to_pylist() for name in KEY))))
            for key in sorted(done):
                self._broker.redrives.unpark(self._destination, lease.token, key, through[key])
        return found.waiting.num_rows

    def over(self) -> bool:
        """Returns whether a key could be unparked: a redrive that died, or that Redis has forgotten, left it."""
        return bool(self._done(self._broker.redrives.parked(self._destination))[0])

    def _done(self, through: dict[str, Place]) -> tuple[set[str], _Copies]:
        """Returns the keys without an open letter or a waiting record, and the copies of all these keys."""
        found = self._waiting(through)
        waits = {*pc.unique(found.waiting["hash"]).to_pylist(), *(self._held(set()) if through else ())}
        return through.keys() - waits, found

    def _held(self, settled: set[Key]) -> set[str | None]:
        """Returns the keys that have an open letter besides `settled`."""
        # The index comes first: what it has is stored (invariant 8), so none of it is missing from a look after it.
        index = pa.array(self._broker.dead_letters.fields(self._destination), pa.string())
        letters = self._mine(self._known)
        if letters is None or not pc.all(pc.is_in(index, value_set=letters["field"])).as_py():
            self._known = self._letters.look().letters
            letters = self._mine(self._known)
        still = pc.is_in(letters["field"], value_set=index)
        free = pc.is_in(letters["field"], value_set=pa.array(map(as_field, settled), pa.string()))
        return set(pc.unique(letters["hash"].filter(pc.and_not(still, free))).to_pylist())

    def _mine(self, letters: pa.Table | None) -> Any:
        return None if letters is None else letters.filter(pc.equal(letters["destination"], self._destination))

    def _of(self, keys: Collection[str]) -> tuple[pa.Table, Mapping[int, str]]:
        """Returns the copies of these keys, in order, and the paths of their files."""
        look = self._copies.look()
        wanted = pa.array(keys, pa.string())
        return look.letters.filter(pc.is_in(look.letters["hash"], value_set=wanted)).combine_chunks(), look.paths

    def _waiting(self, through: Mapping[str, Place]) -> _Copies:
        """Returns the waiting records of these keys: confirmed, behind the key's position, each position once; and of
        each key the position of its first copy that is not confirmed."""
        if not through:
            return _Copies(SCHEMA.empty_table(), SCHEMA.empty_table(), {}, {})
        state = self._broker.deliveries.get(self._destination)
        copies, paths = self._of(through)
        m, seq, ordinal = (copies[name].to_numpy() for name in PLACE)
        # Arrow has no order of tuples: the position of each copy's key stands beside it, a column for each part.
        key = pc.index_in(copies["hash"], value_set=pa.array(through, pa.string())).to_numpy()
        tm, tseq, tord = np.array([*through.values()], np.int64).reshape(-1, 3)[key].T
        behind = (m > tm) | ((m == tm) & ((seq > tseq) | ((seq == tseq) & (ordinal > tord))))
        confirmed = m <= state.cursor
        for first, last in state.confirmed:
            confirmed |= (m == state.cursor + 1) & (seq >= first) & (seq <= last)
        first_open: dict[str, Place] = {}
        for row in copies.filter(pa.array(behind & ~confirmed)).select([*PLACE, "hash"]).to_pylist():
            at = row_position(row)
            first_open[row["hash"]] = min(at, first_open.get(row["hash"], at))
        # Of several copies of a position the one of the newest epoch counts; they come in the order of epochs.
        there = np.flatnonzero(behind & confirmed)
        order = there[np.lexsort((there, ordinal[there], seq[there], m[there]))]
        place = np.stack([m[order], seq[order], ordinal[order]])
        newest = np.append((place[:, 1:] != place[:, :-1]).any(axis=0), np.ones(min(1, len(order)), bool))
        return _Copies(copies, copies.take(pa.array(order[newest])), first_open, paths)


@dataclass(frozen=True)
class _Copies:
    """Copies of keys, and those of waiting records, in order; `first_open`: hash of a key → position of its first copy
    that is not confirmed."""

    copies: pa.Table
    waiting: pa.Table
    first_open: Mapping[str, Place]
    paths: Mapping[int, str]

    def rows(self) -> list[dict[str, Any]]:
        """Returns them as rows with what `DeadLetterStore.load` needs, and the key's `hash`."""
        rows = self.waiting.select([*KEY, "hash", "file"]).to_pylist()
        return [{**row, "file": self.paths[row["file"]]} for row in rows]


def row_position(row: dict[str, Any]) -> Place:
    """Returns the position of a row's record, whichever epoch it is of."""
    return (row["micro_batch"], row["seq"], row["ord"])
