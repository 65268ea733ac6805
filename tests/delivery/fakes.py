"""A broker in a dictionary that checks the protocol at every call, and micro-batches to deliver to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.connectors.base import DELIVERED, BatchDestination, Outcome, RecordDestination, Spec
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.delivery.work import Work
from conduit_tasks.errors import PipelineStopped
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch

FOREVER = 1e9


@dataclass
class FakePort:
    """The DeliveryPort of one micro-batch. `matched`: its matched seqs. `window`: (size, threshold), 0 = no limit.

    `test_port_contract.py` holds it to what the real one does.
    """

    total: int
    matched: Sequence[int]
    window: tuple[int, int] = (0, 0)
    confirmed: RangeSet = field(default_factory=RangeSet)
    votes: list[str] = field(default_factory=list)
    stored: dict[tuple[int, int, int, int], DeadLetter] = field(default_factory=dict)
    state: dict[str, Any] | None = None
    counts: Counts = field(default_factory=Counts)
    calls: list[str] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    confirms: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    send_until: float = FOREVER
    fail_at: Callable[[str], BaseException | None] = lambda _: None
    renewals: int = 0
    trip_error: str = ""
    stopped: bool = False
    begun: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        error = self.fail_at(name)
        if error is not None:
            raise error

    def _running(self) -> None:
        if self.stopped:
            raise PipelineStopped("p is degraded")

    def confirm(
        self,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        *,
        state: dict[str, Any] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> None:
        with self._lock:
            self._called("confirm")
            new = RangeSet.of(ranges)
            assert new.ranges == tuple(ranges), "ranges are sorted, disjoint and never touch"
            assert self.confirmed.disjoint(new), f"{ranges} were confirmed before ({self.confirmed})"
            assert new.ranges[-1][1] < self.total
            seqs = [seq for seq in self.matched if seq in new]
            assert counts.matched == len(seqs), "counts are of exactly the seqs of the ranges (invariant 10)"
            parts = counts.delivered + counts.filtered + counts.nacked + counts.completed + counts.parked
            assert parts == counts.matched
            assert len({letter.seq for letter in dead}) == counts.nacked
            for letter in dead:
                assert letter.key in self.stored, "a dead letter is stored before its nack is confirmed (invariant 8)"
                vote = self.votes[self.matched.index(letter.seq)]
                # What a quarantine sets aside is an ack to the window (ADR 36), and voted before it is confirmed, too.
                assert vote == "n" or letter.error_class == "schema", "a nack is voted before it is confirmed"
            self.confirmed = self.confirmed.add(new)
            self.confirms.append(tuple(ranges))
            if state is not None:
                self.state = state
            self.counts = Counts(*(a + b for a, b in zip(_numbers(self.counts), _numbers(counts))))
            if self.complete:
                assert len(self.votes) == len(self.matched), "every vote is given before the micro-batch is complete"
            self._running()

    def vote(
        self, first: int, votes: Sequence[tuple[str, int]], *, error: str = "", error_class: str = ""
    ) -> int | None:
        with self._lock:
            self._called("vote")
            if self.trip_error:
                self._running()
            assert first <= len(self.votes), f"votes {len(self.votes)} to {first} are missing"
            assert sum(n for vote, n in votes if vote == "n") <= 1, "a call has at most one nack, with its error"
            one_by_one = [vote for vote, count in votes for _ in range(count)]
            assert first + len(one_by_one) <= len(self.matched)
            size, threshold = self.window
            for at, vote in enumerate(one_by_one):
                if first + at < len(self.votes):
                    continue
                if size and vote == "n":
                    assert error
                    recent = [*self.votes, vote][-size:]
                    if recent.count("n") > threshold:
                        self.trip_error, self.stopped = error, True
                        return at
                self.votes.append(vote)
            return None

    def fail(self, error: str, error_class: str) -> None:
        self.failures.append((error, error_class))
        self.stopped = True

    def give_up(self, error: str) -> None:
        self.failures.append((error, "gave up"))

    def store_dead(self, letters: Sequence[DeadLetter]) -> None:
        with self._lock:
            self._called("store")
            for letter in letters:
                self.stored[letter.key] = letter

    def begin_send(self, seq: int) -> None:
        if seq > self.begun:
            self._running()
        self.begun = seq

    def renew(self) -> None:
        self.renewals += 1
        error = self.fail_at("renew")
        if error is not None:
            raise error
        self._running()

    @property
    def complete(self) -> bool:
        return self.confirmed == RangeSet(((0, self.total - 1),))


def _numbers(counts: Counts) -> list[int]:
    return list(astuple(counts))


def record(seq: int, partition: str = "", key: bytes | None = None, ordinal: int = 0) -> Record:
    return Record(b"%d" % seq, key=key, after={"seq": seq}, ordinal=ordinal, origin=Origin("p", "src", partition))


def work_of(
    port: FakePort,
    *,
    ords: Callable[[int], int] = lambda _: 1,
    key: Callable[[int], bytes | None] = lambda _: None,
    partitions: int = 1,
    rows_per_batch: int = 100,
    **changes: Any,
) -> Work:
    """The work that `port` still has open: seq n lies in partition n mod `partitions`, with `ords(n)` derived rows."""
    matched = list(port.matched)

    def rows() -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        flat = [(seq, ord) for seq in matched for ord in range(ords(seq))]
        for at in range(0, len(flat), rows_per_batch):
            part = flat[at : at + rows_per_batch]
            records = [record(seq, key=key(seq), ordinal=ord) for seq, ord in part]
            batch = spool_batch([seq % partitions for seq, _ in part], [seq for seq, _ in part], records)
            yield np.array([seq for seq, _ in part], np.int64), batch

    return Work(
        pipeline="p",
        destination="d",
        micro_batch=7,
        total=port.total,
        matched=len(matched),
        rows=rows,
        origins=[Origin("p", "src", str(n)) for n in range(partitions)],
        confirmed=port.confirmed.ranges,
        state=port.state,
        **changes,
    )


class Target(RecordDestination):
    """A record-wise target in memory: `answer(seq, n)` is the outcome of the n-th send of a seq (from 1)."""

    spec = Spec("target", "")

    def __init__(self, answer: Callable[[int, int], Outcome | BaseException] = lambda *_: DELIVERED) -> None:
        super().__init__({})
        self.answer = answer
        self.sends: list[int] = []
        self.taken: list[tuple[int, int]] = []
        self.in_flight = self.most_in_flight = 0
        self.pause: Callable[[int], float] = lambda _: 0.0
        self.opened = self.closed = 0
        self.on_send: Callable[[int], None] = lambda _: None

    async def open(self, timeout: float) -> None:  # noqa: ASYNC109
        self.opened += 1

    async def send(self, record: Record) -> Outcome:
        seq = int(record.position)
        self.on_send(seq)
        self.sends.append(seq)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.pause(seq))
            answer = self.answer(seq, self.sends.count(seq))
            if isinstance(answer, BaseException):
                raise answer
            if answer.kind == "delivered":
                self.taken.append((seq, record.ordinal))
            return answer
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        self.closed += 1


class Tape(BatchDestination):
    """A batch-wise target with state: a list that is cut back to the length confirmed last."""

    spec = Spec("tape", "")
    chunk = 64

    def __init__(self, judge: Callable[[list[int]], BaseException | None] = lambda _: None) -> None:
        super().__init__({})
        self.judge = judge
        self.tape: list[tuple[int, int]] = []
        self.opens: list[int] = []
        self.writes = 0

    def open(self, state: dict[str, Any] | None) -> None:
        length = state["length"] if state else 0
        assert length <= len(self.tape), "a destination never gets a state that it did not return"
        del self.tape[length:]
        self.opens.append(length)

    def write(self, rows: Rows) -> dict[str, Any] | None:
        self.writes += 1
        records = rows.records()
        # A failing write leaves something behind, as a torn file does.
        self.tape.append((-1, -1))
        error = self.judge([int(r.position) for r in records])
        if error is not None:
            raise error
        self.tape.pop()
        self.tape += [(int(r.position), r.ordinal) for r in records]
        return {"length": len(self.tape)}
