"""uvicorn's HTTP protocol with limits on what comes before the application sees a request.

uvicorn with httptools keeps a head of any size, for any time, of anybody. Here both are bounded, and how many
connections there are; what is refused is a problem document and the end of its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, cast

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from conduit_tasks.gateway.limits import FIELDS, PIPELINED, Limits

# Whoever sends nonsense does not fill the log.
_QUIET = logging.getLogger("conduit.gateway.http")
_QUIET.setLevel(logging.ERROR)


LATE = "late"
"""In a request's state: its body did not come in time, and its producer was told so."""


class _Refused(Exception):
    """Raised inside the parser's callbacks, which ends the parse; the protocol knows what to say."""


class Bounded(HttpToolsProtocol):
    """One connection. `limits` and `peers` (connections of each address) are set by `bounded`."""

    limits: Limits
    peers: Counter[str]

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.logger = _QUIET
        self._between = True
        """From the end of a message to the end of the next one's head."""
        self._within = False
        """Whether no head ended in what is being parsed, and it is between two messages."""
        self._begun = False
        """Whether a head has begun and not ended."""
        self._fields = self._head = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: tuple[int, str, str] | None = None
        self._peer = ""

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._peer = self.client[0] if self.client else ""
        self.peers[self._peer] += 1
        most = self.limits.connections
        if len(self.connections) > most or self.peers[self._peer] > self.limits.connections_per_peer:
            self._refuse(503, "Too many connections", "close some, or send several requests over each")
            return
        self._wait(self.limits.head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.peers[self._peer] -= 1
        if self.peers[self._peer] <= 0:
            del self.peers[self._peer]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._within = self._between
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._between:
            if self._timer is None:
                self._wait(self.limits.body_timeout)
            return
        if self._within:
            # The whole piece is of a head. Of one that a head began or ended in, it is not known how much is.
            self._head += len(data)
        if self._head > self.limits.head_size:
            self._refuse(*self._too_large())
        elif self._timer is None and (self._begun or self._idle()):
            self._wait(self.limits.head_timeout)

    def _idle(self) -> bool:
        """Whether nobody works on an answer."""
        return self.cycle is None or self.cycle.response_complete

    # The parser's callbacks

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += len(name) + len(value)
        if self._fields > self.limits.head_size or len(self.headers) >= FIELDS:
            self._end(*self._too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._between = self._within = self._begun = False
        self._fields = self._head = 0
        if len(self.pipeline) >= PIPELINED:
            self._end(400, "Too many requests at once", f"wait for answers: {PIPELINED} requests may wait for one")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._between = True
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._between and not self.transport.is_closing():
            # Answered before its body came: that is not waited for without an end.
            self._wait(self.limits.body_timeout)

    # Refusing

    def _too_large(self) -> tuple[int, str, str]:
        most = self.limits.head_size
        return 431, "Head too large", f"the first line and the headers may have {most} bytes and {FIELDS} headers"

    def _end(self, status: int, title: str, detail: str) -> None:
        self._refusal = (status, title, detail)
        raise _Refused

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (400, "Not HTTP", "what came is no HTTP request")))

    def _refuse(self, status: int, title: str, detail: str) -> None:
        self._stop_waiting()
        body = orjson.dumps({"title": title, "status": status, "detail": detail})
        head = f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    # Waiting

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._between and not self._idle():
            # The answer before this head is still being made.
            self._wait(self.limits.head_timeout)
        elif self._between:
            self._refuse(408, "Too slow", f"the head did not arrive within {self.limits.head_timeout:g} s")
        elif self._idle() or self.pipeline:
            self.transport.close()
        else:
            self.scope["state"][LATE] = True
            self._refuse(408, "Too slow", f"the body did not arrive within {self.limits.body_timeout:g} s")


def bounded(limits: Limits) -> type[Bounded]:
    """The protocol of a server with these limits."""
    return cast("type[Bounded]", type("BoundedProtocol", (Bounded,), {"limits": limits, "peers": Counter()}))
