"""Transports of `httpx` that resolve a name once, check what it leads to, and connect to exactly that.

Checking a name and then connecting by it resolves it twice, and its owner may answer differently the second time.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from conduit_tasks.connectors.link_local import check_address
from conduit_tasks.errors import Unavailable

MOST = 8 << 20
"""Bytes of an answer that `ask` and `ask_async` read: of a registry or a token server, none is larger."""


def transport(*, guarded: bool, verify: Any = True) -> httpx.HTTPTransport:
    """`guarded`: refuses link-local and metadata addresses."""
    made = httpx.HTTPTransport(verify=verify, trust_env=False)
    if guarded:
        # httpx has no argument for it.
        made._pool._network_backend = _Guarded()
    return made


def async_transport(*, guarded: bool, verify: Any = True) -> httpx.AsyncHTTPTransport:
    """The same for `httpx.AsyncClient`."""
    made = httpx.AsyncHTTPTransport(verify=verify, trust_env=False)
    if guarded:
        made._pool._network_backend = _AsyncGuarded()
    return made


def ask(client: httpx.Client, method: str, url: str, **what: Any) -> httpx.Response:
    """The answer with its body, of `MOST` bytes at most. Raises Unavailable where it is larger; httpx' errors."""
    with client.stream(method, url, **what) as answer:
        body = b""
        for chunk in answer.iter_bytes():
            body = _more(body, chunk, url)
    return _whole(answer, body)


async def ask_async(client: httpx.AsyncClient, method: str, url: str, **what: Any) -> httpx.Response:
    """The same."""
    async with client.stream(method, url, **what) as answer:
        body = b""
        async for chunk in answer.aiter_bytes():
            body = _more(body, chunk, url)
    return _whole(answer, body)


def _more(body: bytes, chunk: bytes, url: str) -> bytes:
    if len(body) + len(chunk) > MOST:
        raise Unavailable(f"{httpx.URL(url).host or 'the server'} answers with more than {MOST >> 20} MiB")
    return body + chunk


def _whole(answer: httpx.Response, body: bytes) -> httpx.Response:
    answer._content = body  # what `read` would have set
    return answer


def _checked(found: Iterable[Any], host: str) -> list[str]:
    addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
    try:
        for address in addresses:
            check_address(address, host)
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from None
    return addresses


class _Guarded(httpcore.SyncBackend):
    def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> httpcore.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"{host}: {error}") from None
        failure = httpcore.ConnectError(f"{host} has no address")
        for address in _checked(found, host):
            try:
                return super().connect_tcp(address, port, *args, **options)
            except httpcore.ConnectError as error:
                failure = error
        raise failure


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
