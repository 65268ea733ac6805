"""Positions of the sources: how far each is planned and acked, moves by a user, when all had nothing new, and parts
that are gone (C12, invariant 2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access, seconds
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.errors import ConduitError, Fenced, NotStopped
from conduit_tasks.redis_client.portions import PORTION, portions

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Position


class Positions:
    """Positions of the sources: part → token."""

    def __init__(self, access: Access, micro_batches: MicroBatches) -> None:
        self._access, self._keys = access, access.keys
        self._micro_batches = micro_batches

    def planned(self, source: str) -> Position:
        """Returns the position up to which a source is planned: part → token."""
        return _tokens(self._access.scanned(self._keys.planned(source)))

    def emptied(self, at: float, to: int) -> None:
        """Notes that the sources had nothing new when they were asked at `at` (server's clock, seconds): all that was
        there is in the micro-batches up to `to`."""
        self._access.run(scripts.EMPTIED, {"pipeline": self._keys.pipeline}, at=int(at * 1e6), to=to)

    def drained(self) -> tuple[float, int]:
        """Returns the last `emptied`: when, and up to which micro-batch; (0, 0) if the sources always had more."""
        at, to = self._access.numbers("drained_at", "drained_to")
        return at / 1e6, to

    def acked(self, source: str) -> Position:
        """Returns the position that the source was told last: part → token."""
        return {part: orjson.loads(token) for part, token in self._access.scanned(self._keys.acked(source)).items()}

    def place(self, source: str, before: Position, after: Position) -> None:
        """Moves the planned position of a source from `before` to `after`: records in between are read again, or never.

        Only while the pipeline is stopped or degraded and everything sealed is acked. Parts that are missing in `after`
        are removed. Raises NotStopped, and Fenced if the position is not `before` (nor `after`) any more.
        """
        parts = [part for part in {**before, **after} if before.get(part) != after.get(part)]
        if len(parts) > PORTION:
            raise ConduitError(f"{len(parts):,} parts are more than can be set at once; name at most {PORTION:,}")
        rest = [text for part in parts for text in (part, _text(before, part), _text(after, part))]
        keys = {
            "pipeline": self._keys.pipeline,
            "ack": self._keys.ack(source),
            "planned": self._keys.planned(source),
        }
        pipeline = self._access.pipeline
        match self._access.run(scripts.PLACE, keys, rest=rest):
            case ["running", status]:
                raise NotStopped(
                    f"pipeline {pipeline} is {status or 'not initialised'}; positions are set while it stands "
                    f"still: `conduit stop {pipeline}`, with --force if it cannot end"
                )
            case ["busy", sealed, acked]:
                raise NotStopped(
                    f"pipeline {pipeline} has something in flight: source {source} is acked up to micro-batch "
                    f"{acked} of {sealed}. Let that be delivered first: `conduit start {pipeline}`, `conduit stop "
                    f"{pipeline}` without --force, and then this again"
                )
            case ["moved", part]:
                raise Fenced(f"source {source}: the position of {part} was moved meanwhile; look again")

    def before_unsealed(self, source: str) -> Position:
        """Returns a source's planned position without the unsealed micro-batch, to which
        `MicroBatches.undo_unsealed` moves it back."""
        unsealed = self._micro_batches.unsealed()
        of = unsealed.slices.get(source, []) if unsealed is not None else []
        return self.planned(source) | {s.part: s.start for s in reversed(of)}

    def unacked_ends(self, source: str) -> list[Position]:
        """Returns the ends of the source's slices (part → token) per micro-batch that is not acked, in order."""
        acked = int(self._access.hash(self._keys.ack(source)).get("m", 0))
        return [ends for _, ends in self._each_end(source, acked + 1, self._newest()) if ends]

    def ends_since(self, source: str, since: float) -> list[Position]:
        """Returns `unacked_ends`, preceded by the ends in acked micro-batches sealed after `since` (seconds since the
        epoch)."""
        found: list[Position] = self.unacked_ends(source)
        last = int(self._access.hash(self._keys.ack(source)).get("m", 0))
        while last > 0:
            first = max(1, last - 31)
            there = self._each_end(source, first, last)
            young = [ends for at, ends in there if at is None or at > since]
            found = [*filter(None, young), *found]
            # One in which the source has nothing says nothing of those before it.
            if len(young) < len(there) or not there:
                break
            last = first - 1
        return found

    def _newest(self) -> int:
        sealed, unsealed = self._access.numbers("sealed", "unsealed")
        return max(sealed, unsealed)

    def _each_end(self, source: str, first: int, last: int) -> list[tuple[float | None, Position]]:
        """Returns (sealed at, part → token) of each existing micro-batch of the range, {} if the source has no end."""
        out = []
        commands = (
            ("HMGET", self._keys.micro_batch(m), "state", "sealed_at", f"slices:{source}")
            for m in range(first, last + 1)
        )
        for state, at, text in self._access.read(*commands):
            if state is not None:
                ends = {s["part"]: s["end"] for s in orjson.loads(text or "[]") if s["end"] is not None}
                out.append((seconds(at), ends))
        return out

    def look_due(self, source: str, every: float) -> bool:
        """Returns whether the last `note_gone` is at least `every` seconds ago, or there was none."""
        looked = seconds(self._access.field(self._keys.pipeline, f"looked:{source}"))
        return looked is None or not 0 <= self._access.now() - looked < every

    def note_gone(self, source: str, gone: Collection[str], after: float) -> int:
        """Notes which parts of the source's position exist no more (`gone`); returns the number of forgotten parts.

        A part is forgotten once it has been gone for `after` seconds and has nothing in flight.
        """
        keys = self._keys
        planned, known = self._access.scanned(keys.planned(source)), self._access.scanned(keys.gone(source))
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
            forgotten += int(self._access.run(scripts.GONE, of, **args)[0])
        return forgotten

    def partitions(self) -> int:
        """Returns the number of partitions that the sources know."""
        return sum(
            self._access.read(*(("HLEN", self._keys.index(s)) for s in self._access.members(self._keys.sources)))
        )


def _tokens(texts: Mapping[str, str]) -> Position:
    return {part: orjson.loads(token) for part, token in texts.items()}


def _text(position: Position, part: str) -> str:
    return orjson.dumps(position[part]).decode() if part in position else ""
