"""Delivers what a replay prepared to one destination, portion by portion (SEMANTICS X3).

Each portion goes under the destination's own lease, so that live deliveries and redrives stand aside meanwhile: both
share one file, or one table, and its state. Runs whose intervals are earlier go first. Every confirmation moves the
destination's state and the replay's progress in one step, so a crash anywhere is gone on from; the live cursor is not
touched. A dead letter whose record is replayed is closed as a redrive would close it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conduit_tasks.broker.port import BrokerPort
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.redrive import AGAIN, REDRIVEN, Letter
from conduit_tasks.errors import ConfigError, LeaseHeld
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.replay.interval import Ask, EventTime
from conduit_tasks.replay.prepare import MARK, Before, Portion, Prepared, spool_of

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.delivery.port import Counts, DeadLetter
    from conduit_tasks.delivery.work import Report
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.pipeline.topology import Destination
    from conduit_tasks.spool.spool import Spool

TURN = 120.0
"""Seconds for which a replay that says nothing keeps its place before those of later intervals."""
POLL = 0.25


@dataclass(frozen=True)
class Outcome:
    """What one destination got, in records: `chosen` of the interval are for it. `dead`: dead letters now."""

    destination: str
    chosen: int = 0
    delivered: int = 0
    filtered: int = 0
    dead: int = 0


@dataclass(frozen=True)
class Selected:
    """The rows of a portion that one destination is to get. Numbers stay the portion's, whatever is selected."""

    context: Context
    spool: Spool
    portion: Portion
    destination: str
    take: Callable[[Any], bool]

    def rows(self) -> Iterator[tuple[np.ndarray[Any, Any], pa.RecordBatch]]:
        """(seqs, rows), in order."""
        wanted = f"to.{self.destination}"
        row_filter = wanted if wanted in self.spool.columns(self.portion.file) else None
        for batch in self.spool.read(self.portion.file, SPOOL_SCHEMA.names, row_filter):
            taken = np.fromiter(map(self.take, to_records(batch, self.portion.origins)), bool, batch.num_rows)
            rows = batch.filter(pa.array(taken))
            if rows.num_rows:
                yield rows.column("n").to_numpy(), rows

    def seqs(self) -> dict[int, list[str]]:
        """Seq → ids of its records."""
        found: dict[int, list[str]] = {}
        for seqs, rows in self.rows():
            for seq, record in zip(seqs.tolist(), to_records(rows, self.portion.origins)):
                found.setdefault(seq, []).append(record.id)
        return found


def taking(context: Context, ask: Ask, destination: str) -> Callable[[Portion], Callable[[Any], bool]]:
    """Says per portion which of its records go. Raises ConfigError where it cannot be known what is missing."""
    if ask.what == "all":
        return lambda _: lambda _: True
    letters = _letters(context, destination)
    if ask.what == "failed":
        return lambda _: lambda record: record.id in letters
    broker, happened = context.broker, EventTime(context.pipeline)
    joined, has = broker.joined(destination), broker.replayed(destination)
    if joined is None:
        raise ConfigError(
            f"what {destination} is missing is not known: where its live stream began was not recorded, or the broker "
            "forgot it, or micro-batches were collected while it was away. Replay `all` of the interval"
        )

    def of(portion: Portion) -> Callable[[Any], bool]:
        if portion.batch is not None:
            inside = portion.batch <= joined.batch
            return lambda record: inside and record.id not in letters and (happened(record) or 0) not in has
        before = Before(context, portion.source, joined)
        if not before.known:
            raise ConfigError(
                f"source {portion.source} cannot tell which records {destination} has by their positions: replay `all`"
            )
        return lambda r: bool(before(r.position)) and r.id not in letters and (happened(r) or 0) not in has

    return of


def count(context: Context, spool: Spool, ask: Ask, made: Prepared, destination: str) -> int:
    """How many records would go."""
    take = taking(context, ask, destination)
    return sum(len(Selected(context, spool, p, destination, take(p)).seqs()) for p in made.portions)


def deliver_replay(
    context: Context, ask: Ask, made: Prepared, destination_id: str, run: str, *, again: bool, wait: float
) -> Outcome:
    """Sends what is left of the run to one destination. `again`: where it has finished, all of it in a new epoch.

    `wait`: seconds for each lease, and for runs of earlier intervals. Raises Unavailable, LeaseHeld, PipelineStopped,
    Fenced, ConfigError; a second call goes on.
    """
    broker = context.broker
    replaying = _Replaying(context, ask, made, context.pipeline.destination(destination_id), run)
    try:
        for number, portion in enumerate(made.portions):
            replaying.turn(wait)
            if replaying.portion(number, portion, again=again, wait=wait):
                return replaying.outcome
            again = False
        replaying.turn(wait)
        replaying.end(again=again, wait=wait)
    finally:
        broker.turn(destination_id, run, ask.start, 0)
    return replaying.outcome


