"""What a hostile producer can do to a gateway and to the other pipelines' producers: raw sockets, a real process."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_tasks.gateway.pipe import LANES
from conduit_tasks.redis_client.connection import Client
from tests.fuzz.hostile import damaged, fuzzed
from tests.gateway.conftest import TOKEN, GatewayProcess, event, write_pipeline
from tests.redis_server import RedisServer
from tests.waiting import until

Stored = Callable[..., list[bytes]]

LIMITS = {
    "CONDUIT_GATEWAY_HEAD_SIZE": "8KiB",
    "CONDUIT_GATEWAY_HEAD_TIMEOUT": "5s",
    "CONDUIT_GATEWAY_BODY_TIMEOUT": "6s",
    "CONDUIT_GATEWAY_MEMORY": "12MiB",
    "CONDUIT_GATEWAY_CONNECTIONS": "150",
    "CONDUIT_GATEWAY_CONNECTIONS_PER_PEER": "100",
}
PIPELINES: dict[str, dict[str, str]] = {
    "p": {},
    "q": {},
    "secret": {"auth": "env:WEB_TOKEN"},
    "slow": {"rate-limit": "1/m"},
    "three": {"rate-limit": "3/m"},
    "many": {"rate-limit": "5/m"},
    "piped": {"pipe": "monotonic", "pipe.lanes": "3", "pipe.forget": "1h"},
}

HEAD = b"POST /ingest/p/web HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
SECRET = HEAD.replace(b"/p/", b"/secret/")
MIB = 1 << 20
ROOM = 48 * MIB
"""How much a process may grow by: allocators keep some, and a test's own requests are among it."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, fsyncing_process: RedisServer) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("doors")
    for id, settings in PIPELINES.items():
        write_pipeline(home, id, **settings)
    process = GatewayProcess(home, fsyncing_process.url, (), LIMITS).start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def gateway(running: GatewayProcess, fsyncing: RedisServer) -> GatewayProcess:
    """A gateway with low limits, whose Redis is empty and whose former connections are closed."""
    until(lambda: running.request("GET", "/healthz").status == 200)
    return running


@contextmanager
def connected(gateway: GatewayProcess, peer: str = "127.0.0.1") -> Iterator[socket.socket]:
    host, port = gateway.address.split(":")
    with socket.create_connection((host, int(port)), 30, (peer, 0)) as connection:
        yield connection


def answers(connection: socket.socket) -> list[int]:
    """The statuses of all answers up to the connection's end."""
    said = b""
    with suppress(ConnectionError):
        while got := connection.recv(65536):
            said += got
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", said)]


def answer(connection: socket.socket) -> int:
    """The status of the next answer; 0 where the connection ends without one."""
    try:
        line = connection.recv(20)
    except ConnectionError:
        return 0
    return int(line.split()[1]) if line else 0


def pour(connection: socket.socket, piece: bytes, times: int) -> int:
    """Sends as much as is taken, at most `times` pieces; returns the bytes."""
    sent = 0
    try:
        for _ in range(times):
            connection.sendall(piece)
            sent += len(piece)
    except OSError:
        pass
    return sent


def resident(gateway: GatewayProcess) -> int:
    assert gateway.process is not None
    return psutil.Process(gateway.process.pid).memory_info().rss


SOUND = HEAD + b"content-length: 2\r\n\r\n{}"
REQUESTS = [
    SOUND,
    HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
    HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"content-length: 99999999999999999999\r\n\r\n{}",
    HEAD + b"content-length: -1\r\n\r\n{}",
    HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b"upgrade: websocket\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\n{}",
    b"GET http://[/ HTTP/1.1\r\nhost: x\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /ingest/%FF/\xff%00 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
]


