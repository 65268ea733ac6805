"""A pass of one node over rows: what it is to do, how a piece of it is read, the result of a piece, and when it
isolates poison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from conduit_tasks.logs import about
from conduit_tasks.record.schema import NUMBER_FIELDS, RECORD_FIELDS
from conduit_tasks.topology import Destination, Processor

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.size import Size
    from conduit_tasks.spool.spool import PartFile, Spool

_ATTEMPTS = 3
"""Number of attempts that may end without progress before a node isolates poison."""

RunAll = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Runs a picklable function over pieces, in executors, answers in order (`spark.session.run_all`)."""

NACKED_SCHEMA = pa.schema(NUMBER_FIELDS + RECORD_FIELDS + [pa.field("error", pa.binary())])
"""Rows that failed before the fan-out, as they entered the node; `error`: JSON {node, class, message}."""


@dataclass(frozen=True)
class Pass:
    """Work of one node on its rows; picklable. `final` nodes evaluate the triggers of `destinations`.

    `isolate_poison`: run processors in children, because attempts before this one died without progress (C10).
    """

    pipeline: str
    micro_batch: int
    node: str
    token: int
    processors: tuple[Processor, ...]
    destinations: tuple[Destination, ...]
    final: bool
    isolate_poison: bool = False
    index: tuple[str, ...] = ()
    """Fields by which the final records can be looked for (`index` of the pipeline file)."""
    folder: str = ""
    """Spool folder of the files; default the node. Passes between frame processors write to folders of their own."""

    def filtered_destinations(self) -> list[Destination]:
        """Returns the destinations with filters: each has a boolean column in the final files."""
        return [d for d in self.destinations if d.filters] if self.final else []


@dataclass
class PassResult:
    """Result of one piece. `counts`: slice number → records read (sources only). All counts are of distinct records,
    not of derived ones, and `read` is `written` + `nacked` + `filtered` (invariant 10)."""

    files: list[PartFile] = field(default_factory=list)
    nacked_files: list[PartFile] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, Any] = field(default_factory=dict)
    """Slice number → end of an open slice."""
    read: int = 0
    nacked: int = 0
    written: int = 0
    filtered: int = 0
    """Records that processors filtered, as each of them said."""
    skipped: int = 0
    """Number of slices that were passed over."""
    bytes: int = 0
    row_bytes: int = 0
    """Bytes of a row in memory: the average of the batch in which that is largest."""
    matched: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    """Seconds that `read`, `process` and `spool` took."""


class Reader(Protocol):
    """Reads one piece and runs the pass over its rows; picklable, runs in an executor."""

    def __call__(self, plan: Pass, spool: Spool, piece: Any) -> PassResult: ...


@dataclass(frozen=True)
class BoundReader:
    """A reader with its pass: a function of the piece alone, as executors run it."""

    plan: Pass
    spool: Spool
    reader: Reader
    size: Size | None = None
    """Size of all its pieces together; None: its work is done in Spark."""

    def __call__(self, piece: Any) -> PassResult:
        with about(micro_batch=self.plan.micro_batch):
            return self.reader(self.plan, self.spool, piece)


def isolates_poison(attempts: int) -> bool:
    """Tells whether a pass isolates poison: so many consecutive attempts ended without progress (C10, B7)."""
    return attempts > _ATTEMPTS
