"""Which number a record has: by its id, or by its index in a source partition (SEMANTICS X5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conduit_tasks.errors import ConduitError, SpoolError
from conduit_tasks.record.record import Origin, record_id
from conduit_tasks.spool.manifest import SealedManifest
from conduit_tasks.spool.spool import Spool


@dataclass(frozen=True)
class Place:
    """A record's place: its micro-batch and its number in it, and where it came from."""

    micro_batch: int
    seq: int
    source: str = ""
    partition: str = ""
    index: int | None = None


def by_id(spool: Spool, pipeline: str, id: str) -> list[Place]:
    """Every place of the records with this id in what the spool still holds, newest first; a record that was read again
    (after its source was, or Redis was rebuilt) has several."""
    wanted = id.strip().lower()
    out = []
    for manifest in _sealed(spool, pipeline):
        origins = [Origin(pipeline, s.source, s.partition) for s in manifest.slices]
        for file in manifest.files:
            for batch in spool.read(file, columns=["slice", "n", "ord", "position"]):
                slices, ords = batch.column("slice").to_pylist(), batch.column("ord").to_pylist()
                for row, (number, position, ordinal) in enumerate(zip(slices, batch.column("position"), ords)):
                    if record_id(origins[number], position.as_py(), ordinal) == wanted:
                        seq = int(manifest.seqs(batch.slice(row, 1))[0])
                        out.append(_place(manifest, seq))
    return out


def by_index(spool: Spool, pipeline: str, micro_batch: int, index: int) -> list[Place]:
    """The records of a micro-batch with this index: one per source partition that has it.

    Raises ConduitError where the micro-batch is not in the spool any more.
    """
    path = spool.sealed(pipeline, micro_batch)
    if path is None:
        raise ConduitError(
            f"micro-batch {micro_batch} of {pipeline} is not in the spool (past spool.retention, or not sealed), so "
            "indexes cannot be looked up in it; ask by its number there: --seq"
        )
    manifest = spool.read_sealed(path)
    out = []
    for entry, base in zip(manifest.slices, manifest.bases):
        first = entry.first_index
        if first is not None and first <= index < first + entry.records:
            out.append(_place(manifest, base + index - first))
    return out


def _place(manifest: SealedManifest, seq: int) -> Place:
    number = max(i for i, base in enumerate(manifest.bases) if base <= seq)
    entry = manifest.slices[number]
    return Place(manifest.micro_batch, seq, entry.source, entry.partition, manifest.index_of()(seq))


def _sealed(spool: Spool, pipeline: str) -> Iterator[SealedManifest]:
    for number in reversed(spool.micro_batches(pipeline)):
        path = spool.sealed(pipeline, number)
        if path is None:
            continue
        try:
            yield spool.read_sealed(path)
        except SpoolError:
            if spool.sealed(pipeline, number) is not None:
                raise
