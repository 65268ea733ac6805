"""A stop in the middle of the acceptance of a connection: it ends, whatever was done of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop

from conduit_tasks.gateway.accept import Accepting
from conduit_tasks.gateway.limits import Limits
from conduit_tasks.gateway.protocol import bounded
from tests.connectors.tls import Authority

SECONDS = 60.0


async def app(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


class Slow(asyncio.SelectorEventLoop):
    """A loop that takes more turns than ours to begin with a connection."""

    async def connect_accepted_socket(self, *given: Any, **named: Any) -> Any:
        for _ in range(10):
            await asyncio.sleep(0)
        return await super().connect_accepted_socket(*given, **named)


@pytest.mark.parametrize(
    ("loop", "secure"), [(uvloop.new_event_loop, False), (uvloop.new_event_loop, True), (Slow, False)]
)
@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_a_stop_meets_is_answered_or_ended(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], turns: int, *, secure: bool
) -> None:
    limits = Limits()
    files = dict[str, Any]()
    if secure:
        authority = Authority(tmp_path)
        authority.context("127.0.0.1")
        files = {"ssl_certfile": tmp_path / "127.0.0.1.pem", "ssl_keyfile": tmp_path / "127.0.0.1.key"}
    patience = {"timeout_graceful_shutdown": 30, "timeout_keep_alive": 60}
    config = uvicorn.Config(app, http=bounded(limits), lifespan="off", log_config=None, **patience, **files)
    config.load()
    server = Accepting(config, limits)
    server.lifespan = config.lifespan_class(config)

    async def read(client: socket.socket) -> None:
        """Reads up to the end of the connection."""
        with contextlib.suppress(ConnectionError):
            while await asyncio.get_running_loop().sock_recv(client, 4096):
                pass

    async def ended() -> float:
        """Seconds from the stop until connection and server have ended."""
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
            await server.startup([listener])
            client.connect(listener.getsockname())
            client.sendall(b"\x16\x03\x01\x02\x00" if secure else b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            client.setblocking(False)
            reading = asyncio.create_task(read(client))
            # Given a connection that was accepted so many turns of the loop before
            while not server._held:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            began = time.monotonic()
            async with asyncio.timeout(SECONDS):
                await server.shutdown([listener])
                await reading
            return time.monotonic() - began

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(ended()) < 10
