"""`destinations.<id>`: drains sealed micro-batches in order from the destination's cursor, under its lease.

The driver walks the micro-batches; each is delivered by one executor task, which confirms to the broker itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.connectors.registry import destination_class
from conduit_tasks.delivery.broker_port import BrokerPort
from conduit_tasks.delivery.chunks import Seqs
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.handlers import Changes, Handlers
from conduit_tasks.delivery.isolate_poison import deliver_carefully
from conduit_tasks.delivery.isolated import survives_forks
from conduit_tasks.delivery.latency import Latencies
from conduit_tasks.delivery.numbering import watched
from conduit_tasks.delivery.work import DeliveryReport, Work
from conduit_tasks.errors import ConduitError, Fenced, LeaseHeld, Unavailable
from conduit_tasks.logs import about
from conduit_tasks.micro_batch import runs
from conduit_tasks.micro_batch.checkpoint import Marker, try_to_mark
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.draining import Draining, Ended
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.numbering import column_of, matched_of, numbering_of
from conduit_tasks.micro_batch.recorded import note_unrecorded, recording
from conduit_tasks.micro_batch.seal import origins_of
from conduit_tasks.micro_batch.visibility import extend_visibility
from conduit_tasks.processors.chain import Chain
from conduit_tasks.spool.manifest import SealedManifest
from conduit_tasks.topology import Destination, Node, Pipeline

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Attempt, Lease
    from conduit_tasks.micro_batch.stage import RunAll

log = logging.getLogger(__name__)

Span = tuple[int, int]


def deliver_destination(
    context: Context,
    destination_id: str,
    run_all: RunAll,
    *,
    run: str,
    wait: float,
    cleared: bool,
    progress: Callable[..., None],
    draining: Draining | None = None,
) -> Ended:
    """Delivers what is sealed and, in a run that drains, what the other nodes of that run bring.

    `cleared`: this run's task was cleared. If it had succeeded, what it confirmed is sent again first; if it had
    failed, it merely resumes. `progress` is called for every micro-batch. Raises LeaseHeld after `wait` seconds,
    Unavailable (the destination is down and waits), PipelineStopped, Fenced.
    """
    destination = context.pipeline.destination(destination_id)
    # Nothing is sent in the last `timeout` seconds of a lease, so that fencing covers sends.
    ttl = context.settings.lease_ttl + destination.delivery.timeout
    lease = _lease(context, destination.node, draining, wait, ttl)
    marker = Marker(context, destination.node, lease.token)
    with lease, keeping(lease), marker.marking(), extend_visibility(context):
        drain = Drain(context, destination, lease, run_all, run, progress, marker, draining)
        note_unrecorded(context, destination.id)
        if cleared and runs.finished(context, destination.id, run):
            drain.redeliver()
        ended = drain.until_caught_up()
    # The same node of the run that takes over may wait for the lease.
    context.broker.runs.ring(destination.node)
    return ended


def _lease(context: Context, node: str, draining: Draining | None, wait: float, ttl: float) -> Lease:
    """Acquires the destination's lease; the run that this one takes over from may keep it as long as it is at work."""
    while draining is not None:
        try:
            return context.broker.leases.acquire(node, context.owner, ttl=ttl)
        except LeaseHeld:
            if not draining.taken_over_from(node):
                break
    return context.broker.leases.acquire(node, context.owner, wait=wait, ttl=ttl)


