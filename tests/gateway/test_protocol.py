"""What a connection is told that is too slow while an answer to it is still being made."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from conduit_tasks.gateway.limits import Limits
from conduit_tasks.gateway.protocol import LATE, bounded
from tests.waiting import until

TIMEOUT = 0.3
ANSWER = b"HTTP/1.1 200 OK\r\n"


class App:
    """Answers with 200 when it may; keeps what it was told of each request."""

    def __init__(self) -> None:
        self.may, self.late, self.asked = threading.Event(), list[bool](), threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        while (await receive()).get("more_body"):
            pass
        await asyncio.to_thread(self.may.wait, 60)
        self.late.append(LATE in scope["state"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def app() -> App:
    return App()


Say = Callable[[bytes], socket.socket]


@pytest.fixture
def say(app: App) -> Iterator[Say]:
    """Gives a connection on which this has been said already when the server takes it: what is said is not too late,
    however slow the machine."""
    limits = Limits(head_timeout=TIMEOUT, body_timeout=TIMEOUT)
    config = uvicorn.Config(app, http=bounded(limits), lifespan="off", log_config=None, access_log=False)
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    serving = threading.Thread(target=server.run, args=([listener],))
    with socket.create_connection(listener.getsockname(), 60) as connection:

        def said(data: bytes) -> socket.socket:
            connection.sendall(data)
            serving.start()
            return connection

        yield said
    app.may.set()
    server.should_exit = True
    serving.join(60)


def everything(connection: socket.socket) -> bytes:
    """Up to the end of the connection."""
    said = b""
    while piece := connection.recv(65_536):
        said += piece
    return said


def test_half_a_head_behind_a_request_that_is_being_answered_is_refused_after_the_answer(app: App, say: Say) -> None:
    connection = say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost")
    # Given that the time of a head has passed while the answer is made
    assert app.asked.wait(60)
    connection.settimeout(2 * TIMEOUT)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(60)
    # When it is there, then it comes first
    app.may.set()
    said = everything(connection)
    assert said.startswith(ANSWER)
    assert said.partition(b"{}")[2].startswith(b"HTTP/1.1 408 Too slow\r\n")


def test_the_application_hears_that_a_body_was_too_slow(app: App, say: Say) -> None:
    connection = say(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
    app.may.set()
    assert everything(connection).startswith(b"HTTP/1.1 408 Too slow\r\n")
    connection.close()
    until(lambda: app.late)
    assert app.late == [True]


def test_nonsense_behind_a_request_is_not_told_as_the_answer_to_it(app: App, say: Say) -> None:
    connection = say(b"GET / HTTP/1.1\r\nhost: x\r\n\r\nNONSENSE\r\n\r\n")
    # Given that it is still being answered, then its producer hears nothing, and knows that it knows nothing
    assert everything(connection) == b""
