"""Properties of the bookkeeping, against a port that checks the protocol at every call."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.committer import Committer
from conduit_tasks.delivery.progress import Progress
from conduit_tasks.errors import InvariantBroken, PipelineStopped
from conduit_tasks.record.dead_letter import DeadLetter
from tests.delivery.fakes import FakePort, record, work_of


def letter(seq: int, ord: int) -> DeadLetter:
    return DeadLetter(7, seq, record(seq, ordinal=ord), "destinations.d", "no", "http 400")


@dataclass
class Case:
    total: int
    ords: dict[int, int]
    confirmed: list[int]
    events: list[tuple[int, int]]
    kinds: dict[tuple[int, int], str]
    look_ahead: int
    flush_every: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    total = draw(st.integers(1, 60))
    matched = sorted(draw(st.sets(st.integers(0, total - 1))))
    ords = {seq: draw(st.integers(1, 3)) for seq in matched}
    confirmed = sorted(draw(st.sets(st.integers(0, total - 1)))) if draw(st.booleans()) else []
    rows = [(seq, ord) for seq in matched if seq not in confirmed for ord in range(ords[seq])]
    kind = st.sampled_from(["delivered", "delivered", "filtered", "completed", "nacked"])
    return Case(
        total,
        ords,
        confirmed,
        draw(st.permutations(rows)),
        {row: draw(kind) for row in rows},
        draw(st.integers(1, 80)),
        draw(st.integers(1, 20)),
    )


def run(case: Case, port: FakePort) -> Progress:
    """Reads at most `look_ahead` rows past those completed, completes in the drawn order, flushes now and then."""
    matched = list(case.ords)
    progress = Progress(0, case.total - 1, port.confirmed.ranges)
    committer = Committer(work_of(port), port)
    rows = [(seq, ord) for seq in matched if seq not in case.confirmed for ord in range(case.ords[seq])]
    read = completed = 0
    waiting = list(case.events)
    while waiting:
        while read < len(rows) and read < completed + case.look_ahead:
            seq, ord = rows[read]
            progress.expect(seq, ord, matched.index(seq))
            read += 1
        seq, ord = next(row for row in waiting if row in rows[:read])
        waiting.remove((seq, ord))
        kind = case.kinds[seq, ord]
        letters = [letter(seq, ord)] if kind == "nacked" else []
        progress.complete(seq, ord, kind, letters=letters)  # type: ignore[arg-type]
        completed += 1
        if completed % case.flush_every == 0:
            committer.flush(progress)
            still_open = {row[0] for row in waiting}
            assert len(port.confirmed.ranges) <= len(still_open) + progress.waiting + len(case.confirmed) + 2
    progress.finish(len(matched))
    committer.flush(progress)
    return progress


@pytest.mark.proves("C6", "C17", "I8", "I10")
@settings(max_examples=300, deadline=None)
@given(cases())
def test_every_seq_is_confirmed_once_and_a_nack_only_after_its_vote_and_letter(case: Case) -> None:
    # Given a micro-batch of which some records may be confirmed, none of them nacked
    port = FakePort(case.total, list(case.ords))
    port.confirmed = RangeSet.of((s, s) for s in case.confirmed)
    # When its records complete in any order, with flushes in between (the port checks each)
    progress = run(case, port)
    # Then all of it is confirmed, and voted in order: a nack where one of the seq's records was nacked
    assert port.complete
    assert progress.confirmed
    strongest = {}
    for seq in case.ords:
        kinds = {case.kinds[seq, ord] for ord in range(case.ords[seq]) if (seq, ord) in case.kinds}
        strongest[seq] = next((k for k in ("nacked", "completed", "delivered", "filtered") if k in kinds), "before")
    if len(case.confirmed) < case.total:
        assert port.votes == ["n" if strongest[seq] == "nacked" else "a" for seq in case.ords]
    for kind in ("nacked", "completed", "delivered", "filtered"):
        assert getattr(port.counts, kind) == list(strongest.values()).count(kind)
    assert set(port.stored) == {(0, 7, seq, ord) for (seq, ord), kind in case.kinds.items() if kind == "nacked"}


@pytest.mark.proves("C6")
@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(1, 5), st.integers(0, 2))
def test_a_nack_too_many_is_neither_stored_nor_confirmed(case: Case, size: int, threshold: int) -> None:
    # Given a window that may trip
    port = FakePort(case.total, list(case.ords), window=(size, threshold))
    port.confirmed = RangeSet.of((s, s) for s in case.confirmed)
    # When it does, if it does
    try:
        run(case, port)
    except PipelineStopped:
        # Then the nack that was one too many, and every later one, is neither stored nor confirmed
        tripped = port.matched[len(port.votes)]
        assert all(key[2] < tripped for key in port.stored)
        assert tripped not in port.confirmed
        assert port.trip_error == "no"
    else:
        assert port.votes.count("n") <= len(port.votes)


@pytest.mark.proves("I10")
def test_an_outcome_given_twice_or_for_nothing_is_never_tolerated() -> None:
    progress = Progress(0, 9)
    progress.expect(3, 0, 0)
    progress.complete(3, 0, "delivered")
    for seq, ord in ((3, 0), (3, 1), (4, 0)):
        with pytest.raises(InvariantBroken):
            progress.complete(seq, ord, "delivered")
    with pytest.raises(InvariantBroken):
        progress.expect(2, 0, 1)


@pytest.mark.proves("I8")
def test_a_nack_without_its_dead_letter_is_refused() -> None:
    progress = Progress(0, 9)
    progress.expect(3, 0, 0)
    with pytest.raises(InvariantBroken):
        progress.complete(3, 0, "nacked")


@pytest.mark.proves("C6")
def test_acks_cost_no_vote_until_a_nack_or_the_end() -> None:
    # Given three records delivered out of five
    port = FakePort(5, [0, 1, 2, 3, 4])
    progress, committer = Progress(0, 4), Committer(work_of(port), port)
    for seq in range(5):
        progress.expect(seq, 0, seq)
    for seq in (0, 1, 4):
        progress.complete(seq, 0, "delivered")
    # When they are told: the newest may still have derived records to come
    committer.flush(progress)
    assert port.calls == ["confirm"]
    assert port.confirms == [((0, 1),)]
    # And a nack follows behind one that is open
    progress.complete(3, 0, "nacked", letters=[letter(3, 0)])
    committer.flush(progress)
    # Then it waits for its turn, and all votes are given with it
    assert not port.stored
    progress.complete(2, 0, "delivered")
    committer.flush(progress)
    assert port.votes == ["a", "a", "a", "n"]
    progress.finish(5)
    committer.flush(progress)
    assert port.complete


@pytest.mark.proves("C9")
def test_a_nack_is_not_settled_while_it_is_the_newest_that_was_read() -> None:
    progress = Progress(0, 1)
    progress.expect(0, 0, 0)
    progress.complete(0, 0, "nacked", letters=[letter(0, 0)])
    assert not progress.settled_nack(0), "derived records of it may follow, and nothing of it was voted"
    progress.expect(1, 0, 1)
    assert not progress.settled_nack(0)
    progress.end(flush := progress.begin(), None, flush.settled(None).ranges)
    assert progress.settled_nack(0)
