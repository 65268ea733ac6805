"""Transports of `httpx` that resolve a name once, check its addresses, and connect to exactly those; and answers of a
bounded size, within a bounded time.

Checking a name and then connecting by it resolves it twice, and its owner may answer differently the second time.
`httpx` itself has a timeout for each read, but none for all of them, and unpacks a piece of an answer whole, however
large it gets.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

from conduit_tasks.connectors.http.link_local import check_address
from conduit_tasks.errors import Unavailable

MOST = 8 << 20
"""Default limit of an unpacked answer, in bytes; no answer of a registry or a token server is larger."""
ENCODING = {"Accept-Encoding": "gzip"}
"""Header of every request: the encoding that is unpacked here."""
_ends: ContextVar[float] = ContextVar("ends", default=math.inf)
"""Time (of the monotonic clock) at which the current exchange must be over."""


def transport(*, guarded: bool, verify: Any = True) -> httpx.HTTPTransport:
    """Returns a transport for `httpx.Client`. `guarded`: refuses link-local and metadata addresses."""
    made = httpx.HTTPTransport(verify=verify, trust_env=False)
    # httpx has no argument for it.
    made._pool._network_backend = _Limiting(guarded)
    return made


def async_transport(*, guarded: bool, verify: Any = True) -> httpx.AsyncHTTPTransport:
    """Returns the same for `httpx.AsyncClient`."""
    made = httpx.AsyncHTTPTransport(verify=verify, trust_env=False)
    if guarded:
        made._pool._network_backend = _AsyncGuarded()
    return made


def ask(
    client: httpx.Client, method: str, url: str, *, within: float, most: int | None = None, **what: Any
) -> httpx.Response:
    """Returns the answer with its body, of `most` bytes at most, after `within` seconds at most; the client must have a
    `transport` of ours. Raises Unavailable if the body is larger; httpx' errors if there is no answer, or if it cannot
    be unpacked."""
    with _until(within), client.stream(method, url, **_asking(what)) as answer:
        body = _Body(answer, most or MOST)
        for chunk in answer.iter_raw():
            body.add(chunk)
    return body.whole()


async def ask_async(
    client: httpx.AsyncClient, method: str, url: str, *, within: float, most: int | None = None, **what: Any
) -> httpx.Response:
    """Does the same as `ask`, with any transport."""
    try:
        async with asyncio.timeout(within), client.stream(method, url, **_asking(what)) as answer:
            body = _Body(answer, most or MOST)
            async for chunk in answer.aiter_raw():
                body.add(chunk)
    except TimeoutError:
        raise httpx.ReadTimeout(f"not answered within {within:g} s") from None
    return body.whole()


def _asking(what: dict[str, Any]) -> dict[str, Any]:
    return {**what, "headers": {**ENCODING, **(what.get("headers") or {})}}


@contextmanager
def _until(within: float) -> Iterator[None]:
    token = _ends.set(time.monotonic() + within)
    try:
        yield
    finally:
        _ends.reset(token)


class _Body:
    """Body of an answer, unpacked only up to its limit."""

    def __init__(self, answer: httpx.Response, most: int) -> None:
        self._answer, self._most = answer, most
        self._kept = bytearray()
        encoding = answer.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise httpx.DecodingError(f"the answer is encoded as {encoding[:60]!r}, for which it was not asked")
        self._packed = encoding.endswith("gzip")
        self._member: Any = None

    def add(self, data: bytes) -> None:
        while data and self._packed:
            if self._member is None:
                self._member = zlib.decompressobj(wbits=31)
            try:
                self._keep(self._member.decompress(data, self._most + 1 - len(self._kept)))
            except zlib.error as error:
                raise httpx.DecodingError(f"the answer is no gzip: {error}") from None
            data = self._member.unused_data
            if self._member.eof:
                self._member = None
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > self._most:
            raise Unavailable(
                f"{self._answer.request.url.host or 'the server'} answers with more than {self._most >> 20} MiB"
            )

    def whole(self) -> httpx.Response:
        if self._member is not None:
            raise httpx.DecodingError("the answer is cut off: its gzip has no end")
        self._answer._content = bytes(self._kept)  # what `read` would have set
        return self._answer


def _checked(found: Iterable[Any], host: str) -> list[str]:
    addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
    try:
        for address in addresses:
            check_address(address, host)
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from None
    return addresses


def _left(timeout: float | None) -> float | None:
    """Returns the seconds that one step of the current exchange may take. Raises ReadTimeout if none are left."""
    left = _ends.get() - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the answer takes too long")
    return timeout if math.isinf(left) else left if timeout is None else min(timeout, left)


class _Limiting(httpcore.SyncBackend):
    def __init__(self, guarded: bool) -> None:
        self._guarded = guarded

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
    ) -> httpcore.NetworkStream:
        addresses = [host]
        if self._guarded:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                raise httpcore.ConnectError(f"{host}: {error}") from None
            addresses = _checked(found, host)
        failure = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return _Limited(super().connect_tcp(address, port, _left(timeout), *args, **options))
            except httpcore.ConnectError as error:
                failure = error
        raise failure


class _Limited(httpcore.NetworkStream):
    """A connection whose exchange has a deadline."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self.close, self.get_extra_info = stream.close, stream.get_extra_info  # type: ignore[method-assign]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(timeout))

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Any:
        return _Limited(self._stream.start_tls(ssl_context, server_hostname, _left(timeout)))


class _AsyncGuarded(httpcore.AnyIOBackend):
    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"{host}: {error}") from None
        failure = httpcore.ConnectError(f"{host} has no address")
        for address in _checked(found, host):
            try:
                return await super().connect_tcp(address, port, *args, **options)
            except httpcore.ConnectError as error:
                failure = error
        raise failure
