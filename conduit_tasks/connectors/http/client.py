"""A lean HTTP/1.1 client for one origin: kept connections, one request at a time on each, nothing sent twice.

Made for many small requests: an answer is parsed by `httptools` (llhttp) as it arrives, and a request is one write.
Why not one of the general clients: docs/adr/0006-http-client.md. It follows no redirects, keeps no cookies, asks for no
compression, and never repeats a request by itself: the caller decides whether the target may have accepted it.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import cast

import httptools

from conduit_tasks.connectors.http.link_local import check_address
from conduit_tasks.connectors.signatures import TAKEN

BODY_KEPT = 200
"""Bytes of an answer's body that are kept by default, to be quoted."""
HEAD_LIMIT = 64 * 1024
"""Limit of the head of an answer, in bytes."""
ENDING = 1.0
"""Seconds that aborted connections are given to end; none of them is used again."""
_TAKEN = TAKEN.lower().encode()
IDLE = 60.0
"""Seconds after which an unused connection is not used again."""


@dataclass(slots=True)
class Answer:
    """An answer. `body`: its first bytes, as many as are kept; the rest are its headers of these names, None if
    missing."""

    status: int = 0
    reason: str = ""
    body: bytearray = field(default_factory=bytearray)
    location: str | None = None
    retry_after: str | None = None
    content_encoding: str | None = None
    taken: str | None = None
    """Header by which a gateway says that it has this signed request already (`signatures.TAKEN`)."""


class BadAnswer(OSError):
    """Error: the data received is no HTTP answer."""


class Client:
    """Connections to one origin, as many as there are concurrent requests. Use it in one event loop; then `close`.

    `timeout`: seconds for connecting. `kept`: bytes of an answer's body that are kept; what follows is dropped.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        *,
        guarded: bool,
        timeout: float | None,
        kept: int = BODY_KEPT,
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._guarded, self._timeout, self._kept = guarded, timeout, kept
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def exchange(self, request: bytes, *, bodiless: bool = False) -> Answer:
        """Sends a whole request, head and body, and waits for its answer. `bodiless`: the answer ends with its head,
        whatever that says, as one to HEAD does; its connection is not used again.

        Raises OSError: no connection, a name that does not resolve or leads to a forbidden address, TLS that fails, a
        connection lost before the answer was complete. Aborts the connection if it is cancelled.
        """
        connection = self._free() or await self._connect()
        try:
            answer = await connection.ask(request, bodiless=bodiless)
        except BaseException:
            connection.abort()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.abort()
        return answer

    def _free(self) -> _Connection | None:
        # The connection used last: the others may grow old and are dropped.
        while self._idle:
            connection = self._idle.pop()
            if connection.fresh():
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout):
            found = await loop.getaddrinfo(self._host, self._port, type=1)
            if self._guarded:
                for *_, where in found:
                    check_address(str(where[0]), self._host)
            failure: OSError = OSError(f"{self._host} has no address")
            for *_, where in found:
                try:
                    _, protocol = await loop.create_connection(
                        lambda: _Connection(self._all, self._kept),
                        str(where[0]),
                        self._port,
                        ssl=self._tls,
                        server_hostname=self._host if self._tls else None,
                    )
                except OSError as error:
                    failure = error
                else:
                    return protocol
            raise failure

    async def close(self) -> None:
        """Ends all connections and waits for it, `ENDING` seconds at most: uvloop never calls `connection_lost` of one
        whose connect was cancelled right after `connection_made`."""
        ended = [connection.ended for connection in self._all]
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
        self._all.clear()
        if ended:
            await asyncio.wait(ended, timeout=ENDING)


class _Connection(asyncio.Protocol):
    """One connection, for one request at a time."""

    def __init__(self, of: set[_Connection], kept: int) -> None:
        self._of, self._kept = of, kept
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._asked: asyncio.Future[Answer] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._used = self._loop.time()
        self.reusable = False

    # -- the caller's side ----------------------------------------------------------------------------------------

    def ask(self, request: bytes, *, bodiless: bool) -> asyncio.Future[Answer]:
        """Writes the request; returns a future of its answer."""
        self._answer, self._head, self._framed, self._bodiless = Answer(), 0, False, bodiless
        self._in_body = self.reusable = False
        # llhttp keeps its state between answers of one connection.
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self._asked = self._loop.create_future()
        if self.ended.done():
            self._asked.set_exception(ConnectionResetError("the connection was closed"))
        else:
            self._transport.write(request)
        return self._asked

    def fresh(self) -> bool:
        """Returns whether it may be used again."""
        return not self.ended.done() and self._loop.time() - self._used < IDLE

    def abort(self) -> None:
        """Ends it at once."""
        self.reusable = False
        self._transport.abort()

    # -- the transport's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not have asyncio's type.
        self._transport = cast(asyncio.Transport, transport)
        self._of.add(self)

    def data_received(self, data: bytes) -> None:
        if self._asked is None or self._asked.done() or self._parser is None:
            self.abort()  # nobody asked
            return
        if not self._in_body:
            self._head += len(data)
            if self._head > HEAD_LIMIT and b"\r\n\r\n" not in data:
                self._fail(BadAnswer(f"the head of the answer is longer than {HEAD_LIMIT} bytes"))
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(BadAnswer("the answer switches protocols"))
        except httptools.HttpParserError as error:
            self._fail(BadAnswer(f"not an HTTP answer: {error}"))

    def eof_received(self) -> None:
        return None  # the transport closes itself

    def connection_lost(self, error: Exception | None) -> None:
        self._of.discard(self)
        self.ended.set_result(None)
        self.reusable = False
        if self._asked is None or self._asked.done():
            return
        if error is None and self._in_body and not self._framed:
            self._asked.set_result(self._answer)  # the body ends with the connection (RFC 9112, 6.3)
            return
        self._asked.set_exception(ConnectionResetError("the connection was lost before the answer was complete"))

    def _fail(self, error: OSError) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(error)
        self.abort()

    # -- the parser's side ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._asked is None or self._asked.done():
            # Nobody asked for this answer: it would be taken for that of the next request.
            self._answer, self.reusable = Answer(), False

    def on_status(self, reason: bytes) -> None:
        self._answer.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        elif name == b"retry-after":
            self._answer.retry_after = value.decode("latin-1")
        elif name == b"location":
            self._answer.location = value.decode("latin-1")
        elif name == b"content-encoding":
            self._answer.content_encoding = value.decode("latin-1")
        elif name == _TAKEN:
            self._answer.taken = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._answer.status = self._parser.get_status_code()
        self._in_body = self._answer.status >= 200
        if self._in_body and self._bodiless and self._asked is not None and not self._asked.done():
            self._asked.set_result(self._answer)

    def on_body(self, body: bytes) -> None:
        if len(self._answer.body) < self._kept:
            self._answer.body += body[: self._kept - len(self._answer.body)]

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._answer.status < 200:
            self._answer, self._framed = Answer(), False  # 100 Continue, 103 Early Hints: the answer follows
            return
        if self._asked is None or self._asked.done():
            return
        self._used = self._loop.time()
        self.reusable = self._parser.should_keep_alive()
        self._asked.set_result(self._answer)
