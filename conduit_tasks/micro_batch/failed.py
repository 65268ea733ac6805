"""Records that failed before the fan-out, as dead letters in the order of the records; they are read from the spool
whenever they are asked for, and are never in memory as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from conduit_tasks.dead_letters.portions import portions
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.schema import to_records
from conduit_tasks.spool.manifest import PartFile, SliceEntry, StageManifest

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.record.record import Origin
    from conduit_tasks.spool.spool import Spool

T = TypeVar("T")

ROWS = 2_000
"""Rows of a file that are made into letters at a time."""
PART = 10_000
"""Letters stored at a time, unless they are large."""


@dataclass(frozen=True)
class Head:
    """A dead letter without its record: what the vote and the index need."""

    key: tuple[int, int, int, int]
    node: str
    error: str
    error_class: str
    at: float
    attempts: int = 1

    @property
    def seq(self) -> int:
        return self.key[2]


class Failed:
    """The records that these stages nacked, in order of (seq, ord). `bases`: the first seq of each slice;
    `number`: of the micro-batch; `origins`: per slice."""

    def __init__(
        self,
        spool: Spool,
        manifests: Sequence[StageManifest],
        slices: Sequence[SliceEntry],
        bases: Sequence[int],
        *,
        number: int,
        origins: Sequence[Origin],
    ) -> None:
        self._spool, self._number, self._slices, self._origins = spool, number, slices, origins
        self._bases = np.array(bases, np.int64)
        self._at = time.time()
        self._files = [file for m in manifests for file in m.nacked_files]

    def __bool__(self) -> bool:
        return bool(self._files)

    @cached_property
    def seqs(self) -> npt.NDArray[np.int64]:
        """Numbers of the records, each once, ascending."""
        return np.unique(np.concatenate([s for s, _ in self._keys])) if self._files else np.empty(0, np.int64)

    def heads(self) -> Iterator[Head]:
        """Yields all letters without their records."""

        def made(batch: pa.RecordBatch) -> Iterator[Head]:
            numbers = (column.tolist() for column in self._numbers(batch))
            for seq, ordinal, error in zip(*numbers, batch.column("error").to_pylist()):
                said = orjson.loads(error)
                yield Head((0, self._number, seq, ordinal), said["node"], said["message"], said["class"], self._at)

        return self._ordered(made, ["slice", "n", "ord", "error"])

    def letters(self) -> Iterator[DeadLetter]:
        """Yields all letters."""

        def made(batch: pa.RecordBatch) -> Iterator[DeadLetter]:
            errors = (orjson.loads(e) for e in batch.column("error").to_pylist())
            numbers = zip(batch.column("slice").to_pylist(), batch.column("n").to_pylist())
            records = to_records(batch, self._origins)
            for seq, record, (s, n), error in zip(self._numbers(batch)[0].tolist(), records, numbers, errors):
                first = self._slices[s].first_index
                index = None if first is None else first + n
                said = (error["node"], error["message"], error["class"])
                yield DeadLetter(self._number, seq, record, *said, at=self._at, index=index)

        return self._ordered(made)

    def parts(self) -> Iterator[list[DeadLetter]]:
        """Yields all letters, as many at a time as may be in memory; the same ones each time."""
        return portions(self.letters(), PART)

    @cached_property
    def _keys(self) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Seq and ord of each row, per file."""
        out = []
        for file in self._files:
            found = [self._numbers(batch) for batch in self._spool.read(file, columns=["slice", "n", "ord"])]
            none = np.empty(0, np.int64)
            out.append((np.concatenate([none, *(s for s, _ in found)]), np.concatenate([none, *(o for _, o in found)])))
        return out

    @cached_property
    def _order(self) -> list[tuple[PartFile, npt.NDArray[np.int64]]]:
        """Every file with the place of each of its rows among all rows, in the order of the files' first places."""
        if not self._files:
            return []
        seqs, ords = (np.concatenate(column) for column in zip(*self._keys))
        place = np.empty(len(seqs), np.int64)
        place[np.lexsort((ords, seqs))] = np.arange(len(seqs))
        ends = np.cumsum([len(s) for s, _ in self._keys])[:-1]
        return sorted(zip(self._files, np.split(place, ends)), key=lambda of: int(of[1].min(initial=len(place))))

    def _ordered(
        self, made: Callable[[pa.RecordBatch], Iterator[T]], columns: Sequence[str] | None = None
    ) -> Iterator[T]:
        """Yields what is made of each row, in order. Rows that come before their turn wait in memory: files are written
        in the order of the records but for neighbours, so those are few."""
        waiting: dict[int, T] = {}
        turn = 0
        for file, places in self._order:
            at = 0
            whole = self._spool.read(file, columns=columns)
            for batch in (of.slice(start, ROWS) for of in whole for start in range(0, of.num_rows, ROWS)):
                waiting.update(zip(places[at : at + batch.num_rows].tolist(), made(batch)))
                at += batch.num_rows
                while turn in waiting:
                    yield waiting.pop(turn)
                    turn += 1

    def _numbers(self, batch: pa.RecordBatch) -> Any:
        """Returns seq and ord of each row."""
        seqs = self._bases[batch.column("slice").to_numpy()] + batch.column("n").to_numpy()
        return seqs, batch.column("ord").to_numpy().astype(np.int64)
