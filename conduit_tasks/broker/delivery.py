"""Delivery state of the destinations: one cursor each, and the confirmed ranges of the next micro-batch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, cast

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.base import error_json, portions, seconds, stored_error
from conduit_tasks.broker.dead_index import DeadIndex, Said, index_entries
from conduit_tasks.broker.leases import Leases
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.broker.ranges import MOST, RangeSet
from conduit_tasks.broker.redrive import Letter, Place, letter_field, positions
from conduit_tasks.broker.state import DeliveryState
from conduit_tasks.errors import ConduitError, PipelineStopped
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.record.counts import Counts
    from conduit_tasks.record.dead_letter import DeadLetter

COUNTERS = ("matched", "delivered", "filtered", "nacked", "completed", "parked", "retried", "redelivered", "redriven")

ALONG = 200
"""Limit of letters, closed ones and parked keys in one confirm: its ranges alone may be megabytes."""

log = logging.getLogger(__name__)


class Deliveries(MicroBatches, Leases, DeadIndex):
    """Confirms, votes, and the ranges that each run confirmed."""

    def delivery(self, destination: str) -> DeliveryState:
        """Returns a destination's delivery state. Raises ConduitError if it is not registered."""
        data = self.hash(self.keys.destination(destination))
        if "cursor" not in data:
            raise ConduitError(f"pipeline {self.pipeline} has no destination {destination}: run the pipeline once")
        state = data.get("state")
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
        )

    def rested(self, destination: str) -> float | None:
        """Returns the seconds since a destination was last sent to, by the server's clock; None: never."""
        return self.since(self.keys.destination(destination), "sent_at")

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
        `epoch` above 0: the ranges are redelivered ones (`reopen`). `park`: keys whose later records wait from now on
        (X4), with the position of the record that they wait behind; a key that is parked already keeps its position.
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
        said = self.say_letters(destination, node, token, said, epoch=epoch, by=by, every=len(parts) > 1, along=ALONG)
        if len(parts) > 1:
            # The counters go with the last part.
            for some in parts[:-1]:
                self.confirm(destination, m, token, some, {}, run=run, retention=retention, epoch=epoch)
            given = parts[-1]
        answer = self.run(
            scripts.CONFIRM,
            {
                "pipeline": self.keys.pipeline,
                "destination": self.keys.destination(destination),
                "micro_batch": self.keys.micro_batch(m),
                "lease": self.keys.lease(node),
                "dead": self.keys.dead(destination),
                "run": self.keys.run(destination, run),
                "redo": self.keys.redo(destination),
                "parked": self.keys.parked(destination),
                "figures": self.keys.figures,
                "redrive": self.keys.redrive(destination),
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
    ) -> int | None:
        """Enters outcomes ("a" or "n", count) into a nack window, in order from ordinal `first` (C6).

        `destination` "": the window before the fan-out, under the lease `seal`. `size` outcomes, `threshold` nacks
        among them, 0 outcomes = no limit. Repeated votes are ignored by watermark. Returns None, or the number of these
        votes accepted before the nack that tripped the window; `error` (of the last nack in `votes`) is stored by then.
        """
        own = Node.destination(destination) if destination else "seal"
        answer = self.run(
            scripts.VOTE,
            {
                "pipeline": self.keys.pipeline,
                "lease": self.keys.lease(own),
                "window": self.keys.window(destination),
                "scope": [self.keys.destination(destination)] if destination else [],
            },
            m=m,
            token=token,
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
        with self.acquire(Node.destination(destination), "complete_unmatched") as lease:
            return self._complete(destination, lease.token)

    def _unmatched(self, destination: str) -> int | None:
        """Returns the micro-batch after the cursor, if it is sealed and holds nothing for this destination."""
        sealed, cursor = self.cursors([destination])
        if cursor >= sealed:
            return None
        matched = self.field(self.keys.micro_batch(cursor + 1), "matched")
        return cursor + 1 if matched is not None and not orjson.loads(matched).get(destination, 0) else None

    def _complete(self, destination: str, token: int) -> int:
        done = 0
        while (m := self._unmatched(destination)) is not None:
            keys = {
                "pipeline": self.keys.pipeline,
                "destination": self.keys.destination(destination),
                "micro_batch": self.keys.micro_batch(m),
                "lease": self.keys.lease(Node.destination(destination)),
            }
            try:
                moved = self.run(scripts.COMPLETE, keys, m=m, token=token, id=destination)[0]
            except PipelineStopped:
                break
            if not moved:
                break
            done += 1
        return done

    def reopen(self, destination: str, run: str, token: int) -> int:
        """Begins a new epoch that redelivers the ranges `run` confirmed (its task succeeded and was cleared).

        Continues the run's redelivery under way, if it did not finish. Returns the epoch; `redeliver` returns the
        ranges left. Raises ConduitError if the run's ranges are forgotten, or another run's redelivery is under way.
        """
        keys = {
            "pipeline": self.keys.pipeline,
            "destination": self.keys.destination(destination),
            "lease": self.keys.lease(Node.destination(destination)),
            "redo": self.keys.redo(destination),
        }
        found, at, epoch = self.redeliver(destination, run), 0, 0
        for some in portions(found):
            at += len(some)
            flat = [text for m, ranges in some for text in (str(m), str(ranges))]
            kind, *rest = self.run(scripts.REOPEN, keys, token=token, id=run, over=at == len(found), rest=flat)
            if kind == "busy":
                raise ConduitError(
                    f"destination {destination} still redelivers what run {rest[0]} had confirmed: let that finish "
                    "first (where its task failed, clear it again); left alone, it is given up after spool.retention"
                )
            epoch = int(kind)
        return epoch

    def lapse(self, destination: str, after: float) -> tuple[str, int] | None:
        """Gives up a redelivery that has made no progress for `after` seconds.

        Returns its run and the number of micro-batches that were not redelivered completely; None if there is no such
        redelivery.
        """
        keys = {"redo": self.keys.redo(destination), "lease": self.keys.lease(Node.destination(destination))}
        found = self.run(scripts.LAPSE, keys, after=int(after * 1e6))
        return (str(found[0]), int(found[1])) if found else None

    def redeliver(self, destination: str, run: str, epoch: int | None = None) -> list[tuple[int, RangeSet]]:
        """Returns (micro-batch, ranges) that a redelivery of `run` sends: those left of the one under way, else all.

        `epoch`: of `reopen`; then only the ranges left of that redelivery, [] once it is finished. Raises ConduitError
        if the ranges are forgotten (past `spool.retention`), naming what to do instead.
        """
        under_way = self.scanned(self.keys.redo(destination))
        if epoch is not None and under_way.get("epoch") != str(epoch):
            return []
        # One that was cut off while it began has only a part of them.
        mine = under_way.get("run") == run and "filling" not in under_way
        ranges = under_way if mine else self.scanned(self.keys.run(destination, run))
        out = sorted((int(m), RangeSet.parse(text)) for m, text in ranges.items() if m.isdigit())
        here = self.read(*(("EXISTS", self.keys.micro_batch(m)) for m, _ in out))
        if not out or not all(here):
            raise self._forgotten(destination, run)
        return out

    def finish(self, destination: str, run: str) -> dict[str, int]:
        """Notes that a run's task succeeded after it delivered something; returns run → end (ms since the epoch) of all
        such runs that are known."""
        key = self.keys.runs(destination)
        self.run(scripts.FINISH, {"runs": key}, run=run)
        return {name: int(at) for name, at in self.hash(key).items()}

    def finished(self, destination: str, run: str) -> bool:
        """Returns whether `finish` was called for this run and it is not forgotten."""
        earlier = self.keys.finished(destination, run)
        return any(self.read(("HEXISTS", self.keys.runs(destination), run), ("EXISTS", earlier)))

    def confirmed_by(self, destination: str, runs: Sequence[str]) -> dict[str, dict[str, str]]:
        """Returns run → micro-batch → ranges that it confirmed; no ranges if they are past `spool.retention`."""
        return dict(zip(runs, map(dict, self.read(*(("HGETALL", self.keys.run(destination, run)) for run in runs)))))

    def forget_runs(self, destination: str, runs: Sequence[str]) -> None:
        """Removes these runs from the broker, as they are kept elsewhere now."""
        self.read(
            ("UNLINK", *(self.keys.run(destination, run) for run in runs)),
            ("HDEL", self.keys.runs(destination), *runs),
        )

    def remember_run(self, destination: str, run: str, ranges: Mapping[str, str], retention: float) -> None:
        """Puts back a run that was forgotten, with its ranges (micro-batch → ranges)."""
        keys = {"runs": self.keys.runs(destination), "run": self.keys.run(destination, run)}
        for some in portions(list(ranges.items())) if ranges else [()]:
            flat = [text for pair in some for text in pair]
            self.run(scripts.REMEMBER, keys, id=run, retention=int(retention * 1000), rest=flat)

    def _forgotten(self, destination: str, run: str) -> ConduitError:
        return ConduitError(
            f"what run {run} delivered to {destination} is past spool.retention and cannot be sent again: "
            f"replay the interval instead (`conduit replay {self.pipeline}`)"
        )
