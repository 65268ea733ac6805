"""Collection of micro-batches that nobody needs any more: which are due, the two steps around the removal of their
files, and how little is kept of delivered ones until then (C11, invariants 1, 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.redis_client.portions import portions


class Collection:
    """Removal of micro-batches, in order, in two steps: the files are removed in between."""

    def __init__(self, access: Access, deliveries: Deliveries) -> None:
        self._access, self._keys = access, access.keys
        self._deliveries = deliveries

    def due(self, sources: Sequence[str], destinations: Sequence[str], retention_s: float) -> list[int]:
        """Returns the micro-batches to remove, in order: below every cursor, acked to every source, sealed at least
        `retention_s` seconds ago and not being redelivered; and any whose removal was begun and not ended."""
        sealed, *cursors = self._deliveries.cursors(destinations)
        collected = self._access.numbers("collected")[0]
        acked = [int(n or 0) for n in self._access.read(*(("HGET", self._keys.ack(s), "m") for s in sources))]
        redone = {m for d in destinations for m in self._access.scanned(self._keys.redo(d)) if m.isdigit()}
        out = []
        for m, state, age in self._by_age(collected + 1, min([sealed, *cursors, *acked]), sealed):
            if state != "collecting" and ((age or 0.0) < retention_s or str(m) in redone):
                break
            out.append(m)
        return out

    def slim(self, sources: Sequence[str], destinations: Sequence[str], age: float) -> None:
        """Removes the fields that neither redeliveries nor collection need, from micro-batches below every cursor that
        are acked to every source and were sealed at least `age` seconds ago. A fraction is left, as there are as many
        micro-batches as `spool.retention` has runs."""
        sealed, *cursors = self._deliveries.cursors(destinations)
        acked = [int(n or 0) for n in self._access.read(*(("HGET", self._keys.ack(s), "m") for s in sources))]
        done = max(self._access.numbers("slim", "collected"))
        found = self._by_age(done + 1, min([sealed, *cursors, *acked]), sealed)
        for due in portions([m for m, *_ in takewhile(lambda of: of[2] is None or of[2] >= age, found)]):
            keys = {"pipeline": self._keys.pipeline, "each": [self._keys.micro_batch(m) for m in due]}
            self._access.run(scripts.SLIM, keys, to=due[-1])

    def _by_age(self, first: int, last: int, sealed: int) -> Iterator[tuple[int, str | None, float | None]]:
        """Yields number, state and seconds since the seal of the micro-batches `first` … `last`.

        If the server's clock went back, a seal time may lie in the future, and the micro-batch would be kept longer by
        as much. Such times, up to `sealed` (the last sealed one), then count as sealed just now.
        """
        now, right = self._access.now(), False
        for m, (state, at) in self._in_order(first, last, "state", "sealed_at"):
            age = None if at is None else now - int(at) / 1e6
            if age is not None and age < 0 and not right:
                self._access.not_ahead(*((self._keys.micro_batch(n), "sealed_at", "") for n in range(m, sealed + 1)))
                right = True
            yield m, state, age and max(0.0, age)

    def _in_order(self, first: int, last: int, *names: str) -> Iterator[tuple[int, list[str | None]]]:
        """Yields number and these fields of each micro-batch, read in growing portions: callers mostly want few, but
        there may be as many as a day has."""
        size = 1
        while first <= last:
            some = range(first, min(last, first + size - 1) + 1)
            yield from zip(some, self._access.read(*(("HMGET", self._keys.micro_batch(m), *names) for m in some)))
            first, size = some[-1] + 1, min(2 * size, 1_000)

    def begin(self, m: int) -> None:
        """Marks micro-batch m before its files are removed. Raises InvariantBroken if it is still needed."""
        sources, destinations = self._access.members(self._keys.sources), self._access.members(self._keys.destinations)
        self._access.run(
            scripts.BEGIN_COLLECT,
            {
                "pipeline": self._keys.pipeline,
                "micro_batch": self._keys.micro_batch(m),
                "each": [*map(self._keys.destination, destinations), *map(self._keys.ack, sources)],
            },
            m=m,
            count=len(destinations),
        )

    def end(self, m: int) -> None:
        """Removes the key of micro-batch m, whose files are gone."""
        keys = {"pipeline": self._keys.pipeline, "micro_batch": self._keys.micro_batch(m)}
        self._access.run(scripts.END_COLLECT, keys, m=m)
