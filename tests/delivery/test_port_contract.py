"""What a DeliveryPort promises, of the one in memory that the engines' tests use and of the broker's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.delivery.broker_port import BrokerPort
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.port import DeliveryPort
from conduit_tasks.errors import PipelineStopped, Refused
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.topology import DeadLetterQueue, Delivery, Destination
from tests.broker.conftest import Feed, letter, make_broker
from tests.delivery.fakes import FakePort, Tape, Target, work_of
from tests.redis_server import RedisServer

TOTAL = 400


@dataclass
class Subject:
    """A port, and what is seen of it from outside; `stop` stops the pipeline by force."""

    port: DeliveryPort
    confirmed: Callable[[], str]
    stop: Callable[[], Any]
    begun: Callable[[], int]
    tolerate: Callable[[], Any]
    """Takes away the limit of the window."""


class Shelf:
    """Takes dead letters."""

    def store(self, letters: Any) -> None:
        pass


def in_memory() -> Subject:
    port = FakePort(TOTAL, list(range(TOTAL)), window=(1, 0))

    def no_limit() -> None:
        port.window = (0, 0)

    return Subject(
        port, lambda: str(port.confirmed), lambda: setattr(port, "stopped", True), lambda: port.begun, no_limit
    )


def in_redis(broker: Broker, *, isolate: bool) -> Subject:
    feed = Feed(broker)
    m = feed.sealed(TOTAL)
    destination = Destination("x", "http", dead_letters=DeadLetterQueue(window_size=1))
    port = BrokerPort(broker, feed.lease("x"), destination, m, "run", Shelf(), isolate=isolate)
    stop = (lambda: broker.lifecycle.halt_destination("x")) if isolate else broker.lifecycle.force_stop

    def no_limit() -> None:
        port._destination = replace(destination, dead_letters=DeadLetterQueue(window_size=0))

    def confirmed() -> str:
        state = broker.deliveries.get("x")
        return f"0-{TOTAL - 1}" if state.cursor >= m else str(state.confirmed)

    return Subject(port, confirmed, stop, lambda: broker.sending.begun("x", m), no_limit)


@pytest.fixture(params=["in memory", "in Redis", "in Redis, isolated"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "in memory":
        yield in_memory()
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    broker = make_broker(server)
    yield in_redis(broker, isolate="isolated" in request.param)
    broker.close()


def acks(count: int) -> Counts:
    return Counts(matched=count, delivered=count)


def nack(seq: int) -> DeadLetter:
    return letter(1, seq)


@pytest.mark.proves("T4", "C16")
def test_what_was_delivered_before_a_stop_is_taken_after_it_and_its_caller_hears_of_the_stop(subject: Subject) -> None:
    # Given a pipeline that is stopped by force while a destination delivers
    port = subject.port
    port.confirm([(0, 4)], acks(5))
    subject.stop()
    # When it tells what was delivered by then, it hears that it must end
    with pytest.raises(PipelineStopped):
        port.confirm([(5, 9)], acks(5))
    # Then its word was taken
    assert subject.confirmed() == "0-9"


@pytest.mark.proves("C16")
def test_nothing_more_may_be_sent_after_a_stop(subject: Subject) -> None:
    port = subject.port
    port.begin_send(500)
    subject.stop()
    for more in (port.renew, lambda: port.begin_send(501)):
        with pytest.raises(PipelineStopped):
            more()
    assert subject.begun() == 500


@pytest.mark.proves("B8", "C16")
def test_what_a_stop_kept_from_being_sent_is_not_given_up(subject: Subject) -> None:
    port = subject.port
    port.begin_send(500)
    subject.stop()
    port.begin_send(7)
    assert subject.begun() == 7


@pytest.mark.proves("C5", "C6", "I8")
def test_a_nack_that_came_before_a_stop_is_voted_stored_and_confirmed(subject: Subject) -> None:
    # Given a stop that came from elsewhere, with a nack on its way that the window would not have tolerated after it
    port = subject.port
    subject.stop()
    # When it is voted on, stored and confirmed
    assert port.vote(0, [("a", 3)]) is None
    port.store_dead([nack(0)])
    with pytest.raises(PipelineStopped):
        port.confirm([(0, 2)], acks(3))
    assert subject.confirmed() == "0-2"


@pytest.mark.proves("C6", "T4")
def test_the_acks_beside_the_nack_that_trips_the_window_are_taken(subject: Subject) -> None:
    # Given the default window, which tolerates no nack
    port = subject.port
    # When a nack trips it
    assert port.vote(0, [("a", 4), ("n", 1)], error="400", error_class="http 400") == 4
    # Then what was delivered before and behind it is confirmed, and no vote is taken any more
    with pytest.raises(PipelineStopped):
        port.confirm([(0, 3), (5, 6)], acks(6))
    assert subject.confirmed() == "0-3,5-6"
    with pytest.raises(PipelineStopped):
        port.vote(5, [("a", 2)])


@pytest.mark.proves("C8")
def test_after_its_own_error_a_destination_still_tells_what_was_delivered(subject: Subject) -> None:
    port = subject.port
    port.fail("the disk is full", "dead-letter-queue")
    with pytest.raises(PipelineStopped):
        port.renew()
    with pytest.raises(PipelineStopped):
        port.confirm([(0, 2)], acks(3))
    assert subject.confirmed() == "0-2"


@pytest.mark.proves("C6", "C10", "T4")
@pytest.mark.parametrize("in_flight", [1, 64])
def test_nothing_that_arrived_before_the_window_tripped_is_sent_again(subject: Subject, in_flight: int) -> None:
    # Given a target that refuses one record, and the default window
    refusing = [True]
    answer = {250: Outcome("refused", "400 Bad Request", 400)}
    target = Target(lambda seq, _: answer.get(seq, DELIVERED) if refusing[0] else DELIVERED)
    target.pause = lambda seq: 0.001
    work = work_of(FakePort(TOTAL, list(range(TOTAL))), key=lambda seq: b"%d" % seq)
    # When it trips
    with pytest.raises(PipelineStopped, match="400 Bad Request"):
        deliver(work, target, subject.port, Delivery(order_by="key", max_unconfirmed=in_flight))
    # Then exactly what arrived is confirmed
    assert subject.confirmed() == str(RangeSet.of((seq, seq) for seq, _ in target.taken))
    assert len(target.taken) >= 250 - in_flight


@pytest.mark.proves("C6", "C10", "C17")
def test_nothing_that_was_written_before_the_window_tripped_is_written_again(subject: Subject) -> None:
    tape = Tape(lambda seqs: Refused("no") if 250 in seqs else None)
    with pytest.raises(PipelineStopped, match="no"):
        deliver(work_of(FakePort(TOTAL, list(range(TOTAL)))), tape, subject.port, Delivery())
    assert subject.confirmed() == "0-249"
    assert [seq for seq, _ in tape.tape] == list(range(250))


@pytest.mark.proves("C16", "T4")
@pytest.mark.parametrize("in_flight", [1, 64])
def test_nothing_that_arrived_before_a_forceful_stop_is_sent_again(subject: Subject, in_flight: int) -> None:
    # Given a delivery under way, when the pipeline is stopped by force
    target = Target()
    target.pause = lambda seq: 0.001
    target.on_send = lambda seq: subject.stop() if seq == 200 else None
    work = work_of(FakePort(TOTAL, list(range(TOTAL))), key=lambda seq: b"%d" % seq)
    with pytest.raises(PipelineStopped):
        deliver(work, target, subject.port, Delivery(order_by="key", max_unconfirmed=in_flight, rate_limit=2000))
    # Then it ends, and exactly what arrived is confirmed
    assert subject.confirmed() == str(RangeSet.of((seq, seq) for seq, _ in target.taken))


@pytest.mark.proves("T7", "C8")
def test_a_dead_letter_that_cannot_be_stored_costs_no_record_that_arrived(subject: Subject) -> None:
    class Full:
        def store(self, letters: Any) -> None:
            raise OSError(28, "No space left on device")

    target = Target(lambda seq, _: Outcome("refused", "400", 400) if seq == 30 else DELIVERED)
    work = work_of(FakePort(TOTAL, list(range(TOTAL))))
    # Given a window that tolerates the nack
    subject.tolerate()
    with pytest.raises(PipelineStopped, match="No space left"):
        deliver(work, target, subject.port, Delivery(), Full())  # type: ignore[arg-type]
    assert subject.confirmed() == "0-29"
