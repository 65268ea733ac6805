"""uvicorn's HTTP protocol with limits on everything besides the bodies of requests: heads, trailers, chunk framing.

uvicorn with httptools keeps these for every client, of any size, for any time. Here size and time are limited; a
refusal is a problem document and the end of the connection. `accept` limits the number of connections.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from conduit_tasks.gateway.limits import FIELDS, PIPELINED, Limits

# Clients that send nonsense must not fill the log.
_QUIET = logging.getLogger("conduit.gateway.http")
_QUIET.setLevel(logging.ERROR)


PIECE = 16 << 10
"""Bytes that are parsed at once: if a request ends in a piece, it is not known how much belongs to the next request."""
FRAME = 8
"""Bytes of framing that are allowed for each byte of a body: a chunk of one byte has five, a line of JSON far fewer."""

LATE = "late"
"""Key in a request's state: its body did not come in time, and its producer was told so."""


class _Refused(Exception):
    """Exception in the parser's callbacks that ends the parse; the protocol has the answer in `_refusal`."""


class Bounded(HttpToolsProtocol):
    """One connection. `limits` is set by `bounded`.

    A request may have `head_size` bytes besides its body, and `FRAME` more for each byte of the body. They are counted
    in two ways, neither of which counts too many: the bytes that the parser reports (`_told`), and the received bytes
    less those of bodies (`_beside`), which also counts headers that never become whole.
    """

    limits: Limits

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.logger = _QUIET
        self.ended = asyncio.Event()
        """Event that is set when the connection is lost."""
        self._between = True
        """Whether the parser is between the end of a message and the end of the next one's head."""
        self._begun = False
        """Whether a head has begun and not ended."""
        self._ended_within = False
        """Whether a message ended in the piece that is being parsed."""
        self._fields = self._told = self._beside = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        """Timer of answers that the client does not read, or of a connection that does not end."""
        self._refusal: tuple[int, str, str] | None = None

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._wait(self.limits.head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._was_read()
        super().connection_lost(exc)
        self.ended.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._must_read()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._was_read()

    def shutdown(self) -> None:
        super().shutdown()
        self._must_end()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._must_end()

    def data_received(self, data: bytes) -> None:
        if len(data) <= PIECE:
            self._parse(data)
            return
        for at in range(0, len(data), PIECE):
            if self.transport.is_closing():
                return
            self._parse(data[at : at + PIECE])

    def _parse(self, piece: bytes) -> None:
        self._ended_within = False
        self._beside += len(piece)
        super().data_received(piece)
        if self.transport.is_closing():
            return
        self._beside = 0 if self._ended_within else max(0, self._beside)
        if self._beside > self.limits.head_size:
            self._refuse(*self._too_large())
        elif not self._between:
            if self._timer is None:
                self._wait(self.limits.body_timeout)
        elif self._timer is None and (self._begun or self._idle()):
            self._wait(self.limits.head_timeout)

    def _idle(self) -> bool:
        """Returns whether no answer is being made."""
        return self.cycle is None or self.cycle.response_complete

    # The parser's callbacks

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._told += len(url)
        if self._told > self.limits.head_size:
            self._end(*self._too_large())
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._told += len(name) + len(value)
        if self._fields > FIELDS or self._told > self.limits.head_size:
            self._end(*self._too_large())
        if self._between:
            super().on_header(name, value)
        # Trailers are left out: they come after the token was checked, and are no part of the event.

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._between = self._begun = False
        if len(self.pipeline) >= PIPELINED:
            self._end(400, "Too many requests at once", f"wait for answers: {PIPELINED} requests may wait for one")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside -= len(body) * (1 + FRAME)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._between = self._ended_within = True
        self._fields = self._told = 0
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._must_end()
        if not self._between and not self.transport.is_closing():
            # The request was answered before its body came: the wait for the body needs a limit, too.
            self._wait(self.limits.body_timeout)

    # Refusing

    def _too_large(self) -> tuple[int, str, str]:
        most = f"{self.limits.head_size} bytes and {FIELDS} headers"
        return 431, "Head too large", f"the first line, headers, trailers and what parts chunks may have {most}"

    def _end(self, status: int, title: str, detail: str) -> None:
        self._refusal = (status, title, detail)
        raise _Refused

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (400, "Not HTTP", "what came is no HTTP request")))

    def _refuse(self, status: int, title: str, detail: str) -> None:
        self._stop_waiting()
        if self._idle() if self._between else not (self._idle() or self.pipeline):
            self.transport.write(refusal(status, title, detail))
        # Otherwise the client would take it for the answer to another request: to an earlier one, or, if this one was
        # answered before its body came, to the next one.
        self._close()

    def _close(self) -> None:
        self.transport.close()
        self._must_end()

    # Answers that nobody reads

    def _must_end(self) -> None:
        """A connection that is closed ends when its answers are sent, and so never if its client reads none."""
        if self.transport.is_closing() and not self.ended.is_set():
            self._must_read()

    def _must_read(self) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.answer_timeout, self.transport.abort)

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

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
            self._close()
        else:
            self.scope["state"][LATE] = True
            self._refuse(408, "Too slow", f"the body did not arrive within {self.limits.body_timeout:g} s")


def refusal(status: int, title: str, detail: str) -> bytes:
    """Returns the last answer of a connection."""
    body = orjson.dumps({"title": title, "status": status, "detail": detail})
    head = f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body


def bounded(limits: Limits) -> type[Bounded]:
    """Returns the protocol class of a server with these limits."""
    return cast("type[Bounded]", type("BoundedProtocol", (Bounded,), {"limits": limits}))
