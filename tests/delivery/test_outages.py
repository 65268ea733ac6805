"""A target that is down, told from records that always fail; and how an outage ends (SEMANTICS T6, T7)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from typing import Any

import pytest

from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.delivery.down import Suspects
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import Unavailable
from conduit_tasks.topology import Delivery
from tests.delivery.fakes import FakePort, Target, work_of
from tests.delivery.test_record_wise import BROKEN, BUSY, QUICK, at


@pytest.mark.proves("T7")
def test_with_one_unconfirmed_another_lane_tells_a_failing_record_from_an_outage() -> None:
    # Given one record on its way at a time, two partitions, and a record of one of them that always fails
    port = FakePort(20, list(range(20)))
    target = Target(at({4: BUSY}))
    # When its retries are used up
    deliver(work_of(port, partitions=2), target, port, Delivery(retry=1, **QUICK))
    # Then the other partition shows that the target is up
    assert [letter.seq for letter in port.stored.values()] == [4]
    assert port.complete
    assert target.most_in_flight == 1


@pytest.mark.proves("T7")
@pytest.mark.parametrize("retry", [0, 2])
@pytest.mark.parametrize(("order_by", "in_flight"), [("partition", 1), ("key", 8), ("none", 8)])
def test_a_target_that_is_down_is_waited_for_with_everything_before_confirmed(
    order_by: Any, in_flight: int, retry: int
) -> None:
    # Given a target that goes down after 100 records
    port = FakePort(500, list(range(500)))
    up = [True]
    target = Target(lambda *_: DELIVERED if (up[0] and len(target.taken) < 100) or not up[0] else BUSY)
    work = work_of(port, key=lambda seq: b"%d" % seq)
    # When nothing succeeds through a whole retry cycle
    options = Delivery(order_by=order_by, max_unconfirmed=in_flight, retry=retry, **QUICK)
    with pytest.raises(Unavailable, match="503 Service Unavailable") as raised:
        deliver(work, target, port, options)
    # Then nothing is dead-lettered, what was taken is confirmed, and each record on its way had its whole cycle
    assert raised.value.status == 503
    assert not port.stored
    assert port.confirmed.count == 100
    assert all(target.sends.count(seq) <= 1 + retry for seq in range(500))
    assert target.most_in_flight <= in_flight
    # And when the target is back, delivery goes on with the rest, nothing twice
    up[0] = False
    deliver(work_of(port, key=lambda seq: b"%d" % seq), target, port, options)
    assert sorted(seq for seq, _ in target.taken) == list(range(500))
    assert port.complete


@pytest.mark.proves("T7")
def test_a_single_failing_record_is_not_mistaken_for_an_outage_when_others_get_through() -> None:
    # Given retries so short that nothing else succeeds during the cycle of the failing record, but much after it
    port = FakePort(40, list(range(40)))
    target = Target(at({0: BUSY}))
    target.pause = lambda seq: 0.0 if seq == 0 else 0.02
    work = work_of(port, key=lambda seq: b"%d" % seq)
    # When it is delivered without retries
    deliver(work, target, port, Delivery(order_by="key", max_unconfirmed=4))
    # Then the record is a dead letter, and the rest is delivered
    assert [letter.seq for letter in port.stored.values()] == [0]
    assert port.complete


def outage_of(sends: int, after: int = 0, poison: int = -1, answer: Outcome = BUSY) -> Target:
    """A target that is down for so many sends `after` so many; one record it never takes."""
    number = itertools.count()
    return Target(lambda seq, _: answer if after <= next(number) < after + sends or seq == poison else DELIVERED)


@pytest.mark.proves("T7")
@pytest.mark.parametrize(("retry", "after"), [(0, 0), (1, 0), (3, 0), (1, 10), (3, 10)])
def test_a_record_whose_retries_an_outage_has_used_up_is_tried_again_when_that_is_over(retry: int, after: int) -> None:
    # Given an outage that ends when the retries of two records are used up, and others have one try left
    port = FakePort(40, list(range(40)))
    target = outage_of(8 * retry + 2, after)
    # When the next ones succeed
    report = deliver(work_of(port), target, port, Delivery(order_by="none", max_unconfirmed=8, retry=retry, **QUICK))
    # Then those two are no dead letters
    assert port.stored == {}
    assert sorted(seq for seq, _ in target.taken) == list(range(40))
    assert max(target.sends.count(seq) for seq in range(40)) == retry + 2
    assert report.counts.retried == 8 * retry + 2
    assert port.complete


@pytest.mark.proves("T6", "T7")
def test_what_an_outage_asked_to_wait_for_is_waited_for_when_it_is_over() -> None:
    port = FakePort(40, list(range(40)))
    target = outage_of(2, answer=Outcome("failed", "429 Too Many Requests", 429, 0.3))
    sent: defaultdict[int, list[float]] = defaultdict(list)
    target.on_send = lambda seq: sent[seq].append(time.monotonic())
    deliver(work_of(port), target, port, Delivery(order_by="none", max_unconfirmed=8, **QUICK))
    assert port.stored == {}
    assert [at[1] - at[0] > 0.29 for at in sent.values() if len(at) > 1] == [True, True]


@pytest.mark.proves("T7")
def test_an_outage_under_a_rate_limit_is_seen_by_the_sends_not_by_the_wait_for_them() -> None:
    port = FakePort(40, list(range(40)))
    options = Delivery(order_by="none", max_unconfirmed=8, rate_limit=100.0, **QUICK)
    deliver(work_of(port), outage_of(4, after=12), port, options)
    assert port.stored == {}


@pytest.mark.proves("T7")
def test_a_record_that_fails_also_behind_an_outage_is_a_dead_letter_after_one_more_cycle() -> None:
    port = FakePort(40, list(range(40)))
    target = outage_of(17, poison=0)
    deliver(work_of(port), target, port, Delivery(order_by="none", max_unconfirmed=8, retry=2, **QUICK))
    (letter,) = port.stored.values()
    assert (letter.seq, letter.attempts, target.sends.count(0)) == (0, 6, 6)
    assert port.complete


@pytest.mark.proves("T7")
@pytest.mark.parametrize("answer", [BUSY, BROKEN])
@pytest.mark.parametrize("retry", [0, 2])
def test_a_record_that_always_fails_needs_one_other_that_succeeds_to_be_told_from_an_outage(
    answer: Outcome, retry: int
) -> None:
    # Given one record on its way at a time, and one good record of another lane behind the failing one
    port = FakePort(4, list(range(4)))
    target = outage_of(0, poison=2, answer=answer)
    deliver(work_of(port, partitions=2), target, port, Delivery(retry=retry, **QUICK))
    # Then that shows it, and nothing is sent through a second cycle
    assert [letter.seq for letter in port.stored.values()] == [2]
    assert target.sends.count(2) == 1 + retry
    assert port.complete


@pytest.mark.proves("T7")
def test_records_that_failed_in_an_outage_and_always_fail_do_not_stall_the_delivery_when_nothing_else_is_left() -> None:
    # Given two records that always fail at once, and two others that take longer
    port = FakePort(4, list(range(4)))
    target = Target(lambda seq, _: BUSY if seq < 2 else DELIVERED)
    target.pause = lambda seq: 0.0 if seq < 2 else 0.1
    deliver(work_of(port), target, port, Delivery(order_by="none", max_unconfirmed=4, retry=1, **QUICK))
    assert sorted(letter.seq for letter in port.stored.values()) == [0, 1]
    assert port.complete


@pytest.mark.proves("T7", "B8")
def test_at_most_once_an_outage_that_is_over_sends_nothing_again() -> None:
    port = FakePort(40, list(range(40)))
    target = outage_of(2)
    options = Delivery(order_by="none", max_unconfirmed=8, guarantee="at-most-once", **QUICK)
    deliver(work_of(port), target, port, options)
    assert len(port.stored) == 2
    assert max(target.sends.count(seq) for seq in range(40)) == 1


@pytest.mark.proves("T7")
def test_with_on_unavailable_dead_letter_an_outage_empties_into_the_dead_letters() -> None:
    port = FakePort(30, list(range(30)))
    report = deliver(
        work_of(port), Target(lambda *_: BUSY), port, Delivery(on_unavailable="dead-letter", retry=1, **QUICK)
    )
    assert len(port.stored) == 30
    assert {letter.attempts for letter in port.stored.values()} == {2}
    assert report.counts.nacked == 30
    assert port.complete


@pytest.mark.proves("T7")
@pytest.mark.parametrize(
    ("answer", "first", "last", "again"),
    [
        (BROKEN, 4.0, 6.5, False),  # another record got through while it was tried
        (BROKEN, 5.5, 6.5, True),
        (BUSY, 4.0, 6.5, True),  # its last attempt counts, as the answer is not about the record
        (BUSY, 4.0, 4.5, False),
    ],
)
def test_one_more_cycle_is_for_a_record_beside_which_nothing_got_through(
    answer: Outcome, first: float, last: float, again: bool
) -> None:
    async def verdict() -> bool:
        # Given a success at 5, and two records that fail after it
        suspects = Suspects()
        suspects.succeeded(3.0, 5.0)
        suspects.failed("another", 6.0)
        suspects.failed("this one", 7.0)
        freed = suspects.wait("this one", answer, first, last, 7.0)
        # When the next send succeeds
        suspects.succeeded(8.0, 9.0)
        return freed.result()

    assert asyncio.run(verdict()) is again