@dataclass
class _Replaying:
    context: Context
    ask: Ask
    made: Prepared
    destination: Destination
    run: str
    outcome: Outcome = field(init=False)

    def __post_init__(self) -> None:
        self.outcome = Outcome(self.destination.id)
        self._take = taking(self.context, self.ask, self.destination.id)
        self._spool = spool_of(self.context, self.run)

    def turn(self, wait: float) -> None:
        """Waits until no replay of an earlier interval is under way to this destination."""
        give_up = time.monotonic() + wait
        while (first := self.context.broker.turn(self.destination.id, self.run, self.ask.start, TURN)) != self.run:
            if time.monotonic() > give_up:
                raise LeaseHeld(f"replays to {self.destination.id}", f"run {first}, of an earlier interval", 0)
            time.sleep(POLL)

    def portion(self, number: int, portion: Portion, *, again: bool, wait: float) -> bool:
        """Under one lease. True where the whole run has ended before."""
        from conduit_tasks.delivery.careful import deliver_carefully
        from conduit_tasks.delivery.dead_letter_marks import Marks
        from conduit_tasks.micro_batch.checkpoint import Marker, try_to_mark
        from conduit_tasks.micro_batch.stage import keeping

        context, broker, id = self.context, self.context.broker, self.destination.id
        with self._leased(wait) as lease, keeping(lease):
            marker = Marker(context, self.destination.node, lease.token)
            with marker.marking():
                share = self._begin(lease, again=again)
                if share.finished:
                    return True
                if share.done.get(number, RangeSet(())).count == portion.total:
                    return False
                selected = Selected(context, self._spool, portion, id, self._take(portion))
                seqs, letters = selected.seqs(), _letters(context, id)
                earlier = {key: seq for seq, ids in seqs.items() for i in ids for key in letters.get(i, ())}
                epoch, claimed = broker.claim(id, lease.token, f"replay {self.run}", sorted(earlier))
                task = _Portion(self, number, selected, seqs, lease.token, epoch, {k: earlier[k] for k in claimed})
                try:
                    if lease.attempts > self.destination.delivery.max_redeliveries:
                        report = deliver_carefully(task.send, task.confirmed, (0, portion.total - 1))
                    else:
                        report = task.send(None, ())
                finally:
                    settled = broker.settled(id)
                    try_to_mark(marker)
                    root = context.settings.path(context.settings.dead_letters)
                    Marks(root, context.pipeline.id).write(id, settled)
                    broker.mark(id, lease.token, [s.key for s in settled], over=True)
        was, n = self.outcome, report.counts
        self.outcome = Outcome(
            id, was.chosen + len(seqs), was.delivered + n.delivered, was.filtered + n.filtered, was.dead + n.nacked
        )
        return False

    def end(self, *, again: bool, wait: float) -> None:
        """Everything is delivered."""
        with self._leased(wait) as lease:
            if not self._begin(lease, again=again).finished:
                covered = None if self.ask.what == "failed" else (self.ask.start, self.ask.end - 1)
                self.context.broker.replay_end(self.destination.id, self.run, lease.token, covered)

    def _begin(self, lease: Lease, *, again: bool) -> Any:
        return self.context.broker.replay_begin(
            self.destination.id,
            self.run,
            lease.token,
            f"{self.made.token}-{self.ask.what}",
            again=again,
            retention=self.context.pipeline.spool_retention,
        )

    def _leased(self, wait: float) -> Lease:
        # As for a live delivery: nothing is sent in the last `timeout` seconds of a lease.
        ttl = self.context.settings.lease_ttl + self.destination.delivery.timeout
        return self.context.broker.acquire(self.destination.node, self.context.owner, wait=wait, ttl=ttl)


