"""Divided micro-batches: one, or several at once, divided among the tasks of a destination, and what each task
confirmed of its shard (ADR 27, ADR 41).

Each task has a shard, whose records are numbered from 0 within it, so that the confirmed ones are few ranges however
scattered they are in the micro-batch. A micro-batch that is not divided has no state here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.dead_letters import DeadLetters, Said, index_entries
from conduit_tasks.broker.deliveries import ALONG
from conduit_tasks.broker.ranges import MOST, RangeSet
from conduit_tasks.broker.series import sampled
from conduit_tasks.broker.state import Division
from conduit_tasks.redis_client.portions import portions
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.record.counts import Counts
    from conduit_tasks.record.dead_letter import DeadLetter


class Waiting(NamedTuple):
    """A sealed micro-batch: the records that a trigger matched, all of them, their bytes, the path of its manifest."""

    matched: int
    total: int
    bytes: int
    manifest: str


class Shards:
    """Division of micro-batches, and confirms of their shards."""

    def __init__(self, access: Access, dead_letters: DeadLetters) -> None:
        self._access, self._keys = access, access.keys
        self._dead_letters = dead_letters

    def divide(self, destination: str, m: int, token: int, *, by: str, count: int, matched: int) -> Division | None:
        """Fixes the division of micro-batch m, the one behind the cursor, into `count` shards; returns the one that is
        fixed already, if there is one, and None if m was begun undivided.

        `by`: `key`, `partition` or `none`; `matched`: records that the trigger matched. Raises Fenced, PipelineStopped.
        """
        keys = {
            **self._of(destination),
            "micro_batch": self._keys.micro_batch(m),
            "window": self._keys.window(destination),
        }
        fixed = self._access.run(scripts.DIVIDE, keys, m=m, token=token, by=by, count=count, matched=matched)
        if int(fixed[1]) == 1:
            return None
        shards, of, first, used = map(int, fixed[1:])
        return Division.begun(m, str(fixed[0]), shards, of, first, None if used == shards else used)

    def waiting(self, destination: str, numbers: Sequence[int]) -> list[Waiting]:
        """Returns these sealed micro-batches, in one round trip."""
        found = self._access.read(
            *(("HMGET", self._keys.micro_batch(m), "matched", "total", "bytes", "manifest") for m in numbers)
        )
        return [
            Waiting(orjson.loads(matched or "{}").get(destination, 0), int(total or 0), int(size or 0), manifest or "")
            for matched, total, size, manifest in found
        ]

    def together(self, destination: str, token: int, group: Sequence[Division]) -> bool:
        """Divides several micro-batches at once, the first of which is the one behind the cursor, with the same number
        of shards each (ADR 41). Returns False if that one, or a group, is begun already.

        If the first one is divided already, nothing changes: `Deliveries.get` says how. Raises Fenced, PipelineStopped,
        InvariantBroken if one of them is not sealed.
        """
        first = group[0].micro_batch
        keys: dict[str, str | Sequence[str]] = {
            **self._of(destination),
            "window": self._keys.window(destination),
            "series": self._keys.series(destination),
            "each": [self._keys.micro_batch(division.micro_batch) for division in group],
        }
        shares = [f"{division.matched}:{division.first}:{len(division.shards)}" for division in group]
        (done,) = self._access.run(scripts.TOGETHER, keys, m=first, token=token, lanes=group[0].count, shares=shares)
        return bool(done)

    def confirm(  # noqa: PLR0917  # as `Deliveries.confirm`
        self,
        destination: str,
        m: int,
        token: int,
        shard: int,
        numbers: RangeSet,
        counts: Counts,
        *,
        total: int,
        dead: Sequence[DeadLetter] = (),
        run: str = "",
        retention: float = 0.0,
        observed: Mapping[str, int] | None = None,
    ) -> str:
        """Confirms records of a shard by their numbers in it (none or all of them confirmed before).

        As `Deliveries.confirm`, but that the run is remembered for the whole micro-batch of `total` records. Returns
        the pipeline's status. Raises Fenced, PipelineStopped, InvariantBroken.
        """
        if not numbers:
            raise ValueError("nothing to confirm: ranges are empty")
        node, by = Node.destination(destination), f"run {run}"
        parts = [RangeSet(tuple(some)) for some in portions(numbers.ranges, MOST)]
        said = self._dead_letters.write_ahead(
            destination,
            node,
            token,
            Said({}, {}, index_entries(dead)),
            epoch=0,
            by=by,
            every=len(parts) > 1,
            along=ALONG,
        )
        keys = {
            **self._of(destination),
            "dead": self._keys.dead(destination),
            "run": self._keys.run(destination, run),
            "figures": self._keys.figures,
            "series": self._keys.series(destination),
        }
        added = {name: n for name, n in asdict(counts).items() if n}
        answer = [""]
        for at, some in enumerate(parts, 1):
            last = at == len(parts)
            answer = self._access.run(
                scripts.CONFIRM_SHARD,
                keys,
                m=m,
                token=token,
                shard=shard,
                ranges=str(some),
                total=total,
                remember=int(retention * 1000) if run else 0,
                # The counters go with the last part.
                counts=added if last else {},
                observed=dict(observed or {}) if last else {},
                sampled=sampled(added, observed or {}) if last else {},
                letters=said.letters if last else [],
            )
        return str(answer[0])

    def whole(
        self,
        destination: str,
        m: int,
        token: int,
        shard: int,
        records: int,
        *,
        completing: Mapping[str, int] | None = None,
    ) -> bool:
        """Says that a shard has so many records, all of them confirmed; the cursor moves with the last shard of the
        micro-batch behind it, over all of a group that are whole by then. Returns whether it moved.

        `completing`: durations (`metrics.histogram`) of the micro-batch, if this call completes it. Raises
        InvariantBroken if they are not all confirmed, or the shards together are not what was sealed.
        """
        keys = {
            **self._of(destination),
            "micro_batch": self._keys.micro_batch(m),
            "figures": self._keys.figures,
            "series": self._keys.series(destination),
        }
        completes = dict(completing or {})
        said = self._access.run(
            scripts.WHOLE, keys, m=m, token=token, shard=shard, records=records, completing=completes
        )
        return said[1:] == [1]

    def voted(self, destination: str, m: int, count: int) -> list[int]:
        """Returns per shard of the divided micro-batch m the number of its first records that have voted (C6). Of a
        shard that is whole all have: it is 0 if its lane is further on."""
        window = self._access.hash(self._keys.window(destination))
        names = ["", *(f":{shard}" for shard in range(1, count))]
        found = [int(window.get(f"next{of}", 0)) if window.get(f"m{of}") == str(m) else 0 for of in names]
        later, _, first = window.get("kept", "").partition(":")
        return [int(first), *found[1:]] if later == str(m) else found

    def merge(self, destination: str, m: int, token: int, confirmed: RangeSet, voted: RangeSet) -> None:
        """Has one task finish the divided micro-batch m, of which these seqs are confirmed, and these ordinals (number
        among the matched records) have voted in a shard. If all of it is confirmed, the cursor moves. Raises Fenced,
        PipelineStopped."""
        keys = {
            **self._of(destination),
            "window": self._keys.window(destination),
            "micro_batch": self._keys.micro_batch(m),
            "series": self._keys.series(destination),
        }
        each = [[RangeSet(tuple(some)) for some in portions(given.ranges, MOST)] for given in (confirmed, voted)]
        parts = list(zip_longest(*each, fillvalue=RangeSet())) or [(RangeSet(), RangeSet())]
        for at, (some, ordinals) in enumerate(parts):
            first, last = at == 0, at == len(parts) - 1
            self._access.run(
                scripts.MERGE, keys, m=m, token=token, ranges=str(some), voted=str(ordinals), first=first, last=last
            )

    def _of(self, destination: str) -> dict[str, str]:
        return {
            "pipeline": self._keys.pipeline,
            "destination": self._keys.destination(destination),
            "lease": self._keys.lease(Node.destination(destination)),
        }
