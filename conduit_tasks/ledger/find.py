"""Search through the micro-batches that the spool still holds, the newest first and some at a time, for what a finder
(`ids`, `values`) looks for; or by index (SEMANTICS X5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conduit_tasks.errors import ConduitError, SpoolError
from conduit_tasks.record.record import Origin
from conduit_tasks.spool.manifest import SealedManifest
from conduit_tasks.spool.spool import Spool

LOOK = 500
"""Records that a look into an index counts as: it takes about as long as going through so many."""
COMPARE = 100
"""Records that a comparison with one whole record counts as."""


@dataclass(frozen=True)
class Place:
    """A record's place: its micro-batch, its number in that, and its origin. `ord`, `id`: of one of several records
    that were derived from it, and its id, where that is known."""

    micro_batch: int
    seq: int
    source: str = ""
    partition: str = ""
    index: int | None = None
    ord: int = 0
    id: str = ""


@dataclass
class Found:
    """Findings in one micro-batch, the last first. `searched`: records that were gone through; 0: an index told.
    `compared`: records that were compared. `more`: not all that may be there was looked at. `rest`: where the look goes
    on, as its finder says; None: it is done."""

    places: list[Place]
    searched: int = 0
    compared: int = 0
    more: bool = False
    rest: Any = None


class Finder(Protocol):
    """Says what is looked for."""

    @property
    def most(self) -> int | None:
        """Places after which no older micro-batch is looked at; None: all are."""

    def within(self, spool: Spool, path: str, manifest: SealedManifest, before: Found | None = None) -> Found:
        """Returns what is in one sealed micro-batch; `path`: of its manifest; `before`: what was found in it so far,
        with a `rest`. Raises SpoolError."""


class Search:
    """Search for records in the micro-batches that the spool still holds, the newest first, some at a time.

    A sealed micro-batch never changes, so each is searched once, however often `look` is called. One of which many
    records may have the value, and do not, is searched in several looks.
    """

    def __init__(self, spool: Spool, pipeline: str, finder: Finder, only: int | None = None) -> None:
        """`only`: the one micro-batch that is searched; None: all."""
        self._spool, self._pipeline, self._finder, self._only = spool, pipeline, finder, only
        self._seen: dict[str, Found] = {}
        self.left = 0
        """Number of micro-batches that were not searched to their end yet, and are to be."""

    def look(self, most: int | None = None) -> list[Place]:
        """Continues the search and returns the places found so far, newest first; several if the record was read again
        (after its source was, or Redis was rebuilt). Stops after the micro-batch in which `most` records were searched;
        None = all."""
        paths = [
            path
            for number in reversed(self._spool.micro_batches(self._pipeline))
            if self._only in (None, number)
            if (path := self._spool.sealed(self._pipeline, number)) is not None
        ]
        self._seen = {path: self._seen[path] for path in paths if path in self._seen}
        read = 0
        for path in paths:
            # The rest of a micro-batch comes before older ones: the newest records come first.
            while not self._done(path) and (most is None or read < most) and not self._enough():
                before = self._seen.get(path)
                found = self._within(path, before)
                read += LOOK + found.searched + COMPARE * found.compared
                if before is not None:
                    found.places = [*before.places, *found.places]
                    found.searched = max(before.searched, found.searched)
                self._seen[path] = found
        self.left = 0 if self._enough() else sum(not self._done(path) for path in paths)
        return [place for path in paths if path in self._seen for place in self._seen[path].places]

    def _done(self, path: str) -> bool:
        return path in self._seen and self._seen[path].rest is None

    @property
    def searched(self) -> tuple[int, int]:
        """Micro-batches without an index, which were gone through, and the records of these."""
        whole = [found.searched for found in self._seen.values() if found.searched]
        return len(whole), sum(whole)

    @property
    def more(self) -> bool:
        """Whether there may be others, which were not looked for because enough was found."""
        return self._enough() or any(found.more for found in self._seen.values())

    def _enough(self) -> bool:
        most = self._finder.most
        return most is not None and sum(len(found.places) for found in self._seen.values()) >= most

    def _within(self, path: str, before: Found | None) -> Found:
        try:
            return self._finder.within(self._spool, path, self._spool.read_sealed(path), before)
        except SpoolError:
            if path in (self._spool.sealed(self._pipeline, n) for n in self._spool.micro_batches(self._pipeline)):
                raise
            # Collected meanwhile.
            return Found([])


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
            out.append(place_of(manifest, base + index - first))
    return out


def place_of(manifest: SealedManifest, seq: int, ord: int = 0, id: str = "") -> Place:
    """Returns the place of a record by its number."""
    number = max(i for i, base in enumerate(manifest.bases) if base <= seq)
    entry = manifest.slices[number]
    return Place(manifest.micro_batch, seq, entry.source, entry.partition, manifest.index_of()(seq), ord, id)


def origins_of(pipeline: str, manifest: SealedManifest) -> Sequence[Origin]:
    """Returns what the records of each slice share."""
    return [Origin(pipeline, s.source, s.partition, s.metadata) for s in manifest.slices]