@dataclass
class Drain:
    """Delivery by one holder of a destination's lease; `done` counts micro-batches."""

    context: Context
    destination: Destination
    lease: Lease
    run_all: RunAll
    run: str
    progress: Callable[..., None]
    marker: Marker
    draining: Draining | None = None
    done: int = 0

    def until_caught_up(self) -> Ended:
        """Delivers in order from the cursor, until nothing is left or the run has lasted as long as it may."""
        broker, destination = self.context.broker, self.destination
        while True:
            if broker.deliveries.complete_unmatched(destination.id, self.lease.token):
                broker.runs.ring("delivered")
            sealed = broker.micro_batches.latest_sealed()
            cursor = broker.deliveries.get(destination.id).cursor
            if cursor >= sealed:
                more = self.draining.more(destination.node, sealed) if self.draining is not None else False
                if more is True:
                    continue
                self._finish()
                if isinstance(more, Ended):
                    return Ended(f"delivered {self.done} micro-batches up to {cursor}; {more.reason}")
                # Looks once more: releasing fails if anything was sealed since, so no micro-batch is left behind.
                if self.lease.release(expect_sealed=sealed):
                    return Ended(f"delivered {self.done} micro-batches up to {cursor}")
                continue
            if self.done and self.draining is not None and (leaves := self.draining.leaves(destination.node)):
                self._finish()
                left = f"{sealed - cursor} are left to the next run"
                return Ended(f"delivered {self.done} micro-batches up to {cursor}; {left}", again=leaves.again)
            # Redis may have forgotten since the last look: nothing that was confirmed may be cut away or sent again.
            self.marker.look()
            self._deliver(cursor + 1)
            broker.runs.ring("delivered")

    def redeliver(self) -> None:
        """Sends again exactly what this run had confirmed, in a new epoch; live cursors and counters do not move."""
        broker = self.context.broker
        self.marker.look()
        epoch = broker.redeliveries.begin(self.destination.id, self.run, self.lease.token)
        try:
            for number, _ in broker.redeliveries.ranges(self.destination.id, self.run, epoch):
                self._deliver(number, epoch)
        finally:
            mark_closed(self.context, self.destination.id, self.lease.token)

    def _finish(self) -> None:
        if self.done:
            runs.finish(self.context, self.destination.id, self.run)

    def _deliver(self, number: int, epoch: int = 0) -> None:
        in_driver = getattr(destination_class(self.destination.plugin), "in_driver", False)
        task = DeliverTask(
            pipeline=self.context.pipeline,
            destination=self.destination.id,
            number=number,
            token=self.lease.token,
            run=self.run,
            epoch=epoch,
            # A driver cannot be forked: its session is in another process.
            isolate_poison=not in_driver and self.lease.attempts > self.destination.delivery.max_redeliveries,
        )
        try:
            (report,) = [task(0)] if in_driver else self.run_all(task, [0])
        except ConduitError:
            raise
        except Exception as error:
            if said := self.context.broker.leases.gave_up(self.destination.node):
                raise Unavailable(said) from error
            raise
        try_to_mark(self.marker)
        if isinstance(report, Fenced) and (said := self.context.broker.leases.gave_up(self.destination.node)):
            raise Unavailable(said) from report
        if isinstance(report, ConduitError):
            raise report
        self.done += 1
        # There was progress: only a micro-batch that killed its worker repeatedly is delivered carefully.
        self.lease.attempts = 1
        counts = {name: n for name, n in asdict(report.counts).items() if name != "matched"}
        self.progress(micro_batch=number, epoch=epoch, seconds=round(report.seconds, 3), **counts)


def mark_closed(context: Context, destination: str, token: int) -> None:
    """Marks the dead letters in the store that are none any more, because their records were redelivered. If that
    fails, the next redrive does it."""
    from conduit_tasks.dead_letters.marks import Marks

    try:
        if settled := context.broker.redrives.settled(destination):
            # Redis may forget that they were sent: a mark says so first (X7).
            Marker(context, Node.destination(destination), token).mark()
            Marks(context.settings.path(context.settings.dead_letters), context.pipeline.id).write(destination, settled)
            context.broker.redrives.mark(destination, token, [s.key for s in settled])
    except ConduitError as error:
        log.warning("dead letters that were delivered again are marked by the next redrive: %s", error)


