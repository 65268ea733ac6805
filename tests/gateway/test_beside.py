"""What comes beside a body is bounded as a head is: trailers, and what parts a body into chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conduit_tasks.gateway.event import unpack
from tests.gateway.conftest import TOKEN, GatewayProcess, write_pipeline
from tests.gateway.test_doors import HEAD, LIMITS, MIB, ROOM, SECRET, answer, answers, connected, pour, resident
from tests.redis_server import RedisServer
from tests.waiting import until

CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
ENDLESS = {
    "trailer": (b"1\r\nx\r\n0\r\nx-long: ", b"x" * MIB),
    "name-of-a-trailer": (b"1\r\nx\r\n0\r\n", b"x" * MIB),
    "trailers": (b"1\r\nx\r\n0\r\n", (b"x-some: " + b"y" * 1_000 + b"\r\n") * 1_000),
    "small-trailers": (b"0\r\n", b"a:b\r\n" * 200_000),
    "extension": (b"1;", b"x" * MIB),
    "value-of-an-extension": (b'1;x="', b"x" * MIB),
    "extensions": (b"", (b"1;" + b"x" * 1_000 + b"\r\n \r\n") * 1_000),
    "size": (b"", b"0" * MIB),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, fsyncing_process: RedisServer) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("beside")
    write_pipeline(home, "p")
    write_pipeline(home, "secret", auth="env:WEB_TOKEN")
    process = GatewayProcess(home, fsyncing_process.url, (), {**LIMITS, "CONDUIT_GATEWAY_BODY_TIMEOUT": "60s"}).start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def gateway(running: GatewayProcess, fsyncing: RedisServer) -> GatewayProcess:
    """A gateway that keeps 8 KiB beside a body, whose Redis is empty."""
    until(lambda: running.request("GET", "/healthz").status == 200)
    return running


@pytest.mark.parametrize("begin", [SECRET, HEAD], ids=["without-a-token", "taken"])
@pytest.mark.parametrize(("body", "piece"), ENDLESS.values(), ids=ENDLESS)
def test_what_comes_beside_a_body_without_an_end_is_refused_before_it_is_kept(
    gateway: GatewayProcess, stored: Callable[..., list[bytes]], begin: bytes, body: bytes, piece: bytes
) -> None:
    before = resident(gateway)
    with connected(gateway) as connection:
        connection.sendall(begin + CHUNKED + body)
        sent = pour(connection, piece, 100 * MIB // len(piece))
        # Then it is cut off early, and nothing of it is kept
        assert sent < 50 * MIB
        assert answer(connection) in ((0, 431) if begin == HEAD else (0, 401, 431))
    assert resident(gateway) - before < ROOM
    assert gateway.post({}, path="/ingest/secret/web", authorization=f"Bearer {TOKEN}").status == 202
    assert stored() == []
    assert "Traceback" not in gateway.log.read_text()


@pytest.mark.parametrize(
    "body",
    [
        b"2\r\n{}\r\n0\r\nx-long: " + b"x" * 9_000 + b"\r\n\r\n",
        b"2\r\n{}\r\n0\r\n" + b"a:b\r\n" * 200 + b"\r\n",
    ],
    ids=["one", "many"],
)
def test_trailers_that_are_too_large_are_answered_and_the_event_is_not_stored(
    gateway: GatewayProcess, stored: Callable[..., list[bytes]], body: bytes
) -> None:
    with connected(gateway) as connection:
        connection.sendall(HEAD + CHUNKED + body)
        assert answers(connection) == [431]
    assert stored() == []


def test_a_request_that_was_answered_is_not_answered_again(gateway: GatewayProcess) -> None:
    with connected(gateway) as connection:
        connection.sendall(SECRET + CHUNKED + b"2\r\n{}\r\n")
        assert answer(connection) == 401
        # When trailers without an end follow, then the connection ends without a word
        pour(connection, b"0\r\nx: " + b"x" * 20_000, 1)
        assert answers(connection) == []


def test_sound_trailers_and_small_chunks_are_taken(gateway: GatewayProcess, stored: Callable[..., list[bytes]]) -> None:
    # Given a body in chunks of one byte: what parts them is five times as much, and more than a head may be
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in b'"' + b"x" * 20_000 + b'"') + b"0\r\n\r\n"
    binary = b"ce-specversion: 1.0\r\nce-id: 1\r\nce-source: /x\r\nce-type: t\r\n"
    trailers = b"2\r\n{}\r\n0\r\nce-late: 1\r\ncontent-type: text/plain\r\n\r\n"
    with connected(gateway) as connection:
        connection.sendall(HEAD + CHUNKED + chunks + HEAD + binary + CHUNKED + trailers + HEAD)
        connection.sendall(b"connection: close\r\ncontent-length: 2\r\n\r\n{}")
        assert answers(connection) == [202, 202, 202]
    # Then trailers, which nobody could check before the body, are no part of the event
    _, second, _ = stored()
    assert not any("late" in name for name in unpack(second)[1])


def test_requests_of_a_connection_are_counted_one_by_one(gateway: GatewayProcess) -> None:
    trailers = HEAD + CHUNKED + b"2\r\n{}\r\n0\r\nx-sum: " + b"y" * 1_000 + b"\r\n\r\n"
    with connected(gateway) as connection, connection.makefile("rb") as said:
        # When together they have more bytes and headers than one may have
        for _ in range(40):
            connection.sendall(trailers)
            assert b" 202 " in said.readline()
            while said.readline().strip():
                pass


def test_trailers_that_come_too_slowly_are_refused(gateway_home: Path, serving: Callable[..., GatewayProcess]) -> None:
    write_pipeline(gateway_home)
    gateway = serving(**{**LIMITS, "CONDUIT_GATEWAY_BODY_TIMEOUT": "2s"})
    begun = (b"0\r\nx-slow: ", b"0\r\n", b"1;x", b"1;x\r\n{\r\n", b"0")
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(gateway)) for _ in begun]
        for connection, body in zip(connections, begun, strict=True):
            connection.sendall(HEAD + CHUNKED + body)
        # When a byte comes now and then, then that does not give them more time
        until(lambda: not sum(pour(connection, b"0", 1) for connection in connections))
        assert all(answer(connection) in (0, 408) for connection in connections)
    assert gateway.post({}).status == 202
