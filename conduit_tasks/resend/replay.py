"""Replay: sends an interval of records again, to chosen destinations (SEMANTICS X3).

`replay` does all of it in one process, as the command does; the DAG calls its steps task by task.

Each portion is delivered under the destination's own lease, so that live deliveries and redrives wait meanwhile: all of
them share one file, or one table, and its state. One run at a time delivers to a destination; of the runs that wait,
the one with the earliest interval is next. The missing records are determined under the lease. Every confirmation moves
the destination's state and the replay's progress in one step, so a replay goes on after a crash at any point; the live
cursor is not touched. A dead letter whose record is replayed is closed as a redrive would close it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.isolate_poison import deliver_isolated
from conduit_tasks.errors import ConduitError, ConfigError, Fenced, LeaseHeld, PipelineStopped, StateLost
from conduit_tasks.micro_batch.checkpoint import Marker, try_to_mark
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.every import every, keeping
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.micro_batch.sending import leased, settling
from conduit_tasks.resend.interval import Ask, ask
from conduit_tasks.resend.portion import PortionTask
from conduit_tasks.resend.prepare import Portion, Prepared, prepare, prepared, read, spool_of
from conduit_tasks.resend.select import ChosenRows, choosing, count, letters_in, letters_of
from conduit_tasks.spool.spool import Spool

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.broker.replay import ReplayProgress
    from conduit_tasks.topology import Destination

TURN = 120.0
"""Seconds for which a replay without a sign of life keeps its place before replays of later intervals."""
POLL = 0.25
PASSES = 10
"""Limit of times that Redis may forget something of a replay while it goes on."""


@dataclass(frozen=True)
class Replayed:
    """Result of a replay at one destination, in records: `chosen` of the interval are for it. `dead`: dead letters
    now."""

    destination: str
    chosen: int = 0
    delivered: int = 0
    filtered: int = 0
    dead: int = 0


def replay(
    pipeline: str,
    start: str,
    end: str,
    destinations: Sequence[str],
    what: str,
    *,
    run: str,
    wait: float,
    progress: Callable[[Prepared], None] = lambda _: None,
) -> list[Replayed]:
    """Prepares a replay, and delivers it to one destination after the other. A second call with the same `run` goes on;
    a call after everything it asks for has ended begins again. Raises what the two steps raise."""
    with opened(pipeline, run) as context:
        wanted = ask(context.pipeline, start, end, tuple(destinations), what)
        # Read before any waiting: if two operators call at once, the second does not repeat the first one's replay.
        generation = _generation(context, wanted, run)
        made = prepare(context, wanted, run, generation=generation, wait=wait)
        progress(made)
        return [
            deliver_replay(context, wanted, made, id, run, generation=generation, wait=wait, turn_wait=wait)
            for id in wanted.destinations
        ]


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
            for _ in range(PASSES):
                with suppress(StateLost):
                    replaying.all(turn_wait)
                    break
                # What Redis has forgotten of it may have been cut away at the destination (X7).
                remember(context)
            else:
                raise StateLost(
                    f"Redis has forgotten {PASSES} times what replay {run} had sent to {destination_id}, while it went "
                    "on: see that Redis keeps what it is told, then call it again, and it goes on"
                )
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

    def all(self, turn_wait: float) -> None:
        """Delivers the portions that are not delivered, in order, a lease each, and ends the run. Raises StateLost if
        Redis forgets one of them meanwhile; a second call goes on with that one."""
        sent = -1
        while True:
            _await_turn(self.context, self.ask, self.destination.id, self.run, turn_wait)
            with leased(self.context, self.destination, self.wait) as lease, keeping(lease):
                share = self._begin(lease)
                if share.finished:
                    return
                # Who forgets one of them after this forgets the lease, too.
                left = (n for n, portion in enumerate(self.made.portions) if not _whole(share, n, portion))
                number = next(left, None)
                if number is None:
                    return self._end(lease)
                if number <= sent:
                    # What was sent may be cut away, so that the next portion would come before this one (C9).
                    raise StateLost(f"Redis has forgotten portion {number} of replay {self.run}, which was delivered")
                self._send(lease, share, number)
                sent = number

    def _send(self, lease: Lease, share: ReplayProgress, number: int) -> None:
        """Delivers a portion."""
        context, broker, id = self.context, self.context.broker, self.destination.id
        portion, marker = self.made.portions[number], Marker(self.context, self.destination.node, lease.token)
        with marker.marking():
            take = choosing(context, self.ask, id)(portion)
            rows = ChosenRows(context, self._spool, portion, id, take)
            seqs, letters = rows.seqs(), letters_in(portion, letters_of(context, id))
            earlier = {key: seq for seq, ids in seqs.items() for i in ids for key in letters.get(i, ())}
            epoch, claimed = broker.redrives.claim(id, lease.token, f"replay {self.run}", sorted(earlier))
            task = PortionTask(
                run=self.run,
                destination=self.destination,
                number=number,
                rows=rows,
                seqs=seqs,
                token=lease.token,
                epoch=epoch,
                stream=share.epoch,
                letters={k: earlier[k] for k in claimed},
            )
            try:
                with settling(context, id, lease, marker), halting_call(broker, self.destination.node):
                    if lease.attempts > self.destination.delivery.max_redeliveries:
                        report = deliver_isolated(task.send, task.confirmed, (0, portion.total - 1))
                    else:
                        report = task.send(None, ())
            finally:
                try_to_mark(marker)
        was, n = self.outcome, report.counts
        self.outcome = Replayed(
            id, was.chosen + len(seqs), was.delivered + n.delivered, was.filtered + n.filtered, was.dead + n.nacked
        )

    def _end(self, lease: Lease) -> None:
        """Ends the run at this destination, once a mark says that everything is delivered (X7)."""
        marker = Marker(self.context, self.destination.node, lease.token)
        marker.mark()
        covered = None if self.ask.what == "failed" else (self.ask.start, self.ask.end - 1)
        self.context.broker.replays.end(self.destination.id, self.run, lease.token, covered)
        # What is not missing any more is in it, too.
        try_to_mark(marker)

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


def _whole(share: ReplayProgress, number: int, portion: Portion) -> bool:
    return share.done.get(number, RangeSet(())).count == portion.total


def _generation(context: Context, wanted: Ask, run: str) -> str:
    found = prepared(context, run)
    if found is None:
        return "1"
    shares = [context.broker.replays.share(id, run) for id in wanted.destinations]
    ended = all(s is not None and s.finished and s.prepared == f"{found.token}-{wanted.what}" for s in shares)
    return str(int(found.generation or 0) + 1) if ended else found.generation


def look(context: Context, wanted: Ask) -> tuple[Prepared, dict[str, int]]:
    """Returns what would be sent: the prepared records, and their number per destination. Changes nothing."""
    with tempfile.TemporaryDirectory(prefix="conduit-replay-") as folder:
        spool = Spool(folder)
        made = read(context, spool, wanted, 1)
        return made, {id: count(context, spool, wanted, made, id) for id in wanted.destinations}
