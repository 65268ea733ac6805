"""`processors`: runs the pipeline's processors over the whole micro-batch, all sources together (C2), then seals it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.pass_plan import Pass, PassResult, RunAll, isolates_poison
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.micro_batch.seal import origins_of, seal_if_complete, staged
from conduit_tasks.micro_batch.size import Size
from conduit_tasks.micro_batch.stage import run_pass, stage, totals
from conduit_tasks.micro_batch.visibility import extend_visibility
from conduit_tasks.record.accounts import accounted
from conduit_tasks.record.record import Origin
from conduit_tasks.spool.manifest import StageManifest

if TYPE_CHECKING:
    from conduit_tasks.broker.state import MicroBatch
    from conduit_tasks.spool.spool import PartFile, Spool

NODE = "processors"


def process(context: Context, run_all: RunAll, wait: float) -> str:
    """Stages the pipeline processors' output for the unsealed micro-batch, and seals it.

    Returns what was done, in words. Raises LeaseHeld after `wait` seconds, Fenced, SpoolError.
    """
    broker, pipeline = context.broker, context.pipeline
    micro_batch = broker.micro_batches.unsealed()
    if micro_batch is None:
        return "nothing is unsealed"
    number = micro_batch.number
    if NODE in micro_batch.stages:
        return seal_if_complete(context, number) or f"micro-batch {number} is already processed"
    if unread := _unread(context, micro_batch):
        return unread
    with broker.leases.acquire(NODE, context.owner, wait=wait) as lease, extend_visibility(context):
        found = broker.micro_batches.find(number)
        # As in `read_source`: what was sealed meanwhile stands.
        if found is not None and found.state == "open" and NODE not in found.stages:
            context.same_version(found)
            # A stop by force may have dropped what was staged.
            if unread := _unread(context, found):
                return unread
            manifests = staged(context, found, [s.node for s in pipeline.sources])
            origins = origins_of(pipeline.id, [entry for m in manifests for entry in m.slices])
            plan = Pass(
                pipeline=pipeline.id,
                micro_batch=number,
                node=NODE,
                token=lease.token,
                processors=pipeline.processors,
                destinations=pipeline.destinations,
                final=True,
                isolate_poison=isolates_poison(lease.attempts),
                index=pipeline.index,
            )
            files = [(i, f) for i, f in enumerate(f for m in manifests for f in m.files)]
            with keeping(lease):
                size = Size(sum(m.written for m in manifests), sum(f.bytes for _, f in files))
                results = run_pass(context, plan, FileReader(tuple(origins)), files, run_all, size=size)
            accounted(NODE, number, sum(m.written for m in manifests), taken=sum(result.read for result in results))
            manifest = StageManifest(
                pipeline=pipeline.id, micro_batch=number, node=NODE, token=lease.token, slices=[], **totals(results)
            )
            stage(context, lease, manifest, results)
    return seal_if_complete(context, number) or f"processed micro-batch {number}"


def _unread(context: Context, found: MicroBatch) -> str:
    """Names the sources that have not staged their part yet, in words; empty if all have."""
    waiting = [s.node for s in context.pipeline.sources if found.slices.get(s.id) and s.node not in found.stages]
    return f"micro-batch {found.number} is not read yet: {', '.join(waiting)}" if waiting else ""


@dataclass(frozen=True)
class FileReader:
    """The executor's side of reading spool files; picklable. A piece is (number, file)."""

    origins: Sequence[Origin]

    def __call__(self, plan: Pass, spool: Spool, piece: tuple[int, PartFile]) -> PassResult:
        number, file = piece
        return RowPass(plan, spool, number, self.origins).run(spool.read(file))
