"""A client that does not read its answers: it keeps neither its connection nor their memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import uvicorn

from conduit_tasks.gateway.limits import Limits
from conduit_tasks.gateway.protocol import bounded
from tests.waiting import until

SMALL = 4 << 10
"""Bytes that the machine is to keep for a socket: what it keeps, the gateway does not see."""
LARGE = 8 << 20
"""Bytes of an answer of which most waits in the gateway."""


class Server:
    """A server whose answers have as many bytes as their path says."""

    def __init__(self, answer_timeout: float) -> None:
        idle = max(1, int(answer_timeout))
        limits = Limits(head_timeout=600, body_timeout=600, answer_timeout=answer_timeout)
        config = uvicorn.Config(
            self._answer,
            http=bounded(limits),
            interface="asgi3",
            loop="uvloop",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=idle,
        )
        self.server = uvicorn.Server(config)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        self.serving = threading.Thread(target=self.server.run, args=([self.listener],))
        self.answered = 0

    async def _answer(self, scope: Any, _: Any, send: Any) -> None:
        size = int(scope["path"][1:])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": b"x" * size})
        self.answered += 1

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    @property
    def waiting(self) -> bool:
        """Whether an answer waits for its client to read it."""
        return any(each._unread is not None for each in self.server.server_state.connections)

    def connect(self) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        client.settimeout(30)
        client.connect(self.listener.getsockname())
        return client


@pytest.fixture(params=[0.5])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(request.param)
    made.serving.start()
    yield made
    made.server.should_exit = made.server.force_exit = True
    made.serving.join(60)


def asks(size: int, *headers: str) -> bytes:
    return "\r\n".join([f"GET /{size} HTTP/1.1", "host: x", *headers, "", ""]).encode()


@pytest.mark.parametrize("size", [LARGE, 40_000], ids=["large", "small"])
@pytest.mark.parametrize("headers", [(), ("connection: close",)], ids=["open", "closed"])
def test_a_connection_is_cut_whose_client_does_not_read(server: Server, size: int, headers: tuple[str, ...]) -> None:
    # Given a client that asks and never reads: the answer waits, also where the server has closed the connection
    with server.connect() as client:
        client.sendall(asks(size, *headers))
        until(lambda: server.answered, seconds=30)
        # Then it is cut while the client stays
        until(lambda: not server.connections, seconds=30)


def test_a_client_that_asks_again_and_again_and_never_reads_is_cut(server: Server) -> None:
    with server.connect() as client:
        client.settimeout(1)
        with suppress(OSError):
            while True:
                client.sendall(asks(100) * 10)
        until(lambda: not server.connections, seconds=30)


@pytest.mark.parametrize("server", [600.0], indirect=True)
def test_a_client_that_reads_in_time_gets_all_of_its_answers_and_keeps_its_connection(server: Server) -> None:
    with server.connect() as client:
        client.sendall(asks(LARGE) + asks(5))
        # Given that the answer waits, and the time runs
        until(lambda: server.waiting)
        # When it is read, then the time stands still and the connection is there for the next one
        got = b""
        while not got.endswith(b"\r\n\r\nxxxxx"):
            piece = client.recv(1 << 20)
            assert piece
            got = got[-100:] + piece
        until(lambda: not server.waiting)
        client.sendall(asks(7, "connection: close"))
        while piece := client.recv(1 << 20):
            got = got[-100:] + piece
        assert got.endswith(b"\r\n\r\nxxxxxxx")
    until(lambda: not server.connections)
