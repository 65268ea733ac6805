"""Sends that take too long: given up in time, told from other cancellations, and ended before the lease."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from conduit_tasks.connectors import batcher
from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.connectors.http import client as http_client
from conduit_tasks.delivery.attempts import CLOSING
from conduit_tasks.delivery.deadlines import Deadlines
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.record import Record
from conduit_tasks.topology import Delivery
from tests.delivery.fakes import FakePort, Target, work_of

TIMEOUT = 0.1


class Deaf(Target):
    """Answers nothing at the first two sends of a record, and takes its cancellation for an answer at the first."""

    async def send(self, record: Record) -> Outcome:
        self.sends.append(int(record.position))
        sent = self.sends.count(int(record.position))
        if sent > 2:
            return DELIVERED
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if sent == 2:
                raise
        return Outcome("failed", "gave up")


class EndingSoon(FakePort):
    """A lease in which a send always just fits, but not the time that it may take to be given up."""

    @property
    def send_until(self) -> float:  # type: ignore[override]
        return time.monotonic() + 0.2

    @send_until.setter
    def send_until(self, _: float) -> None:
        pass


@pytest.mark.proves("T5")
def test_a_send_is_given_up_after_its_timeout_and_its_task_goes_on() -> None:
    async def send() -> tuple[float, bool, int]:
        deadlines = Deadlines(TIMEOUT)
        task = asyncio.current_task()
        assert task is not None
        began = time.monotonic()
        deadlines.begin(task, began)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            given_up = deadlines.end(task)
        took = time.monotonic() - began
        deadlines.stop()
        await asyncio.sleep(0)
        return took, given_up, task.cancelling()

    # When a send takes longer than its timeout
    took, given_up, cancelling = asyncio.run(send())
    # Then it is given up, not before the timeout, and its task is not left cancelled
    assert TIMEOUT <= took < 600
    assert given_up
    assert not cancelling


@pytest.mark.proves("T5")
@pytest.mark.proves("T5")
def test_a_send_that_was_answered_while_our_process_stood_still_is_not_given_up() -> None:
    # Given a target that answers at once, and a process that stands still for longer than the timeout before it reads
    async def send(answers: bool) -> str:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        deadlines = Deadlines(TIMEOUT)

        async def one() -> str:
            task = asyncio.current_task()
            assert task is not None
            deadlines.begin(task, time.monotonic())
            try:
                return (await reader.readline()).decode().strip()
            except asyncio.CancelledError:
                return "given up"
            finally:
                deadlines.end(task)

        sending = asyncio.create_task(one())
        await asyncio.sleep(0)
        if answers:
            theirs.sendall(b"delivered\n")
        time.sleep(TIMEOUT * 2)  # noqa: ASYNC251 - our process stands still
        try:
            async with asyncio.timeout(30):
                return await sending
        finally:
            deadlines.stop()
            writer.close()
            theirs.close()

    # Then the answer counts, and a send without one is given up
    assert asyncio.run(send(answers=True)) == "delivered"
    assert asyncio.run(send(answers=False)) == "given up"


def test_a_loop_that_is_always_late_gives_sends_up() -> None:
    async def send() -> None:
        deadlines = Deadlines(TIMEOUT)

        async def busy() -> None:
            while True:
                time.sleep(TIMEOUT)  # noqa: ASYNC251 - every look is late
                await asyncio.sleep(0)

        async def one() -> bool:
            task = asyncio.current_task()
            assert task is not None
            deadlines.begin(task, time.monotonic())
            try:
                await asyncio.sleep(300)
            except asyncio.CancelledError:
                return deadlines.end(task)
            return False

        other = asyncio.create_task(busy())
        async with asyncio.timeout(30):
            assert await asyncio.create_task(one())
        other.cancel()
        deadlines.stop()

    asyncio.run(send())


def test_a_task_that_is_cancelled_besides_is_not_taken_for_a_send_given_up() -> None:
    async def send() -> bool:
        deadlines = Deadlines(TIMEOUT)
        task = asyncio.current_task()
        assert task is not None
        deadlines.begin(task, time.monotonic())
        try:
            # Busy past the deadline: the timer's cancellation and this one arrive together.
            asyncio.get_running_loop().call_later(TIMEOUT * 2, task.cancel)
            time.sleep(TIMEOUT * 3)  # noqa: ASYNC251 - the loop is to be late
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            given_up = deadlines.end(task)
        deadlines.stop()
        return given_up

    # When the delivery is stopped while a send is given up, then that is no time-out
    assert not asyncio.run(send())


@pytest.mark.proves("T5", "T9")
def test_a_destination_that_swallows_its_cancellation_is_given_up_again_the_next_time() -> None:
    # Given records of which two sends each are not answered
    port = FakePort(4, list(range(4)))
    target = Deaf()
    options = Delivery(max_unconfirmed=2, order_by="none", timeout=TIMEOUT, retry=2, backoff_delay=0.001)
    # When they are delivered
    report = deliver(work_of(port), target, port, options)
    # Then every send was given up in its turn
    assert port.complete
    assert report.counts.retried == 8


@pytest.mark.proves("T5", "T9")
def test_a_send_that_cancels_itself_is_a_failure_that_may_recover() -> None:
    # Given a connector that awaits something cancelled, once
    port = FakePort(4, list(range(4)))
    target = Target(lambda seq, n: asyncio.CancelledError() if (seq, n) == (1, 1) else DELIVERED)
    # When its record is delivered
    report = deliver(work_of(port), target, port, Delivery(retry=1, backoff_delay=0.001))
    # Then it is sent again
    assert port.complete
    assert report.counts.retried == 1


@pytest.mark.proves("C13", "C10")
def test_no_send_begins_that_could_outlast_the_lease_before_it_is_given_up() -> None:
    port = EndingSoon(10, list(range(10)))
    target = Target()
    # When delivery would begin
    with pytest.raises(ConfigError, match=r"delivery\.timeout"):
        deliver(work_of(port), target, port, Delivery(timeout=30.0))
    # Then nothing is sent
    assert not target.sends


def test_a_connectors_own_limit_of_its_end_is_within_that_of_the_delivery() -> None:
    # Otherwise its close would be cut off, and senders would never hear what became of their records
    assert max(batcher.ENDING, http_client.ENDING) < CLOSING
