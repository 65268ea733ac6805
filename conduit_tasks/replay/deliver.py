"""Delivers the records that a replay prepared to one destination, portion by portion (SEMANTICS X3).

Each portion is delivered under the destination's own lease, so that live deliveries and redrives wait meanwhile: all of
them share one file, or one table, and its state. One run at a time delivers to a destination; of the runs that wait,
the one with the earliest interval is next. The missing records are determined under the lease. Every confirmation moves
the destination's state and the replay's progress in one step, so a replay goes on after a crash at any point; the live
cursor is not touched. A dead letter whose record is replayed is closed as a redrive would close it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.errors import ConduitError, ConfigError, Fenced, LeaseHeld, PipelineStopped
from conduit_tasks.micro_batch.every import every
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.replay.interval import Ask
from conduit_tasks.replay.prepare import Portion, Prepared, prepared, spool_of
from conduit_tasks.replay.replay_port import PortionTask
from conduit_tasks.replay.select import Selected, choosing, letters_of

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.broker.replay import ReplayProgress
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.topology import Destination

TURN = 120.0
"""Seconds for which a replay without a sign of life keeps its place before replays of later intervals."""
POLL = 0.25


@dataclass(frozen=True)
class Replayed:
    """Result of a replay at one destination, in records: `chosen` of the interval are for it. `dead`: dead letters
    now."""

    destination: str
    chosen: int = 0
    delivered: int = 0
    filtered: int = 0
    dead: int = 0


def deliver_replay(
    context: Context,
    ask: Ask,
    made: Prepared,
    destination_id: str,
    run: str,
    *,
    generation: str,
    wait: float,
    turn_wait: float,
) -> Replayed:
    """Sends the rest of the run to one destination; all of it in a new epoch, if it has finished in another
    `generation`.

    `wait`: seconds for each lease; `turn_wait`: seconds for runs of earlier intervals. Raises Unavailable, LeaseHeld,
    PipelineStopped, Fenced, ConfigError; a second call goes on.
    """
    from conduit_tasks.micro_batch.forgotten import remember

    remember(context)
    turns = context.broker.replays.turn
    replaying = _Replaying(context, ask, made, context.pipeline.destination(destination_id), run, generation, wait)
    try:
        with announced(context, ask, [destination_id], run, TURN):
            while not replaying.all(turn_wait):
                # Redis has forgotten a portion meanwhile, and what that had sent may have been cut away (X7).
                remember(context)
    except (ConfigError, PipelineStopped):
        turns(destination_id, run, ask.start, 0)
        raise
    # A run that failed with another error is tried again, and keeps its place meanwhile.
    turns(destination_id, run, ask.start, 0)
    return replaying.outcome


@contextmanager
def announced(context: Context, ask: Ask, destinations: Sequence[str], run: str, ttl: float) -> Iterator[None]:
    """Keeps the run's place before runs of later intervals, and for `ttl` seconds after."""

    def announce() -> bool:
        try:
            for id in destinations:
                context.broker.replays.turn(id, run, ask.start, ttl)
        except ConduitError:
            return False
        return True

    for id in destinations:
        context.broker.replays.turn(id, run, ask.start, ttl)
    with every(f"turn of {run}", ttl / 4, announce):
        yield


def _await_turn(context: Context, ask: Ask, destination: str, run: str, wait: float) -> None:
    """Takes the turn: waits until no replay of an earlier interval is announced, and none is under way. Raises
    LeaseHeld after `wait` seconds."""
    give_up = time.monotonic() + wait
    while (first := context.broker.replays.turn(destination, run, ask.start, TURN, take=True)) != run:
        if time.monotonic() > give_up:
            until = int((time.time() + TURN) * 1e6)
            raise LeaseHeld(f"replays to {destination}", f"run {first}, which is before this one", until)
        time.sleep(POLL)


