"""The HTTP client against servers that answer as they should not, byte for byte."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from conduit_tasks.connectors.http.client import BODY_KEPT, HEAD_LIMIT, Answer, Client
from tests.connectors.tls import NEW_KEY

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"


def asked(serve: Serve, times: int = 1, *, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None) -> list[Answer]:
    """What `times` exchanges one after the other gave, with a server of these manners."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> list[Answer]:
        server = await asyncio.start_server(connection, "127.0.0.1", 0, ssl=tls[0] if tls else None)
        port = server.sockets[0].getsockname()[1]
        host = "localhost" if tls else "127.0.0.1"
        client = Client(host, port, tls[1] if tls else None, guarded=True, timeout=60)
        try:
            return [await asyncio.wait_for(client.exchange(REQUEST), 60) for _ in range(times)]
        finally:
            await client.close()
            server.close()

    return asyncio.run(run())


def answering(*answers: bytes, close: bool = False) -> Serve:
    """One connection: an answer per request, then silence or the end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readexactly(len(REQUEST))
            writer.write(answer)
        if not close:
            await reader.read()

    return serve


def test_one_connection_serves_many_requests_whatever_frames_the_answers() -> None:
    answers = asked(
        answering(
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Slow Down\r\nretry-AFTER: 7\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n",
        ),
        5,
    )

    assert [a.status for a in answers] == [204, 200, 400, 429, 302]
    assert [a.body for a in answers] == [b"", b"hello", b"abcde", b"", b""]
    assert (answers[2].reason, answers[3].retry_after, answers[4].location) == ("Bad Request", "7", "/there")


def test_an_answer_may_end_with_its_connection_and_the_next_request_has_a_new_one() -> None:
    answers = asked(answering(b"HTTP/1.0 500 Oops\r\n\r\n" + b"y" * 1000, close=True), 3)

    assert [(a.status, len(a.body)) for a in answers] == [(500, BODY_KEPT)] * 3


def test_a_server_that_says_close_is_taken_at_its_word() -> None:
    answers = asked(answering(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), 2)

    assert [a.status for a in answers] == [200, 200]


@pytest.mark.parametrize(
    "unasked",
    [b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 500 O", b"HTTP/1.1 103 Hints\r\n\r\n", b"garbage"],
)
def test_an_answer_that_nobody_asked_for_is_not_taken_for_that_of_the_next_request(unasked: bytes) -> None:
    answers = asked(answering(b"HTTP/1.1 200 Fine\r\nContent-Length: 0\r\n\r\n" + unasked, b"never"), 2)

    assert [(a.status, a.reason) for a in answers] == [(200, "Fine")] * 2


def test_an_answer_that_comes_in_single_bytes_is_whole() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST))
        for byte in b"HTTP/1.1 422 Un\r\nContent-Length: 3\r\nX-Y: z\r\n\r\nabc":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    [answer] = asked(serve)

    assert (answer.status, answer.reason, answer.body) == (422, "Un", b"abc")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 1000 + b"\r\nX: " + b"z" * HEAD_LIMIT,
    ],
    ids=["none", "short", "cut chunks", "half a head", "no HTTP", "upgrade", "endless head"],
)
def test_what_is_no_whole_answer_is_an_error_and_sent_once(answer: bytes) -> None:
    requests = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readexactly(len(REQUEST)))
        writer.write(answer)

    with pytest.raises(OSError, match=r"answer"):
        asked(serve)

    assert len(requests) == 1


def test_a_kept_connection_that_the_server_closed_is_not_used_again() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def run() -> list[int]:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve(reader, writer)
            writer.close()

        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        client = Client("127.0.0.1", server.sockets[0].getsockname()[1], None, guarded=True, timeout=60)
        seen = []
        for _ in range(3):
            seen.append((await client.exchange(REQUEST)).status)
            while client._idle and client._idle[0].fresh():  # noqa: ASYNC110 - until its end was noticed
                await asyncio.sleep(0.01)
        await client.close()
        server.close()
        return seen

    assert asyncio.run(run()) == [204, 204, 204]


def test_a_request_given_up_takes_its_connection_along() -> None:
    got = []

    async def run() -> Answer:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.append(await reader.readexactly(len(REQUEST)))
            if len(got) > 1:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        client = Client("127.0.0.1", server.sockets[0].getsockname()[1], None, guarded=True, timeout=60)
        given_up = asyncio.ensure_future(client.exchange(REQUEST))
        while not got:  # noqa: ASYNC110 - the request has come
            await asyncio.sleep(0.01)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        answer = await client.exchange(REQUEST)
        await client.close()
        server.close()
        return answer

    assert asyncio.run(run()).status == 200
    assert len(got) == 2


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of localhost, signed by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", *NEW_KEY, "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_tls_checks_who_answers(certificate: tuple[Path, Path]) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(*certificate)
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    serve = answering(b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n")

    assert [a.status for a in asked(serve, 2, tls=(server, trusting))] == [204, 204]
    with pytest.raises(ssl.SSLCertVerificationError):
        asked(serve, tls=(server, ssl.create_default_context()))


@pytest.mark.proves("C8")
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_closing_ends_whenever_a_connect_was_given_up(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def run() -> None:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        # Given an exchange that is given up at any moment of its connect
        for turns in range(8):
            client = Client("127.0.0.1", server.sockets[0].getsockname()[1], None, guarded=True, timeout=60)
            exchange = asyncio.create_task(client.exchange(REQUEST))
            for _ in range(turns):
                await asyncio.sleep(0)
            exchange.cancel()
            await asyncio.gather(exchange, return_exceptions=True)
            # When the client is closed, then it ends
            async with asyncio.timeout(120):
                await client.close()
        server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
