"""Values that the broker returns; nothing here talks to Redis.

Times are seconds since the epoch by the server's clock unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from conduit_tasks.broker.ranges import RangeSet

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Position, Slice

Status = Literal["running", "stopping", "stopped", "recovering", "degraded"]


@dataclass(frozen=True)
class StoredError:
    """The first error of a stop (invariant 9)."""

    node: str
    error: str
    error_class: str
    micro_batch: int | None
    at: float


@dataclass(frozen=True)
class PipelineStatus:
    """Status of a pipeline. `recovering`: it runs, and some node's last attempt failed or ended without progress;
    `error` is then the first error of the failures, if one is known. `deadline`: of a graceful stop."""

    status: Status
    error: StoredError | None = None
    deadline: float | None = None

    @property
    def overdue(self) -> bool:
        """Whether a graceful stop has missed its deadline (C15), by this machine's clock."""
        import time

        return self.status == "stopping" and self.deadline is not None and time.time() > self.deadline


@dataclass(frozen=True)
class Stage:
    """Result of one node for a micro-batch. `counts`: records per slice of a source, None for `processors`."""

    manifest: str
    counts: Sequence[int] | None
    read: int
    filtered: int = 0
    nacked: int = 0
    matched: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    skipped: int = 0
    """Number of a source's slices that were passed over, in whole or in part, because their data is gone."""
    first_index: tuple[int, ...] | None = None
    """Index of each slice's first record in its partition; the broker fills it in."""


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch. `slices` is in file order of the sources; `sealed_at` and the fields after it are set once it is
    sealed."""

    number: int
    state: Literal["open", "sealed", "collecting"]
    opened_at: float
    config: str
    """Digest of the pipeline file it was planned by."""
    nodes: tuple[str, ...]
    """Nodes that have to stage before it can be sealed."""
    slices: dict[str, list[Slice]]
    stages: dict[str, Stage]
    sealed_at: float | None = None
    manifest: str = ""
    total: int = 0
    bytes: int = 0
    matched: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """Nodes that have not staged yet."""
        return [n for n in self.nodes if n not in self.stages]


@dataclass(frozen=True)
class Backlog:
    """Micro-batches that are sealed and not confirmed by every destination."""

    records: int = 0
    bytes: int = 0
    oldest_sealed_at: float | None = None
    micro_batches: int = 0

    def age(self, now: float) -> float:
        """Returns the seconds that the oldest has waited; 0 if nothing waits."""
        return 0.0 if self.oldest_sealed_at is None else max(0.0, now - self.oldest_sealed_at)


@dataclass(frozen=True)
class Division:
    """Division of one micro-batch's records at one destination into shards, each delivered by a task of its own.

    `by`: what a shard is of. `done`: per shard the confirmed ranges of its own numbers (its records are numbered from
    0); `whole`: per shard its number of records once all of them are confirmed, None before. `first`, `used`: so many
    shards, from that number on and round, have records (ADR 41); by default all have.
    """

    micro_batch: int
    by: str
    count: int
    matched: int
    """Number of records of all shards together."""
    done: tuple[RangeSet, ...] = ()
    whole: tuple[int | None, ...] = ()
    first: int = 0
    used: int | None = None

    @classmethod
    def begun(  # noqa: PLR0917 - as it is stored
        cls, micro_batch: int, by: str, count: int, matched: int, first: int = 0, used: int | None = None
    ) -> Self:
        """Returns one of which nothing is confirmed."""
        empty = cls(micro_batch, by, count, matched, (RangeSet(),) * count, (), first, used)
        return replace(empty, whole=tuple(None if n in empty.shards else 0 for n in range(count)))

    @classmethod
    def _stored(cls, field: str | None) -> Self | None:
        """Reads a division as it is stored, of which nothing is known to be confirmed."""
        if not field:
            return None
        m, by, *numbers = field.split(":")
        return cls.begun(int(m), by, *map(int, numbers))

    @classmethod
    def merged(cls, state: Mapping[str, str]) -> Self | None:
        """Reads the division that micro-batch `cursor + 1` had before one task took it over, from a destination's
        hash."""
        found = cls._stored(state.get("merged"))
        return found if found is not None and found.micro_batch == int(state["cursor"]) + 1 else None

    @classmethod
    def parse(cls, state: Mapping[str, str]) -> tuple[Self, ...]:
        """Reads those of the micro-batches that are under way from a destination's hash, in their order. The one behind
        the cursor may be missing, if one task finishes it."""
        first, last = int(state["cursor"]) + 1, int(state.get("group", "-0").rpartition("-")[2])
        found = list[Self]()
        for number in range(first, max(first, last) + 1):
            name, of = ("divided", "shard") if number == first else (f"divided:{number}", f"shard:{number}")
            one = cls._stored(state.get(name))
            if one is None or one.micro_batch != number:
                continue
            texts = [state.get(f"{of}:{n}", "" if n in one.shards else "=0") for n in range(one.count)]
            done = tuple(RangeSet.parse(None if text.startswith("=") else text) for text in texts)
            whole = tuple(int(text[1:]) if text.startswith("=") else None for text in texts)
            found.append(replace(one, done=done, whole=whole))
        return tuple(found)

    @property
    def shards(self) -> list[int]:
        """Shards that have records, in the order of the records."""
        used = self.count if self.used is None else self.used
        return [(self.first + n) % self.count for n in range(used)]

    @property
    def open(self) -> list[int]:
        """Shards that are not whole."""
        return [shard for shard, records in enumerate(self.whole) if records is None]

    @property
    def confirmed(self) -> int:
        """Number of confirmed records."""
        return sum(done.count if records is None else records for done, records in zip(self.done, self.whole))


@dataclass(frozen=True)
class DeliveryState:
    """Delivery state of one destination. `confirmed`: ranges of micro-batch `cursor + 1`; none while it is divided."""

    cursor: int
    epoch: int
    """Epoch of the last redelivery begun; 0 = none yet."""
    confirmed: RangeSet
    state: dict[str, Any] | None
    """The destination's own state, as last confirmed."""
    counters: dict[str, int]
    """matched, delivered, filtered, nacked, completed, retried (and redelivered) over everything confirmed."""
    status: Literal["running", "stopped"]
    error: StoredError | None
    confirmed_at: float | None = None
    sent_at: float | None = None
    """Time of the last confirm of records that were sent, be it live, again or by a replay."""
    divisions: tuple[Division, ...] = ()
    """Divisions of the micro-batches that are under way, in their order; of `cursor + 1` only if that is divided."""
    merged: Division | None = None
    """Division that `cursor + 1` was begun with, if one task finishes it."""
    group: tuple[int, int] = (0, -1)
    """First and last micro-batch of the group that was begun together and has not been passed (ADR 41)."""

    @property
    def division(self) -> Division | None:
        """Division of micro-batch `cursor + 1`, if it is divided."""
        first = self.divisions[0] if self.divisions else None
        return first if first is not None and first.micro_batch == self.cursor + 1 else None

    @property
    def younger(self) -> tuple[Division, ...]:
        """Divisions of the micro-batches of a group behind that one."""
        return self.divisions if self.division is None else self.divisions[1:]

    @property
    def confirmed_records(self) -> int:
        """Number of records of micro-batch `cursor + 1` that are confirmed; of a divided one only those that the
        trigger matched."""
        return self.confirmed.count if self.division is None else self.division.confirmed

    @property
    def confirmed_beyond(self) -> int:
        """Number of confirmed records of all micro-batches beyond the cursor, counted in the same way."""
        return self.confirmed_records + sum(division.confirmed for division in self.younger)

    def confirmed_of(self, number: int) -> int:
        """Returns the number of confirmed records of a micro-batch beyond the cursor, counted in the same way."""
        if number == self.cursor + 1:
            return self.confirmed_records
        return sum(division.confirmed for division in self.divisions if division.micro_batch == number)


@dataclass(frozen=True)
class Ack:
    """Ack to a source: everything of micro-batches `m_from` … `m_to` is confirmed."""

    m_from: int
    m_to: int
    position: Position


@dataclass(frozen=True, order=True)
class DeadEntry:
    """One line of the dead-letter index; the letter itself is in the dead-letter store."""

    epoch: int
    micro_batch: int
    seq: int
    ordinal: int
    error_class: str = field(compare=False)
    attempts: int = field(compare=False)
    at: float = field(compare=False)
