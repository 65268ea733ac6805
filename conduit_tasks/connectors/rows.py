"""Rows as a batch-wise destination gets them: their shard, what of it is confirmed, and numbers by which rows that were
written before are left out (SEMANTICS O5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


ALL = 2**62
"""A seq behind all others."""


@dataclass(frozen=True)
class RowNumbers:
    """Numbers of some of the rows that a pipeline sends to a destination within an epoch: ascending, never given to
    another record. Rows of one position share a number, and are always written together.

    Of a shard (`BatchDestination.shard`) the numbers are those of its micro-batch alone, and `epoch` is its seal.
    """

    pipeline: str
    destination: str
    epoch: int
    numbers: npt.NDArray[np.int64]

    def received(self, current: int) -> tuple[int, int]:
        """Applies a monotonic pipe's receiver (SEMANTICS O5), for which `current` was the last number written
        (0: none). Returns the number of rows, from the first, that are there already, and the last number with the
        others."""
        from conduit_tasks.pipes.monotonic import MonotonicReceiver

        receiver = MonotonicReceiver(first=current + 1, epoch=self.epoch)
        had = receiver.receive_all(self.numbers.tolist())
        return had, receiver.current or current


@dataclass(frozen=True)
class ShardName:
    """Which of several tasks writes: shard `number` of `count` of a divided micro-batch (`delivery.parallelism`). `by`:
    what a shard is of, `key`, `partition` or `none`. `used`: the shards that have records, if not all have (ADR 41)."""

    by: str
    count: int
    number: int
    used: tuple[int, ...] | None = None

    @property
    def division(self) -> str:
        """The same for all shards of a micro-batch: `k03`."""
        return f"{self.by[0]}{self.count:02d}"

    @property
    def lot(self) -> str:
        """Names the records that it has of a micro-batch: two shards of one micro-batch with the same lot have the same
        records."""
        used = "" if self.used is None else f":{self.used[0]}+{len(self.used)}"
        return f"{self}{used}"

    def __str__(self) -> str:
        return f"{self.division}.{self.number:02d}"


def sealed_name(seal: int, micro_batch: int) -> str:
    """Returns the name of a micro-batch in all lives of the pipeline; names of later ones sort behind it."""
    return f"{seal:016d}-{micro_batch:010d}"


@dataclass(frozen=True)
class Rows:
    """Rows for a batch-wise destination, in order, with the data needed to turn them into records.

    `batch`: SPOOL_SCHEMA columns. `origins`: per slice number. `first`, `last`: seqs of the
    first and the last row. A destination that needs ids or whole records calls `records()`.
    """

    batch: pa.RecordBatch
    origins: Sequence[Any]
    micro_batch: int = 0
    first: int = 0
    last: int = 0
    numbers: RowNumbers | None = None
    """Set if the pipe or the guarantee needs them, for a destination that `keeps_index`."""
    seal: int = 0
    """Seal of the micro-batch (microseconds): in another life of the pipeline the same `micro_batch` has another one.
    0 if the rows are not part of a micro-batch: records that are redriven, or written outside of a pipeline."""
    epoch: int = 0
    """Above 0 if a confirmed part of the micro-batch is delivered again on request."""
    seqs: npt.NDArray[np.int64] | None = None
    """Per row its seq, for a destination that writes one shard of a micro-batch."""
    pending: tuple[tuple[int, int], ...] = ((0, ALL),)
    """Ranges of seqs of the micro-batch, first and last, that are not confirmed when these rows are written, for a
    destination that removes what an earlier attempt wrote there. It must not do so later, by the rows of an earlier
    write: they are confirmed by then. Of a shard, the seqs between its own belong to what follows them."""

    @property
    def sealed(self) -> str:
        """Name of the micro-batch in all lives of the pipeline; names of later ones sort behind it."""
        return sealed_name(self.seal, self.micro_batch)

    def confirmed(self, seq: int) -> bool:
        """Returns whether what ends with this seq was confirmed."""
        return not any(first <= seq <= last for first, last in self.pending)

    def records(self) -> list[Record]:
        from conduit_tasks.record.schema import to_records

        return to_records(self.batch, self.origins)
