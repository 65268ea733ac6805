"""`sources.<id>`: reads exactly the slices of the unsealed micro-batch, numbers, processes, spools, stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.base import Position, Slice
from conduit_tasks.connectors.capabilities import Queue
from conduit_tasks.connectors.registry import source_class
from conduit_tasks.connectors.sources import source_connector, source_origins
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.pass_plan import Pass, PassResult, RunAll, isolates_poison
from conduit_tasks.micro_batch.receipts import Kept
from conduit_tasks.micro_batch.row_batches import numbered
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.micro_batch.seal import seal_if_complete
from conduit_tasks.micro_batch.size import of_slices
from conduit_tasks.micro_batch.stage import run_pass, stage, totals
from conduit_tasks.micro_batch.visibility import extend_visibility, unsettled
from conduit_tasks.record.accounts import accounted
from conduit_tasks.record.record import Origin
from conduit_tasks.spool.manifest import SliceEntry, StageManifest
from conduit_tasks.spool.told import Told
from conduit_tasks.topology import Pipeline, Source

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import MicroBatch
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.spool.spool import Spool

PIECE_BYTES = 32 << 20
"""Bytes up to which one task reads consecutive small slices: a thousand small files are not a thousand tasks."""


@dataclass(frozen=True)
class Piece:
    """Work of one Spark task that reads: consecutive slices with their numbers; picklable."""

    part: int
    slices: tuple[tuple[int, Slice], ...]


def read_source(context: Context, source_id: str, run_all: RunAll, wait: float) -> str:
    """Stages one source's share of the unsealed micro-batch, and seals the micro-batch if that was the last share.

    Returns what was done, in words. Raises LeaseHeld after `wait` seconds, Fenced, SourceError, SpoolError.
    """
    broker = context.broker
    source = context.pipeline.source(source_id)
    micro_batch = broker.micro_batches.unsealed()
    if micro_batch is None:
        return "nothing is unsealed"
    if not micro_batch.slices.get(source_id) or source.node in micro_batch.stages:
        return seal_if_complete(context, micro_batch.number) or f"nothing to read in micro-batch {micro_batch.number}"
    with broker.leases.acquire(source.node, context.owner, wait=wait) as lease, extend_visibility(context):
        number = micro_batch.number
        found = broker.micro_batches.find(number)
        # A micro-batch that another run has sealed, and that was collected or rebuilt from the spool since, has no
        # stages any more, and is not read again. One that Redis has forgotten may be planned again without this source.
        if (
            found is not None
            and found.state == "open"
            and found.slices.get(source_id)
            and source.node not in found.stages
        ):
            context.same_version(found)
            _stage(context, source, found, lease, run_all)
    return seal_if_complete(context, number) or f"staged {source.node} of micro-batch {number}"


def _stage(context: Context, source: Source, micro_batch: MicroBatch, lease: Lease, run_all: RunAll) -> None:
    pipeline = context.pipeline
    slices = micro_batch.slices[source.id]
    first = first_slice(pipeline, micro_batch, source.id)
    own, processors = source_origins(pipeline, source, slices)
    origins = (*[Origin("", "", "")] * first, *own)
    plan = Pass(
        pipeline=pipeline.id,
        micro_batch=micro_batch.number,
        node=source.node,
        token=lease.token,
        processors=processors,
        destinations=pipeline.destinations,
        final=not pipeline.processors,
        isolate_poison=isolates_poison(lease.attempts),
        index=pipeline.index,
    )
    reader = SourceReader(pipeline, source.id, origins, unsettled(context, source))
    if source_class(source.plugin).in_driver:
        run_all = _here
    with keeping(lease):
        size = of_slices(slices, pipeline.micro_batch)
        results = run_pass(context, plan, reader, group_slices(slices, first), run_all, size=size)
    counts: dict[int, int] = {}
    ends: dict[int, Any] = {}
    for result in results:
        counts.update(result.counts)
        ends.update(result.ends)
    slices = [replace(s, end=ends[n]) if s.open else s for n, s in enumerate(slices, first)]
    manifest = StageManifest(
        pipeline=pipeline.id,
        micro_batch=micro_batch.number,
        node=source.node,
        token=lease.token,
        slices=[
            SliceEntry(source.id, s.partition, s.part, s.start, s.end, counts[first + i], own[i].metadata)
            for i, s in enumerate(slices)
        ],
        **totals(results),
    )
    by_slice = [counts[first + i] for i in range(len(slices))]
    stage(context, lease, manifest, results, counts=by_slice, slices=slices)


def _here(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
    """Runs the pieces in the driver, one after the other."""
    return [function(piece) for piece in pieces]


def first_slice(pipeline: Pipeline, micro_batch: MicroBatch, source_id: str) -> int:
    """Returns the number of a source's first slice: slices are numbered over all sources, in the file's order."""
    first = 0
    for source in pipeline.sources:
        if source.id == source_id:
            return first
        first += len(micro_batch.slices.get(source.id, ()))
    raise KeyError(source_id)


@dataclass(frozen=True)
class SourceReader:
    """The executor's side of reading slices; picklable."""

    pipeline: Pipeline
    source_id: str
    origins: tuple[Origin, ...]
    unsettled: tuple[Position, ...] = ()

    def __call__(self, plan: Pass, spool: Spool, piece: Piece) -> PassResult:
        connector = source_connector(self.pipeline, self.source_id)
        if isinstance(connector, Queue):
            folder = spool.folder(plan.pipeline, plan.micro_batch, plan.node, plan.token)
            connector.receipts, connector.unsettled = Kept(spool, folder, piece.part), self.unsettled
            connector.told = Told(spool, plan.pipeline, plan.node)
        counts: dict[int, int] = {}
        try:
            batches = numbered(((number, connector.read(s)) for number, s in piece.slices), counts)
            result = RowPass(plan, spool, piece.part, self.origins).run(batches)
            result.skipped = connector.skipped
            result.ends = {number: connector.reached(s) for number, s in piece.slices if s.open}
        finally:
            connector.close()
        result.counts = counts
        accounted(plan.node, plan.micro_batch, sum(counts.values()), taken=result.read)
        return result


def group_slices(slices: Sequence[Slice], first: int) -> list[Piece]:
    """Groups slices, numbered from `first`, into pieces of up to PIECE_BYTES (one of unknown size is alone)."""
    pieces: list[Piece] = []
    group: list[tuple[int, Slice]] = []
    size = 0
    for number, s in enumerate(slices, first):
        if group and (s.open or s.bytes is None or size + s.bytes > PIECE_BYTES):
            pieces.append(Piece(len(pieces), tuple(group)))
            group, size = [], 0
        group.append((number, s))
        size += PIECE_BYTES if s.open or s.bytes is None else s.bytes
    if group:
        pieces.append(Piece(len(pieces), tuple(group)))
    return pieces
