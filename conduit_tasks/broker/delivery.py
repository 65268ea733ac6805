"""Delivery state of the destinations: one cursor each, and ranges of the micro-batch behind it."""

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
from conduit_tasks.broker.redrive import Letter, Position, letter_field, positions
from conduit_tasks.broker.state import DeliveryState
from conduit_tasks.errors import ConduitError, PipelineStopped

if TYPE_CHECKING:
    from conduit_tasks.delivery.port import Counts, DeadLetter

COUNTERS = ("matched", "delivered", "filtered", "nacked", "completed", "parked", "retried", "redelivered", "redriven")

log = logging.getLogger(__name__)


class Deliveries(MicroBatches, Leases, DeadIndex):
    """Confirms, votes, and what was confirmed by whom."""

    def delivery(self, destination: str) -> DeliveryState:
        """How far a destination is. Raises ConduitError where it is not registered."""
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
        """Seconds since a destination was last sent to, by the server's clock; None: never."""
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
        park: Mapping[str, Position] | None = None,
        run: str = "",
        retention: float = 0.0,
        epoch: int = 0,
        closed: Mapping[Letter, str] | None = None,
        observed: Mapping[str, int] | None = None,
        completing: Mapping[str, int] | None = None,
    ) -> str:
        """Confirms ranges of micro-batch m, none or all of them confirmed before; moves the cursor when complete.

        Counters are added exactly once. What `run` confirmed is remembered for `retention` seconds. `epoch` above 0:
        the ranges are redelivered ones (`reopen`). `park`: keys whose later records wait from here on (X4), with the
        position of the record that they wait behind; one that is parked stays as it is. `closed`: earlier letters of
        redelivered records, and their outcome: they are dead letters no more. `observed`: durations
        (`metrics.histogram`) of these ranges, `completing`: of the micro-batch, where this completes it. One command,
        unless there are thousands of letters or ranges.
        Returns the pipeline's status. Raises Fenced, PipelineStopped, InvariantBroken.
        """
        given = ranges if isinstance(ranges, RangeSet) else RangeSet.of(ranges)
        if not given:
            raise ValueError("nothing to confirm: ranges are empty")
        numbers = dict(counts) if isinstance(counts, Mapping) else asdict(counts)
        if epoch:
            # Live counters keep adding up to what was matched; a redelivery is counted apart.
            numbers = {"redelivered": numbers.get("delivered", 0), "retried": numbers.get("retried", 0)}
        closing = {letter_field(key): outcome for key, outcome in (closed or {}).items()}
        node, by = f"destinations.{destination}", f"run {run}"
        said = Said(closing, positions(park or {}), index_entries(dead))
        parts = [RangeSet(tuple(some)) for some in portions(given.ranges, MOST)]
        said = self.say_letters(destination, node, token, said, epoch=epoch, by=by, every=len(parts) > 1)
        if len(parts) > 1:
            # The counters go with the last of them.
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
        """Enters outcomes ("a" or "n", how many) into a nack window, in order from ordinal `first` (C6).

        `destination` "": the window before the fan-out, under the lease `seal`. `size` outcomes, `threshold` nacks
        among them, 0 outcomes = no limit. Repeats are ignored by watermark. Returns None, or the number of these votes
        accepted before the nack that tripped the window; `error` is stored by then (the last nack in `votes`).
        """
        own = f"destinations.{destination}" if destination else "seal"
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
        """Confirms, without any delivery, the next micro-batches its trigger matched nothing of; returns how many.

        `token`: of a lease already held; without one it is taken meanwhile, and 0 is returned where there is nothing
        to do. A destination or pipeline that is stopped is left alone. Raises LeaseHeld, Fenced.
        """
        if not self._unmatched(destination):
            return 0
        if token is not None:
            return self._complete(destination, token)
        with self.acquire(f"destinations.{destination}", "complete_unmatched") as lease:
            return self._complete(destination, lease.token)

    def _unmatched(self, destination: str) -> int | None:
        """The micro-batch behind the cursor, if it is sealed and holds nothing for this destination."""
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
                "lease": self.keys.lease(f"destinations.{destination}"),
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
        """Begins a new epoch that redelivers what `run` confirmed (its task succeeded and was cleared).

        Goes on with the one under way where that did not finish. Returns the epoch; what is left to redeliver,
        `redeliver` says. Raises ConduitError where the run's ranges are forgotten or another redelivery is under way.
        """
        self.redeliver(destination, run)
        kind, *rest = self.run(
            scripts.REOPEN,
            {
                "pipeline": self.keys.pipeline,
                "destination": self.keys.destination(destination),
                "lease": self.keys.lease(f"destinations.{destination}"),
                "run": self.keys.run(destination, run),
                "redo": self.keys.redo(destination),
            },
            token=token,
            id=run,
        )
        if kind == "gone":
            raise self._forgotten(destination, run)
        if kind == "busy":
            raise ConduitError(
                f"destination {destination} still redelivers what run {rest[0]} had confirmed: let that finish first "
                "(where its task failed, clear it again); left alone, it is given up after spool.retention"
            )
        return int(kind)

    def lapse(self, destination: str, after: float) -> tuple[str, int] | None:
        """Gives up a redelivery that was begun, and not gone on with for `after` seconds; its run, and how many
        micro-batches were not delivered again whole. None where there is none."""
        keys = {"redo": self.keys.redo(destination), "lease": self.keys.lease(f"destinations.{destination}")}
        found = self.run(scripts.LAPSE, keys, after=int(after * 1e6))
        return (str(found[0]), int(found[1])) if found else None

    def redeliver(self, destination: str, run: str, epoch: int | None = None) -> list[tuple[int, RangeSet]]:
        """(micro-batch, ranges) that a redelivery of `run` is made of: what is left of one under way, else all of it.

        `epoch`: of `reopen`; then only what is left of that one, [] once it is finished. Raises ConduitError where
        the ranges are forgotten (past `spool.retention`), naming what to do instead.
        """
        under_way = self.hash(self.keys.redo(destination))
        if epoch is not None and under_way.get("epoch") != str(epoch):
            return []
        ranges = under_way if under_way.get("run") == run else self.hash(self.keys.run(destination, run))
        out = sorted((int(m), RangeSet.parse(text)) for m, text in ranges.items() if m.isdigit())
        here = self.read(*(("EXISTS", self.keys.micro_batch(m)) for m, _ in out))
        if not out or not all(here):
            raise self._forgotten(destination, run)
        return out

    def finish(self, destination: str, run: str) -> dict[str, int]:
        """Notes that a run's task ended well after it delivered something; the runs of which that is known, and when
        they ended (ms since the epoch)."""
        key = self.keys.runs(destination)
        self.run(scripts.FINISH, {"runs": key}, run=run)
        return {name: int(at) for name, at in self.hash(key).items()}

    def finished(self, destination: str, run: str) -> bool:
        """Whether `finish` was called for this run, and it is not forgotten."""
        earlier = self.keys.finished(destination, run)
        return any(self.read(("HEXISTS", self.keys.runs(destination), run), ("EXISTS", earlier)))

    def confirmed_by(self, destination: str, runs: Sequence[str]) -> dict[str, dict[str, str]]:
        """Run → micro-batch → ranges that it confirmed; none where they are past `spool.retention`."""
        return dict(zip(runs, map(dict, self.read(*(("HGETALL", self.keys.run(destination, run)) for run in runs)))))

    def forget_runs(self, destination: str, runs: Sequence[str]) -> None:
        """Somebody else knows of these from here on."""
        self.read(
            ("UNLINK", *(self.keys.run(destination, run) for run in runs)),
            ("HDEL", self.keys.runs(destination), *runs),
        )

    def remember_run(self, destination: str, run: str, ranges: Mapping[str, str], retention: float) -> None:
        """Knows of a run again, that was forgotten."""
        keys = {"runs": self.keys.runs(destination), "run": self.keys.run(destination, run)}
        for some in portions(list(ranges.items())) if ranges else [()]:
            flat = [text for pair in some for text in pair]
            self.run(scripts.REMEMBER, keys, id=run, retention=int(retention * 1000), rest=flat)

    def _forgotten(self, destination: str, run: str) -> ConduitError:
        return ConduitError(
            f"what run {run} delivered to {destination} is past spool.retention and cannot be sent again: "
            f"replay the interval instead (`conduit replay {self.pipeline}`)"
        )
