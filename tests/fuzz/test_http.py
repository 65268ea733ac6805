"""HTTP from outside: answers of servers, byte for byte, in pieces, cut off."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from conduit_tasks.connectors.http.client import BODY_KEPT, Answer, Client
from conduit_tasks.connectors.http.outcome import outcome_of_answer, seconds_of
from tests.fuzz.hostile import BYTES, TEXT, damaged, ending, fuzzed, near

REQUEST = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nffffffffff\r\nde\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Slow\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: \xff\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    b"HTTP/9.9 999 \r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2_000_000,
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"z" * 300_000,
]


async def exchanged(answers: list[tuple[bytes, int]]) -> list[Answer | OSError]:
    """What one client makes of these answers, each sent in so many pieces; every connection ends behind its answer."""
    left = list(answers)

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(len(REQUEST))
            data, pieces = left.pop(0)
            size = max(1, len(data) // pieces)
            for at in range(0, len(data), size):
                writer.write(data[at : at + size])
                await asyncio.sleep(0)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    client = Client("127.0.0.1", server.sockets[0].getsockname()[1], None, guarded=True, timeout=60)
    out: list[Answer | OSError] = []
    try:
        for _ in answers:
            try:
                out.append(await asyncio.wait_for(client.exchange(REQUEST), 120))
            except OSError as error:
                out.append(error)
    finally:
        await asyncio.wait_for(client.close(), 120)
        server.close()
    return out


@fuzzed
@given(
    answers=st.lists(st.tuples(damaged(st.sampled_from(ANSWERS)) | BYTES, st.integers(1, 9)), min_size=1, max_size=3)
)
@example(answers=[(answer, 3) for answer in ANSWERS])
def test_an_answer_is_one_or_an_error_and_never_large(answers: list[tuple[bytes, int]]) -> None:
    with ending():
        for found in asyncio.run(exchanged([*answers, (ANSWERS[0], 1)])):
            if isinstance(found, TimeoutError):
                raise AssertionError("an exchange did not end") from found
            if isinstance(found, Answer):
                assert len(found.body) <= BODY_KEPT
                outcome: Any = outcome_of_answer(found)
                assert len(outcome.message or "") < 100_000


@fuzzed
@given(
    text=TEXT
    | near(["Sun, ", "06 Nov ", "1994 ", "99999", "08:49:37 ", "GMT", "+9999", "-", "9" * 400, "1e9", "٣", "²"])
)
@example(text="9" * 5_000)
@example(text="²")
@example(text="Mon, 01 Jan 0001 00:00:00 +2359")
def test_retry_after_is_seconds_or_nothing(text: str) -> None:
    found = seconds_of(text)
    assert found is None or found >= 0
