"""Delivery of one micro-batch to one destination, as an executor does it: only what is not confirmed yet, in a child
process if a record may kill its worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.connectors.hiding import hiding
from conduit_tasks.delivery.breaker import Breaker
from conduit_tasks.delivery.broker_port import BrokerPort
from conduit_tasks.delivery.chunks import NONE, Seqs
from conduit_tasks.delivery.isolate_poison import deliver_isolated
from conduit_tasks.delivery.isolated import survives_forks
from conduit_tasks.delivery.latency import Latencies
from conduit_tasks.delivery.numbering import watched
from conduit_tasks.delivery.work import DeliveryReport, Work
from conduit_tasks.errors import ConduitError
from conduit_tasks.logs import about
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.numbering import column_of, matched_of, numbering_of
from conduit_tasks.micro_batch.seal import origins_of
from conduit_tasks.micro_batch.sending import connect, send
from conduit_tasks.micro_batch.size import Size
from conduit_tasks.micro_batch.written_before import written_before
from conduit_tasks.secret_names import secret_values
from conduit_tasks.spool.manifest import PartFile, SealedManifest
from conduit_tasks.topology import Destination, Node, Pipeline

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Attempt, Lease

Span = tuple[int, int]


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
    size: Size | None = None
    """Size of the micro-batch; None: it is delivered in Spark."""

    def __call__(self, _: Any) -> DeliveryReport | ConduitError:
        with about(destination=self.destination, micro_batch=self.number):
            return self._here()

    def _here(self) -> DeliveryReport | ConduitError:
        try:
            with opened(self.pipeline, self.run) as context, self._attempt(context) as attempt:
                # The progress of the delivery is read only now: an earlier attempt is fenced by now (invariant 4).
                if self._passed(context):
                    return DeliveryReport()
                if not self.isolate_poison:
                    return self._deliver(context, attempt, None, ())
                total = context.broker.micro_batches.get(self.number).total
                connect(context.pipeline.id, context.pipeline.destination(self.destination))
                # Loaded here, so that not every child loads it again; Arrow loads pandas with its first array.
                pa.array([0])
                # Children must not share a connection: each opens its own.
                context.broker.close()
                report = deliver_isolated(
                    partial(self._in_child, attempt.token),
                    self._confirmed,
                    (0, total - 1),
                    forks=survives_forks(context.pipeline.destination(self.destination)),
                )
                self._isolated(context, attempt.token)
                return report
        except ConduitError as error:
            return error

    def _attempt(self, context: Context) -> Attempt:
        return context.broker.leases.attempt(Node.destination(self.destination), self.destination, self.token)

    def _passed(self, context: Context) -> bool:
        """Returns whether the micro-batch may be gone, as the cursor has passed it and others went on."""
        return False

    def _in_child(self, token: int, span: Span, culprits: Sequence[int]) -> DeliveryReport:
        with opened(self.pipeline, self.run) as context:
            lease = context.broker.leases.attach(Node.destination(self.destination), token)
            return self._deliver(context, lease, span, culprits)

    def _isolated(self, context: Context, token: int) -> None:
        """Called once everything is confirmed that was delivered in children."""

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
        read = partial(rows_of, context, manifest, destination)
        there = NONE if self.epoch else written_before(context, destination, connector, manifest, lease, rows=read)
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
            epoch=self.epoch,
            index=manifest.index_of(),
            span=span,
            culprits=culprits,
            numbering=numbering,
            there=there,
            begun=broker.sending.begun(destination.id, self.number, epoch=self.epoch),
            parking=parking,
            seal=manifest.token,
        )
        breaker, options = None, destination.delivery
        if options.breaker is not None:
            hide = hiding(secret_values([destination.settings]))
            book = broker.breakers.book(destination.id, lease.token, options.breaker, hide)
            breaker = Breaker(options.breaker, options, book)
        return send(context, work, connector, port, lease.token, run=self.run, handler=handler, breaker=breaker)


def timed(latencies: Latencies | None, rows: Iterator[tuple[Seqs, pa.RecordBatch]]) -> Iterator[Any]:
    """Returns the same rows, watched by the latencies if there are any."""
    return rows if latencies is None else latencies.watch(rows)


def _with_rows(context: Context, manifest: SealedManifest, destination: Destination, seqs: set[int]) -> set[int]:
    """Returns the subset of these seqs that has rows for this destination."""
    found: set[int] = set()
    for there, _ in rows_of(context, manifest, destination, ("slice", "n")):
        found |= seqs.intersection(there.tolist())
    return found


def rows_of(
    context: Context,
    manifest: SealedManifest,
    destination: Destination,
    columns: Sequence[str] | None = None,
    *,
    files: Sequence[PartFile] | None = None,
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """Yields (seqs, rows) of a sealed micro-batch that this destination's trigger matched, in order. `files`: only of
    these."""
    from conduit_tasks.record.schema import SPOOL_SCHEMA

    columns = columns or SPOOL_SCHEMA.names
    wanted = column_of(context, manifest, destination)
    for file in manifest.files if files is None else files:
        # The column exists if it had filters when this was sealed: the pipeline file may say otherwise by now.
        row_filter = wanted if wanted in context.spool.columns(file) else None
        for batch in context.spool.read(file, columns=columns, row_filter=row_filter):
            yield manifest.seqs(batch), batch
