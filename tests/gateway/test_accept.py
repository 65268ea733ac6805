"""Connections are counted from when they are accepted, before any TLS: bare sockets, a real process."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from conduit_tasks.gateway.accept import network_of
from tests.connectors.tls import Authority
from tests.gateway.conftest import GatewayProcess, write_pipeline
from tests.gateway.test_doors import HEAD, answer, connected
from tests.waiting import until

SOUND = HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The beginning of a TLS handshake."""

Secure = Callable[..., GatewayProcess]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path)
    authority.context("127.0.0.1")
    return authority


@pytest.fixture
def secure(gateway_home: Path, serving: Callable[..., GatewayProcess], authority: Authority, tmp_path: Path) -> Secure:
    """Starts a gateway with TLS and these limits."""
    write_pipeline(gateway_home)
    files = (tmp_path / "127.0.0.1.pem", tmp_path / "127.0.0.1.key")

    def start(**limits: str) -> GatewayProcess:
        named = {f"CONDUIT_GATEWAY_{name.upper()}": value for name, value in limits.items()}
        return serving("--tls-certificate", str(files[0]), "--tls-key", str(files[1]), **named)

    return start


@contextmanager
def within(gateway: GatewayProcess, authority: Authority, peer: str = "127.0.0.1") -> Iterator[ssl.SSLSocket]:
    """A connection whose handshake is done."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    with connected(gateway, peer) as raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as inside:
        yield inside


def asked(gateway: GatewayProcess, authority: Authority, peer: str) -> int:
    """The answer to a sound producer; 0 where its connection ends without one."""
    try:
        with within(gateway, authority, peer) as connection:
            connection.sendall(SOUND)
            return answer(connection)
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        return 0


def ended(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_a_host_with_many_addresses_counts_as_one(one: str, other: str, *, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same


def test_who_never_begins_a_handshake_is_counted_for_its_address_and_in_all(
    secure: Secure, authority: Authority
) -> None:
    gateway = secure(connections_per_peer="10", connections="15", head_timeout="10m")
    with ExitStack() as stack:
        # Given four times as many bare connections of an address as it may have, then the rest are ended at once
        bare = [stack.enter_context(connected(gateway)) for _ in range(40)]
        until(lambda: sum(map(ended, bare)) == 30)
        # And another's producer is taken, this one's is not
        assert (asked(gateway, authority, "127.0.0.1"), asked(gateway, authority, "127.0.0.2")) == (0, 202)
        # And at the bound of all, nobody's is
        others = [stack.enter_context(connected(gateway, "127.0.0.3")) for _ in range(5)]
        assert asked(gateway, authority, "127.0.0.2") == 0
        for connection in (*bare, *others):
            connection.close()
    # Then, once they are gone, there is room again
    until(lambda: (asked(gateway, authority, "127.0.0.1"), asked(gateway, authority, "127.0.0.3")) == (202, 202))
    # And those that are in the middle of a handshake do not keep a stop waiting for theirs
    with connected(gateway) as one, connected(gateway) as other:
        other.sendall(HELLO)
        assert not ended(one)
        assert gateway.stop() == 0


def test_a_connection_is_counted_until_its_end_and_not_only_until_its_handshake(
    secure: Secure, authority: Authority
) -> None:
    gateway = secure(connections_per_peer="3", head_timeout="10m")
    # Given three connections of an address whose handshakes are done, each of which has had an answer
    with ExitStack() as stack:
        open_ = [stack.enter_context(within(gateway, authority)) for _ in range(3)]
        for connection in open_:
            connection.sendall(SOUND.replace(b"connection: close\r\n", b""))
            assert answer(connection) == 202
        # Then there is no fourth, and another address has one
        assert (asked(gateway, authority, "127.0.0.1"), asked(gateway, authority, "127.0.0.2")) == (0, 202)
    # And once they have ended there is room again
    until(lambda: asked(gateway, authority, "127.0.0.1") == 202)
    assert "Traceback" not in gateway.log.read_text()


def test_who_never_ends_a_handshake_or_begins_a_head_after_it_is_ended_in_time(
    secure: Secure, authority: Authority
) -> None:
    gateway = secure(head_timeout="5s")
    with ExitStack() as stack:
        silent = stack.enter_context(connected(gateway))
        half = stack.enter_context(connected(gateway))
        half.sendall(HELLO)
        said_no_more = stack.enter_context(within(gateway, authority))
        nonsense = stack.enter_context(connected(gateway))
        nonsense.sendall(HEAD)
        # Given who sends a byte of a handshake now and then, then that does not give it more time
        slow = stack.enter_context(connected(gateway))
        slow.sendall(HELLO)

        def dripped() -> bool:
            with suppress(BrokenPipeError, ConnectionResetError):
                slow.sendall(b"\0")
                return ended(slow)
            return True

        until(dripped)
        # Then each is ended, the one whose handshake is done with an answer
        until(lambda: all(map(ended, (silent, half, nonsense))))
        assert answer(said_no_more) == 408
    # And nothing of it was a failure of ours
    assert asked(gateway, authority, "127.0.0.1") == 202
    assert "Traceback" not in gateway.log.read_text()


def test_no_more_connections_are_taken_than_there_are_descriptors_for(
    gateway_home: Path, serving: Callable[..., GatewayProcess]
) -> None:
    write_pipeline(gateway_home)
    gateway = serving(CONDUIT_GATEWAY_HEAD_TIMEOUT="10m")
    assert gateway.process is not None
    process = psutil.Process(gateway.process.pid)
    # Given a gateway that may have fewer descriptors than connections
    process.rlimit(psutil.RLIMIT_NOFILE, (256, 256))

    def asked() -> int:
        with connected(gateway) as connection:
            with suppress(ConnectionError):
                connection.sendall(SOUND)
            return answer(connection)

    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connected(gateway))
        # Then it has some left for itself, and tells who comes why it is not taken
        assert asked() == 503
        assert process.num_fds() < 200
    until(lambda: asked() == 202)
