"""Finder of records by the value of a field, by the indexes that lie beside the parts of a micro-batch.

A part without one (a small one, an older micro-batch, another list of fields at that time) is gone through row by row.
What is found is compared with the record as people may look at it: a value that is masked there is not found.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.ledger.find import Found, Place, origins_of, place_of
from conduit_tasks.record.fields import parse
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.record.searchable import searchable, way_to
from conduit_tasks.record.shown import Shown
from conduit_tasks.record.sought import Columns, forms, hash_of, matches
from conduit_tasks.spool.index import Damaged, Index, path_of
from conduit_tasks.spool.rows_at import rows_at

if TYPE_CHECKING:
    from conduit_tasks.record.record import Origin
    from conduit_tasks.spool.manifest import PartFile, SealedManifest
    from conduit_tasks.spool.spool import Spool
    from conduit_tasks.topology import Pipeline

log = logging.getLogger(__name__)

LONGEST = 8_192
"""Characters of a value that is looked for."""
MOST = 100
"""Records that are found at a time, the newest."""
COMPARED = 1_000
"""Rows of a part that are compared in one look, at most: each may lie in a row group of its own."""


class ByValue:
    """Finds the records whose field has a value, given as text. Raises ConfigError for a field that no index is kept
    of, or that may not be looked for."""

    def __init__(self, pipeline: Pipeline, field: str, value: str, most: int = MOST) -> None:
        ref = searchable(field, pipeline.mask)
        named = [each for each in pipeline.index if way_to(parse(each)) == way_to(ref)]
        if not named:
            raise ConfigError(
                f"records of {pipeline.id} are not found by {field}: its file keeps an index of "
                f"{', '.join(pipeline.index) or 'nothing'}; add {field} to `index`"
            )
        self.most = most
        self._pipeline, self._field, self._ref, self._value = pipeline, named[0], ref, value
        self._hashes = [hash_of(form) for form in forms(value)]

    def within(self, spool: Spool, path: str, manifest: SealedManifest, before: Found | None = None) -> Found:
        """See `Finder`. A look goes on below a row of a file."""
        out = Found([])
        most = self.most - (len(before.places) if before is not None else 0)
        last, below = before.rest if before is not None else (len(manifest.files) - 1, sys.maxsize)
        origins = origins_of(self._pipeline.id, manifest)
        for number in range(last, -1, -1):
            file = manifest.files[number]
            left = most - len(out.places)
            if left <= 0:
                out.more = True
                break
            if file.rows:
                rows, searched = self._rows(spool, file, origins, below)
                out.searched += searched
                out.compared += min(len(rows), COMPARED)
                places, more, secret = self._compared(spool, manifest, file, rows, origins=origins, most=left)
                out.places += places
                out.more = out.more or more
                if len(rows) > COMPARED and not more and (places or not secret):
                    out.rest = (number, rows[COMPARED - 1])
                    break
            below = sys.maxsize
        return out

    def _rows(self, spool: Spool, file: PartFile, origins: Sequence[Origin], below: int) -> tuple[list[int], int]:
        """Returns the last rows before row `below` that may have the value, the last first, and how many were gone
        through for it."""
        try:
            with Index(spool.store, path_of(file.path), file.rows) as index:
                # A row has an entry for each place of the value, one behind the other.
                each = (map(itemgetter(0), groupby(index.rows(self._field, hash))) for hash in self._hashes)
                found = {row for rows in each for row in islice((row for row in rows if row < below), COMPARED + 1)}
                return sorted(found, reverse=True), 0
        except (FileNotFoundError, KeyError):
            pass
        except (OSError, Damaged) as error:
            log.warning("%s cannot be used: %s", spool.uri(path_of(file.path)), error)
        return [row for row in self._gone_through(spool, file, origins) if row < below], file.rows

    def _gone_through(self, spool: Spool, file: PartFile, origins: Sequence[Origin]) -> list[int]:
        columns = Columns([self._field], origins)
        wanted = np.array(self._hashes, np.uint64)
        found: list[int] = []
        at = 0
        for batch in spool.read(file, columns=columns.reads):
            [(hashes, rows)] = columns.of(batch)
            hits = np.flatnonzero(np.isin(hashes, wanted))
            found += (np.unique(hits if rows is None else rows[hits]) + at).tolist()
            at += batch.num_rows
        return found[::-1]

    def _compared(
        self,
        spool: Spool,
        manifest: SealedManifest,
        file: PartFile,
        rows: list[int],
        *,
        origins: Sequence[Origin],
        most: int,
    ) -> tuple[list[Place], bool, bool]:
        """Returns the places of rows that have the value; whether others have it too, beyond `most`; and whether one
        has it and it is masked there: then nobody is told that there are others, as that would say that a guess is
        right."""
        places: list[Place] = []
        hidden = False
        for record, seq in self._records(spool, manifest, file, rows[:COMPARED], origins):
            if len(places) == most:
                return places, True, hidden
            if self._has(record):
                if self._has(Shown(self._pipeline.mask).masked(record)):
                    places.append(place_of(manifest, seq, record.ordinal, record.id))
                else:
                    hidden = True
        return places, False, hidden

    def _records(
        self, spool: Spool, manifest: SealedManifest, file: PartFile, rows: list[int], origins: Sequence[Origin]
    ) -> Iterator[tuple[Record, int]]:
        for _, row in rows_at(spool, file, rows, SPOOL_SCHEMA.names) if rows else ():
            yield to_records(row, origins)[0], int(manifest.seqs(row)[0])

    def _has(self, record: Record) -> bool:
        try:
            return matches(self._ref.get(record), self._value)
        except RecordError:
            return False
