"""Look-up of a record's number, by its id or by its index in a source partition (SEMANTICS X5)."""

from __future__ import annotations

from dataclasses import dataclass

from conduit_tasks.errors import ConduitError, SpoolError
from conduit_tasks.record.record import Origin, record_id
from conduit_tasks.spool.manifest import SealedManifest
from conduit_tasks.spool.spool import Spool


@dataclass(frozen=True)
class Place:
    """A record's place: its micro-batch, its number in that, and its origin."""

    micro_batch: int
    seq: int
    source: str = ""
    partition: str = ""
    index: int | None = None


class Search:
    """Search for the records with one id in the micro-batches that the spool still holds, some at a time.

    Ids are in no file: a record's id is made from its position. A sealed micro-batch never changes, so each is searched
    once, however often `look` is called.
    """

    def __init__(self, spool: Spool, pipeline: str, id: str) -> None:
        self._spool, self._pipeline, self._id = spool, pipeline, id.strip().lower()
        self._seen: dict[str, list[Place]] = {}
        self.left = 0
        """Number of micro-batches that were not searched yet."""

    def look(self, most: int | None = None) -> list[Place]:
        """Continues the search and returns the places found so far, newest first; several if the record was read again
        (after its source was, or Redis was rebuilt). Stops after the micro-batch in which `most` records were searched;
        None = all."""
        paths = [
            path
            for number in reversed(self._spool.micro_batches(self._pipeline))
            if (path := self._spool.sealed(self._pipeline, number)) is not None
        ]
        self._seen = {path: self._seen[path] for path in paths if path in self._seen}
        read = 0
        for path in paths:
            if path not in self._seen and (most is None or read < most):
                read += self._go_through(path)
        self.left = sum(path not in self._seen for path in paths)
        return [place for path in paths for place in self._seen.get(path, ())]

    def _go_through(self, path: str) -> int:
        try:
            manifest = self._spool.read_sealed(path)
        except SpoolError:
            if path in (self._spool.sealed(self._pipeline, n) for n in self._spool.micro_batches(self._pipeline)):
                raise
            # Collected meanwhile.
            self._seen[path] = []
            return 0
        origins = [Origin(self._pipeline, s.source, s.partition) for s in manifest.slices]
        found, read = [], 0
        for file in manifest.files:
            for batch in self._spool.read(file, columns=["slice", "n", "ord", "position"]):
                read += batch.num_rows
                slices, ords = batch.column("slice").to_pylist(), batch.column("ord").to_pylist()
                for row, (number, position, ordinal) in enumerate(zip(slices, batch.column("position"), ords)):
                    if record_id(origins[number], position.as_py(), ordinal) == self._id:
                        found.append(_place(manifest, int(manifest.seqs(batch.slice(row, 1))[0])))
        self._seen[path] = found
        return read


def by_index(spool: Spool, pipeline: str, micro_batch: int, index: int) -> list[Place]:
    """Returns the records of a micro-batch with this index: one per source partition that has it.

    Raises ConduitError if the micro-batch is not in the spool any more.
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
