"""Connections are counted and timed from the moment on in which they are accepted, before any TLS.

A server of asyncio tells its protocol of a connection once its handshake is done: whoever never begins one would be
there without a limit. So connections are accepted here, and are asyncio's after they were counted.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any, cast

import uvicorn

from conduit_tasks.gateway.limits import Limits
from conduit_tasks.gateway.protocol import Bounded, refusal

log = logging.getLogger("conduit.gateway")

OURS = 128
"""Descriptors that are left to Redis, journals and files."""
PAUSE = 0.1
"""Seconds until the next try where the machine had nothing to accept a connection with."""


class Peers:
    """How many connections there are, in all and of each address."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of: Counter[str] = Counter()
        self._all = 0

    def enter(self, peer: str) -> bool:
        """Whether there is room for one more of this address; it is counted then."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = self._limits.connections
        if files != resource.RLIM_INFINITY:
            most = min(most, max(1, files - OURS))
        if self._all >= most or self._of[peer] >= self._limits.connections_per_peer:
            return False
        self._of[peer] += 1
        self._all += 1
        return True

    def leave(self, peer: str) -> None:
        self._of[peer] -= 1
        self._all -= 1
        if self._of[peer] <= 0:
            del self._of[peer]


class Accepting(uvicorn.Server):
    """uvicorn's server of `bounded` protocols, which accepts by itself. A handshake has as long as a head."""

    def __init__(self, config: uvicorn.Config, limits: Limits) -> None:
        super().__init__(config)
        self._limits, self._peers = limits, Peers(limits)
        self._accepting: list[asyncio.Task[None]] = []
        self._held: set[asyncio.Task[None]] = set()
        """A task for each connection, until its end."""
        self._coming: set[asyncio.Task[None]] = set()
        """Those of them whose handshake is not done."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn listens at none: it would accept.
        await super().startup(sockets=[])
        for listener in sockets or []:
            listener.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listener)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in (*self._accepting, *self._coming):
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets=sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop, able = asyncio.get_running_loop(), True
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                if able:
                    log.warning("connections wait to be accepted: %s", error)
                able = False
                await asyncio.sleep(PAUSE)
                continue
            able = True
            if self._peers.enter(address[0]):
                task = asyncio.create_task(self._hold(connection, address[0]))
                for tasks in (self._held, self._coming):
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            else:
                self._turn_away(connection)
            # Those who are here go on while others come.
            await asyncio.sleep(0)

    async def _hold(self, connection: socket.socket, peer: str) -> None:
        """One connection, from being accepted to its end."""
        loop, secure = asyncio.get_running_loop(), self.config.ssl
        seconds = self._limits.head_timeout
        tls: dict[str, Any] = (
            {"ssl": secure, "ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": seconds} if secure else {}
        )
        kind = cast("type[Bounded]", self.config.http_protocol_class)
        make = partial(kind, self.config, self.server_state, self.lifespan.state)
        try:
            _, protocol = await loop.connect_accepted_socket(make, connection, **tls)
            task = asyncio.current_task()
            assert task is not None
            self._coming.discard(task)
            await protocol.ended.wait()
        except OSError:
            # It ended before it began, or what it began was no handshake: nobody is there to be told.
            pass
        finally:
            self._peers.leave(peer)

    def _turn_away(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if not self.config.ssl:
                # With TLS, even to say no takes the handshake.
                detail = "close some, or send several requests over each"
                connection.send(refusal(503, "Too many connections", detail))
