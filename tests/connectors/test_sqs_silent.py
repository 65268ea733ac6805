"""A server that takes connections and never answers: the sqs destination leaves it, and nothing goes on behind it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from conduit_tasks.connectors import aws
from conduit_tasks.connectors.sqs.destination import SqsDestination
from conduit_tasks.errors import Unavailable
from conduit_tasks.record.record import Origin, Record

PATIENCE = 60.0
"""Seconds; botocore's own attempts take 280."""


class Silent:
    """Takes connections, and keeps them."""

    def __init__(self) -> None:
        self._before = threading.enumerate()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while True:
            try:
                self.taken.append(self._listening.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)
        for each in self.taken:
            each.close()

    def requests(self) -> list[threading.Thread]:
        """Threads that have a request to it under way."""
        found = threading.enumerate()
        return [each for each in found if each.name.startswith("sqs_") and each not in self._before]

    def destination(self, queue: str) -> SqsDestination:
        given = {"queue": queue, "endpoint-url": self.url, "region": "eu-central-1"}
        return SqsDestination({**given, "access-key-id": "testing", "secret-access-key": "a-secret-of-tests"})


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    # The first client of a process reads half a megabyte of descriptions: not within the second that is asked about.
    aws.client("sqs", {"region": "eu-central-1"}).close()
    yield server
    server.close()


def ended(look: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def run(work: Callable[[], Coroutine[Any, Any, str]]) -> str:
    """What came of it, in a loop of its own that this thread does not wait for: one that is blocked is a failure."""
    out: Future[str] = Future()

    def live() -> None:
        try:
            out.set_result(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001 - its caller raises it
            out.set_exception(error)

    threading.Thread(target=live, daemon=True).start()
    assert ended(out.done), "the event loop is blocked"
    return out.result()


@pytest.mark.proves("T5")
def test_a_destination_that_could_not_be_opened_is_closed_at_once(silent: Silent) -> None:
    async def work() -> str:
        destination = silent.destination("orders")
        # Given a queue whose address the server is asked for, and it does not answer
        with pytest.raises(Unavailable) as failed:
            await destination.open(1.0)
        # When it is closed, then the loop goes on
        await destination.close()
        return str(failed.value)

    assert "orders" in run(work)
    # And the request ends soon after
    assert ended(lambda: not silent.requests())


@pytest.mark.proves("T5")
def test_what_was_given_up_is_not_sent_again_behind_the_senders_back(silent: Silent) -> None:
    async def work() -> str:
        destination = silent.destination(f"{silent.url}/1/orders")
        await destination.open(1.0)
        record = Record(b"0", after=b"x")
        record.origin = Origin("p", "in", "")
        # Given a message on its way, which its sender gives up
        with pytest.raises((TimeoutError, Unavailable)):
            await asyncio.wait_for(asyncio.gather(destination.send(record), _gives_up(silent)), 30)
        await destination.close()
        return "closed"

    assert run(work) == "closed"
    # When its request has ended, then it was sent once
    assert ended(lambda: not silent.requests())
    assert len(silent.taken) == 1


async def _gives_up(silent: Silent) -> None:
    while not silent.taken:  # noqa: ASYNC110 - another thread takes it
        await asyncio.sleep(0.01)
    raise TimeoutError
