"""Seals: votes, stores the dead letters, tells the handlers of records that end here, writes the manifest, tells the
broker (docs/architecture.md).

Pure Python, no Spark: any process that finds everything staged does it, a Spark application or the operator.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.connectors.registry import ack_on
from conduit_tasks.errors import AckFailed, BrokerUnavailable, ConduitError, Fenced, PipelineStopped
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.failed import Failed, Head
from conduit_tasks.micro_batch.forgotten import remember
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.micro_batch.source_ack import ack
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import to_records
from conduit_tasks.spool.manifest import SealedManifest, SliceEntry, StageManifest

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import MicroBatch
    from conduit_tasks.delivery.handlers import StateChange

log = logging.getLogger(__name__)

NODE = "seal"


def seal_if_complete(context: Context, number: int, wait: float = 5.0) -> str:
    """Seals micro-batch `number` if everything is staged; returns what was done, or "" if something is missing.

    Raises PipelineStopped if the nack window trips: the micro-batch then stays unsealed, and the record that tripped it
    is neither stored nor acked (C6).
    """
    broker = context.broker
    # Since it was looked at, others may have sealed, delivered and collected it.
    micro_batch = broker.micro_batches.find(number)
    if micro_batch is None or micro_batch.state != "open":
        return f"micro-batch {number} is sealed"
    if micro_batch.missing:
        return ""
    with broker.leases.acquire(NODE, context.owner, wait=wait) as lease:
        micro_batch = broker.micro_batches.find(number)
        if micro_batch is None or micro_batch.state != "open":
            return f"micro-batch {number} is sealed"
        if micro_batch.missing:
            # Somebody stopped and started the pipeline meanwhile: what was staged is dropped (C16).
            return ""
        context.same_version(micro_batch)
        if remember(context):
            # Before Redis forgot, this number may have held other records: what was staged for it now is dropped.
            return ""
        return _seal(context, micro_batch, lease.token)


def staged(context: Context, micro_batch: MicroBatch, nodes: Sequence[str]) -> list[StageManifest]:
    """Returns the winning stage manifests of these nodes, in this order; nodes without a share are left out."""
    return [context.spool.read_stage(micro_batch.stages[node].manifest) for node in nodes if node in micro_batch.stages]


def origins_of(pipeline: str, slices: Sequence[SliceEntry]) -> list[Origin]:
    """Returns, per slice number, what its records share."""
    return [Origin(pipeline, s.source, s.partition, s.metadata) for s in slices]


def _seal(context: Context, micro_batch: MicroBatch, token: int) -> str:
    pipeline, broker, number = context.pipeline, context.broker, micro_batch.number
    sources = staged(context, micro_batch, [s.node for s in pipeline.sources])
    processed = staged(context, micro_batch, ["processors"]) if pipeline.processors else []
    slices = [
        replace(entry, first_index=first)
        for m in sources
        for entry, first in zip(m.slices, micro_batch.stages[m.node].first_index or ())
    ]
    bases, total = [], 0
    for entry in slices:
        bases.append(total)
        total += entry.records
    final = processed or sources
    everything = [*sources, *processed]
    origins = origins_of(pipeline.id, slices)
    letters = Failed(context.spool, everything, slices, bases, number=number, origins=origins)

    queue = pipeline.dead_letters
    if queue.window_size:
        # 1. vote: every seq in order, at most one nack a call, so that the error stored is its own (invariant 9).
        for at, votes, letter in ballots(total, letters.heads()):
            tripped = broker.deliveries.vote(
                "",
                number,
                token,
                at,
                votes,
                size=queue.window_size,
                threshold=queue.window_nack_threshold,
                node=letter.node if letter else NODE,
                error=letter.error if letter else "",
                error_class=letter.error_class if letter else "",
            )
            if tripped is not None and letter is not None:
                raise PipelineStopped(
                    f"{letter.node} failed a record and the nack window ({queue.window_nack_threshold} of the last "
                    f"{queue.window_size}) is used up: {letter.error}. The pipeline is degraded; fix the cause or "
                    f"widen `dead-letter-queue`, then `conduit start {pipeline.id}`."
                )
    # 2. store the dead letters (invariant 8), 3. tell the handlers (C7), 4. write the manifest, 5. seal.
    with halting_call(broker, NODE):
        _store(context, letters)
    matched = {d.id: sum(m.matched.get(d.id, 0) for m in final) for d in pipeline.destinations}
    files = [file for m in final for file in m.files]
    manifest = SealedManifest(
        pipeline=pipeline.id,
        micro_batch=number,
        token=token,
        config=micro_batch.config,
        slices=slices,
        bases=bases,
        total=total,
        files=files,
        matched=matched,
        filtered=sum(m.filtered for m in everything),
        nacked=len(letters.seqs),
        nacked_files=[file for m in everything for file in m.nacked_files],
        sealed_at=time.time(),
    )
    with halting_call(broker, NODE):
        _tell_handlers(context, manifest, letters)
    path = context.spool.write_sealed(manifest)
    size = sum(f.bytes for f in files)
    broker.micro_batches.seal(
        number,
        token,
        manifest=path,
        total=total,
        bytes=size,
        matched=matched,
        filtered=manifest.filtered,
        nacked=manifest.nacked,
        dead=letters.heads(),
    )
    for source in pipeline.sources:
        if ack_on(source) == "stored":
            try:
                ack(context, source.id)
            except AckFailed as error:
                # Sealed is sealed; the source's ack task gives it again.
                log.warning("%s", error)
    return f"sealed micro-batch {number}: {total:,} records, {size:,} bytes"


def _store(context: Context, letters: Failed) -> None:
    """Stores the dead letters. Raises ConduitError if they cannot be stored: the micro-batch stays unsealed, and is
    sealed when it is tried again (T7)."""
    if not letters:
        return
    try:
        handler = context.dead_letters(context.pipeline.dead_letters, None)
        for part in letters.parts():
            handler.store(part)
    except (Fenced, BrokerUnavailable):
        raise
    except Exception as error:
        raise ConduitError(
            f"the dead letters of what failed before the fan-out cannot be stored ({type(error).__name__}: {error}); "
            "their records stay unacknowledged. Fix the `dead-letter-queue`; it is tried again"
        ) from error


def _tell_handlers(context: Context, manifest: SealedManifest, letters: Failed) -> None:
    """Tells the handlers of records that end before the fan-out: nacked, filtered, or wanted by no trigger (C7)."""
    from conduit_tasks.delivery.handlers import ERROR_CLASS, HandlerFailed, Handlers, first_of_each, nacked

    handlers = Handlers(context.pipeline)
    if not handlers:
        return
    try:
        if handlers.wants("nacked"):
            handlers.call(nacked(context.pipeline.id, letters.letters()))
        if handlers.wants("nacked", "message"):
            handlers.call(nacked(context.pipeline.id, first_of_each(letters.letters())), "message")
        if handlers.wants("acked"):
            handlers.call(_ended(context, manifest, letters.seqs))
    except HandlerFailed as error:
        context.broker.lifecycle.fail(NODE, str(error), ERROR_CLASS, manifest.micro_batch)
        raise PipelineStopped(str(error)) from error


def _ended(context: Context, manifest: SealedManifest, nacks: npt.NDArray[np.int64]) -> Iterator[StateChange]:
    """Yields records that no destination will see and that are not nacked, in seq order within each kind."""
    from conduit_tasks.delivery.handlers import StateChange
    from conduit_tasks.record.schema import SPOOL_SCHEMA

    pipeline, index = context.pipeline, manifest.index_of()
    # A destination without filters has no column: it wants everything.
    triggers = [f"to.{d.id}" for d in pipeline.destinations] if all(d.filters for d in pipeline.destinations) else []
    origins = origins_of(pipeline.id, manifest.slices)
    gone = np.ones(manifest.total, bool)
    gone[nacks] = False
    for file in manifest.files:
        for batch in context.spool.read(file, columns=[*SPOOL_SCHEMA.names, *triggers]):
            seqs = manifest.seqs(batch)
            gone[seqs] = False
            if not triggers:
                continue
            unwanted = ~np.logical_or.reduce([batch.column(name).to_numpy(zero_copy_only=False) for name in triggers])
            rows = batch.select(SPOOL_SCHEMA.names).filter(pa.array(unwanted))
            for seq, record in zip(seqs[unwanted].tolist(), to_records(rows, origins)):
                source = record.origin.connector
                yield StateChange(
                    "acked", pipeline.id, NODE, manifest.micro_batch, seq, index(seq), record, source=source
                )
    for seq in np.flatnonzero(gone).tolist():
        source = manifest.source_of(seq)
        yield StateChange("acked", pipeline.id, NODE, manifest.micro_batch, seq, index(seq), None, source=source)


def ballots(total: int, letters: Iterable[Head]) -> Iterator[tuple[int, list[tuple[str, int]], Head | None]]:
    """Yields votes for seqs 0 … total-1, run-length encoded, each with its first seq and the letter of its final nack.

    `letters` are sorted; records derived from one position vote once.
    """
    at = 0
    for seq, of_seq in groupby(letters, key=lambda letter: letter.seq):
        acks = [("a", seq - at)] if seq > at else []
        yield at, [*acks, ("n", 1)], next(of_seq)
        at = seq + 1
    if total > at:
        yield at, [("a", total - at)], None
