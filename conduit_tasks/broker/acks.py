"""Acks to the sources, and collection of micro-batches that nobody needs any more (C11, C12, invariants 1, 2, 6)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.base import portions, seconds
from conduit_tasks.broker.delivery import Deliveries
from conduit_tasks.broker.state import Ack
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Position


MESSAGES = "*messages"
"""Pseudo-source of the ack that counts how far handlers were told of messages as a whole. No source has such an id."""


PARTS = 5_000
"""Limit of a source's parts in one ack."""


class Acks(Deliveries):
    """Acks and collection. An ack covers whole micro-batches, in order; its intent is durable before the source is
    told."""

    def acked_position(self, source: str) -> Position:
        """Returns the position that the source was told last: part → token."""
        return {part: orjson.loads(token) for part, token in self.scanned(self.keys.acked(source)).items()}

    def ack_due(self, source: str, destinations: Sequence[str], ack_on: str) -> bool:
        """Returns whether `begin_ack` has something to do."""
        ack = self.hash(self.keys.ack(source))
        return "to" in ack or int(ack.get("m", 0)) < self._confirmed(destinations, ack_on)

    def begin_ack(
        self,
        source: str,
        destinations: Sequence[str],
        ack_on: str,
        token: int | None = None,
        *,
        apart: bool = False,
        through: int | None = None,
    ) -> Ack | None:
        """Records the intent of a source's next ack and returns it; the last one again if it was never committed (C12).

        The ack covers everything up to the lowest cursor of `destinations` (`ack_on` stored: the last sealed
        micro-batch). `apart`: only up to the first micro-batch that has something of the source. `through`: not beyond
        this micro-batch. Returns None if there is nothing to tell.
        `token`: of the lease `acks.<source>`. Raises Fenced if that lease was lost.
        """
        ack = self.hash(self.keys.ack(source))
        if "to" in ack:
            m_from, m_to = int(ack["from"]), int(ack["to"])
            position: dict[str, str] = {}
        else:
            m_from, m_to = int(ack.get("m", 0)) + 1, self._confirmed(destinations, ack_on)
            m_to = m_to if through is None else min(m_to, through)
            if m_to < m_from:
                return None
            if apart:
                m_to = next((m for m in range(m_from, m_to) if self._ends(source, m, m)), m_to)
            if source == MESSAGES:
                position = {"": str(m_to)}
            else:
                m_to, position = self._ends_within(source, m_from, m_to)
        stands = self.run(
            scripts.BEGIN_ACK,
            {
                "pipeline": self.keys.pipeline,
                "ack": self.keys.ack(source),
                "lease": self.keys.lease(Node.ack(source)),
                "intent": self.keys.intent(source),
                "cursors": [] if ack_on == "stored" else [self.keys.destination(d) for d in destinations],
            },
            **{"from": m_from},
            to=m_to,
            token=token or 0,
            position=[text for pair in position.items() for text in pair],
        )
        if not stands[0]:
            return None
        ack = self.hash(self.keys.ack(source))
        if "to" not in ack:
            # Without a lease, another process may have told and committed it between the two reads.
            return None
        intent = self.hash(self.keys.intent(source))
        return Ack(int(ack["from"]), int(ack["to"]), {part: orjson.loads(t) for part, t in intent.items()})

    def told(self) -> int:
        """Returns the last micro-batch whose messages handlers were told of as a whole."""
        return int(self.hash(self.keys.ack(MESSAGES)).get("m", 0))

    def _ends(self, source: str, m_from: int, m_to: int) -> dict[str, str]:
        """Returns part → token (JSON) at which the last slice of the part ends in these micro-batches."""
        return self._ends_within(source, m_from, m_to)[1]

    def _ends_within(self, source: str, m_from: int, m_to: int) -> tuple[int, dict[str, str]]:
        """Returns the last micro-batch that fits into one ack (at least the first one), and `_ends` up to that one."""
        ends: dict[str, str] = {}
        for some in portions(range(m_from, m_to + 1), 100):
            texts = self.read(*(("HGET", self.keys.micro_batch(m), f"slices:{source}") for m in some))
            for m, text in zip(some, texts):
                of = orjson.loads(text) if text else ()
                more = {piece["part"]: orjson.dumps(piece["end"]).decode() for piece in of}
                if ends and len({**ends, **more}) > PARTS:
                    return m - 1, ends
                ends |= more
        return m_to, ends

    def look_due(self, source: str, every: float) -> bool:
        """Returns whether the last `note_gone` is at least `every` seconds ago, or there was none."""
        looked = seconds(self.field(self.keys.pipeline, f"looked:{source}"))
        return looked is None or not 0 <= self.now() - looked < every

    def note_gone(self, source: str, gone: Collection[str], after: float) -> int:
        """Notes which parts of the source's position exist no more (`gone`); returns the number of forgotten parts.

        A part is forgotten once it has been gone for `after` seconds and has nothing in flight.
        """
        keys = self.keys
        planned, known = self.scanned(keys.planned(source)), self.scanned(keys.gone(source))
        flying = {part for ends in self.unacked_ends(source) for part in ends}
        back = [part for part in known if part not in gone or part not in planned]
        away = [(part, planned[part]) for part in sorted(gone) if part in planned and part not in flying]
        of = {
            "pipeline": keys.pipeline,
            "gone": keys.gone(source),
            "planned": keys.planned(source),
            "acked": keys.acked(source),
            "index": keys.index(source),
        }
        calls = [(list(some), list[str]()) for some in portions(back)]
        calls += [([], [text for pair in some for text in pair]) for some in portions(away)]
        forgotten = 0
        for there, lost in calls or [([], [])]:
            args = {"source": source, "after": int(after * 1e6), "back": len(there), "rest": [*there, *lost]}
            forgotten += int(self.run(scripts.GONE, of, **args)[0])
        return forgotten

    def unacked_ends(self, source: str) -> list[Position]:
        """Returns the ends of the source's slices (part → token) per micro-batch that is not acked, in order."""
        acked = int(self.hash(self.keys.ack(source)).get("m", 0))
        return [ends for _, ends in self._each_end(source, acked + 1, self._newest())]

    def ends_since(self, source: str, since: float) -> list[Position]:
        """Returns `unacked_ends`, preceded by the ends in acked micro-batches sealed after `since` (seconds since the
        epoch)."""
        found: list[Position] = self.unacked_ends(source)
        last = int(self.hash(self.keys.ack(source)).get("m", 0))
        while last > 0:
            first = max(1, last - 31)
            there = self._each_end(source, first, last)
            young = [ends for at, ends in there if at is None or at > since]
            found = [*young, *found]
            if len(young) < last - first + 1:
                break
            last = first - 1
        return found

    def _newest(self) -> int:
        sealed, unsealed = self.numbers("sealed", "unsealed")
        return max(sealed, unsealed)

    def _each_end(self, source: str, first: int, last: int) -> list[tuple[float | None, Position]]:
        """Returns (sealed at, part → token) of each existing micro-batch of the range that has an end of the source."""
        out = []
        commands = (
            ("HMGET", self.keys.micro_batch(m), "sealed_at", f"slices:{source}") for m in range(first, last + 1)
        )
        for at, text in self.read(*commands):
            ends = {s["part"]: s["end"] for s in orjson.loads(text or "[]") if s["end"] is not None}
            if ends:
                out.append((seconds(at), ends))
        return out

    def commit_ack(
        self, source: str, ack: Ack, token: int | None = None, observed: Mapping[str, int] | None = None
    ) -> None:
        """Notes that the source has been told, so that the ack is given once (C12).

        `observed`: durations (`metrics.histogram`). Raises Fenced, and InvariantBroken if the ack was not begun.
        """
        keys = {
            "lease": self.keys.lease(Node.ack(source)),
            "ack": self.keys.ack(source),
            "intent": self.keys.intent(source),
            "acked": self.keys.acked(source),
            "figures": self.keys.figures,
        }
        args: Any = {"from": ack.m_from, "to": ack.m_to, "token": token or 0, "observed": dict(observed or {})}
        self.run(scripts.COMMIT_ACK, keys, **args)

    def _confirmed(self, destinations: Sequence[str], ack_on: str) -> int:
        sealed, *cursors = self.cursors(() if ack_on == "stored" else destinations)
        return min([sealed, *cursors])

    def collectable(self, sources: Sequence[str], destinations: Sequence[str], retention_s: float) -> list[int]:
        """Returns the micro-batches to remove, in order: below every cursor, acked to every source, sealed at least
        `retention_s` seconds ago and not being redelivered; and any whose removal was begun and not ended."""
        sealed, *cursors = self.cursors(destinations)
        collected = self.numbers("collected")[0]
        acked = [int(n or 0) for n in self.read(*(("HGET", self.keys.ack(s), "m") for s in sources))]
        redone = {m for d in destinations for m in self.scanned(self.keys.redo(d)) if m.isdigit()}
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
        sealed, *cursors = self.cursors(destinations)
        acked = [int(n or 0) for n in self.read(*(("HGET", self.keys.ack(s), "m") for s in sources))]
        done = max(self.numbers("slim", "collected"))
        found = self._by_age(done + 1, min([sealed, *cursors, *acked]), sealed)
        for due in portions([m for m, *_ in takewhile(lambda of: of[2] is None or of[2] >= age, found)]):
            keys = {"pipeline": self.keys.pipeline, "each": [self.keys.micro_batch(m) for m in due]}
            self.run(scripts.SLIM, keys, to=due[-1])

    def _by_age(self, first: int, last: int, sealed: int) -> Iterator[tuple[int, str | None, float | None]]:
        """Yields number, state and seconds since the seal of the micro-batches `first` … `last`.

        If the server's clock went back, a seal time may lie in the future, and the micro-batch would be kept longer by
        as much. Such times, up to `sealed` (the last sealed one), then count as sealed just now.
        """
        now, right = self.now(), False
        for m, (state, at) in self._in_order(first, last, "state", "sealed_at"):
            age = None if at is None else now - int(at) / 1e6
            if age is not None and age < 0 and not right:
                self.not_ahead(*((self.keys.micro_batch(n), "sealed_at", "") for n in range(m, sealed + 1)))
                right = True
            yield m, state, age and max(0.0, age)

    def _in_order(self, first: int, last: int, *names: str) -> Iterator[tuple[int, list[str | None]]]:
        """Yields number and these fields of each micro-batch, read in growing portions: callers mostly want few, but
        there may be as many as a day has."""
        size = 1
        while first <= last:
            some = range(first, min(last, first + size - 1) + 1)
            yield from zip(some, self.read(*(("HMGET", self.keys.micro_batch(m), *names) for m in some)))
            first, size = some[-1] + 1, min(2 * size, 1_000)

    def begin_collect(self, m: int) -> None:
        """Marks micro-batch m before its files are removed. Raises InvariantBroken if it is still needed."""
        sources, destinations = self.members(self.keys.sources), self.members(self.keys.destinations)
        self.run(
            scripts.BEGIN_COLLECT,
            {
                "pipeline": self.keys.pipeline,
                "micro_batch": self.keys.micro_batch(m),
                "each": [*map(self.keys.destination, destinations), *map(self.keys.ack, sources)],
            },
            m=m,
            count=len(destinations),
        )

    def end_collect(self, m: int) -> None:
        """Removes the key of micro-batch m, whose files are gone."""
        keys = {"pipeline": self.keys.pipeline, "micro_batch": self.keys.micro_batch(m)}
        self.run(scripts.END_COLLECT, keys, m=m)
