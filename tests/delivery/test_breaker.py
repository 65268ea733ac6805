"""`delivery.breaker`: after failures in a row nothing is sent for a pause that grows, and then one record, once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from conduit_tasks.broker.breakers import BreakerState
from conduit_tasks.broker.broker import Broker
from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.delivery.breaker import Breaker
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import Fenced, Refused, Unavailable
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.settings import Settings
from conduit_tasks.topology import Breaker as Options
from conduit_tasks.topology import Delivery
from tests.delivery.fakes import FakePort, Tape, Target, work_of
from tests.delivery.test_record_wise import BUSY, NO, QUICK, at
from tests.redis_server import RedisServer

LONG = Options(failures=4, pause=3.6e6, pause_max=1e7)
DEAD: dict[str, Any] = {"on_unavailable": "dead-letter"}


class Endpoint:
    """One destination `d` with its breaker in a real Redis, delivered to again and again."""

    def __init__(self, broker: Broker, options: Delivery) -> None:
        self.broker, self.options = broker, options
        self.lease = broker.leases.acquire("destinations.d", "t")

    def deliver(self, target: Any, port: FakePort, **more: Any) -> str:
        """Delivers what is left; returns why it ended early, "" if it did not."""
        assert self.options.breaker is not None
        book = self.broker.breakers.book("d", self.lease.token, self.options.breaker)
        breaker = Breaker(self.options.breaker, self.options, book)
        try:
            deliver(work_of(port, **more), target, port, self.options, breaker=breaker)
        except Unavailable as error:
            return str(error)
        return ""

    @property
    def state(self) -> BreakerState | None:
        return self.broker.breakers.get("d", self.options.breaker)

    @property
    def pause(self) -> float:
        """The pause that is left, in 100,000 s: however slow the test is."""
        assert self.state is not None
        return round(self.state.left / 1e5)


@pytest.fixture
def endpoint(redis_server: RedisServer) -> Iterator[Callable[..., Endpoint]]:
    client = connect(Settings(redis_url=redis_server.url))
    yield lambda **more: Endpoint(Broker("p", client), Delivery(**{"breaker": LONG, "retry": 5, **QUICK, **more}))
    client.close()


def down_after(answers: int) -> tuple[Target, list[bool]]:
    """A target that takes so many records and is down then, until the flag is False."""
    down = [True]
    target = Target(lambda *_: BUSY if down[0] and len(target.taken) >= answers else DELIVERED)
    return target, down


@pytest.mark.proves("T7", "C9")
@pytest.mark.parametrize("more", [{}, {"order_by": "key", "max_unconfirmed": 8}, DEAD])
def test_after_failures_in_a_row_one_record_is_tried_once_per_pause_that_grows(
    endpoint: Callable[..., Endpoint], more: dict[str, Any]
) -> None:
    # Given a target that goes down after 100 of 300 records
    there, port = endpoint(**more), FakePort(300, list(range(300)))
    target, down = down_after(100)
    keys: dict[str, Any] = {"key": lambda seq: b"%d" % (seq % 40)}
    # When it is delivered to
    said = there.deliver(target, port, **keys)
    # Then the fourth failure ends it: what was taken is confirmed, nothing is a dead letter, and it says what is next
    assert "503 Service Unavailable" in said
    assert "sends in a row failed" in said
    assert re.search(r"one record is tried in 3[56]\d{5} s", said)
    assert len(target.sends) - 100 <= 4 + more.get("max_unconfirmed", 1)
    assert port.confirmed.count == 100
    # When it is tried again while it is down, then by one record and once, and the pause doubles to its limit
    for pause in (72, 100, 100):
        before = len(target.sends)
        assert there.deliver(target, port, **keys)
        assert len(target.sends) == before + 1
        assert there.pause == pause
    assert not port.stored
    # When it is back, then one record goes first and the rest after it, in order, and nothing is left of the failures
    down[0] = False
    target.most_in_flight = 0
    assert there.deliver(target, port, **keys) == ""
    assert there.state is None
    assert sorted(seq for seq, _ in target.taken) == list(range(300))
    for lane in range(40):
        mine = [seq for seq, _ in target.taken if seq % 40 == lane]
        assert mine == sorted(mine)
    assert port.complete
    assert not port.stored


@pytest.mark.proves("T7")
def test_nothing_is_sent_beside_the_probe(endpoint: Callable[..., Endpoint]) -> None:
    there, port = endpoint(order_by="none", max_unconfirmed=8), FakePort(50, list(range(50)))
    target, down = down_after(0)
    there.deliver(target, port)
    down[0] = False
    before, beside = len(target.sends), []
    target.pause = lambda seq: 0.05
    target.on_send = lambda seq: beside.append((len(target.taken), target.in_flight))
    assert there.deliver(target, port) == ""
    assert beside[0] == (0, 0)
    assert all(taken for taken, _ in beside[1:])
    assert target.most_in_flight > 1
    assert len(target.sends) == before + 50


@pytest.mark.proves("T6")
def test_failures_count_over_deliveries_and_an_answer_begins_anew_also_a_refusal(
    endpoint: Callable[..., Endpoint],
) -> None:
    there = endpoint(retry=0)
    target = Target(lambda *_: BUSY)
    # Given three deliveries, each of which ends with the failure of one record
    port = FakePort(5, list(range(5)))
    for failures in (1, 2, 3):
        assert there.deliver(target, port)
        assert there.state is not None
        assert (there.state.failures, there.state.opened) == (failures, 0)
    # When a record is refused, then the target has answered
    target.answer = at({0: NO, 1: BUSY})
    assert there.deliver(target, port)
    assert there.state is not None
    assert (there.state.failures, there.state.opened) == (1, 0)
    # And the fourth in a row opens it
    for opened in (0, 0, 1):
        there.deliver(target, port)
        assert there.state.opened == opened
    assert there.pause == 36


@pytest.mark.proves("T7")
def test_failures_at_the_end_of_a_delivery_that_went_well_count_too(endpoint: Callable[..., Endpoint]) -> None:
    """Each micro-batch has one record, which becomes a dead letter: T7 to the letter, until the breaker opens."""
    there, target, letters = endpoint(retry=0, **DEAD), Target(lambda *_: BUSY), 0
    for _ in range(4):
        port = FakePort(1, [0])
        said = there.deliver(target, port)
        letters += len(port.stored)
    assert (letters, bool(said)) == (3, True)
    port = FakePort(1, [0])
    # The probe's record has been tried as often as it may be, once
    assert there.deliver(target, port) == ""
    assert len(port.stored) == 1
    assert there.pause == 72


@pytest.mark.proves("T7", "C10")
def test_a_record_that_always_fails_is_a_dead_letter_as_ever_when_others_get_through(
    endpoint: Callable[..., Endpoint],
) -> None:
    there, port = endpoint(order_by="key", max_unconfirmed=8, retry=1), FakePort(200, list(range(200)))
    target = Target(at({20: BUSY}))
    assert there.deliver(target, port, key=lambda seq: b"%d" % seq) == ""
    assert [letter.seq for letter in port.stored.values()] == [20]
    assert port.complete


@pytest.mark.proves("T7")
@pytest.mark.parametrize("batch", [False, True])
def test_with_dead_letter_an_outage_costs_the_record_in_front_after_as_many_probes_as_it_may_have(
    endpoint: Callable[..., Endpoint], batch: bool
) -> None:
    there, port = endpoint(retry=2, breaker=replace(LONG, failures=3), **DEAD), FakePort(100, list(range(100)))
    down = [True]
    target: Any = Target(lambda *_: BUSY if down[0] else DELIVERED)
    if batch:
        target = Tape(lambda _: Unavailable("down", status=503) if down[0] else None)
    # When the breaker opened, and the target stays down through seven probes
    for probes in range(8):
        assert there.deliver(target, port)
        # Then a record has used up its retries by the third, and each further one by two more
        assert [letter.seq for letter in port.stored.values()] == list(range(max(0, (probes - 1) // 2)))
    # And everything else arrives, in order
    down[0] = False
    assert there.deliver(target, port) == ""
    taken = target.tape if batch else target.taken
    assert [seq for seq, _ in taken] == list(range(3, 100))
    assert port.complete
    assert there.state is None


@pytest.mark.proves("T7", "C17")
def test_a_destination_that_writes_batches_is_probed_by_a_batch_of_one_record(
    endpoint: Callable[..., Endpoint],
) -> None:
    there, port = endpoint(), FakePort(500, list(range(500)))
    down, sizes = [True], []

    def judge(seqs: list[int]) -> BaseException | None:
        sizes.append(len(seqs))
        return Unavailable("no connection") if down[0] and min(seqs) >= 128 else None

    tape = Tape(judge)
    assert "no connection" in there.deliver(tape, port, ords=lambda seq: 2 if seq == 128 else 1)
    assert port.confirmed.count in (127, 128)
    for pause in (72, 100):
        sizes.clear()
        assert there.deliver(tape, port, ords=lambda seq: 2 if seq == 128 else 1)
        assert (len(sizes), sizes[0] <= 2, there.pause) == (1, True, pause)
    down[0] = False
    sizes.clear()
    assert there.deliver(tape, port, ords=lambda seq: 2 if seq == 128 else 1) == ""
    assert sizes[0] <= 2
    assert max(sizes[1:]) == 64
    assert [seq for seq, _ in tape.tape] == sorted([*range(500), 128])
    assert port.complete
    assert there.state is None


@pytest.mark.proves("T6")
def test_a_batch_that_is_refused_is_an_answer(endpoint: Callable[..., Endpoint]) -> None:
    there, port = endpoint(retry=0), FakePort(10, list(range(10)))
    answers: Iterator[BaseException | None] = iter([Unavailable("no"), Refused("not this"), Unavailable("no")])
    assert there.deliver(Tape(lambda _: next(answers, None)), port)
    assert there.deliver(Tape(lambda _: next(answers, None)), port)
    assert there.state is not None
    assert there.state.failures == 1


@pytest.mark.proves("T6")
def test_a_longer_retry_after_is_the_pause_up_to_its_limit(endpoint: Callable[..., Endpoint]) -> None:
    for asked, pause in ((6e6, 60), (9e9, 100)):
        there = endpoint(breaker=Options(failures=1, pause=1.0, pause_max=5.0, asked_max=1e7))
        target = Target(lambda *_, asked=asked: Outcome("failed", "503", 503, retry_after=asked))
        assert there.deliver(target, FakePort(2, [0, 1]))
        assert there.pause == pause
        there.broker.breakers.untrip("d", there.lease.token)
        there.lease.release()


@pytest.mark.proves("I4", "I5")
def test_a_call_that_is_repeated_counts_once_and_an_old_lease_changes_nothing(
    endpoint: Callable[..., Endpoint],
) -> None:
    there = endpoint()
    trip: dict[str, Any] = {"failures": 2, "fresh": False, "probe": False, "tried": 0, "retry_after": 0.0}
    for id, failures in (("a", 2), ("a", 2), ("b", 4), ("b", 4)):
        there.broker.breakers.trip("d", there.lease.token, id, LONG, error="no", **trip)
        assert there.state is not None
        assert there.state.failures == failures
    assert there.state is not None
    before = there.state
    assert before.opened == 1
    old = there.lease.token
    there.lease.release()
    there.broker.leases.acquire("destinations.d", "other")
    for call in (
        lambda: there.broker.breakers.trip("d", old, "c", LONG, error="no", **trip),
        lambda: there.broker.breakers.untrip("d", old),
    ):
        with pytest.raises(Fenced):
            call()
    assert replace(there.state, left=before.left) == before


def test_what_is_kept_is_small_and_a_clock_that_went_back_does_not_keep_it_open_for_ever(
    endpoint: Callable[..., Endpoint],
) -> None:
    there = endpoint()
    target = Target(lambda *_: Outcome("failed", "x" * 100_000, 503))
    for _ in range(20):
        there.deliver(target, FakePort(2, [0, 1]))
    key = there.broker.keys.destination("d")
    kept = there.broker.access.hash(key)["breaker"]
    assert len(kept) < 1_000
    # Given a server whose clock was a year ahead when it opened
    far = json.loads(kept) | {"until": str(int(json.loads(kept)["until"]) + 365 * 86_400 * 10**6)}
    there.broker.redis.hset(key, "breaker", json.dumps(far))
    assert there.state is not None
    assert there.state.left == LONG.pause_max
