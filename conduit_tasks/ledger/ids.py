"""Finder of records by id, by an index of the ids in a micro-batch that the first look makes, and keeps unless the
micro-batch is small. Ids are in no file: a record's id is a hash of its position, and making a million of them takes
about a second.

    <spool>/<pipeline>/index/<micro-batch>-<token of its manifest>.ids
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from conduit_tasks.errors import SpoolError
from conduit_tasks.ledger.find import Found, place_of
from conduit_tasks.record.record import Origin, id_suffix, record_id
from conduit_tasks.record.sought import Hashes
from conduit_tasks.spool import index as index_files
from conduit_tasks.spool.index import Damaged, Index, IndexWriter
from conduit_tasks.spool.manifest import PartFile, SealedManifest
from conduit_tasks.spool.rows_at import rows_at
from conduit_tasks.spool.spool import Spool

log = logging.getLogger(__name__)

_COLUMN = "id"
_NUMBERS = ("slice", "n", "ord", "position")
_DIGITS = 16
"""Hex digits of an id that enter the index."""


class ById:
    """Finds the records with one id."""

    most: int | None = None

    def __init__(self, pipeline: str, id: str) -> None:
        self._pipeline, self._id = pipeline, id.strip().lower()
        # An id has 32 digits; nothing has a shorter one.
        self._hash = int(self._id[:_DIGITS], 16) if re.fullmatch(r"[0-9a-f]{32}", self._id) else None

    def within(self, spool: Spool, path: str, manifest: SealedManifest, before: Found | None = None) -> Found:
        """See `Finder`."""
        if self._hash is None:
            return Found([])
        rows = sum(file.rows for file in manifest.files)
        index = spool.ids(path)
        searched = 0
        try:
            with Index(spool.store, index, rows) as found:
                numbers = list(found.rows(_COLUMN, self._hash))
        except (OSError, Damaged, KeyError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("%s cannot be used (%s) and is made again", spool.uri(index), error)
            hashes = ids_of(self._pipeline, spool, manifest)
            if rows >= index_files.LEAST:
                self._keep(spool, path, index, hashes)
            numbers, searched = np.flatnonzero(hashes == np.uint64(self._hash))[::-1].tolist(), rows
        places = []
        for row, origin in _rows(spool, manifest, numbers, self._pipeline):
            ord = row.column("ord")[0].as_py()
            if record_id(origin, row.column("position")[0].as_py(), ord) == self._id:
                places.append(place_of(manifest, int(manifest.seqs(row)[0]), ord, self._id))
        return Found(places, searched)

    def _keep(self, spool: Spool, path: str, index: str, hashes: Hashes) -> None:
        """Keeps the index, unless it cannot be written, or the micro-batch was collected meanwhile."""
        try:
            writer = IndexWriter(spool.store.create(index), [_COLUMN])
            try:
                writer.add(len(hashes), [(hashes, None)])
                writer.close()
            except BaseException:
                writer.abort()
                raise
            if spool.store.size(path) is None:
                spool.remove(index)
        except (OSError, SpoolError) as error:
            log.warning("%s cannot be kept (%s): the next look goes through the micro-batch again", index, error)


def ids_of(pipeline: str, spool: Spool, manifest: SealedManifest) -> Hashes:
    """Returns the first 64 bits of each record's id, in the order of the files."""
    origins = [Origin(pipeline, s.source, s.partition) for s in manifest.slices]
    suffixes = [id_suffix(origin) for origin in origins]
    parts = [np.empty(0, np.uint64)]
    for file in manifest.files:
        for batch in spool.read(file, columns=["slice", "ord", "position"]):
            slices, ords = batch.column("slice").to_pylist(), batch.column("ord").to_pylist()
            digests = b"".join(
                [
                    blake2b(b"%b%b%d" % (position, suffixes[number], ord), digest_size=16).digest()
                    for number, position, ord in zip(slices, batch.column("position").to_pylist(), ords)
                ]
            )
            parts.append(np.frombuffer(digests, ">u8")[::2].astype(np.uint64))
    return np.concatenate(parts)


def _rows(
    spool: Spool, manifest: SealedManifest, numbers: list[int], pipeline: str
) -> Iterator[tuple[pa.RecordBatch, Origin]]:
    """Yields rows of the micro-batch by their numbers over all files, falling."""
    origins = [Origin(pipeline, s.source, s.partition) for s in manifest.slices]
    ends = np.cumsum([file.rows for file in manifest.files])
    for at in reversed(range(len(manifest.files))):
        file: PartFile = manifest.files[at]
        first = int(ends[at]) - file.rows
        own = [number - first for number in numbers if first <= number < first + file.rows]
        for _, row in rows_at(spool, file, own, _NUMBERS) if own else ():
            yield row, origins[row.column("slice")[0].as_py()]
