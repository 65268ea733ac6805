"""The record-wise engine against a target in memory and a port that checks the protocol."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.delivery import attempts
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import ConduitError, PipelineStopped, Unavailable
from conduit_tasks.topology import Delivery
from tests.delivery.fakes import FakePort, Target, work_of

QUICK: dict[str, Any] = {"backoff_delay": 0.001, "backoff_policy": "constant"}
BUSY = Outcome("failed", "503 Service Unavailable", 503)
BROKEN = Outcome("failed", "500 Internal Server Error", 500)
NO = Outcome("refused", "400 Bad Request", 400)


def at(seqs: dict[int, Outcome]) -> Callable[[int, int], Outcome]:
    """Always this outcome for these seqs; delivered otherwise."""
    return lambda seq, _: seqs.get(seq, DELIVERED)


@pytest.mark.proves("T4", "C17", "C10")
@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
@pytest.mark.parametrize("max_unconfirmed", [1, 16])
def test_every_matched_record_reaches_the_target_and_is_confirmed(order_by: Any, max_unconfirmed: int) -> None:
    # Given a micro-batch in which every third record does not match, and some are derived
    port = FakePort(3000, [seq for seq in range(3000) if seq % 3])
    work = work_of(port, ords=lambda seq: 1 + (seq % 50 == 1), key=lambda seq: b"%d" % (seq % 7), partitions=4)
    target = Target()
    # When it is delivered
    report = deliver(work, target, port, Delivery(order_by=order_by, max_unconfirmed=max_unconfirmed))
    # Then each record and each derived one is there once, all is confirmed, and nothing stays open
    assert sorted(target.taken) == [(seq, ord) for seq in port.matched for ord in range(1 + (seq % 50 == 1))]
    assert port.complete
    assert port.votes == ["a"] * 2000
    assert (report.counts.matched, report.counts.delivered) == (2000, 2000)
    assert target.most_in_flight <= max_unconfirmed
    assert (target.opened, target.closed) == (1, 1)


@pytest.mark.proves("C9")
@settings(max_examples=25, deadline=None)
@given(
    order_by=st.sampled_from(["partition", "key"]),
    max_unconfirmed=st.integers(1, 20),
    failing=st.sets(st.integers(0, 119), max_size=25),
    refused=st.sets(st.integers(0, 119), max_size=10),
    slow=st.sets(st.integers(0, 119), max_size=25),
    derived=st.sets(st.integers(0, 119), max_size=25),
)
def test_a_lane_is_handed_over_in_order_whatever_fails(
    order_by: Any, max_unconfirmed: int, failing: set[int], refused: set[int], slow: set[int], derived: set[int]
) -> None:
    # Given records of three lanes, some of which fail at first, are refused, take long, or are two
    port = FakePort(120, list(range(120)))
    target = Target(lambda seq, n: NO if seq in refused else BUSY if seq in failing and n < 3 else DELIVERED)
    target.pause = lambda seq: 0.002 if seq in slow else 0.0
    copies = lambda seq: 1 + (seq in derived)  # noqa: E731
    work = work_of(port, ords=copies, key=lambda seq: b"%d" % (seq % 3), partitions=3, rows_per_batch=7)
    settled: dict[int, list[int]] = defaultdict(list)
    target.on_send = lambda seq: settled[seq % 3].append(seq)
    # When they are delivered with retries
    options = Delivery(order_by=order_by, max_unconfirmed=max_unconfirmed, retry=3, **QUICK)
    deliver(work, target, port, options)
    # Then no lane ever goes back, and what was refused is a dead letter
    for sends in settled.values():
        assert sends == sorted(sends)
    assert sorted(key[2:] for key in port.stored) == [(s, o) for s in sorted(refused) for o in range(copies(s))]
    assert port.complete


@pytest.mark.proves("C9", "C6")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("max_unconfirmed", [1, 4])
@pytest.mark.parametrize("rows_per_batch", [1, 100])
def test_what_was_derived_of_a_nacked_record_goes_to_the_dead_letters_with_it(
    max_unconfirmed: int, rows_per_batch: int
) -> None:
    # Given one lane in which each record was made three of, and the second of one is refused
    port = FakePort(5, list(range(5)))
    sent: list[int] = []
    target = Target(lambda seq, n: NO if (seq, n) == (2, 2) else DELIVERED)
    target.on_send = sent.append
    work = work_of(port, ords=lambda _: 3, rows_per_batch=rows_per_batch)
    # When they are delivered
    report = deliver(work, target, port, Delivery(max_unconfirmed=max_unconfirmed))
    # Then the third of it, which must not overtake it, is not sent; all else is, and nothing waits for ever
    assert sent == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4]
    letters = {key[2:]: (letter.error, letter.attempts) for key, letter in port.stored.items()}
    assert letters == {
        (2, 1): ("400 Bad Request", 1),
        (2, 2): ("not sent, as one before it of the same record is a dead letter: 400 Bad Request", 0),
    }
    assert port.votes == ["a", "a", "n", "a", "a"]
    assert (report.counts.delivered, report.counts.nacked) == (4, 1)
    assert port.complete


@pytest.mark.proves("C9", "C6")
def test_nothing_follows_a_nack_in_its_lane_before_its_dead_letter_is_confirmed() -> None:
    # Given one lane, in which the fifth record is refused
    port = FakePort(10, list(range(10)))
    target = Target(at({4: NO}))
    # When the sixth is sent
    seen: list[bool] = []
    target.on_send = lambda seq: seen.append(4 in port.confirmed) if seq == 5 else None
    deliver(work_of(port), target, port, Delivery())
    # Then the nack was voted, stored and confirmed by then
    assert seen == [True]
    assert port.calls.index("store") < port.calls.index("confirm", port.calls.index("store"))


@pytest.mark.proves("C6", "C5")
def test_a_window_that_trips_stops_the_destination_at_that_record() -> None:
    # Given the default window, which tolerates no nack, and one lane
    port = FakePort(2000, list(range(2000)), window=(1, 0))
    target = Target(at({700: NO}))
    # When the record 700 is refused
    with pytest.raises(PipelineStopped, match="400 Bad Request"):
        deliver(work_of(port), target, port, Delivery())
    # Then what came before is confirmed, it is neither stored nor confirmed, and nothing was sent after it
    assert port.confirmed.ranges == ((0, 699),)
    assert not port.stored
    assert max(target.sends) == 700
    assert port.trip_error == "400 Bad Request"


@pytest.mark.proves("T6", "T5", "T9")
def test_a_failed_send_is_repeated_by_policy_while_others_go_on() -> None:
    # Given a record that fails twice among lanes that work
    port = FakePort(100, list(range(100)))
    target = Target(lambda seq, n: BUSY if seq == 3 and n <= 2 else DELIVERED)
    work = work_of(port, key=lambda seq: b"%d" % seq)
    # When it is delivered with retries that take long
    report = deliver(work, target, port, Delivery(order_by="key", max_unconfirmed=8, retry=2, backoff_delay=0.1))
    # Then it is sent three times, the others once, and most of them before its last time
    assert target.sends.count(3) == 3
    assert len(target.sends) == 102
    assert len(target.sends) - target.sends[::-1].index(3) > 60
    assert report.counts.retried == 2
    assert not port.stored


@pytest.mark.proves("T7", "T9")
@pytest.mark.parametrize(("outcome", "total"), [(BROKEN, 25), (BUSY, 2000)])
def test_retries_exhausted_while_others_succeed_make_a_dead_letter(outcome: Outcome, total: int) -> None:
    # Given one record that always fails among others that do not, few or many
    port = FakePort(total, list(range(total)))
    target = Target(at({20: outcome}))
    target.pause = lambda seq: 0.001
    work = work_of(port, key=lambda seq: b"%d" % seq)
    # When it is delivered
    deliver(work, target, port, Delivery(order_by="key", max_unconfirmed=4, retry=2, **QUICK))
    # Then it alone is a dead letter, with what the target said and how often it was tried
    (letter,) = port.stored.values()
    assert (letter.seq, letter.attempts, letter.error_class) == (20, 3, f"http {outcome.status}")
    assert letter.error == outcome.message
    assert letter.node == "destinations.d"
    assert port.complete


@pytest.mark.proves("T6")
def test_refused_counts_as_complete_where_the_file_says_so() -> None:
    port = FakePort(10, list(range(10)), window=(1, 0))
    report = deliver(work_of(port), Target(at({4: NO})), port, Delivery(refused="complete"))
    assert (report.counts.completed, report.counts.delivered, report.counts.nacked) == (1, 9, 0)
    assert not port.stored


@pytest.mark.proves("T6", "T4")
def test_a_refusal_is_never_retried() -> None:
    port = FakePort(10, list(range(10)))
    target = Target(at({4: NO}))
    deliver(work_of(port), target, port, Delivery(retry=5, **QUICK))
    assert target.sends.count(4) == 1
    assert port.stored[0, 7, 4, 0].attempts == 1


@pytest.mark.proves("T5")
def test_a_record_that_is_not_answered_in_time_is_sent_again_and_the_others_are_not() -> None:
    # Given a target that does not answer the first send of one record
    port = FakePort(20, list(range(20)))
    target = Target()
    target.pause = lambda seq: 30.0 if seq == 5 and target.sends.count(5) == 1 else 0.0
    # When its timeout passes
    work = work_of(port, key=lambda seq: b"%d" % seq)
    report = deliver(work, target, port, Delivery(order_by="key", max_unconfirmed=4, timeout=0.5, retry=1, **QUICK))
    # Then it alone is sent again
    assert target.sends.count(5) == 2
    assert len(target.sends) == 21
    assert report.counts.retried == 1


@pytest.mark.proves("T7", "C5", "C8")
def test_a_dead_letter_that_cannot_be_stored_leaves_its_record_unconfirmed_and_stops_the_pipeline() -> None:
    # Given a store that fails
    port = FakePort(10, list(range(10)))
    port.fail_at = lambda name: ConduitError("disk full") if name == "store" else None
    target = Target(at({4: NO}))
    # When a record is refused
    with pytest.raises(PipelineStopped, match="disk full"):
        deliver(work_of(port), target, port, Delivery())
    # Then it is not confirmed, what came before is, and the first error is told
    assert port.confirmed.ranges == ((0, 3),)
    assert "disk full" in port.failures[0][0]
    assert max(target.sends) == 4


def test_a_fault_of_the_connector_ends_the_delivery_with_what_succeeded_confirmed() -> None:
    port = FakePort(50, list(range(50)))
    with pytest.raises(ZeroDivisionError):
        deliver(work_of(port), Target(lambda seq, _: 1 / 0 if seq == 30 else DELIVERED), port, Delivery())  # type: ignore[arg-type,return-value]
    assert port.confirmed.ranges == ((0, 29),)


@pytest.mark.proves("T4", "C10")
@settings(max_examples=20, deadline=None)
@given(st.sets(st.integers(0, 199)), st.sampled_from(["partition", "none"]))
def test_what_is_confirmed_is_not_sent_again(confirmed: set[int], order_by: Any) -> None:
    # Given a micro-batch that an earlier attempt confirmed in part
    port = FakePort(200, [s for s in range(200) if s % 4])
    from conduit_tasks.broker.ranges import RangeSet

    port.confirmed = RangeSet.of((s, s) for s in confirmed)
    target = Target()
    # When the next attempt delivers it
    deliver(work_of(port), target, port, Delivery(order_by=order_by, max_unconfirmed=8))
    # Then only the rest is sent
    assert sorted(target.sends) == [s for s in port.matched if s not in confirmed]
    assert port.complete


def test_an_empty_micro_batch_is_confirmed_without_a_send() -> None:
    port = FakePort(10, [])
    target = Target()
    deliver(work_of(port), target, port, Delivery())
    assert port.complete
    assert not target.sends


@pytest.mark.proves("T5", "C8")
def test_a_target_that_never_opens_is_down_and_one_that_never_closes_keeps_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "CLOSING", 0.05)

    class Stuck(Target):
        async def open(self, timeout: float) -> None:  # noqa: ASYNC109
            await asyncio.Event().wait()

        async def close(self) -> None:
            await asyncio.Event().wait()

    port = FakePort(10, list(range(10)))
    with pytest.raises(Unavailable, match="no connection within"):
        deliver(work_of(port), Stuck(), port, Delivery(timeout=0.05))
    assert not port.confirmed
