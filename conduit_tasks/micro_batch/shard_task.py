"""Delivery of one shard of a divided micro-batch to one destination, as an executor does it, at its share of the
`rate-limit` (ADR 27)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.state import Division
from conduit_tasks.delivery.latency import Latencies
from conduit_tasks.delivery.shard import Shard, ranges_of
from conduit_tasks.delivery.shard_port import ShardPort
from conduit_tasks.delivery.work import DeliveryReport, Work
from conduit_tasks.errors import ConduitError
from conduit_tasks.logs import about
from conduit_tasks.metrics.histogram import observed
from conduit_tasks.micro_batch.deliver_task import DeliverTask, rows_of, timed
from conduit_tasks.micro_batch.numbering import once_by_shards, shard_numbering
from conduit_tasks.micro_batch.seal import origins_of
from conduit_tasks.micro_batch.sending import connect, send
from conduit_tasks.topology import Destination, Node

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Attempt, Lease
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.spool.manifest import SealedManifest

Span = tuple[int, int]


@dataclass(frozen=True)
class ShardTask(DeliverTask):
    """Delivery of shards of one micro-batch, one per call; picklable. Returns a report or a ConduitError."""

    division: Division = field(default_factory=lambda: Division(0, "none", 1, 0))
    shard: int = -1
    """Number of the shard that this copy of the task delivers."""
    began: float = 0.0
    """Time at which the driver began the micro-batch, in seconds since the epoch."""

    def __call__(self, shard: Any) -> DeliveryReport | ConduitError:
        with about(shard=shard):
            return DeliverTask.__call__(replace(self, shard=shard), shard)

    def _attempt(self, context: Context) -> Attempt:
        return context.broker.leases.attempt(
            Node.destination(self.destination), self.destination, self.token, self.shard
        )

    def _passed(self, context: Context) -> bool:
        # The task of a lane that is run again begins with the oldest micro-batch, which may be collected by then.
        in_group = self.division.used is not None
        return in_group and context.broker.deliveries.cursors([self.destination])[1] >= self.number

    def _done(self, context: Context) -> RangeSet:
        """Returns the confirmed ranges of seqs, among them those of other shards that lie beside its own."""
        shard = self._shard(context, manifest := self._manifest(context))
        divisions = context.broker.deliveries.get(self.destination).divisions
        now = next((division for division in divisions if division.micro_batch == self.number), None)
        if now is None or now.whole[self.shard] is not None:
            return RangeSet(((0, manifest.total - 1),))
        if confirmed := now.done[self.shard]:
            self._read_through(context, manifest, shard)
            return shard.seqs(confirmed)
        return RangeSet()

    def merged(self, context: Context, voted: Sequence[int]) -> tuple[RangeSet, RangeSet]:
        """Returns the seqs of the whole micro-batch that are confirmed by all of its shards, and the ordinals of the
        records that have voted; `voted`: per shard, the number of these, its first ones; all of a whole one of which it
        knows none."""
        manifest, division = self._manifest(context), self.division
        confirmed, of_voters = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for number, (done, records, first) in enumerate(zip(division.done, division.whole, voted)):
            if done or records or first:
                shard = Shard(division.by, division.count, number, manifest, division.shards)
                self._read_through(context, manifest, shard)
                confirmed.append(shard.exactly(done if records is None else None))
                voters_of = first or records or 0
                of_voters.append(shard.exactly(RangeSet.of([(0, voters_of - 1)] if voters_of else [])))
        voters = np.concatenate(of_voters)
        if len(voters):
            destination = context.pipeline.destination(self.destination)
            rows = rows_of(context, manifest, destination, ("slice", "n"))
            voters = np.searchsorted(np.unique(np.concatenate([seqs for seqs, _ in rows])), voters)
        return ranges_of(np.concatenate(confirmed)), ranges_of(voters)

    def _deliver(self, context: Context, lease: Lease, span: Span | None, culprits: Sequence[int]) -> DeliveryReport:
        broker, pipeline = context.broker, context.pipeline
        manifest = self._manifest(context)
        connector = connect(pipeline.id, pipeline.destination(self.destination))
        destination = as_begun(pipeline.destination(self.destination), connector)
        origins = origins_of(pipeline.id, manifest.slices)
        confirmed, shard = self._done(context), self._shard(context, manifest)
        latencies = Latencies(destination.node, origins, confirmed)
        handler = context.dead_letters(destination.dead_letters, destination.id)
        port = ShardPort(
            broker,
            lease,
            destination,
            self.number,
            self.run,
            handler,
            isolate=pipeline.isolate,
            retention=pipeline.spool_retention,
            latencies=latencies,
            within=shard,
        )
        work = Work(
            pipeline=pipeline.id,
            destination=destination.id,
            micro_batch=self.number,
            total=manifest.total,
            matched=None,
            rows=lambda: timed(latencies, self._rows(context, manifest, shard)),
            origins=origins,
            confirmed=confirmed.ranges,
            index=manifest.index_of(),
            span=span,
            culprits=culprits,
            seal=manifest.token,
            shard=shard,
            numbering=shard_numbering(pipeline.id, destination, connector, manifest),
        )
        options = destination.delivery
        if options.rate_limit:
            options = replace(options, rate_limit=options.rate_limit / self.division.count)
        report = send(context, work, connector, port, lease.token, run=self.run, options=options, handler=handler)
        if span is None:
            self._whole(context, lease.token, shard.records)
        return report

    def _isolated(self, context: Context, token: int) -> None:
        manifest = self._manifest(context)
        shard = self._shard(context, manifest)
        self._read_through(context, manifest, shard)
        self._whole(context, token, shard.records)

    def _whole(self, context: Context, token: int, records: int) -> None:
        completing = observed(Node.destination(self.destination), "deliver", time.time() - self.began)
        moved = context.broker.shards.whole(
            self.destination, self.number, token, self.shard, records, completing=completing
        )
        if moved and self.division.used is not None:
            # The driver tells of a group when all of it is delivered.
            context.broker.runs.ring("delivered")

    def _manifest(self, context: Context) -> SealedManifest:
        return context.spool.read_sealed(context.broker.micro_batches.get(self.number).manifest)

    def _shard(self, context: Context, manifest: SealedManifest) -> Shard:
        return Shard(self.division.by, self.division.count, self.shard, manifest, self.division.shards)

    def _rows(
        self, context: Context, manifest: SealedManifest, shard: Shard, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        narrowed = shard.files(manifest.files)
        destination = context.pipeline.destination(self.destination)
        return shard.rows(rows_of(context, manifest, destination, columns, files=narrowed))

    def _read_through(self, context: Context, manifest: SealedManifest, shard: Shard) -> None:
        for _ in self._rows(context, manifest, shard, shard.columns):
            pass


def as_begun(destination: Destination, connector: Any) -> Destination:
    """Returns the destination as a micro-batch is divided for: a file that was changed meanwhile may ask for what
    several tasks cannot do, and this holds from the next micro-batch on."""
    guarantee: Any = "effectively-once" if once_by_shards(destination, connector) else "at-least-once"
    delivery = replace(destination.delivery, pipe="stream", guarantee=guarantee, park_keys=False)
    return replace(destination, delivery=delivery)
