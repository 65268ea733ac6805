"""The batch-wise engine against a tape that is cut back to its confirmed state, and a port that checks the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery import batch_wise
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import ConduitError, Fenced, PipelineStopped, Refused, Unavailable
from conduit_tasks.processors.chain import Chain
from conduit_tasks.topology import Delivery, Processor
from tests.delivery.fakes import FakePort, Tape, work_of

QUICK: dict[str, Any] = {"backoff_delay": 0.001, "backoff_policy": "constant"}


def refusing(bad: set[int]) -> Callable[[list[int]], BaseException | None]:
    return lambda seqs: Refused("constraint failed") if bad & set(seqs) else None


@pytest.mark.proves("C17", "C9", "C10")
@settings(max_examples=100, deadline=None)
@given(
    total=st.integers(1, 400),
    every=st.integers(1, 3),
    bad=st.sets(st.integers(0, 399), max_size=8),
    derived=st.sets(st.integers(0, 399), max_size=8),
    confirmed=st.sets(st.integers(0, 399), max_size=30),
    rows_per_batch=st.integers(1, 150),
)
def test_all_but_the_refused_records_are_written_once_in_order(
    total: int, every: int, bad: set[int], derived: set[int], confirmed: set[int], rows_per_batch: int
) -> None:
    # Given a micro-batch with derived records, some seqs confirmed before, some refused by the target
    port = FakePort(total, list(range(0, total, every)))
    port.confirmed = RangeSet.of((s, s) for s in confirmed if s < total)
    left = [s for s in port.matched if s not in confirmed]
    was_complete = port.complete
    tape = Tape(refusing(bad))

    def ords(seq: int) -> int:
        return 3 if seq in derived else 1

    # When it is delivered in chunks
    deliver(work_of(port, ords=ords, rows_per_batch=rows_per_batch), tape, port, Delivery())
    # Then the tape holds all others in order, each once, and the refused ones are dead letters
    assert tape.tape == [(seq, ord) for seq in left if seq not in bad for ord in range(ords(seq))]
    assert {key[2:] for key in port.stored} == {(s, ord) for s in left if s in bad for ord in range(ords(s))}
    assert port.complete
    if not was_complete:
        assert port.votes == ["n" if s in bad and s in left else "a" for s in port.matched]
    assert port.counts.nacked == len(bad & set(left))


@pytest.mark.proves("B8", "C17")
@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(1, 200),
    there=st.sets(st.integers(0, 199), max_size=120),
    bad=st.sets(st.integers(0, 199), max_size=6),
    rows_per_batch=st.integers(1, 100),
)
def test_rows_that_are_there_already_count_as_delivered_and_are_not_written(
    total: int, there: set[int], bad: set[int], rows_per_batch: int
) -> None:
    port = FakePort(total, list(range(total)))
    tape = Tape(refusing(bad))
    work = work_of(port, rows_per_batch=rows_per_batch, there=np.array(sorted(there), np.int64))
    deliver(work, tape, port, Delivery())
    assert tape.tape == [(seq, 0) for seq in range(total) if seq not in bad | there]
    refused = {seq for seq in bad - there if seq < total}
    assert {key[2] for key in port.stored} == refused
    assert port.complete
    assert (port.counts.delivered, port.counts.nacked) == (total - len(refused), len(refused))


@pytest.mark.proves("C17")
def test_a_refused_record_is_found_by_halving() -> None:
    port = FakePort(64, list(range(64)))
    tape = Tape(refusing({17}))
    deliver(work_of(port), tape, port, Delivery())
    assert tape.writes <= 2 * 6 + 1
    (letter,) = port.stored.values()
    assert (letter.seq, letter.error, letter.error_class) == (17, "constraint failed", "refused")


@pytest.mark.proves("C17")
def test_a_chunk_without_processors_is_one_write_and_one_confirm() -> None:
    port = FakePort(640, list(range(640)))
    tape = Tape()
    report = deliver(work_of(port), tape, port, Delivery())
    assert tape.writes == 10
    assert port.calls == ["confirm"] * 9 + ["vote", "confirm"]
    assert (report.counts.delivered, port.state) == (640, {"length": 640})


@pytest.mark.proves("T6", "T9")
def test_a_failed_write_is_undone_and_repeated_by_policy() -> None:
    # Given a target that fails twice in the second chunk, each time leaving something behind
    port = FakePort(128, list(range(128)))
    failures = iter([None, Unavailable("locked"), Unavailable("locked"), None])
    tape = Tape(lambda _: next(failures))
    # When it is delivered with retries
    report = deliver(work_of(port), tape, port, Delivery(retry=2, **QUICK))
    # Then the target was opened with what was confirmed before each repetition, and nothing is there twice
    assert tape.opens == [0, 64, 64]
    assert [seq for seq, _ in tape.tape] == list(range(128))
    assert report.counts.retried == 2 * 64


@pytest.mark.proves("T7", "C10")
def test_a_target_that_is_down_is_waited_for_and_goes_on_from_its_state() -> None:
    # Given a target that goes down after the first chunk
    port = FakePort(200, list(range(200)))
    tape = Tape(lambda seqs: Unavailable("gone") if seqs[0] >= 64 else None)
    # When retries are used up
    with pytest.raises(Unavailable, match="gone"):
        deliver(work_of(port), tape, port, Delivery(retry=1, **QUICK))
    # Then the first chunk is confirmed and nothing is dead-lettered
    assert port.confirmed.ranges == ((0, 63),)
    assert not port.stored
    # And once it is back, the torn rest is cut off and delivery goes on
    tape.judge = lambda _: None
    deliver(work_of(port), tape, port, Delivery())
    assert [seq for seq, _ in tape.tape] == list(range(200))
    assert port.complete


@pytest.mark.proves("T7")
def test_with_on_unavailable_dead_letter_a_chunk_goes_to_the_dead_letters() -> None:
    port = FakePort(100, list(range(100)))
    tape = Tape(lambda seqs: Unavailable("gone", status=503) if seqs[0] < 64 else None)
    deliver(work_of(port), tape, port, Delivery(retry=1, on_unavailable="dead-letter", **QUICK))
    assert [key[2] for key in port.stored] == list(range(64))
    assert {(letter.attempts, letter.error_class) for letter in port.stored.values()} == {(2, "http 503")}
    assert [seq for seq, _ in tape.tape] == list(range(64, 100))
    assert port.complete


@pytest.mark.proves("T7", "C10")
def test_what_a_failed_write_left_is_undone_before_its_records_are_dead_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a target that tells by the confirmed records what to remove, and whose failed writes leave something behind
    port = FakePort(100, list(range(100)))
    tape = Tape(lambda seqs: Unavailable("gone") if seqs[0] < 64 else None)
    tape.tidies = True
    there: list[int] = []
    confirm = port.confirm

    def watched(ranges: Any, counts: Any, **more: Any) -> None:
        there.append(len(tape.tape))
        confirm(ranges, counts, **more)

    monkeypatch.setattr(port, "confirm", watched)
    deliver(work_of(port), tape, port, Delivery(retry=1, on_unavailable="dead-letter", **QUICK))
    # Then nothing of the letters is there when they are confirmed, and of the rest what is
    assert there == [0, 36]


@pytest.mark.proves("T7")
@pytest.mark.parametrize("derived", [1, 3])
def test_the_letters_of_an_outage_are_told_some_at_a_time(monkeypatch: pytest.MonkeyPatch, derived: int) -> None:
    """Given a chunk that becomes dead letters, more than one confirm takes, then each has so many at most, of whole
    records, and together they are all."""
    monkeypatch.setattr(batch_wise, "BURIED", 10)
    port = FakePort(90, list(range(90)))
    told: list[int] = []
    confirm = port.confirm

    def watched(ranges: Any, counts: Any, **more: Any) -> None:
        told.append(len(more.get("dead", ())))
        confirm(ranges, counts, **more)

    monkeypatch.setattr(port, "confirm", watched)
    tape = Tape(lambda _: Unavailable("gone", status=503))
    deliver(work_of(port, ords=lambda _: derived), tape, port, Delivery(retry=1, on_unavailable="dead-letter", **QUICK))
    assert len(port.stored) == 90 * derived
    assert max(told) <= 10
    assert sum(told) == 90 * derived
    assert port.complete
    assert port.counts.nacked == 90


@pytest.mark.proves("C5", "C6", "C9")
def test_a_window_that_trips_stops_before_anything_is_written_past_that_record() -> None:
    port = FakePort(200, list(range(200)), window=(1, 0))
    tape = Tape(refusing({90}))
    with pytest.raises(PipelineStopped, match="constraint failed"):
        deliver(work_of(port), tape, port, Delivery())
    assert port.confirmed.ranges == ((0, 89),)
    assert [seq for seq, _ in tape.tape] == list(range(90))
    assert not port.stored


@pytest.mark.proves("T6")
def test_refused_counts_as_complete_where_the_file_says_so() -> None:
    port = FakePort(100, list(range(100)))
    report = deliver(work_of(port), Tape(refusing({5, 70})), port, Delivery(refused="complete"))
    assert (report.counts.completed, report.counts.delivered, report.counts.nacked) == (2, 98, 0)
    assert not port.stored


@pytest.mark.proves("T7", "C5", "C8")
def test_a_dead_letter_that_cannot_be_stored_stops_the_pipeline_and_confirms_only_what_was_written() -> None:
    port = FakePort(64, list(range(64)))
    port.fail_at = lambda name: ConduitError("disk full") if name == "store" else None
    with pytest.raises(PipelineStopped, match="disk full"):
        deliver(work_of(port), Tape(refusing({20})), port, Delivery())
    assert port.confirmed.ranges == ((0, 19),)
    assert port.failures


@pytest.mark.proves("I4")
def test_a_lost_lease_ends_the_delivery_at_the_next_confirm() -> None:
    port = FakePort(640, list(range(640)))
    port.fail_at = lambda name: Fenced("a newer token exists") if len(port.calls) == 3 else None
    tape = Tape()
    with pytest.raises(Fenced):
        deliver(work_of(port), tape, port, Delivery())
    assert tape.writes == 3


@pytest.mark.proves("C2", "C4", "C6", "C14", "I10")
@pytest.mark.parametrize("record_wise", [False, True])
def test_what_the_destinations_processors_filter_or_fail_is_counted_per_record(record_wise: bool) -> None:
    # Given a destination with processors that filter each fifth record and fail each eleventh
    from tests.delivery.fakes import Target

    chain = Chain(
        [
            Processor("half", "field.set", {"field": ".Metadata.changed", "value": "yes"}),
            Processor("some", "filter", {}, '{{ eq (index .Metadata "drop") "yes" }}'),
            Processor("bad", "error", {"message": "cannot be"}, '{{ eq (index .Metadata "bad") "yes" }}'),
        ]
    )
    port = FakePort(300, list(range(300)))
    work = work_of(port)
    from tests.delivery.marked import with_metadata

    work = with_metadata(
        work, lambda seq: {"drop": "yes" if seq % 5 == 0 else "no", "bad": "yes" if seq % 11 == 0 else "no"}, chain
    )
    dropped = {s for s in range(300) if s % 5 == 0}
    failed = {s for s in range(300) if s % 11 == 0} - dropped
    # When it is delivered
    if record_wise:
        target = Target()
        report = deliver(work, target, port, Delivery())
        got = [seq for seq, _ in target.taken]
    else:
        tape = Tape()
        report = deliver(work, tape, port, Delivery())
        got = [seq for seq, _ in tape.tape]
    # Then the rest arrives, what was filtered counts as that, what failed is a dead letter as it came in
    assert got == [s for s in range(300) if s not in dropped | failed]
    assert report.counts.filtered == len(dropped)
    assert report.counts.nacked == len(failed)
    assert {key[2] for key in port.stored} == failed
    letter = next(iter(port.stored.values()))
    assert (letter.node, letter.error_class) == ("destinations.d/bad", "processor")
    assert "cannot be" in letter.error
    assert letter.record.metadata == {"drop": "no", "bad": "yes"}
    assert port.complete
