"""Outcome of each record of a micro-batch at one destination, kept by seq and ord (invariant 10) until votes and
confirmed ranges tell the broker of it.

Pure bookkeeping between completed sends and confirmed ranges.

Records are *expected* in order of (seq, ord) as they are read, and *completed* in any order. A flush takes what may be
told to the broker now, in the order vote → store the dead letters → confirm (SEMANTICS C6):

- *votes* are given in order, one per matched seq, up to the first one that is still open. Acks need no vote before they
  are confirmed, so votes wait for a nack or for the end: one call then covers any number of records;
- *ranges* cover every seq that was read and is complete, matched or not (a seq that no trigger matched has nothing to
  wait for). They are disjoint from everything confirmed before; there is at most one more of them than of the seqs and
  confirmed ranges that separate them;
- a *nack* is inside a range only if its vote was accepted, and its dead letter is handed out with it (Invariant 8).

Memory grows with the records that are open and the nacks that wait for their vote, never with delivered records.
Outcomes are kept per seq and ord (Invariant 10): completing one that is not open raises `InvariantBroken`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.errors import InvariantBroken
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter

Kind = Literal["filtered", "delivered", "completed", "parked", "nacked"]
"""Outcome of a record, weakest first: of several records derived from one seq the strongest counts, and a nack wins."""

_RANK: dict[str, int] = {"filtered": 0, "delivered": 1, "completed": 2, "parked": 3, "nacked": 4}


@dataclass(slots=True)
class _Seq:
    """One matched seq on its way."""

    ordinal: int
    ords: set[int]
    kind: Kind = "filtered"
    retried: int = 0
    letters: list[DeadLetter] = field(default_factory=list)


@dataclass(slots=True)
class Nack:
    """A nacked seq that waits for its vote: its ordinal among the matched, its dead letters, its repeated sends.

    `counts`: whether it is a nack to the window; otherwise it is set aside (ADR 36), and votes as an ack.
    """

    ordinal: int
    letters: list[DeadLetter]
    retried: int = 0
    counts: bool = True


@dataclass(frozen=True)
class Settled:
    """Content of a confirm: ranges, the counts of exactly their seqs, and the dead letters to store before it."""

    ranges: RangeSet
    counts: Counts
    letters: list[DeadLetter]


@dataclass(frozen=True)
class Flush:
    """Snapshot of what to tell the broker: `votes` from ordinal `first` on, and then what `settled` returns."""

    first: int
    votes: list[tuple[str, int]]
    _gaps: RangeSet
    _blocked: list[int]
    _acks: Counts
    _nacks: list[tuple[int, Nack]]

    @property
    def size(self) -> int:
        """Number of complete seqs in the flush."""
        return self._acks.matched + len(self._nacks)

    def letter(self, ordinal: int) -> DeadLetter:
        """Returns the first dead letter of the nack with this ordinal."""
        return next(s.letters[0] for _, s in self._nacks if s.ordinal == ordinal)

    def settled(self, accepted: int | None) -> Settled:
        """Returns what may be confirmed after `vote` answered `accepted` (None: all votes)."""
        limit = None if accepted is None else self.first + accepted
        nacks = [(seq, s) for seq, s in self._nacks if limit is None or s.ordinal < limit]
        kept = {seq for seq, _ in nacks}
        blocked = {*self._blocked, *(seq for seq, _ in self._nacks if seq not in kept)}
        counts = replace(
            self._acks,
            matched=self._acks.matched + len(nacks),
            nacked=self._acks.nacked + len(nacks),
            retried=self._acks.retried + sum(s.retried for _, s in nacks),
        )
        letters = [letter for _, s in nacks for letter in s.letters]
        return Settled(self._gaps.subtract(RangeSet.of((seq, seq) for seq in blocked)), counts, letters)


class Progress:
    """Progress of one micro-batch (or the span of it that is worked on) at one destination. Not thread-safe: one
    owner."""

    def __init__(self, first: int, last: int, confirmed: Sequence[tuple[int, int]] = ()) -> None:
        self._last_seq = last
        span = RangeSet(((first, last),)) if first <= last else RangeSet()
        self._gaps = span.subtract(RangeSet.of(confirmed))
        self._open: dict[int, _Seq] = {}
        self._nacks: dict[int, Nack] = {}
        self._first_nack: int | None = None
        self._acked = dict.fromkeys(("matched", "filtered", "delivered", "completed", "parked", "retried"), 0)
        self._newest: int | None = None
        self._finished = False
        self._voted = 0
        self._read = 0
        self.came = 0
        """Number of records that were expected."""

    def expect(self, seq: int, ord: int, ordinal: int) -> None:
        """Notes that a record was read. `ordinal`: number of matched seqs of the micro-batch before its own, confirmed
        or not.

        Seqs must ascend; several ords of one seq follow each other. Raises InvariantBroken otherwise.
        """
        self.came += 1
        if seq == self._newest:
            entry = self._open[seq]
            if ord in entry.ords:
                raise InvariantBroken(f"record {seq}.{ord} was read twice in one micro-batch (invariant 10)")
            entry.ords.add(ord)
            return
        if self._finished or (self._newest is not None and seq < self._newest):
            raise InvariantBroken(f"record {seq}.{ord} was read after {self._newest} (SEMANTICS C9)")
        self._settle_newest()
        self._newest = seq
        self._open[seq] = _Seq(ordinal, {ord})
        self._read = ordinal + 1

    def finish(self, matched: int) -> None:
        """Notes that everything was read; `matched` is the number of matched seqs from 0 to the end of the span."""
        self._settle_newest()
        self._finished = True
        self._read = matched

    def complete(self, seq: int, ord: int, kind: Kind, *, retried: int = 0, letters: Sequence[DeadLetter] = ()) -> None:
        """Sets a record's outcome, once. `retried`: sends beyond the first. `letters`: of a nack. Raises
        InvariantBroken if the record is not open."""
        entry = self._open.get(seq)
        if entry is None or ord not in entry.ords:
            raise InvariantBroken(f"record {seq}.{ord} has an outcome but is not open (invariant 10)")
        if (kind == "nacked") != bool(letters):
            raise InvariantBroken(f"record {seq}.{ord}: a nack, and nothing else, has a dead letter (invariant 8)")
        entry.ords.discard(ord)
        entry.retried += retried
        if _RANK[kind] > _RANK[entry.kind]:
            entry.kind = kind
        entry.letters.extend(letters)
        if not entry.ords and (self._finished or seq != self._newest):
            self._close(seq)

    @property
    def open(self) -> int:
        """Number of seqs that were read and are not complete."""
        return len(self._open)

    @property
    def unconfirmed(self) -> int:
        """Number of complete seqs that no flush has told the broker about yet."""
        return self._acked["matched"] + len(self._nacks)

    @property
    def waiting(self) -> int:
        """Number of nacks among them: they wait for the records before them to complete, so that votes are in order."""
        return len(self._nacks)

    @property
    def votable(self) -> bool:
        """Whether a waiting nack has nothing open before it."""
        if self._first_nack is None or not self._open:
            return self._first_nack is not None
        return self._first_nack < next(iter(self._open.values())).ordinal

    @property
    def complete_through(self) -> bool:
        """Whether everything of the span was read and completed."""
        return self._finished and not self._open

    @property
    def confirmed(self) -> bool:
        """Whether the whole span is confirmed."""
        return not self._gaps

    def nack_of(self, seq: int) -> DeadLetter:
        """Returns the first dead letter of an open seq that has one."""
        return self._open[seq].letters[0]

    def settled_nack(self, seq: int) -> bool:
        """Returns whether the nack of this seq was voted, stored and confirmed (or there never was one)."""
        # The newest seq stays open until another one is read: derived records of it may follow.
        return seq not in self._nacks and seq not in self._open

    def begin(self) -> Flush:
        """Returns what can be told now. One flush at a time: the next begins after `end`."""
        prefix = next(iter(self._open.values())).ordinal if self._open else self._read
        votable = [(seq, s) for seq, s in sorted(self._nacks.items()) if s.ordinal < prefix]
        due = bool(votable) or self.complete_through
        votes = run_lengths(self._voted, prefix, [s.ordinal for _, s in votable]) if due else []
        frontier = self._last_seq if self._finished else (self._newest if self._newest is not None else 0) - 1
        taken = {seq for seq, _ in votable}
        blocked = [*self._open, *(seq for seq in self._nacks if seq not in taken)]
        acks, self._acked = Counts(**self._acked), dict.fromkeys(self._acked, 0)
        gaps = RangeSet(tuple((first, min(last, frontier)) for first, last in self._gaps if first <= frontier))
        return Flush(self._voted, votes, gaps, blocked, acks, votable)

    def end(self, flush: Flush, accepted: int | None, ranges: RangeSet) -> None:
        """Notes that the flush was told: `accepted` as `vote` answered, `ranges` as confirmed."""
        self._voted = flush.first + (sum(n for _, n in flush.votes) if accepted is None else accepted)
        self._gaps = self._gaps.subtract(ranges)
        for seq, entry in flush._nacks:
            if entry.ordinal < self._voted:
                del self._nacks[seq]
        self._first_nack = min((s.ordinal for s in self._nacks.values()), default=None)

    def _settle_newest(self) -> None:
        if self._newest is not None and self._newest in self._open and not self._open[self._newest].ords:
            self._close(self._newest)

    def _close(self, seq: int) -> None:
        entry = self._open.pop(seq)
        if entry.kind == "nacked":
            self._nacks[seq] = Nack(entry.ordinal, entry.letters, entry.retried)
            self._first_nack = entry.ordinal if self._first_nack is None else min(self._first_nack, entry.ordinal)
            return
        self._acked["matched"] += 1
        self._acked[entry.kind] += 1
        self._acked["retried"] += entry.retried


def run_lengths(first: int, end: int, nacks: Sequence[int]) -> list[tuple[str, int]]:
    """Returns the votes of the ordinals [first, end): acks, except for `nacks` (ascending)."""
    votes: list[tuple[str, int]] = []
    at = first
    for nack in nacks:
        if nack > at:
            votes.append(("a", nack - at))
        if votes and votes[-1][0] == "n":
            votes[-1] = ("n", votes[-1][1] + 1)
        else:
            votes.append(("n", 1))
        at = nack + 1
    if end > at:
        votes.append(("a", end - at))
    return votes