@dataclass(frozen=True)
class DeliverTask:
    """Delivery of one micro-batch to one destination, in an executor; picklable. Returns a Report or a ConduitError."""

    pipeline: Pipeline
    """Pipeline as the driver loaded it: an executor may have neither the file nor the environment it names."""
    destination: str
    number: int
    token: int
    run: str
    epoch: int = 0
    isolate_poison: bool = False

    def __call__(self, _: Any) -> DeliveryReport | ConduitError:
        with about(destination=self.destination, micro_batch=self.number):
            return self._here()

    def _here(self) -> DeliveryReport | ConduitError:
        try:
            with opened(self.pipeline, self.run) as context, self._attempt(context) as attempt:
                # The progress of the delivery is read only now: an earlier attempt is fenced by now (invariant 4).
                if not self.isolate_poison:
                    return self._deliver(context, attempt, None, ())
                total = context.broker.micro_batches.get(self.number).total
                connect(context.pipeline.id, context.pipeline.destination(self.destination))
                # Loaded here, so that not every child loads it again; Arrow loads pandas with its first array.
                pa.array([0])
                # Children must not share a connection: each opens its own.
                context.broker.close()
                return deliver_carefully(
                    partial(self._in_child, attempt.token),
                    self._confirmed,
                    (0, total - 1),
                    forks=survives_forks(context.pipeline.destination(self.destination)),
                )
        except ConduitError as error:
            return error

    def _attempt(self, context: Context) -> Attempt:
        return context.broker.leases.attempt(Node.destination(self.destination), self.destination, self.token)

    def _in_child(self, token: int, span: Span, culprits: Sequence[int]) -> DeliveryReport:
        with opened(self.pipeline, self.run) as context:
            lease = context.broker.leases.attach(Node.destination(self.destination), token)
            return self._deliver(context, lease, span, culprits)

    def _confirmed(self) -> Sequence[Span]:
        with opened(self.pipeline, self.run) as context:
            return self._done(context).ranges

    def _done(self, context: Context) -> RangeSet:
        """Returns the confirmed ranges of this micro-batch; in an epoch everything that is not to be sent again."""
        total = context.broker.micro_batches.get(self.number).total
        whole = RangeSet(((0, total - 1),)) if total else RangeSet(())
        if self.epoch:
            left = dict(context.broker.redeliveries.ranges(self.destination, self.run, self.epoch)).get(
                self.number, RangeSet(())
            )
            return whole.subtract(left)
        state = context.broker.deliveries.get(self.destination)
        return whole if state.cursor >= self.number else state.confirmed

    def _deliver(self, context: Context, lease: Lease, span: Span | None, culprits: Sequence[int]) -> DeliveryReport:
        broker, pipeline = context.broker, context.pipeline
        destination = pipeline.destination(self.destination)
        manifest = context.spool.read_sealed(broker.micro_batches.get(self.number).manifest)
        handler = context.dead_letters(destination.dead_letters, destination.id)
        parking = context.parking(destination)
        origins, connector = origins_of(pipeline.id, manifest.slices), connect(pipeline.id, destination)
        confirmed = self._done(context)
        latencies = None if self.epoch else Latencies(destination.node, origins, confirmed)
        port = BrokerPort(
            broker,
            lease,
            destination,
            self.number,
            self.run,
            handler,
            isolate=pipeline.isolate,
            retention=pipeline.spool_retention,
            epoch=self.epoch,
            sent=lambda seqs: _with_rows(context, manifest, destination, seqs),
            parking=parking,
            latencies=latencies,
        )
        chain = Chain(destination.processors) if destination.processors else None
        numbering = numbering_of(
            context, destination, connector, manifest, origins=origins, token=lease.token, epoch=self.epoch
        )
        work = Work(
            pipeline=pipeline.id,
            destination=destination.id,
            micro_batch=self.number,
            total=manifest.total,
            matched=matched_of(context, manifest, destination),
            rows=lambda: watched(numbering, timed(latencies, rows_of(context, manifest, destination))),
            origins=origins,
            confirmed=confirmed.ranges,
            state=broker.deliveries.get(destination.id).state,
            chain=chain,
            epoch=self.epoch,
            index=manifest.index_of(),
            span=span,
            culprits=culprits,
            numbering=numbering,
            begun=broker.sending.begun(destination.id, self.number, epoch=self.epoch),
            parking=parking,
            seal=manifest.token,
            look=Marker(context, destination.node, lease.token).look,
            rested=partial(broker.deliveries.rested, destination.id),
        )
        handlers = Handlers(pipeline, destination.node)
        others = [d.id for d in pipeline.destinations if d is not destination]
        changes = Changes(handlers, work, lambda x: broker.dead_letters.is_dead(x.key, others)) if handlers else None
        try:
            with recording(context, self, work) as tally:
                return deliver(work, connector, port, destination.delivery, handler, changes=changes, tally=tally)
        finally:
            if chain is not None:
                chain.close()


def timed(latencies: Latencies | None, rows: Iterator[tuple[Seqs, pa.RecordBatch]]) -> Iterator[Any]:
    """Returns the same rows, watched by the latencies if there are any."""
    return rows if latencies is None else latencies.watch(rows)


def connect(pipeline: str, destination: Destination) -> Any:
    """Builds the destination connector from its settings, with the ids of its pipeline and of itself."""
    connector = destination_class(destination.plugin)(destination.settings)
    connector.pipeline, connector.connector = pipeline, destination.id
    return connector


def _with_rows(context: Context, manifest: SealedManifest, destination: Destination, seqs: set[int]) -> set[int]:
    """Returns the subset of these seqs that has rows for this destination."""
    found: set[int] = set()
    for there, _ in rows_of(context, manifest, destination, ("slice", "n")):
        found |= seqs.intersection(there.tolist())
    return found


def rows_of(
    context: Context, manifest: SealedManifest, destination: Destination, columns: Sequence[str] | None = None
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """Yields (seqs, rows) of a sealed micro-batch that this destination's trigger matched, in order."""
    from conduit_tasks.record.schema import SPOOL_SCHEMA

    columns = columns or SPOOL_SCHEMA.names
    wanted = column_of(context, manifest, destination)
    for file in manifest.files:
        # The column exists if it had filters when this was sealed: the pipeline file may say otherwise by now.
        row_filter = wanted if wanted in context.spool.columns(file) else None
        for batch in context.spool.read(file, columns=columns, row_filter=row_filter):
            yield manifest.seqs(batch), batch
