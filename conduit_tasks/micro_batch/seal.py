"""Sealing: vote, store the dead letters, write the manifest, tell the broker (docs/architecture.md).

Pure Python, no Spark: whoever finds everything staged does it, whether a Spark application or the operator.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import orjson

from conduit_tasks.delivery.port import DeadLetter
from conduit_tasks.errors import PipelineStopped
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import to_records
from conduit_tasks.spool.manifest import SealedManifest, SliceEntry, StageManifest

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import MicroBatch

NODE = "seal"


def seal_if_complete(context: Context, number: int, wait: float = 5.0) -> str:
    """Seals micro-batch `number` if everything is staged; returns what was done, or "" where something is missing.

    Raises PipelineStopped where the nack window trips: the micro-batch then stays unsealed, and the record that
    tripped it is neither stored nor acked (C6).
    """
    broker = context.broker
    micro_batch = broker.micro_batch(number)
    if micro_batch.state == "sealed":
        return f"micro-batch {number} is sealed"
    if micro_batch.missing:
        return ""
    with broker.acquire(NODE, context.owner, wait=wait) as lease:
        micro_batch = broker.micro_batch(number)
        if micro_batch.state == "sealed":
            return f"micro-batch {number} is sealed"
        return _seal(context, micro_batch, lease.token)


def staged(context: Context, micro_batch: MicroBatch, nodes: Sequence[str]) -> list[StageManifest]:
    """The winning stage manifests of these nodes, in this order; nodes without a share are left out."""
    return [context.spool.read_stage(micro_batch.stages[node].manifest) for node in nodes if node in micro_batch.stages]


def origins_of(pipeline: str, slices: Sequence[SliceEntry]) -> list[Origin]:
    """Per slice number, what its records share."""
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
    letters = _nacked(context, number, [*sources, *processed], slices, bases)

    queue = pipeline.dead_letters
    if queue.window_size:
        # 1. vote: every seq in order, at most one nack a call, so that the error stored is its own (invariant 9).
        for at, votes, letter in ballots(total, letters):
            tripped = broker.vote(
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
                    f"{queue.window_size}) is used up: {letter.error}. The pipeline is degraded; mend the cause or "
                    f"widen `dead-letter-queue`, then `conduit start {pipeline.id}`."
                )
    # 2. store the dead letters (invariant 8), 3. write the manifest, 4. seal.
    if letters:
        context.dead_letters(queue, None).store(letters)
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
        filtered=sum(m.filtered for m in [*sources, *processed]),
        nacked=len({letter.seq for letter in letters}),
        sealed_at=time.time(),
    )
    path = context.spool.write_sealed(manifest)
    size = sum(f.bytes for f in files)
    broker.seal(
        number,
        token,
        manifest=path,
        total=total,
        bytes=size,
        matched=matched,
        filtered=manifest.filtered,
        nacked=manifest.nacked,
        dead=letters,
    )
    for source in pipeline.sources:
        if source.ack_on == "stored":
            from conduit_tasks.micro_batch.acks import ack

            ack(context, source.id)
    return f"sealed micro-batch {number}: {total:,} records, {size:,} bytes"


def _nacked(
    context: Context,
    number: int,
    manifests: Sequence[StageManifest],
    slices: Sequence[SliceEntry],
    bases: Sequence[int],
) -> list[DeadLetter]:
    """Every record that failed before the fan-out, as dead letters in seq order."""
    origins = origins_of(context.pipeline.id, slices)
    letters = []
    for manifest in manifests:
        for file in manifest.nacked_files:
            for batch in context.spool.read(file):
                errors = [orjson.loads(e) for e in batch.column("error").to_pylist()]
                seqs = [bases[s] + n for s, n in zip(batch.column("slice").to_pylist(), batch.column("n").to_pylist())]
                for seq, record, error in zip(seqs, to_records(batch, origins), errors):
                    letters.append(
                        DeadLetter(number, seq, record, error["node"], error["message"], error["class"], at=time.time())
                    )
    return sorted(letters, key=lambda letter: (letter.seq, letter.record.ordinal))


def ballots(
    total: int, letters: Sequence[DeadLetter]
) -> Iterator[tuple[int, list[tuple[str, int]], DeadLetter | None]]:
    """Votes for seqs 0 … total-1, run-length encoded, each with its first seq and the letter of the nack it ends with.

    `letters` are sorted; records derived from one position vote once.
    """
    at = 0
    for seq, of_seq in groupby(letters, key=lambda letter: letter.seq):
        acks = [("a", seq - at)] if seq > at else []
        yield at, [*acks, ("n", 1)], next(of_seq)
        at = seq + 1
    if total > at:
        yield at, [("a", total - at)], None
