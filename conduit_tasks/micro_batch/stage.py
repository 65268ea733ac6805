"""Common steps of reading and processing: run a pass over pieces, sum them up, check that no record is unaccounted for,
stage the result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain as chained
from typing import TYPE_CHECKING, Any

from conduit_tasks.metrics.histogram import added, observed
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.pass_plan import BoundReader, Pass, PassResult, Reader, RunAll
from conduit_tasks.micro_batch.size import Size
from conduit_tasks.processors.chain import has_frames
from conduit_tasks.record.accounts import accounted
from conduit_tasks.spool.manifest import StageManifest

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.connectors.base import Slice


def run_pass(
    context: Context,
    plan: Pass,
    reader: Reader,
    pieces: Sequence[Any],
    run_all: RunAll,
    *,
    size: Size | None = None,
) -> list[PassResult]:
    """Runs the whole section over all pieces: one pass, or several if frame processors stand between. `size`: of all
    pieces together."""
    if has_frames(plan.processors):
        from conduit_tasks.micro_batch.frames import run_frames

        return run_frames(context, plan, reader, pieces, run_all)
    return run_all(BoundReader(plan, context.spool, reader, size), pieces)


def stage(
    context: Context,
    lease: Lease,
    manifest: StageManifest,
    results: Sequence[PassResult],
    *,
    counts: list[int] | None = None,
    slices: Sequence[Slice] | None = None,
) -> None:
    """Writes the manifest (durable), then tells the broker: the first fenced stage of a node wins. `results`: of all
    pieces. `counts`: records per slice of a source; `slices`: these with the ends that reading found. Raises
    InvariantBroken if a record that was read is not accounted for."""
    from conduit_tasks.broker.state import Stage

    written = sum(result.written for result in results)
    became = {"written": written, "filtered": manifest.filtered, "nacked": manifest.nacked}
    accounted(manifest.node, manifest.micro_batch, manifest.read, **became)
    if counts is not None:
        accounted(manifest.node, manifest.micro_batch, sum(counts), taken=manifest.read)
    path = context.spool.write_stage(replace(manifest, staged_at=time.time()))
    context.broker.micro_batches.stage(
        manifest.node,
        manifest.micro_batch,
        lease.token,
        Stage(
            manifest=path,
            counts=counts,
            read=manifest.read,
            filtered=manifest.filtered,
            nacked=manifest.nacked,
            matched=manifest.matched,
            bytes=sum(f.bytes for f in manifest.files),
            skipped=sum(result.skipped for result in results),
        ),
        slices,
        _durations(manifest.node, results),
    )


def _durations(node: str, results: Sequence[PassResult]) -> dict[str, int]:
    """Returns the durations of the node's work, by kind, summed over its pieces."""
    seconds: Counter[str] = Counter()
    for result in results:
        seconds.update(result.seconds)
    return added(observed(node, what, took) for what, took in seconds.items())


def totals(results: Sequence[PassResult]) -> dict[str, Any]:
    """Returns the sums of all pieces, as StageManifest fields; files in reading order."""
    matched: Counter[str] = Counter()
    for result in results:
        matched.update(result.matched)
    return {
        "files": list(chained.from_iterable(r.files for r in results)),
        "nacked_files": list(chained.from_iterable(r.nacked_files for r in results)),
        "read": sum(r.read for r in results),
        "filtered": sum(r.filtered for r in results),
        "nacked": sum(r.nacked for r in results),
        "matched": dict(matched),
    }
