"""The two ends of signed webhooks, ours both: an `http` destination sends to a `gateway` source that verifies."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_tasks.connectors.http.connector import HttpDestination
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.gateway.event import unpack
from conduit_tasks.topology import Delivery
from tests.delivery.fakes import FakePort, work_of
from tests.gateway.conftest import GatewayProcess, write_pipeline

Serving = Callable[..., GatewayProcess]
Stored = Callable[..., list[bytes]]

NEW, OLD = ("whsec_" + base64.b64encode(text).decode() for text in (b"the new secret of this hook", b"the old secret"))
RETRYING = Delivery(retry=8, backoff_delay=0.001, backoff_policy="constant")


def _length(head: bytes) -> int:
    return next(int(line[15:]) for line in head.splitlines() if line.lower().startswith(b"content-length:"))


async def _cutting(address: tuple[str, int], every: int, work: Callable[[str], None]) -> int:
    """Stands between the two ends and cuts the connection in place of each answer but every `every`-th. Returns the
    number of requests that went through."""
    passed = 0

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal passed
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request = head + await reader.readexactly(_length(head))
                to_reader, to_writer = await asyncio.open_connection(*address)
                to_writer.write(request)
                answer = await to_reader.readuntil(b"\r\n\r\n")
                answer += await to_reader.readexactly(_length(answer))
                to_writer.close()
                passed += 1
                if passed % every:
                    writer.transport.abort()
                    return
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        await asyncio.to_thread(work, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    return passed


@pytest.mark.proves("T5", "T8")
@pytest.mark.parametrize(
    ("durability", "sign"),
    [
        ("redis", {"sign": "standard-webhooks", "sign.secret": NEW}),
        ("spool", {"sign": "standard-webhooks", "sign.secret": NEW}),
        ("redis", {"sign": "hmac", "sign.secret": NEW, "sign.timestamp-header": ""}),
    ],
)
def test_every_record_is_stored_once_although_answers_are_lost(
    gateway_home: Path, serving: Serving, stored: Stored, durability: str, sign: dict[str, str]
) -> None:
    # Given a gateway that refuses replays, and a way on which two answers of three are lost
    write_pipeline(gateway_home, verify=sign["sign"], **{"verify.secret": "env:HOOK"})
    file = gateway_home / "include" / "pipelines" / "p.yaml"
    file.write_text(
        file.read_text().replace("plugin: gateway\n", f"plugin: gateway\n        durability: {durability}\n")
    )
    gateway = serving(HOOK=NEW)
    port = FakePort(20, list(range(20)))
    host, number = gateway.address.split(":")

    def work(url: str) -> None:
        deliver(work_of(port), HttpDestination({"url": f"{url}/ingest/p/web", **sign}), port, RETRYING)

    # When records are delivered, each tried again at once
    passed = asyncio.run(_cutting((host, int(number)), 3, work))
    # Then none became a dead letter, and each is there once, in order
    assert passed >= 60
    assert port.complete
    assert not port.stored
    assert [json.loads(unpack(each)[2] or b"")["seq"] for each in stored()] == list(range(20))


def test_both_ends_rotate_their_secrets_without_a_refused_request(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    write_pipeline(gateway_home, "old", verify="standard-webhooks", **{"verify.secret": "env:OLD"})
    write_pipeline(gateway_home, "both", verify="standard-webhooks", **{"verify.secret": "env:OLD, env:NEW"})
    write_pipeline(gateway_home, "new", verify="standard-webhooks", **{"verify.secret": "env:NEW"})
    gateway = serving(OLD=OLD, NEW=NEW)
    works = [("old", OLD), ("old", f"{NEW},{OLD}"), ("both", OLD), ("both", f"{NEW},{OLD}"), ("both", NEW)]
    works += [("new", f"{NEW},{OLD}"), ("new", NEW)]
    for at, secret in works:
        port = FakePort(1, [0])
        sign = {"sign": "standard-webhooks", "sign.secret": secret}
        deliver(work_of(port), HttpDestination({"url": f"{gateway.url}/ingest/{at}/web", **sign}), port, Delivery())
        assert (port.complete, port.stored) == (True, {}), (at, secret)
    port = FakePort(1, [0])
    sign = {"sign": "standard-webhooks", "sign.secret": OLD}
    deliver(work_of(port), HttpDestination({"url": f"{gateway.url}/ingest/new/web", **sign}), port, Delivery())
    [letter] = port.stored.values()
    assert letter.error_class == "http 401"
    assert "not one of this body by a secret of this source" in letter.error
    assert OLD not in letter.error


@pytest.mark.parametrize("more", [{}, {"prefix": "v1=", "encoding": "base64", "timestamp-header": "X-At"}])
def test_both_ends_rotate_plain_secrets_without_a_refused_request(
    gateway_home: Path, serving: Serving, stored: Stored, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"OLD": "the old, plain one", "NEW": "the new, plain one"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    settings = {f"verify.{name}": value for name, value in more.items()}
    for name, places in (("old", "env:OLD"), ("both", "env:OLD, env:NEW"), ("new", "env:NEW")):
        write_pipeline(gateway_home, name, verify="hmac", **{"verify.secret": places, **settings})
    gateway = serving(**secrets)

    def send(at: str, secret: str, n: int) -> FakePort:
        port = FakePort(n + 1, [n])
        sign = {"sign": "hmac", "sign.secret": secret, "sign.timestamp-header": ""}
        sign |= {f"sign.{name}": value for name, value in more.items()}
        deliver(work_of(port), HttpDestination({"url": f"{gateway.url}/ingest/{at}/web", **sign}), port, Delivery())
        return port

    both = "env:NEW, env:OLD"
    taken = [("old", "env:OLD"), ("old", both), ("both", "env:OLD"), ("both", both), ("both", "env:NEW")]
    taken += [("new", both), ("new", "env:NEW"), ("new", "the new, plain one")]
    for n, (at, secret) in enumerate(taken):
        assert not [each.error for each in send(at, secret, n).stored.values()], (at, secret)
    assert [len(stored(name)) for name in ("old", "both", "new")] == [2, 3, 3]
    [letter] = send("new", "env:OLD", 20).stored.values()
    assert letter.error_class == "http 401"
    assert "plain one" not in letter.error


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm": "sha512", "encoding": "base64", "prefix": "sig=", "header": "X-Hook"},
        {"encoding": "base64"},
    ],
)
def test_the_plain_scheme_has_the_same_settings_at_both_ends(
    gateway_home: Path, serving: Serving, stored: Stored, more: dict[str, str]
) -> None:
    both = {**more, "timestamp-header": "X-At"}
    settings = {f"verify.{name}": value for name, value in both.items()}
    write_pipeline(gateway_home, verify="hmac", **{"verify.secret": "env:HOOK", **settings})
    gateway = serving(HOOK="s, with a comma")
    port = FakePort(5, list(range(5)))
    sign = {"sign": "hmac", "sign.secret": "s, with a comma", **{f"sign.{n}": v for n, v in both.items()}}
    deliver(work_of(port), HttpDestination({"url": f"{gateway.url}/ingest/p/web", **sign}), port, Delivery())
    assert (port.complete, port.stored) == (True, {})
    assert len(stored()) == 5
