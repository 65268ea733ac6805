"""The schema registry behind TLS: whom its client trusts, and by which certificate it is known."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_tasks.errors import ConfigError, Unavailable
from conduit_tasks.processors.registry_client import open_registry
from tests.answering import answering
from tests.connectors.tls import Authority, Door

CA, CERT, KEY = "tls.ca.cert", "tls.client.cert", "tls.client.key"


@pytest.fixture
def given(home: Path) -> Iterator[dict[str, str]]:
    """The options for a registry that takes clients of its authority only, by files in the home folder."""
    authority = Authority(home)
    context = authority.context("127.0.0.1")
    context.load_verify_locations(authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with answering(lambda *_: (200, b'{"schema": "\\"long\\""}')) as url:
        door = Door(context, ("127.0.0.1", int(url.rstrip("/").rsplit(":", 1)[1])))
        yield {"url": f"https://127.0.0.1:{door.port}", CA: "ca.pem", CERT: "127.0.0.1.pem", KEY: "127.0.0.1.key"}
        door.close()


def schema(settings: dict[str, str]) -> str:
    registry = open_registry(settings)
    try:
        return registry.by_id(1)
    finally:
        registry.close()


def test_it_trusts_an_authority_of_ours_and_is_known_by_its_certificate(given: dict[str, str]) -> None:
    assert schema(given) == '"long"'


@pytest.mark.parametrize("missing", [(CA,), (CERT, KEY)])
def test_neither_side_takes_one_that_it_does_not_know(given: dict[str, str], missing: tuple[str, ...]) -> None:
    with pytest.raises(Unavailable, match="the schema registry does not answer"):
        schema({name: value for name, value in given.items() if name not in missing})


def test_a_certificate_that_cannot_be_read_is_an_error_of_the_options(given: dict[str, str]) -> None:
    for name in (CA, CERT):
        with pytest.raises(ConfigError, match=r"tls\.ca\.cert, tls\.client\.cert or tls\.client\.key cannot be read"):
            schema({**given, name: "elsewhere.pem"})
