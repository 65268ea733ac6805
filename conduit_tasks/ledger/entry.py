"""One delivery attempt as rows of the ledger: a row per range of records with the same outcome, which together cover
all that was open (SEMANTICS X5).

An attempt is one delivery of one micro-batch to one destination. It becomes one row per range of records with the same
outcome: acked, nacked (by class of error), open. Its rows together cover everything that was open when it began. As
rows are per range, an attempt costs a few hundred bytes, however many records it delivered.

One of several tasks that deliver a micro-batch by key has its records scattered in it. Its acked records are one row
over all that lies between the first and the last, and `records` says how many of these it is about; so are its open
ones, whose number is not known. Its nacked records are rows of their own as always.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.connectors.base import Outcome
from conduit_tasks.connectors.outcome import clip, error_class
from conduit_tasks.errors import Fenced, PipelineStopped, Unavailable
from conduit_tasks.record.counts import Counts

if TYPE_CHECKING:
    from conduit_tasks.delivery.progress import Settled

_TIME = pa.timestamp("us", tz="UTC")
COUNTS = ("matched", "delivered", "filtered", "completed", "parked", "nacked", "retried")
SCHEMA = pa.schema(
    [
        ("destination", pa.string()),
        ("micro_batch", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("records", pa.int64()),
        ("outcome", pa.string()),
        ("status", pa.string()),
        ("error_class", pa.string()),
        ("error", pa.string()),
        ("sends", pa.int64()),
        ("attempt", pa.string()),
        ("run", pa.string()),
        ("epoch", pa.int64()),
        ("config", pa.string()),
        ("began", _TIME),
        ("ended", _TIME),
        ("seconds", pa.float64()),
        *((name, pa.int64()) for name in COUNTS),
    ]
)
"""Columns of the ledger; docs/ledger.md explains them."""


@dataclass
class Attempt:
    """An attempt as it begins. `open`: the seqs that it is to settle; `id` is unique."""

    destination: str
    micro_batch: int
    id: str
    run: str
    config: str
    open: RangeSet
    epoch: int = 0
    began: float = field(default_factory=lambda: time.time())  # noqa: PLW0108 - whatever the clock is by then


@dataclass
class _Nacked:
    ranges: RangeSet
    error: str
    sends: int


class Tally:
    """Collector of an attempt's confirms, from which it makes the rows. One call at a time."""

    def __init__(self, attempt: Attempt, *, own: RangeSet | None = None, scattered: bool = False) -> None:
        """`own`: seqs that the attempt is about, if there are others between them; `scattered`: they are too many to
        be named."""
        self.attempt = attempt
        self._own, self._scattered = own, scattered
        self._settled, self._nacks = RangeSet(), dict[str, _Nacked]()
        self._counts = Counts()

    def told(self, settled: Settled) -> None:
        """Adds ranges that are confirmed."""
        from conduit_tasks.delivery.work import add

        self._settled = self._settled.add(self._mine(settled.ranges))
        self._counts = add(self._counts, settled.counts)
        for letter in settled.letters:
            known = self._nacks.setdefault(letter.error_class, _Nacked(RangeSet(), letter.error, 0))
            known.ranges = known.ranges.add(((letter.seq, letter.seq),))
            known.sends = max(known.sends, letter.attempts)

    def table(self, error: BaseException | None = None) -> pa.Table:
        """Returns the rows of the attempt, which ended just now: with `error`, or successfully."""
        ended = time.time()
        attempt = self.attempt
        base = {
            "destination": attempt.destination,
            "micro_batch": attempt.micro_batch,
            "status": _status(error),
            "attempt": attempt.id,
            "run": attempt.run,
            "epoch": attempt.epoch,
            "config": attempt.config,
            "began": int(attempt.began * 1e6),
            "ended": int(ended * 1e6),
            "seconds": round(ended - attempt.began, 6),
        }
        rows = [{**base, **row} for row in sorted(self._rows(error), key=lambda row: row["first"])]
        if rows:
            # On one row only, so that sums over any selection of attempts are right.
            rows[0] |= {name: n for name, n in asdict(self._counts).items() if name in COUNTS}
        return pa.Table.from_pylist(rows, SCHEMA)

    def _rows(self, error: BaseException | None) -> Iterator[dict[str, Any]]:
        acked = self._settled
        for kind, nack in self._nacks.items():
            acked = acked.subtract(nack.ranges)
            more = {"error_class": kind, "error": clip(nack.error), "sends": nack.sends}
            yield from _ranges(nack.ranges, "nacked", **more)
        left = self._mine(self.attempt.open).subtract(self._settled)
        more = {"error_class": _class(error), "error": clip(str(error)) if error else None}
        if not self._scattered:
            yield from _ranges(acked, "acked")
            yield from _ranges(left, "open", **more)
            return
        if count := self._counts.matched - self._counts.nacked:
            yield {**_over(acked), "records": count, "outcome": "acked"}
        if left and error is not None:
            yield {**_over(left), "records": None, "outcome": "open", **more}

    def _mine(self, ranges: RangeSet) -> RangeSet:
        return ranges if self._own is None else ranges.intersect(self._own)


def scattered(row: dict[str, Any]) -> bool:
    """Returns whether a row is about some of the records in its range only."""
    return row["records"] is None or bool(row["records"] < row["last"] - row["first"] + 1)


def unrecorded(attempt: Attempt, ranges: RangeSet, records: int | None = None) -> pa.Table:
    """Returns rows for confirmed ranges that no attempt has recorded: it was killed, or could not write. `records`:
    their number, if they are only some of those in the one range."""
    base = {
        "destination": attempt.destination,
        "micro_batch": attempt.micro_batch,
        "status": "unrecorded",
        "attempt": attempt.id,
        "config": attempt.config,
        "ended": int(attempt.began * 1e6),
        "epoch": attempt.epoch,
    }
    rows = [{**base, **row, **({"records": records} if records else {})} for row in _ranges(ranges, "confirmed")]
    return pa.Table.from_pylist(rows, SCHEMA)


def _over(ranges: RangeSet) -> dict[str, Any]:
    return {"first": ranges.ranges[0][0], "last": ranges.ranges[-1][1]}


def _ranges(ranges: RangeSet, outcome: str, **more: Any) -> Iterator[dict[str, Any]]:
    for first, last in ranges:
        yield {"first": first, "last": last, "records": last - first + 1, "outcome": outcome, **more}


def _status(error: BaseException | None) -> str:
    """Returns the status of an attempt: done, waiting (the destination is down), stopped, fenced, failed."""
    if error is None:
        return "done"
    kinds = ((Unavailable, "waiting"), (PipelineStopped, "stopped"), (Fenced, "fenced"))
    return next((name for kind, name in kinds if isinstance(error, kind)), "failed")


def _class(error: BaseException | None) -> str | None:
    if isinstance(error, Unavailable):
        return error_class(Outcome("failed", str(error), error.status))
    return type(error).__name__ if error else None
