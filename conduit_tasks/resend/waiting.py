"""Records that wait behind dead letters, and the choice of records that may follow when the letters are sent again
(SEMANTICS X4)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from conduit_tasks.broker.redrive import Place
from conduit_tasks.broker.state import DeadEntry
from conduit_tasks.dead_letters.parking import stored_key_hash
from conduit_tasks.dead_letters.store import DeadLetterStore, Key, row_key
from conduit_tasks.record.dead_letter import DeadLetter

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.topology import Destination

KEYED = ("exact.key", "exact.shape")
"""Columns that tell a record's key."""
LAST: Place = (sys.maxsize, 0, 0)
"""A position behind all others."""


class Waiting:
    """Parked records of one destination, and the choice of records that may follow a redrive."""

    def __init__(self, context: Context, destination: Destination) -> None:
        self._context, self._node = context, destination.node
        self._broker, self._destination = context.broker, destination.id
        self._letters = DeadLetterStore(context.settings.path(context.settings.dead_letters), context.pipeline.id)
        self._parked = context.parked(destination)
        self._hashes: dict[Key, str | None] = {}

    def released(self, settled: set[Key] | Callable[[], set[Key]]) -> list[dict[str, Any]]:
        """Returns rows of parked records, in order, that nothing holds back once the letters `settled` are redriven
        (a function is asked for them only if a key is parked)."""
        through = self._broker.redrives.parked(self._destination)
        held = self._held(settled() if callable(settled) else settled) if through else set()
        waiting, first_open = self._rows({key: at for key, at in through.items() if key not in held})
        # A Redis that forgets confirms while their sender goes on leaves a gap: what is delivered again comes first.
        return [row for row in waiting if row_position(row) < first_open.get(_row_hash(row), LAST)]

    def load(self, rows: Sequence[dict[str, Any]]) -> Iterator[DeadLetter]:
        """Returns the records of such rows."""
        return self._parked.load(rows)

    def unpark(self, token: int) -> int:
        """Unparks, under the lease, the keys without an open letter or a waiting record. Returns the number of parked
        records that are left to wait."""
        from conduit_tasks.micro_batch.checkpoint import Marker

        through = self._broker.redrives.parked(self._destination)
        done, waiting = self._done(through)
        if done:
            # From here on only Redis knows that they were sent, and it may forget: a mark says so first (X7).
            Marker(self._context, self._node, token).mark()
            # The copies are removed first: if a key is parked again later, it must not find these old copies.
            old = [row for row in self._parked.rows(self._destination, KEYED) if _row_hash(row) in done]
            self._parked.remove(self._destination, {row_key(row) for row in old})
            for key in sorted(done):
                self._broker.redrives.unpark(self._destination, token, key, through[key])
        return waiting

    def over(self) -> bool:
        """Returns whether a key could be unparked: a redrive that died, or that Redis has forgotten, left it."""
        return bool(self._done(self._broker.redrives.parked(self._destination))[0])

    def _done(self, through: dict[str, Place]) -> tuple[set[str], int]:
        """Returns the keys without an open letter or a waiting record, and the number of waiting records."""
        if not through:
            return set(), 0
        rows, _ = self._rows(through)
        return through.keys() - self._held(set()) - {_row_hash(row) for row in rows}, len(rows)

    def _held(self, settled: set[Key]) -> set[str | None]:
        """Returns the keys that have an open letter besides `settled`."""
        index = [_entry_key(e) for e in self._broker.dead_letters.entries(self._destination)]
        if not set(index) <= self._hashes.keys():
            self._hashes = {row_key(row): _row_hash(row) for row in self._letters.rows(self._destination, KEYED)}
        return {self._hashes.get(key) for key in index if key not in settled}

    def _rows(self, through: dict[str, Place]) -> tuple[list[dict[str, Any]], dict[str | None, Place]]:
        """Returns the waiting records of these keys: confirmed, behind the key's position, each position once; and the
        position of each key's first copy that is not confirmed."""
        if not through:
            return [], {}
        state = self._broker.deliveries.get(self._destination)
        found: dict[Place, dict[str, Any]] = {}
        first_open: dict[str | None, Place] = {}
        for row in self._parked.rows(self._destination, KEYED):
            at, hashed = row_position(row), _row_hash(row)
            if hashed not in through or at <= through[hashed]:
                continue
            if at[0] <= state.cursor or (at[0] == state.cursor + 1 and at[1] in state.confirmed):
                found[at] = row
            else:
                first_open[hashed] = min(at, first_open.get(hashed, at))
        return [found[at] for at in sorted(found)], first_open


def row_position(row: dict[str, Any]) -> Place:
    """Returns the position of a row's record, whichever epoch it is of."""
    return (row["micro_batch"], row["seq"], row["ord"])


def _row_hash(row: dict[str, Any]) -> str | None:
    return stored_key_hash(row["exact"]["key"], row["exact"]["shape"])


def _entry_key(entry: DeadEntry) -> Key:
    return (entry.epoch, entry.micro_batch, entry.seq, entry.ordinal)