@dataclass
class _Replaying:
    """Replay to one destination. `outcome`: of what this call sent."""

    context: Context
    ask: Ask
    made: Prepared
    destination: Destination
    run: str
    generation: str
    wait: float
    outcome: Replayed = field(init=False)

    def __post_init__(self) -> None:
        self.outcome = Replayed(self.destination.id)
        self._spool = spool_of(self.context, self.run)

    def all(self, turn_wait: float) -> bool:
        """Delivers every portion that is not delivered, and ends the run. Returns False if there is one left."""
        for number, portion in enumerate(self.made.portions):
            _await_turn(self.context, self.ask, self.destination.id, self.run, turn_wait)
            if self.portion(number, portion):
                return True
        _await_turn(self.context, self.ask, self.destination.id, self.run, turn_wait)
        return self.end()

    def portion(self, number: int, portion: Portion) -> bool:
        """Delivers a portion under one lease. Returns True if the whole run had ended before."""
        from conduit_tasks.dead_letters.marks import Marks
        from conduit_tasks.delivery.isolate_poison import deliver_carefully
        from conduit_tasks.micro_batch.checkpoint import Marker, try_to_mark
        from conduit_tasks.micro_batch.every import keeping

        context, broker, id = self.context, self.context.broker, self.destination.id
        with self._leased() as lease, keeping(lease):
            marker = Marker(context, self.destination.node, lease.token)
            with marker.marking():
                share = self._begin(lease)
                if share.finished:
                    return True
                if _whole(share, number, portion):
                    return False
                take = choosing(context, self.ask, id)(portion)
                selected = Selected(context, self._spool, portion, id, take)
                seqs, letters = selected.seqs(), letters_of(context, id)
                earlier = {key: seq for seq, ids in seqs.items() for i in ids for key in letters.get(i, ())}
                epoch, claimed = broker.redrives.claim(id, lease.token, f"replay {self.run}", sorted(earlier))
                task = PortionTask(
                    run=self.run,
                    destination=self.destination,
                    number=number,
                    selected=selected,
                    seqs=seqs,
                    token=lease.token,
                    epoch=epoch,
                    stream=share.epoch,
                    letters={k: earlier[k] for k in claimed},
                )
                try:
                    with halting_call(broker, self.destination.node):
                        if lease.attempts > self.destination.delivery.max_redeliveries:
                            report = deliver_carefully(task.send, task.confirmed, (0, portion.total - 1))
                        else:
                            report = task.send(None, ())
                finally:
                    settled = broker.redrives.settled(id)
                    # The store calls no letter redriven before the spool says so, as Redis may forget it (X7).
                    marker.mark() if settled else try_to_mark(marker)
                    root = context.settings.path(context.settings.dead_letters)
                    Marks(root, context.pipeline.id).write(id, settled)
                    broker.redrives.mark(id, lease.token, [s.key for s in settled], over=True)
        was, n = self.outcome, report.counts
        self.outcome = Replayed(
            id, was.chosen + len(seqs), was.delivered + n.delivered, was.filtered + n.filtered, was.dead + n.nacked
        )
        return False

    def end(self) -> bool:
        """Ends the run at this destination, if everything is delivered, and a mark says so (X7). Returns False if a
        portion is not: whoever forgets it forgets this lease, too."""
        from conduit_tasks.micro_batch.checkpoint import Marker, try_to_mark

        with self._leased() as lease:
            share = self._begin(lease)
            if not share.finished:
                if not all(_whole(share, number, portion) for number, portion in enumerate(self.made.portions)):
                    return False
                marker = Marker(self.context, self.destination.node, lease.token)
                marker.mark()
                covered = None if self.ask.what == "failed" else (self.ask.start, self.ask.end - 1)
                self.context.broker.replays.end(self.destination.id, self.run, lease.token, covered)
                # What is not missing any more is in it, too.
                try_to_mark(marker)
        return True

    def _begin(self, lease: Lease) -> ReplayProgress:
        found = prepared(self.context, self.run)
        if found is None or found.token != self.made.token:
            raise Fenced(f"run {self.run} was prepared again meanwhile; call it again")
        return self.context.broker.replays.begin(
            self.destination.id,
            self.run,
            lease.token,
            f"{self.made.token}-{self.ask.what}",
            generation=self.generation,
            retention=self.context.pipeline.spool_retention,
        )

    def _leased(self) -> Lease:
        # As for a live delivery: nothing is sent in the last `timeout` seconds of a lease.
        ttl = self.context.settings.lease_ttl + self.destination.delivery.timeout
        return self.context.broker.leases.acquire(self.destination.node, self.context.owner, wait=self.wait, ttl=ttl)


def _whole(share: ReplayProgress, number: int, portion: Portion) -> bool:
    return share.done.get(number, RangeSet(())).count == portion.total
