"""Pages, tokens and schemas from outside: whatever a server answers is read, or an error of ours, soon and bounded."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.http.oauth2 import PREFIX, ClientCredentials
from conduit_tasks.connectors.http.source import HttpSource
from conduit_tasks.errors import ConduitError, SourceError, Unavailable
from conduit_tasks.processors import registry_client
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import to_records
from tests.fuzz.hostile import BYTES, HANGS, damaged, ending, fuzzed, json_like, near

WAYS = {
    "json": {"cursor.next": "json:next", "cursor.param": "at", "records": "items"},
    "record": {"cursor.next": "record:id", "cursor.param": "after", "id": "id", "key": "key"},
    "header": {"cursor.next": "header:X-Next", "cursor.param": "at"},
    "link": {"cursor.next": "link"},
    "etag": {"cursor.next": "etag"},
}
ITEMS = b'[{"id":"a","key":1},{"id":"b","key":null}]'


EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"


@contextmanager
def saying(*answers: bytes) -> Iterator[str]:
    """A server that gives these bytes in answer to one request after the other, then an empty page; and closes."""
    left = list(answers)
    with serving(lambda peer: peer.sendall(left.pop(0) if left else EMPTY)) as url:
        yield url


@contextmanager
def dripping(head: bytes) -> Iterator[str]:
    """A server that begins its answers, and goes on for ever."""

    def drip(peer: socket.socket) -> None:
        peer.sendall(head)
        for _ in range(2 * HANGS * 10):
            peer.sendall(b"1")
            time.sleep(0.1)

    with serving(drip) as url:
        yield url


@contextmanager
def serving(reply: Callable[[socket.socket], None]) -> Iterator[str]:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(5)
                try:
                    head = b""
                    while b"\r\n\r\n" not in head:
                        head += peer.recv(65_536) or b"\r\n\r\n"
                    reply(peer)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/x?a=1"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(240)


def answer(body: bytes, *heads: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), b"Connection: close", *heads]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def read(url: str, way: str, **more: str) -> int:
    """Records of the pages, planned and read; -1 where the source said why not. What it would store is JSON."""
    settings = {"url": url, "attempts": "1", "timeout": "5s", **WAYS[way], **more}
    source = HttpSource(settings)
    count = 0
    try:
        position: dict[str, Any] = {}
        for _ in range(2):
            for piece in source.plan(position, Limit(records=10)):
                for batch in source.read(piece):
                    count += len(to_records(batch, Origin("p", "in", "")))
                position = {"": orjson.loads(orjson.dumps(source.reached(piece)))}
    except SourceError as error:
        str(error).encode()
        return -1
    finally:
        source.close()
    return count


HEADS = st.lists(
    st.sampled_from(
        [
            b"Content-Encoding: gzip",
            b"Content-Encoding: deflate",
            b"Content-Encoding: br, zstd, gzip, identity",
            b"Content-Encoding: x",
            b"Transfer-Encoding: chunked",
            b"Content-Length: 99999",
            b"Content-Type: text/plain; charset=utf-16",
            b'Link: <//[::1>; rel="next"',
            b'Link: <http://[zz]:99999999/x>; rel="next"',
            b"Link: <?at=\xff\xfe>; rel=next",
            b'Link: <>; rel="next", <mailto:a>; rel=next;;; =',
            b'Link: <javascript:x>; rel="next"',
            b'Link: <?a=1&b=%zz>; rel="next"',
            b'Link: <http://a:b@h:x/>; rel="next"',
            b"ETag: \xff\x00",
            b"ETag: " + "é€".encode(),
            b"Last-Modified: never",
            b"X-Next: " + "é€".encode(),
            b"X-Next: \xff",
            b"X-Next: " + b"n" * 9_000,
            b"Retry-After: 1e308",
            b"Location: http://127.0.0.1:1/",
        ]
    )
    | BYTES.map(lambda b: b"X-Next: " + b.replace(b"\r", b"").replace(b"\n", b"")),
    max_size=3,
)
STATUS = st.sampled_from([b"200 OK"] * 6 + [b"204 No", b"206 Part", b"304 Not", b"302 Found", b"999 ", b"200 \xff"])
PAGES = st.one_of(
    st.sampled_from(
        [
            ITEMS,
            b'{"items":' + ITEMS + b',"next":"x"}',
            b'{"items":' + ITEMS + b',"next":{"a":[1e400,"\\ud800"]}}',
            b'{"items":[1,null,"x",[],{}],"next":1e400}',
            b'[{"id":"\\ud800","key":"\\udfff"}]',
            b'[{"id":{"a":1},"key":[1]},{"id":""}]',
            b'[{"id":123456789012345678901234567890}]',
            b'{"items":{"0":1},"next":"\\u0000\\n"}',
            b"[" * 5_000 + b"]" * 5_000,
            b"null",
            b'{"items":null}',
            b"",
            b"\xff\xfe[\x00]\x00",
            b"\xef\xbb\xbf[]",
            b'[{"id":"a"}]garbage',
        ]
    ),
    json_like().map(lambda v: orjson.dumps(_sound(v))),
    near(['{"items":', "[", "]", "}", '"next":', "1", ",", '{"id":1}', "null"]).map(
        lambda t: t.encode(errors="surrogatepass")
    ),
)


def _sound(value: Any) -> Any:
    """As far as orjson writes it."""
    try:
        orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        return repr(value).encode(errors="replace").decode()
    return value


@pytest.mark.parametrize("way", WAYS)
@fuzzed
@given(body=PAGES, heads=HEADS, status=STATUS, packed=st.sampled_from([bytes, gzip.compress, zlib.compress]))
@example(body=ITEMS, heads=[b"Content-Encoding: gzip"], status=b"200 OK", packed=bytes)
@example(body=ITEMS, heads=[b'Link: <//[::1>; rel="next"'], status=b"200 OK", packed=bytes)
@example(body=ITEMS, heads=[b'Link: <http://[zz]:9/x>; rel="next"'], status=b"200 OK", packed=bytes)
@example(body=b'[{"id":"\\ud800"}]', heads=[b"X-Next: \xff", b"ETag: \xff"], status=b"200 OK", packed=bytes)
def test_a_page_of_anything_is_read_or_the_sources_error(
    way: str, body: bytes, heads: list[bytes], status: bytes, packed: Any
) -> None:
    page = answer(packed(body), *heads, status=status)
    with ending(), saying(page, page) as url:
        read(url, way)


@fuzzed
@given(raw=damaged(st.just(answer(ITEMS, b"ETag: x", b"X-Next: 7"))) | BYTES, way=st.sampled_from(list(WAYS)))
@example(raw=b"", way="link")
@example(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[1,", way="link")
@example(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n[1,", way="link")
@example(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[1]", way="link")
@example(raw=b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000, way="link")
def test_an_answer_that_is_damaged_or_cut_off_is_the_sources_error(raw: bytes, way: str) -> None:
    with ending(), saying(raw, raw, raw, raw) as url:
        read(url, way)


def bomb(kind: str) -> bytes:
    """100 KB or so of a page that is a gigabyte and more."""
    zeros = b"[" + b" " * (64 << 20)
    match kind:
        case "gzip":
            return answer(gzip.compress(zeros) * 20, b"Content-Encoding: gzip")
        case "gzip, gzip":
            return answer(gzip.compress(gzip.compress(zeros) * 1_000), b"Content-Encoding: gzip, gzip")
        case "zstd":
            import zstandard

            packer = zstandard.ZstdCompressor().compressobj()
            packed = b"".join(packer.compress(bytes(16 << 20)) for _ in range(64)) + packer.flush()
            return answer(packed, b"Content-Encoding: zstd")
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["gzip", "gzip, gzip", "zstd"])
def test_a_page_is_unpacked_no_further_than_a_page_may_be_long(kind: str) -> None:
    import resource

    page = bomb(kind)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ending(), saying(page, page) as url:
        assert read(url, "link") == -1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400 << 10, f"{grown >> 10} MiB"


@pytest.mark.parametrize("part", ["head", "body"])
@pytest.mark.parametrize("asking", ["pages", "token", "registry"])
def test_an_answer_that_never_ends_is_given_up_after_the_timeout(
    part: str, asking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a server that sends a byte now and then, as long as somebody listens, then every exchange ends."""
    head = b"HTTP/1.1 200 OK\r\nX: " if part == "head" else b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n["
    monkeypatch.setattr(registry_client, "_PATIENCE", 1.0)

    def ask(url: str) -> None:
        if asking == "pages":
            HttpSource({"url": url, "attempts": "1", "timeout": "1s", **WAYS["link"]}).plan({}, Limit())
        elif asking == "token":
            asyncio.run(credentials(url, 1.0).token())
        else:
            registry_client.ConfluentRegistry({"url": url}).by_id(1)

    with dripping(head) as url, ending(), pytest.raises((SourceError, Unavailable)):
        ask(url)


def credentials(url: str, timeout: float = 5.0) -> ClientCredentials:
    given = {"token-url": url, "client-id": "a", "client-secret": "s3cr3t", "client-authentication": "header"}
    return ClientCredentials({PREFIX + n: v for n, v in given.items()}, guarded=False, timeout=timeout, verify=True)


TOKENS = [
    b'{"access_token":"t","expires_in":3600}',
    b'{"access_token":"t","expires_in":1e400}',
    b'{"access_token":"t","expires_in":' + b"9" * 4_000 + b"}",
    b'{"access_token":"t","expires_in":"' + "²٣".encode() + b'"}',
    b'{"access_token":"t","expires_in":"' + b"9" * 5_000 + b'"}',
    b'{"access_token":"t","expires_in":-5}',
    b'{"access_token":"t","expires_in":true}',
    b'{"access_token":"a\\nb"}',
    b'{"error":{"a":[]}}',
    b'{"error":"\\u001b[2J\\n"}',
    b"[" * 100_000,
    b'{"access_token":1}',
    b"\xff",
    b"null",
]


@pytest.mark.slow
@fuzzed
@given(
    body=st.sampled_from(TOKENS) | damaged(st.just(TOKENS[0])) | BYTES,
    heads=HEADS,
    status=STATUS | st.sampled_from([b"400 No", b"401 No", b"429 No", b"500 No"]),
)
@example(body=TOKENS[1], heads=[], status=b"200 OK")
@example(body=TOKENS[2], heads=[], status=b"200 OK")
@example(body=TOKENS[4], heads=[], status=b"200 OK")
@example(body=TOKENS[10], heads=[], status=b"200 OK")
@example(body=TOKENS[0], heads=[b"Content-Encoding: gzip"], status=b"200 OK")
def test_a_token_server_gives_a_token_or_an_error_of_ours(body: bytes, heads: list[bytes], status: bytes) -> None:
    with ending(), saying(answer(body, *heads, status=status)) as url:
        try:
            said = asyncio.run(credentials(url).token())
        except ConduitError as error:
            said = str(error)
    assert said.isprintable()
    assert "s3cr3t" not in said


@fuzzed
@given(
    body=st.sampled_from([b'{"schema":"\\"long\\""}', b'{"schema":1}', b'{"id":1e400}', b"[" * 100_000, b"\xff", b"[]"])
    | BYTES,
    heads=HEADS,
    status=STATUS | st.sampled_from([b"404 No", b"409 No", b"422 No", b"500 No"]),
)
@example(body=b"<html>", heads=[b"Content-Type: text/plain; charset=utf-16"], status=b"422 No")
def test_a_schema_registry_answers_or_an_error_of_ours_says_why_not(
    body: bytes, heads: list[bytes], status: bytes
) -> None:
    page = answer(body, *heads, status=status)
    with ending(), saying(page, page, page, page, page) as url:
        for ask in (lambda r: r.by_id(1), lambda r: r.by_version("s/\n", 2), lambda r: r.register("s", "{}")):
            registry = registry_client.ConfluentRegistry({"url": url.partition("/x")[0]})
            said = ""
            try:
                ask(registry)
            except ConduitError as error:
                said = str(error)
            finally:
                registry.close()
            assert len(said) < 1_000
