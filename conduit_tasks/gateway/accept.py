"""Acceptance of connections: they are counted and timed from the moment they are accepted, before any TLS.

A server of asyncio tells its protocol of a connection only once the handshake is done: clients that never begin one
would stay without a limit. So connections are accepted and counted here, and then handed to asyncio.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
from collections import Counter
from contextlib import suppress
from typing import Any, cast

import uvicorn

from conduit_tasks.gateway.limits import Limits
from conduit_tasks.gateway.protocol import Bounded, refusal

log = logging.getLogger("conduit.gateway")

OURS = 128
"""File descriptors that are reserved for Redis, journals and files."""
PAUSE = 0.1
"""Seconds until the next try if the machine had no resources to accept a connection."""


class Peers:
    """Number of connections, in all and of each address."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of: Counter[str] = Counter()
        self._all = 0

    def enter(self, peer: str) -> bool:
        """Counts one more connection of this address and returns True, or returns False if a limit is reached."""
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


def network_of(address: str) -> str:
    """Returns the address that a peer counts by: of IPv6 its /64, within which one host has any number of addresses
    (RFC 4291, 2.5.4)."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 4 or found.ipv4_mapped:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False))


class Accepting(uvicorn.Server):
    """uvicorn's server of `bounded` protocols, which accepts connections itself. The timeout of a TLS handshake is that
    of a head."""

    def __init__(self, config: uvicorn.Config, limits: Limits) -> None:
        super().__init__(config)
        self._limits, self._peers = limits, Peers(limits)
        self._accepting: list[asyncio.Task[None]] = []
        self._held: set[asyncio.Task[None]] = set()
        """A task for each connection, until its end."""
        self._coming: set[asyncio.Task[None]] = set()
        """Tasks whose connection has not finished its handshake."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # No sockets for uvicorn: it would accept connections itself.
        await super().startup(sockets=[])
        for listener in sockets or []:
            listener.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listener)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        if self.config.ssl:
            for task in self._coming:
                task.cancel()
        # Without TLS a connection takes a turn or two of the loop. If it was cancelled then, uvicorn would know of it
        # and never of its end, and would wait for it as long as for an answer.
        while self._coming:  # noqa: ASYNC110
            await asyncio.sleep(0)
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
            peer = network_of(address[0])
            if self._peers.enter(peer):
                task = asyncio.create_task(self._hold(connection, peer))
                for tasks in (self._held, self._coming):
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            else:
                self._turn_away(connection)
            # Lets the open connections go on while new ones come.
            await asyncio.sleep(0)

    async def _hold(self, connection: socket.socket, peer: str) -> None:
        """Handles one connection, from its acceptance to its end."""
        loop, secure = asyncio.get_running_loop(), self.config.ssl
        seconds = self._limits.head_timeout
        tls: dict[str, Any] = (
            {"ssl": secure, "ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": seconds} if secure else {}
        )
        kind = cast("type[Bounded]", self.config.http_protocol_class)
        # Made here: with TLS, uvloop returns the protocol of the handshake in place of ours.
        protocol = kind(self.config, self.server_state, self.lifespan.state)
        try:
            await loop.connect_accepted_socket(lambda: protocol, connection, **tls)
            task = asyncio.current_task()
            assert task is not None
            self._coming.discard(task)
            await protocol.ended.wait()
        except OSError:
            # The connection ended before it began, or began without a TLS handshake: there is nobody to answer.
            pass
        finally:
            self._peers.leave(peer)

    def _turn_away(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if not self.config.ssl:
                # With TLS, even a refusal needs the handshake.
                detail = "close some, or send several requests over each"
                connection.send(refusal(503, "Too many connections", detail))
