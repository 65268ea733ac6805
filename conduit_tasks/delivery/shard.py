"""One shard of a divided micro-batch: which rows are its own, and the numbers that they have in it (ADR 27).

Records of one lane lie in one shard, so each task keeps the order of its own lanes, and no task waits for another. A
record's shard follows from stored columns, so every task finds the same one:

- `key`: from the hash of its key, beside the hash that chooses one of the 64 lanes;
- `partition`: whole partitions of sources, given to the shards largest first;
- `none`: equal runs of consecutive records; of a micro-batch in a group, only some shards have one (ADR 41).

Engines work with the records' numbers in the micro-batch (seqs). The rows of other shards are missing in their reading
like rows that no trigger matched. `numbers` translates what they confirm.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.connectors.rows import ShardName
from conduit_tasks.delivery.lanes import KEY_LANES
from conduit_tasks.record import jsons
from conduit_tasks.record.record import data_bytes
from conduit_tasks.record.schema import KEY_STRUCTURED

if TYPE_CHECKING:
    from conduit_tasks.delivery.chunks import Seqs
    from conduit_tasks.spool.manifest import PartFile, SealedManifest

Rows = Iterator[tuple["Seqs", pa.RecordBatch]]


class Shard:
    """Shard `number` of `count`. `used`: the shards that have records, in their order, by `none`; by default all.
    `columns`: those that a row must have for `rows`."""

    def __init__(
        self, by: str, count: int, number: int, manifest: SealedManifest, used: Sequence[int] | None = None
    ) -> None:
        self.by, self.count, self.number = by, count, number
        self._used = range(count) if used is None else used
        self.name = ShardName(by, count, number, None if used is None or len(used) == count else tuple(used))
        self.total = manifest.total
        self.columns = ("slice", "n", *(("key", "shape") if by == "key" else ()))
        self._shard_of_slice = shards_of_slices(manifest, count) if by == "partition" else None
        self._bases = np.asarray(manifest.bases, np.int64)
        self.spans = self._spans(manifest)
        """Seqs among which all of its records are, and none of another shard; None if they are scattered."""
        self._seqs = np.empty(1024, np.int64)
        self.records = 0
        """Number of its records that `rows` has passed: all of them once it is exhausted."""
        self._lock = threading.Lock()

    def _spans(self, manifest: SealedManifest) -> RangeSet | None:
        if self.by == "none":
            first, end = self._run
            return RangeSet.of([(first, end - 1)] if end > first else [])
        if self._shard_of_slice is None:
            return None
        mine = np.flatnonzero(self._shard_of_slice == self.number).tolist()
        slices = ((manifest.bases[i], manifest.slices[i].records) for i in mine)
        return RangeSet.of((base, base + records - 1) for base, records in slices if records)

    @property
    def _run(self) -> tuple[int, int]:
        """Returns the first seq of a shard by `none`, and the one behind its last."""
        if self.number not in self._used:
            return 0, 0
        place = self._used.index(self.number)
        first, end = (self.total * n // len(self._used) for n in (place, place + 1))
        return first, end

    def files(self, files: Sequence[PartFile]) -> list[PartFile]:
        """Returns those of the files that may hold rows of the shard."""
        if self.spans is None:
            return list(files)
        return [file for file in files if file.rows and self._overlaps(file)]

    def _overlaps(self, file: PartFile) -> bool:
        if file.first is None or file.last is None:
            return True
        assert self.spans is not None
        first, last = (int(self._bases[number]) + n for number, n in (file.first, file.last))
        return any(first <= b and a <= last for a, b in self.spans)

    def rows(self, rows: Rows) -> Rows:
        """Yields the rows of the shard among rows that come in order, and notes their seqs. Rows may be read several
        times, also side by side: the first reading counts."""
        for seqs, batch in rows:
            mine = self._mine(seqs, batch)
            own = (seqs, batch) if mine.all() else (seqs[mine], batch.filter(pa.array(mine)))
            if len(own[0]):
                self._note(own[0])
                yield own

    def _mine(self, seqs: Seqs, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        if self.by == "none":
            first, end = self._run
            mine: npt.NDArray[np.bool_] = (seqs >= first) & (seqs < end)
            return mine
        if self._shard_of_slice is not None:
            return np.asarray(self._shard_of_slice[batch.column("slice").to_numpy()] == self.number)
        return np.asarray(key_hashes(batch) // KEY_LANES % self.count == self.number)

    def _note(self, seqs: Seqs) -> None:
        with self._lock:
            newest = int(self._seqs[self.records - 1]) if self.records else -1
            new = seqs[(np.diff(seqs, prepend=-1) != 0) & (seqs > newest)]
            end = self.records + len(new)
            if end > len(self._seqs):
                self._seqs = np.concatenate([self._seqs, np.empty(end, np.int64)])
            self._seqs[self.records : end] = new
            self.records = end

    def numbers(self, ranges: Sequence[tuple[int, int]]) -> RangeSet:
        """Returns the numbers in the shard of its records in these ranges of seqs, all of which `rows` has passed."""
        with self._lock:
            seqs = self._seqs[: self.records]
        firsts, lasts = np.asarray(ranges, np.int64).reshape(-1, 2).T
        starts = np.searchsorted(seqs, firsts, side="left")
        ends = np.searchsorted(seqs, lasts, side="right")
        return RangeSet.of((s, e - 1) for s, e in zip(starts.tolist(), ends.tolist()) if e > s)

    def seqs(self, numbers: RangeSet) -> RangeSet:
        """Returns ranges of seqs that hold exactly the shard's records with these numbers, once `rows` is exhausted;
        seqs of other shards beside them are in, too."""
        seqs = self._seqs[: self.records].tolist()
        if not seqs:
            return RangeSet.of([(0, self.total - 1)] if self.total else [])
        return RangeSet.of(
            (seqs[a - 1] + 1 if a else 0, seqs[b + 1] - 1 if b + 1 < len(seqs) else self.total - 1) for a, b in numbers
        )

    def exactly(self, numbers: RangeSet | None) -> Seqs:
        """Returns the seqs of the shard's records with these numbers (None: all), and of no others, once `rows` is
        exhausted."""
        mine = self._seqs[: self.records]
        some = [mine] if numbers is None else [mine[a : b + 1] for a, b in numbers]
        return np.concatenate([np.empty(0, np.int64), *some])


def ranges_of(numbers: Seqs) -> RangeSet:
    """Returns exactly these numbers, each of which comes once, in any order."""
    ascending = np.sort(numbers)
    breaks = np.flatnonzero(np.diff(ascending) != 1) + 1
    runs = np.split(ascending, breaks) if len(ascending) else []
    return RangeSet(tuple((int(run[0]), int(run[-1])) for run in runs))


def key_hashes(batch: pa.RecordBatch) -> Seqs:
    """Returns the hash of each row's key as it is sealed; rows without a key have that of an empty one. JSON has one
    hash however it is spelt. Each distinct key is hashed once."""
    keys = batch.column("key").dictionary_encode()
    structured = (batch.column("shape").to_numpy(zero_copy_only=False).astype(np.int64) & KEY_STRUCTURED) != 0
    codes = keys.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    texts = keys.dictionary.to_pylist()
    raw = np.array([*(zlib.crc32(text) for text in texts), zlib.crc32(b"")], np.int64)
    hashes: Seqs = raw[codes]
    for code in np.unique(codes[structured]).tolist():
        if code >= 0:
            hashes[structured & (codes == code)] = zlib.crc32(data_bytes(jsons.exact(texts[code])))
    return hashes


def shards_of_slices(manifest: SealedManifest, count: int) -> Seqs:
    """Returns the shard of each slice: partitions go to the shards whole, the largest first, each to the one that has
    the fewest records."""
    records: dict[tuple[str, str], int] = {}
    for entry in manifest.slices:
        of = (entry.source, entry.partition)
        records[of] = records.get(of, 0) + entry.records
    held, shard_of = [0] * count, dict[tuple[str, str], int]()
    for of in sorted(records, key=lambda of: -records[of]):
        shard_of[of] = held.index(min(held))
        held[shard_of[of]] += records[of]
    return np.array([shard_of[(e.source, e.partition)] for e in manifest.slices], np.int64)


def partitions(manifest: SealedManifest) -> int:
    """Returns the number of source partitions that have records in the micro-batch."""
    return len({(entry.source, entry.partition) for entry in manifest.slices if entry.records})
