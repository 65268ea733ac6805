"""Delivery state of the destinations: cursors, confirmed ranges of the next micro-batch, votes in the nack window,
confirms without delivery of micro-batches that hold nothing for one, and steps that were called."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, cast

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access, error_json, seconds, stored_error
from conduit_tasks.broker.backlogs import beyond
from conduit_tasks.broker.dead_letters import DeadLetters, Said, index_entries
from conduit_tasks.broker.leases import Leases
from conduit_tasks.broker.ranges import MOST, RangeSet
from conduit_tasks.broker.redrive import Letter, Place, letter_field, positions
from conduit_tasks.broker.series import sampled
from conduit_tasks.broker.state import Backlog, DeliveryState, Division
from conduit_tasks.errors import ConduitError, PipelineStopped
from conduit_tasks.redis_client.portions import portions
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.record.counts import Counts
    from conduit_tasks.record.dead_letter import DeadLetter

COUNTERS = ("matched", "delivered", "filtered", "nacked", "completed", "parked", "retried", "redelivered", "redriven")

ALONG = 200
"""Limit of letters, closed ones and parked keys in one confirm: its ranges alone may be megabytes."""

log = logging.getLogger(__name__)


class Deliveries:
    """Cursors, confirms and votes."""

    def __init__(self, access: Access, dead_letters: DeadLetters, leases: Leases) -> None:
        self._access, self._keys = access, access.keys
        self._dead_letters = dead_letters
        self._leases = leases

    def get(self, destination: str) -> DeliveryState:
        """Returns a destination's delivery state. Raises ConduitError if it is not registered."""
        data = self._access.hash(self._keys.destination(destination))
        if "cursor" not in data:
            raise ConduitError(
                f"pipeline {self._access.pipeline} has no destination {destination}: run the pipeline once"
            )
        return delivery_state(data)

    def rested(self, destination: str) -> float | None:
        """Returns the seconds since a destination was last sent to, by the server's clock; None: never."""
        return self._access.since(self._keys.destination(destination), "sent_at")

    def told(self, destination: str, m: int, token: int) -> int:
        """Notes that the destination's step was called up to micro-batch `m`, under the step's lease, and returns up to
        which it was; where nothing is known, up to the cursor. Raises Fenced."""
        keys = {
            "destination": self._keys.destination(destination),
            "lease": self._keys.lease(f"steps.{destination}"),
        }
        (found,) = self._access.run(scripts.TOLD, keys, m=m, token=token)
        return int(found)

    def cursors(self, destinations: Sequence[str]) -> list[int]:
        """Returns the last sealed number, then the cursor of each destination (read before it, so never ahead)."""
        found = self._access.read(
            *(("HGET", self._keys.destination(d), "cursor") for d in destinations),
            ("HGET", self._keys.pipeline, "sealed"),
        )
        return [int(found[-1] or 0), *(int(n or 0) for n in found[:-1])]

    def backlog(self, destinations: Sequence[str]) -> Backlog:
        """Returns the backlog: everything sealed beyond the lowest cursor of these destinations (C13)."""
        sealed, *cursors = self.cursors(destinations)
        return beyond(self._access, sealed, [min(cursors, default=sealed)])[0]

    def waiting_for(self, destination: str) -> float:
        """Returns the seconds since the oldest micro-batch that this destination has not confirmed was planned, sealed
        or not; 0 if nothing waits."""
        _, cursor = self.cursors([destination])
        return self._access.since(self._keys.micro_batch(cursor + 1), "opened_at") or 0.0

    def confirm(
        self,
        destination: str,
        m: int,
        token: int,
        ranges: RangeSet | Sequence[tuple[int, int]],
        counts: Counts | Mapping[str, int],
        *,
        state: Mapping[str, Any] | None = None,
        dead: Sequence[DeadLetter] = (),
        park: Mapping[str, Place] | None = None,
        run: str = "",
        retention: float = 0.0,
        epoch: int = 0,
        closed: Mapping[Letter, str] | None = None,
        observed: Mapping[str, int] | None = None,
        completing: Mapping[str, int] | None = None,
    ) -> str:
        """Confirms ranges of micro-batch m (none or all of them confirmed before); moves the cursor if m is complete.

        Counters are added exactly once. The ranges that `run` confirmed are remembered for `retention` seconds.
        `epoch` above 0: the ranges are redelivered ones (`Redeliveries.begin`). `park`: keys whose later records wait
        from now on (X4), with the position of the record that they wait behind; a key that is parked already keeps its
        position.
        `closed`: earlier letters of redelivered records, and their outcome: they are dead letters no more. `observed`:
        durations (`metrics.histogram`) of these ranges; `completing`: of the micro-batch, if this call completes it.
        One command, unless there are hundreds of letters or thousands of ranges.
        Returns the pipeline's status. Raises Fenced, PipelineStopped, InvariantBroken.
        """
        given = ranges if isinstance(ranges, RangeSet) else RangeSet.of(ranges)
        if not given:
            raise ValueError("nothing to confirm: ranges are empty")
        numbers = dict(counts) if isinstance(counts, Mapping) else asdict(counts)
        if epoch:
            # Live counters must add up to `matched`; a redelivery has counters of its own.
            numbers = {"redelivered": numbers.get("delivered", 0), "retried": numbers.get("retried", 0)}
        closing = {letter_field(key): outcome for key, outcome in (closed or {}).items()}
        node, by = Node.destination(destination), f"run {run}"
        said = Said(closing, positions(park or {}), index_entries(dead))
        parts = [RangeSet(tuple(some)) for some in portions(given.ranges, MOST)]
        said = self._dead_letters.write_ahead(
            destination, node, token, said, epoch=epoch, by=by, every=len(parts) > 1, along=ALONG
        )
        if len(parts) > 1:
            # The counters go with the last part.
            for some in parts[:-1]:
                self.confirm(destination, m, token, some, {}, run=run, retention=retention, epoch=epoch)
            given = parts[-1]
        answer = self._access.run(
            scripts.CONFIRM,
            {
                "pipeline": self._keys.pipeline,
                "destination": self._keys.destination(destination),
                "micro_batch": self._keys.micro_batch(m),
                "lease": self._keys.lease(node),
                "dead": self._keys.dead(destination),
                "run": self._keys.run(destination, run),
                "redo": self._keys.redo(destination),
                "parked": self._keys.parked(destination),
                "figures": self._keys.figures,
                "series": self._keys.series(destination),
                "redrive": self._keys.redrive(destination),
            },
            m=m,
            token=token,
            epoch=epoch,
            ranges=str(given),
            state="" if state is None else orjson.dumps(dict(state)).decode(),
            remember=int(retention * 1000) if run else 0,
            counts={name: n for name, n in numbers.items() if n},
            observed=dict(observed or {}),
            completing=dict(completing or {}),
            sampled=sampled(numbers, observed or {}),
            by=by,
            **asdict(said),
        )
        return str(answer[0])

    def vote(
        self,
        destination: str,
        m: int,
        token: int,
        first: int,
        votes: Sequence[tuple[str, int]],
        *,
        size: int,
        threshold: int,
        stop: Literal["pipeline", "destination"] = "pipeline",
        error: str = "",
        error_class: str = "",
        node: str = "",
        shard: int = 0,
    ) -> int | None:
        """Enters outcomes ("a" or "n", count) into a nack window, in order from ordinal `first` (C6).

        `destination` "": the window before the fan-out, under the lease `seal`. `size` outcomes, `threshold` nacks
        among them, 0 outcomes = no limit. `shard`: each shard of a divided micro-batch has a window of its own, the
        first one that of a micro-batch that is not divided (ADR 27). Repeated votes are ignored by watermark. Returns
        None, or the number of these votes accepted before the nack that tripped the window; `error` (of the last nack
        in `votes`) is stored by then.
        """
        own = Node.destination(destination) if destination else "seal"
        answer = self._access.run(
            scripts.VOTE,
            {
                "pipeline": self._keys.pipeline,
                "lease": self._keys.lease(own),
                "window": self._keys.window(destination),
                "scope": [self._keys.destination(destination)] if destination else [],
            },
            m=m,
            token=token,
            of=f":{shard}" if shard else "",
            first=first,
            size=size,
            threshold=threshold,
            stop=stop,
            error=error_json(node or own, error, error_class, m),
            votes=",".join(f"{kind}{count}" for kind, count in votes),
        )
        tripped = int(answer[0])
        return None if tripped < 0 else tripped

    def complete_unmatched(self, destination: str, token: int | None = None) -> int:
        """Confirms, without delivery, the next micro-batches in which the destination's trigger matched nothing;
        returns their number.

        `token`: of a lease already held; without one, the lease is acquired for the call, unless there is nothing to do
        (returns 0). A stopped destination or pipeline is left alone. Raises LeaseHeld, Fenced.
        """
        if not self._unmatched(destination):
            return 0
        if token is not None:
            return self._complete(destination, token)
        with self._leases.acquire(Node.destination(destination), "complete_unmatched") as lease:
            return self._complete(destination, lease.token)

    def _unmatched(self, destination: str) -> int | None:
        """Returns the micro-batch after the cursor, if it is sealed and holds nothing for this destination."""
        sealed, cursor = self.cursors([destination])
        if cursor >= sealed:
            return None
        matched = self._access.field(self._keys.micro_batch(cursor + 1), "matched")
        return cursor + 1 if matched is not None and not orjson.loads(matched).get(destination, 0) else None

    def _complete(self, destination: str, token: int) -> int:
        done = 0
        while (m := self._unmatched(destination)) is not None:
            keys = {
                "pipeline": self._keys.pipeline,
                "destination": self._keys.destination(destination),
                "micro_batch": self._keys.micro_batch(m),
                "lease": self._keys.lease(Node.destination(destination)),
                "series": self._keys.series(destination),
            }
            try:
                moved = self._access.run(scripts.COMPLETE, keys, m=m, token=token, id=destination)[0]
            except PipelineStopped:
                break
            if not moved:
                break
            done += 1
        return done


def delivery_state(data: Mapping[str, str]) -> DeliveryState:
    """Reads the delivery state from the hash of a registered destination."""
    state = data.get("state")
    first, _, last = data.get("group", "0--1").partition("-")
    return DeliveryState(
        cursor=int(data["cursor"]),
        epoch=int(data.get("epoch", 0)),
        confirmed=RangeSet.parse(data.get("ranges")),
        state=orjson.loads(state) if state else None,
        counters={name: int(data.get(name, 0)) for name in COUNTERS},
        status=cast(Any, data.get("status", "running")),
        error=stored_error(data.get("error"), data.get("error_at")),
        confirmed_at=seconds(data.get("confirmed_at")),
        sent_at=seconds(data.get("sent_at")),
        divisions=Division.parse(data),
        merged=Division.merged(data),
        group=(int(first), int(last)),
    )