@fuzzed
@given(
    requests=st.lists(damaged(st.sampled_from(REQUESTS)) | st.sampled_from(REQUESTS), min_size=1, max_size=3),
    pieces=st.integers(1, 5),
)
@example(requests=REQUESTS, pieces=1)
@example(requests=[HEAD + b"content-length: \xc2\xb2\r\n\r\n{}"], pieces=1)
def test_whatever_is_sent_the_next_producer_is_taken_and_nothing_goes_wrong_inside(
    gateway: GatewayProcess, requests: list[bytes], pieces: int
) -> None:
    for request in requests:
        # Given something near a request, in pieces, and a connection that is cut off or not
        with connected(gateway) as connection:
            size = max(1, len(request) // pieces)
            for at in range(0, len(request), size):
                pour(connection, request[at : at + size], 1)
    with connected(gateway) as connection:
        connection.sendall(SOUND)
        assert answer(connection) == 202
    # Then nobody else waits, and no error is logged: none of it was a failure of ours
    assert "Traceback" not in gateway.log.read_text()


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (SECRET + b"x-long: ", b"x" * MIB),
        (SECRET, b"x-some: " + b"y" * 1000 + b"\r\n"),
        (b"POST /", b"p" * MIB),
        (SECRET, b"a:b\r\n"),
    ],
    ids=["one-header", "many-headers", "path", "small-headers"],
)
def test_a_head_without_an_end_is_refused_before_it_is_kept(
    gateway: GatewayProcess, begin: bytes, piece: bytes
) -> None:
    before = resident(gateway)
    with connected(gateway) as connection:
        connection.sendall(begin)
        sent = pour(connection, piece, 200 * MIB // len(piece) if len(piece) > 5 else 100_000)
        # Then it is cut off early, and nothing of it is kept
        assert sent < 100 * MIB
        assert answer(connection) in (0, 431)
    assert resident(gateway) - before < ROOM
    assert gateway.post({}, path="/ingest/secret/web", authorization=f"Bearer {TOKEN}").status == 202


def test_what_is_too_large_in_a_head_is_answered(gateway: GatewayProcess, stored: Stored) -> None:
    assert gateway.post({}, x="y" * 7_000).status == 202
    large = gateway.post({}, x="y" * 9_000)
    assert (large.status, large.problem["title"]) == (431, "Head too large")
    assert gateway.post({}, **{f"x{n}": "y" for n in range(200)}).status == 431
    assert len(stored()) == 1
    # And what comes behind a body, in the same pieces, does not count as its head
    with connected(gateway) as connection:
        body = b'"' + b"x" * 20_000 + b'"'
        one = HEAD + b"content-length: %d\r\n" % len(body)
        connection.sendall(one + b"\r\n" + body + one + b"connection: close\r\n\r\n" + body)
        assert answers(connection) == [202, 202]


def test_a_head_or_body_that_comes_too_slowly_is_refused_and_nobody_else_waits(
    gateway: GatewayProcess, stored: Stored
) -> None:
    # Given connections that say nothing, half a head, a length and no body, a body in part, and one after a refusal
    said = [
        b"",
        HEAD,
        *[HEAD + b"content-length: 1000000\r\n\r\n"] * 40,
        HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n{",
        HEAD.replace(b"/p/", b"/none/") + b"content-length: 1000000\r\n\r\n",
    ]
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(gateway)) for _ in said]
        for connection, text in zip(connections, said, strict=True):
            connection.sendall(text)
        # Then the other producers are taken, of this pipeline and of another
        assert gateway.post({}).status == 202
        assert gateway.post({}, path="/ingest/q/web").status == 202
        # And each is told, in time
        statuses = [answer(c) for c in connections]
        assert statuses == [408, 408, *[408] * 40, 408, 404]
        # The one that was refused is closed as well
        last = connections[-1]
        until(lambda: not pour(last, b"x", 1) or None)
    assert len(stored()) == 1


def test_one_pipelines_bodies_leave_room_for_the_others(gateway: GatewayProcess) -> None:
    large = b" " * 900_000 + b"{}"
    with ExitStack() as stack:
        # When producers of one hold almost whole bodies there, until no further one fits
        while gateway.post(large).status == 202:
            connection = stack.enter_context(connected(gateway))
            connection.sendall(HEAD + b"content-length: 1000000\r\n\r\n" + b" " * 999_000)
        # Then its own are told to come again, and the other's events are taken, large ones too
        assert gateway.post(large, path="/ingest/q/web").status == 202
        assert gateway.post({}, path="/ingest/q/web").status == 202
    # And once they are gone, there is room again
    until(lambda: gateway.post(large).status == 202)


def test_connections_are_bounded_for_each_peer_and_in_all(
    gateway_home: Path, serving: Callable[..., GatewayProcess]
) -> None:
    # Given a gateway that waits long for those who say nothing: they are all to be there together
    write_pipeline(gateway_home)
    gateway = serving(**{**LIMITS, "CONDUIT_GATEWAY_HEAD_TIMEOUT": "10m"})
    ask = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"

    def asked(peer: str) -> int:
        with connected(gateway, peer) as connection:
            with suppress(ConnectionError):
                connection.sendall(ask)
            return answer(connection)

    with ExitStack() as stack:
        # Given as many connections of one address as it may have, then one more is refused, and another's is taken
        for _ in range(99):
            stack.enter_context(connected(gateway))
        mine = stack.enter_context(connected(gateway))
        assert (asked("127.0.0.1"), asked("127.0.0.2")) == (503, 200)
        # And at the bound of all, nobody's is
        others = [stack.enter_context(connected(gateway, "127.0.0.3")) for _ in range(50)]
        assert asked("127.0.0.2") == 503
        others[0].close()
        mine.close()
    until(lambda: (asked("127.0.0.1"), asked("127.0.0.2")) == (200, 200))


