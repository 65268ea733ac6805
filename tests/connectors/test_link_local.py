"""Link-local and metadata addresses: every way to write them, and names that change where they lead."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from conduit_tasks.connectors.http import guard as http_guard
from conduit_tasks.connectors.http import oauth2 as http_oauth2
from conduit_tasks.connectors.http.client import Client
from conduit_tasks.connectors.http.link_local import forbidden
from conduit_tasks.errors import ConduitError, SourceError, Unavailable
from conduit_tasks.processors.registry_client import open_registry
from tests.processors.answering import answering
from tests.processors.conftest import record, run, step

NAME = "changes.test"


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "fe80::1%eth0",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd00:42::42",
        "fd20:ce::254",
        "fd00:a9fe:a9fe::1",
        "fd00:c1::a9fe:a9fe",
        "fd00:100::100:200",
        "FD20:00CE:0::254",
        "::ffff:169.254.169.254",
        "::ffff:168.63.129.16",
        "::169.254.169.254",
        "::ffff:0:169.254.169.254",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::169.254.169.254",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:a9:fe:a9fe::",
        "64:ff9b:1:7:a9:fea9:fe00:0",
        "2002:a9fe:a9fe::1",
        "2002:a83f:8110::",
        "2001:0:a9fe:a9fe::1",
        "2001:0:102:304:0:0:5601:5601",
        "2001:db8::5efe:169.254.169.254",
        "2001:db8::200:5efe:192.0.0.192",
    ],
)
def test_every_form_of_a_link_local_or_metadata_address_is_known(address: str) -> None:
    assert forbidden(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "192.0.0.193",
        "fd00:ec2::1",
        "::1",
        "::ffff:10.0.0.1",
        "64:ff9b::10.0.0.1",
        "2002:a00:1::1",
        "2001:db8::1",
        "example.org",
    ],
)
def test_other_addresses_are_allowed(address: str) -> None:
    assert not forbidden(address)


@pytest.fixture
def leads(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], list[str]]:
    """Has `changes.test` lead to one address after the other, the last one for good; the list is what is left."""
    real = socket.getaddrinfo

    def install(addresses: list[str]) -> list[str]:
        left = list(addresses)

        def resolve(host: Any, *args: Any, **options: Any) -> Any:
            name = host.decode() if isinstance(host, bytes) else host
            if name != NAME:
                return real(host, *args, **options)
            return real(left.pop(0) if len(left) > 1 else left[0], *args, **options)

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        return left

    return install


async def _token(url: str, guarded: bool = True) -> str:
    settings = {
        "auth.oauth2.token-url": url,
        "auth.oauth2.client-id": "i",
        "auth.oauth2.client-secret": "s",
        "auth.oauth2.client-authentication": "header",
    }
    return await http_oauth2.ClientCredentials(settings, guarded=guarded, timeout=2, verify=True).token()


def ask_for_a_token(url: str) -> None:
    asyncio.run(_token(url))


def ask_the_registry(url: str) -> None:
    registry = open_registry({"url": url})
    try:
        registry.by_id(1)
    finally:
        registry.close()


def ask_by_httpx(url: str) -> None:
    with httpx.Client(transport=http_guard.transport(guarded=True), trust_env=False) as client:
        try:
            client.get(url)
        except httpx.TransportError as error:
            raise SourceError(str(error)) from None


def ask_by_a_processor(url: str) -> None:
    error = run(record({}), step("webhook.http", **{"request.url": url, "timeout": "2s"})).error
    if error:
        raise SourceError(error)


@pytest.mark.parametrize("ask", [ask_for_a_token, ask_the_registry, ask_by_httpx, ask_by_a_processor])
def test_a_name_that_leads_to_such_an_address_is_refused_when_it_is_connected_to(
    leads: Callable[[list[str]], list[str]], ask: Callable[[str], None]
) -> None:
    leads(["127.0.0.9"])
    with pytest.raises(ConduitError) as reached:
        ask(f"http://{NAME}:9/x")
    assert "link-local" not in str(reached.value)
    leads(["169.254.169.254"])
    with pytest.raises(ConduitError, match="link-local"):
        ask(f"http://{NAME}:9/x")


def ask_by_a_processor(url: str) -> None:
    error = run(record({}), step("webhook.http", **{"request.url": url, "timeout": "2s"})).error
    if error:
        raise SourceError(error)


@pytest.mark.parametrize("ask", [ask_for_a_token, ask_the_registry, ask_by_httpx, ask_by_a_processor])
def test_what_was_checked_is_what_is_connected_to(
    leads: Callable[[list[str]], list[str]], ask: Callable[[str], None]
) -> None:
    # Given a name that leads to a server of ours first, and elsewhere when it is asked for again
    with answering(lambda asked: (404, {})) as server:
        port = server.url.rpartition(":")[2]
        left = leads(["127.0.0.1", "127.0.0.2", "127.0.0.3"])
        with suppress(ConduitError):
            ask(f"http://{NAME}:{port}/x")
        # Then it was asked for once, and the first answer used
        assert server.asked
        assert left == ["127.0.0.2", "127.0.0.3"]


def test_the_destinations_client_refuses_such_a_name(leads: Callable[[list[str]], list[str]]) -> None:
    async def ask() -> None:
        client = Client(NAME, 9, None, guarded=True, timeout=2)
        try:
            await client.exchange(b"GET / HTTP/1.1\r\n\r\n")
        finally:
            await client.close()

    leads(["2002:a9fe:a9fe::1"])
    with pytest.raises(OSError, match="link-local"):
        asyncio.run(ask())


@pytest.mark.parametrize("ask", [ask_for_a_token, ask_the_registry])
def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch, ask: Callable[[str], None]) -> None:
    monkeypatch.setattr(http_guard, "MOST", 1_000)
    with answering(lambda asked: (200, b" " * 2_000)) as server, pytest.raises(Unavailable, match="more than"):
        ask(server.url)


@pytest.mark.parametrize("said", [b"", b"[]", b"{", b'{"schema": 1}', b"\xff", b'"x"'])
def test_a_registry_that_answers_something_else_is_an_error_of_ours(said: bytes) -> None:
    with answering(lambda asked: (200, said)) as server, pytest.raises(Unavailable, match="schema registry"):
        ask_the_registry(server.url)