@dataclass(frozen=True)
class _Portion:
    """One portion at work, maybe in a child: `send` opens a connection of its own."""

    replaying: _Replaying
    number: int
    selected: Selected
    seqs: dict[int, list[str]]
    token: int
    epoch: int
    letters: dict[Letter, int]

    @property
    def run(self) -> str:
        """For the ledger (X5)."""
        return self.replaying.run

    def confirmed(self) -> Sequence[tuple[int, int]]:
        from conduit_tasks.micro_batch.context import opened

        with opened(self.replaying.context.pipeline, self.run) as own:
            return self._confirmed(own)

    def _confirmed(self, context: Context) -> Sequence[tuple[int, int]]:
        share = context.broker.replay_share(self.replaying.destination.id, self.run)
        return share.done.get(self.number, RangeSet(())).ranges if share else ()

    def send(self, span: tuple[int, int] | None, culprits: Collection[int]) -> Report:
        from conduit_tasks.delivery.deliver import deliver
        from conduit_tasks.delivery.handlers import Changes, Handlers
        from conduit_tasks.delivery.numbering import watched
        from conduit_tasks.delivery.work import Work
        from conduit_tasks.micro_batch.context import opened
        from conduit_tasks.micro_batch.deliver import connect
        from conduit_tasks.micro_batch.numbering import numbering_anew
        from conduit_tasks.micro_batch.recorded import recording
        from conduit_tasks.processors.chain import Chain

        pipeline, destination, run = self.replaying.context.pipeline, self.replaying.destination, self.run
        with opened(pipeline, run) as own:
            portion = self.selected.portion
            origins = [replace(o, metadata={**o.metadata, MARK: run}) for o in portion.origins]
            connector = connect(pipeline.id, destination)
            numbering = numbering_anew(pipeline.id, destination, connector, origins, self.token)
            port = ReplayPort(own, own.broker.attach(destination.node, self.token), destination, self)
            chain = Chain(destination.processors) if destination.processors else None
            options = destination.delivery
            if options.guarantee == "at-most-once":
                # It goes again because somebody asks for it; its marks would overwrite those of live deliveries.
                options = replace(options, guarantee="at-least-once")
            work = Work(
                pipeline=pipeline.id,
                destination=destination.id,
                micro_batch=0,
                total=portion.total,
                matched=len(self.seqs),
                rows=lambda: watched(numbering, self.selected.rows()),
                origins=origins,
                confirmed=self._confirmed(own),
                state=own.broker.delivery(destination.id).state,
                chain=chain,
                epoch=self.epoch,
                span=span,
                culprits=culprits,
                numbering=numbering,
            )
            changes = Changes(Handlers(pipeline.id, pipeline.handlers), work) if pipeline.handlers else None
            try:
                with recording(own, self, work) as tally:
                    return deliver(work, connector, port, options, changes=changes, tally=tally)
            finally:
                if chain is not None:
                    chain.close()


class ReplayPort(BrokerPort):
    """What the engine talks to. Replayed records do not vote, nothing that fails stops the pipeline, and no key is
    parked: the records that would wait have been delivered."""

    def __init__(self, context: Context, lease: Lease, destination: Destination, portion: _Portion) -> None:
        handler = context.dead_letters(destination.dead_letters, destination.id)
        super().__init__(context.broker, lease, destination, 0, "", handler, epoch=portion.epoch)
        self._portion = portion

    def confirm(
        self,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        *,
        state: dict[str, Any] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> None:
        """See DeliveryPort; one command."""
        began = time.monotonic()
        told, again = RangeSet.of(ranges), {letter.seq for letter in dead}
        settled = {k: AGAIN if seq in again else REDRIVEN for k, seq in self._portion.letters.items() if seq in told}
        numbers = asdict(counts)
        self._broker.replay_confirm(
            self._destination.id,
            self._portion.run,
            self._lease.token,
            self._portion.number,
            ranges,
            {"redelivered": numbers["delivered"], "retried": numbers["retried"]},
            state=state,
            settled=settled,
            dead=dead,
        )
        self._lease.renewed(began)

    def fail(self, error: str, error_class: str) -> None:
        """Told to the operator by what is raised; the pipeline goes on."""


def _letters(context: Context, destination: str) -> dict[str, list[Letter]]:
    """Id of a record → its dead letters that are still open at a destination."""
    from conduit_tasks.delivery.dead_letter_book import read_book
    from conduit_tasks.delivery.dead_letter_marks import Marks
    from conduit_tasks.delivery.dead_letter_store import DeadLetterStore

    root = context.settings.path(context.settings.dead_letters)
    stores = DeadLetterStore(root, context.pipeline.id), Marks(root, context.pipeline.id)
    found: dict[str, list[Letter]] = {}
    for entry in read_book(*stores, context.broker, destination).entries:
        if entry.open:
            found.setdefault(str(entry.row["id"]), []).append(entry.key)
    return found