def test_requests_behind_each_other_are_bounded(gateway: GatewayProcess) -> None:
    with connected(gateway) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 5_000)
        statuses = answers(connection)
    assert len(statuses) < 1_000
    assert gateway.post({}).status == 202


def test_attributes_are_bounded_and_refused_ones_are_not_kept(gateway: GatewayProcess, stored: Stored) -> None:
    structured = "application/cloudevents+json"
    assert gateway.post(event(1, source="/" + "s" * 60_000), type=structured).status == 202
    before = resident(gateway)
    for n in range(150):
        refused = gateway.post(event(n, source=f"/{n:08d}" + "s" * 900_000), type=structured)
        assert (refused.status, "max-attributes-size" in refused.problem["detail"]) == (400, True)
    assert resident(gateway) - before < ROOM
    # One by one, all together, and of one event in a batch
    many = {f"x{n}": "y" * 1_000 for n in range(100)}
    assert gateway.post(event(2, **many), type=structured).status == 400
    batch = gateway.post([event(3), event(4, **many)], type="application/cloudevents-batch+json")
    assert (batch.status, batch.problem["event"]) == (400, 1)
    assert len(stored()) == 1


def test_the_rate_is_looked_at_before_the_body(gateway: GatewayProcess) -> None:
    # Given a source that is past its rate
    until(lambda: gateway.post({}, path="/ingest/slow/web").status == 429)
    # Then one whose body has not come, or is no event, is told so: nothing of it was read
    with connected(gateway) as connection:
        connection.sendall(HEAD.replace(b"/p/", b"/slow/") + b"content-length: 100\r\n\r\n")
        assert answer(connection) == 429
    assert gateway.post(b"{", path="/ingest/slow/web").status == 429


def test_what_is_no_event_costs_of_the_rate_as_well(gateway: GatewayProcess) -> None:
    until(lambda: gateway.post(b"{", path="/ingest/three/web").status == 429)


def test_a_batch_costs_of_the_rate_what_it_holds(gateway: GatewayProcess) -> None:
    batch = [event(n) for n in range(50)]
    assert gateway.post(batch, path="/ingest/many/web", type="application/cloudevents-batch+json").status == 202
    slow = gateway.post({}, path="/ingest/many/web")
    assert (slow.status, int(slow.headers["retry-after"]) > 300) == (429, True)


def test_lanes_of_a_pipe_are_bounded_in_size_and_number(gateway: GatewayProcess, client: Client) -> None:
    def send(source: str, sequence: int) -> int:
        one = event(1, source=source, sequence=str(sequence))
        return gateway.post(one, path="/ingest/piped/web", type="application/cloudevents+json").status

    long = "/" + "s" * 50_000
    # Given two lanes with long names, then they are two, and what Redis keeps of them is short
    assert [send(long, 1), send(long + "t", 5), send(long, 2), send(long + "t", 6)] == [202] * 4
    [index] = client.keys("*ingest-index*")
    assert client.hlen(index) == 2
    assert all(len(lane) < 100 for lane in client.hkeys(index))
    # When there are as many as may be, a further one is refused, and the others go on
    assert [send("/c", 1), send("/d", 1), send("/c", 2), send(long, 3)] == [202, 429, 202, 202]


def test_a_request_of_thousands_of_lanes_is_refused_before_anything_is_done_with_it(
    gateway: GatewayProcess, client: Client
) -> None:
    def send(lanes: int) -> tuple[int, str]:
        events = [event(n, source=f"/{n % lanes}", sequence=str(n)) for n in range(LANES + 1)]
        answer = gateway.post(events, path="/ingest/piped/web", type="application/cloudevents-batch+json")
        return answer.status, answer.problem["title"] if answer.status != 202 else ""

    assert send(LANES + 1) == (413, "Too many lanes in one request")
    assert client.keys("*ingest-index*") == []
    # Then those of as many as may be come further, and of few lanes any number of events is taken
    assert send(LANES) == (429, "Too many lanes")
    assert send(2) == (202, "")
