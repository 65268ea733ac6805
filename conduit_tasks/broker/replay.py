"""State of replays (SEMANTICS X3): progress per run and destination, the run that has the turn, and the event times
before a destination joined that it has. Replays never read or move live cursors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.dead_letters import DeadLetters, Said, index_entries
from conduit_tasks.broker.ranges import MOST, RangeSet
from conduit_tasks.broker.redrive import Letter, Redrives, letter_field
from conduit_tasks.errors import StateLost
from conduit_tasks.redis_client.portions import PORTION, portions
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Position
    from conduit_tasks.record.dead_letter import DeadLetter

MICRO = 1_000_000


@dataclass(frozen=True)
class Joined:
    """Point at which a destination joined: it gets live all records past `sources` (by source, part → token) and past
    micro-batch `batch`."""

    batch: int
    sources: Mapping[str, Position]


@dataclass(frozen=True)
class ReplayProgress:
    """A destination's progress in a replay. `done`: ranges per portion; `prepared`: name of the preparation that it is
    a share of; `epoch`: of everything it sends, the same at every attempt; `generation`: of the call that began it."""

    prepared: str
    epoch: int
    finished: bool
    done: Mapping[int, RangeSet]
    generation: str

    def of(self, token: str) -> bool:
        """Returns whether it is a share of the preparation made under this token."""
        return self.prepared.startswith(f"{token}-")


class Replays:
    """Operations of a replay; see the module. `token`: of the destination's lease. Methods raise Fenced,
    PipelineStopped, InvariantBroken."""

    def __init__(self, access: Access, dead_letters: DeadLetters, redrives: Redrives) -> None:
        self._access, self._keys = access, access.keys
        self._dead_letters = dead_letters
        self._redrives = redrives

    def joined(self, destination: str) -> Joined | None:
        """Returns the point at which a destination's live stream began; None if it is not known: the destination is
        older than this mark, its state was rebuilt, or micro-batches were collected while it was away."""
        found = self._access.field(self._keys.destination(destination), "joined")
        if not found:
            return None
        data = orjson.loads(found)
        return Joined(data["batch"], data["sources"])

    def replayed(self, destination: str) -> RangeSet:
        """Returns the event times (µs since the epoch) for which replays have delivered all that the destination had
        missed."""
        return RangeSet.parse(self._access.field(self._keys.destination(destination), "replayed"))

    def turn(self, destination: str, run: str, start: int, ttl: float, *, take: bool = False) -> str:
        """Announces a replay whose interval begins at `start` (µs) for `ttl` seconds (0: it has ended).

        Returns the run that has the turn; if none has it, the run with the earliest interval of all under way. `take`:
        if that is this run, it takes the turn and keeps it until its end.
        """
        keys = {"turns": self._keys.turns(destination)}
        given = {"from": start, "ttl": int(ttl * MICRO), "take": take}
        return str(self._access.run(scripts.TURN, keys, run=run, **given)[0])

    def share(self, destination: str, run: str) -> ReplayProgress | None:
        """Returns a destination's progress; None if it has none (any more)."""
        return _share(self._access.scanned(self._keys.replay(destination, run)))

    def begin(
        self, destination: str, run: str, token: int, prepared: str, *, generation: str, retention: float
    ) -> ReplayProgress:
        """Begins a share, or continues it. A share that finished in another `generation` begins again. `retention`: of
        the spool, in seconds. Raises StateLost if Redis has forgotten it by the end."""
        self._access.run(
            scripts.REPLAY_BEGIN,
            self._share_keys(destination, run, "pipeline", "destination", "lease", "replay"),
            token=token,
            prepared=prepared,
            generation=generation,
            remember=int(max(retention, 86_400.0) * 7_000),
        )
        # Only the holder of the lease changes the share; but Redis may have forgotten that it began.
        share = self.share(destination, run)
        if share is None or (share.prepared, share.generation) != (prepared, generation):
            raise StateLost(f"Redis has forgotten that replay {run} began to send to {destination}; call it again")
        return share

    def confirm(  # noqa: PLR0917 - the parts of a confirmation
        self,
        destination: str,
        run: str,
        token: int,
        portion: int,
        ranges: Sequence[tuple[int, int]],
        counts: Mapping[str, int],
        *,
        state: Mapping[str, Any] | None = None,
        settled: Mapping[Letter, str] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> None:
        """Confirms seqs of a portion: delivered, dead letters (stored by now, invariant 8), or not for this
        destination."""
        said = Said({letter_field(key): outcome for key, outcome in (settled or {}).items()}, {}, index_entries(dead))
        parts = [RangeSet(tuple(some)) for some in portions(RangeSet.of(ranges).ranges, MOST)] or [RangeSet()]
        if len(parts) > 1 or max(len(said.closed), len(said.letters) // 2) > PORTION:
            epoch, by = self._redrives.under_way(destination)
            node = Node.destination(destination)
            said = self._dead_letters.write_ahead(
                destination, node, token, said, epoch=epoch, by=by, every=len(parts) > 1
            )
        # The counters go with the last part.
        for some in parts[:-1]:
            self.confirm(destination, run, token, portion, some.ranges, {})
        self._access.run(
            scripts.REPLAY_CONFIRM,
            self._share_keys(destination, run, "pipeline", "destination", "lease", "dead", "redrive", "replay"),
            token=token,
            portion=portion,
            ranges=str(parts[-1]),
            state="" if state is None else orjson.dumps(dict(state)).decode(),
            counts={name: n for name, n in counts.items() if n},
            settled=said.closed,
            letters=said.letters,
        )

    def end(self, destination: str, run: str, token: int, covered: tuple[int, int] | None) -> None:
        """Ends a replay that has delivered everything. `covered`: event times (µs, both included) of which the
        destination now misses nothing."""
        text = str(RangeSet((covered,))) if covered else ""
        keys = self._share_keys(destination, run, "pipeline", "destination", "lease", "replay")
        self._access.run(scripts.REPLAY_END, keys, token=token, covered=text)

    def _share_keys(self, destination: str, run: str, *names: str) -> dict[str, str]:
        keys = self._keys
        every = {
            "pipeline": keys.pipeline,
            "destination": keys.destination(destination),
            "lease": keys.lease(Node.destination(destination)),
            "dead": keys.dead(destination),
            "redrive": keys.redrive(destination),
            "replay": keys.replay(destination, run),
        }
        return {name: every[name] for name in names}


def _share(data: Mapping[str, str]) -> ReplayProgress | None:
    if "prepared" not in data:
        return None
    done = {int(name): RangeSet.parse(ranges) for name, ranges in data.items() if name.isdigit()}
    return ReplayProgress(data["prepared"], int(data["epoch"]), "finished" in data, done, data.get("generation", ""))
