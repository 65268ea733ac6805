"""Work of one destination in one micro-batch: what an engine is given, its entries and its report, and the dead letter
of a record that failed.

Rows come in order of (seq, ord). Rows that are confirmed already are left out, but counted: a vote's ordinal is its
place among all matched records of the micro-batch (SEMANTICS C6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from conduit_tasks.delivery.chunks import NONE, Seqs
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.jsons import clean
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.dead_letters.parking import Parking
    from conduit_tasks.delivery.numbering import Numbering
    from conduit_tasks.delivery.shard import Shard
    from conduit_tasks.processors.chain import Chain


@dataclass(frozen=True)
class Work:
    """One micro-batch at one destination.

    `rows`: opens a fresh reading of the rows that match the trigger, as (seqs, SPOOL_SCHEMA batch) in order of (seq,
    ord), those already confirmed included. `origins`: per slice number. `matched`: number of distinct matched seqs;
    None: it is checked elsewhere.
    `state`: the state that the destination's last confirm stored. `span`: the seqs to work on, both ends included; None
    = all. `culprits`: seqs that are not sent but nacked, because they kill their worker. `index`: a seq's number in its
    source partition, if the caller knows it. `numbering`: gives the records their numbers, if the pipe or the guarantee
    wants them. `begun`: seqs up to this one may have been sent by an earlier attempt (at-most-once). `parking`: says
    which records wait behind a dead letter of their key. `seal`: token that sealed the micro-batch. `look`: raises
    StateLost if the spool knows of a later state than Redis. `shard`: whose rows these are, if the micro-batch is
    divided. `there`: seqs whose rows the destination has, by the marks of tasks that had begun the micro-batch: they
    count as delivered, and are not written again. `rested`: seconds since the last send to the destination;
    None if there was none.
    """

    pipeline: str
    destination: str
    micro_batch: int
    total: int
    matched: int | None
    rows: Callable[[], Iterator[tuple[Seqs, pa.RecordBatch]]]
    origins: Sequence[Origin]
    confirmed: Sequence[tuple[int, int]] = ()
    state: dict[str, Any] | None = None
    chain: Chain | None = None
    epoch: int = 0
    index: Callable[[int], int | None] | None = None
    span: tuple[int, int] | None = None
    culprits: Collection[int] = ()
    numbering: Numbering | None = None
    begun: int = -1
    parking: Parking | None = None
    seal: int = 0
    shard: Shard | None = None
    there: Seqs = field(default_factory=lambda: NONE)
    look: Callable[[], None] = lambda: None
    rested: Callable[[], float | None] = lambda: None

    @property
    def node(self) -> str:
        return Node.destination(self.destination)

    @property
    def first(self) -> int:
        """The first seq to work on."""
        return self.span[0] if self.span else 0

    @property
    def last(self) -> int:
        """The last seq to work on; `first` - 1 if there is none."""
        return self.span[1] if self.span else self.total - 1

    def letter(
        self, seq: int, record: Record, error: str, error_class: str, *, attempts: int = 1, node: str = ""
    ) -> DeadLetter:
        """Returns the dead letter of a record that failed here and now.

        If `node` is a processor of this destination, the letter holds the record as it came in; otherwise as it was
        sent, after the processors.
        """
        return DeadLetter(
            self.micro_batch,
            seq,
            record,
            node or self.node,
            clean(error),
            clean(error_class),
            attempts,
            self.epoch,
            time.time(),
            self.index(seq) if self.index else None,
        )


@dataclass(slots=True)
class Entry:
    """One record to deliver. `filtered` and `letter` say what its processors decided; otherwise it is sent.

    `ordinal`: number of matched seqs of the micro-batch before its own. `row`, `bytes`: of the row that it came from,
    its place in the chunk and its size.
    """

    seq: int
    ordinal: int
    record: Record
    filtered: bool = False
    letter: DeadLetter | None = None
    bytes: int = 0
    row: int = 0


@dataclass(frozen=True)
class DeliveryReport:
    """Result of one delivery: the counts of everything that it confirmed itself, and its duration in seconds."""

    counts: Counts = field(default_factory=Counts)
    flushes: int = 0
    seconds: float = 0.0


def add(a: Counts, b: Counts) -> Counts:
    """Returns the sum of both."""
    return Counts(
        a.matched + b.matched,
        a.delivered + b.delivered,
        a.filtered + b.filtered,
        a.nacked + b.nacked,
        a.completed + b.completed,
        a.parked + b.parked,
        a.retried + b.retried,
    )
