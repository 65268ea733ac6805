"""The http destination against real servers: the demo's receiver, and one that shows what it was sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from conduit_tasks.connectors.base import Outcome
from conduit_tasks.connectors.http.connector import HttpDestination
from conduit_tasks.connectors.http.link_local import forbidden
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import ConfigError, PipelineStopped, Unavailable
from conduit_tasks.record.record import Record
from conduit_tasks.stack.ports import free_port
from conduit_tasks.topology import Delivery
from tests.connectors.receiving import ReceiverProcess
from tests.delivery.fakes import FakePort, work_of
from tests.waiting import until

RECORD = Record(b"42", "update", {"m": "1"}, b"key", {"n": 1}, {"n": 2})


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Callable[..., ReceiverProcess]]:
    started: list[ReceiverProcess] = []

    def start(*options: str) -> ReceiverProcess:
        started.append(ReceiverProcess(tmp_path, options).start())
        return started[-1]

    yield start
    for each in started:
        each.kill()


def exchange(
    settings: dict[str, str],
    answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    *records: Record,
) -> tuple[list[Outcome], list[tuple[str, Any, bytes]]]:
    """Sends records to a server that answers as told. Returns outcomes, and (method, headers, body) as received."""
    got: list[tuple[str, Any, bytes]] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        got.append((request.method, request.headers, await request.read()))
        return await answer(request)

    async def run() -> list[Outcome]:
        runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        destination = HttpDestination({"url": f"http://127.0.0.1:{port}/events?x=1", **settings})
        await destination.open(60.0)
        try:
            return [await destination.send(record) for record in records or (RECORD,)]
        finally:
            await destination.close()
            await runner.cleanup()

    return asyncio.run(run()), got


def answering(status: int, headers: dict[str, str] | None = None, text: str = "") -> Any:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(status=status, headers=headers, text=text)

    return answer


@pytest.mark.proves("T8")
def test_a_request_carries_the_payload_and_an_idempotency_key_that_never_changes() -> None:
    outcomes, got = exchange({}, answering(202), RECORD, RECORD.copy(), Record(b"43", after=b"raw \xff"))
    assert [o.kind for o in outcomes] == ["delivered"] * 3
    (method, headers, body), (_, again, _), (_, other, raw) = got
    assert (method, body) == ("POST", b'{"n":2}')
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == again["Idempotency-Key"] == RECORD.id
    assert other["Idempotency-Key"] != RECORD.id
    assert (raw, other["Content-Type"]) == (b"raw \xff", "application/octet-stream")


def test_options_shape_the_request() -> None:
    settings = {
        "method": "PUT",
        "headers.X-Team": "data",
        "body": "opencdc",
        "content-type": "application/vnd.opencdc+json",
        "idempotency-header": "X-Id",
        "auth.bearer": "s3cret",
    }
    _, [(method, headers, body)] = exchange(settings, answering(200))
    assert method == "PUT"
    assert headers["X-Team"] == "data"
    assert headers["X-Id"] == RECORD.id
    assert headers["Content-Type"] == "application/vnd.opencdc+json"
    assert headers["Authorization"] == "Bearer s3cret"
    assert orjson.loads(body) == {"id": RECORD.id, **RECORD.to_opencdc()}


def test_a_deleted_record_is_sent_as_it_was_before() -> None:
    _, [(_, _, body)] = exchange({}, answering(200), Record(b"1", "delete", before={"n": 1}))
    assert body == b'{"n":1}'


@pytest.mark.proves("T6")
@pytest.mark.parametrize(
    ("status", "kind"), [(200, "delivered"), (400, "refused"), (401, "refused"), (429, "failed"), (503, "failed")]
)
def test_the_status_decides_the_outcome_and_the_answer_is_quoted(status: int, kind: str) -> None:
    [outcome], _ = exchange({}, answering(status, text="the\nreason " + "x" * 1000))
    assert outcome.kind == kind
    if kind != "delivered":
        assert outcome.status == status
        assert "the reason" in outcome.message
        assert len(outcome.message) < 400


@pytest.mark.proves("T6")
@pytest.mark.parametrize(
    ("retry_on", "failed", "refused"),
    [
        ("404, 409, 408, 425, 429, 5xx", [404, 409, 429, 500, 599], [400, 401, 403, 410]),
        ("503", [503], [408, 429, 500]),
        ("4xx", [400, 404, 499], [500, 302]),
        ("", [], [408, 429, 500, 503]),
    ],
)
def test_which_statuses_are_tried_again_is_a_setting(retry_on: str, failed: list[int], refused: list[int]) -> None:
    for statuses, kind in ((failed, "failed"), (refused, "refused"), ([200, 204], "delivered")):
        for status in statuses:
            [outcome], _ = exchange({"retry-on": retry_on}, answering(status))
            assert (status, outcome.kind) == (status, kind)


@pytest.mark.proves("T6")
def test_a_status_that_nobody_knows_is_as_before() -> None:
    for status, kind in ((418, "refused"), (471, "refused"), (599, "failed"), (301, "refused")):
        [outcome], _ = exchange({}, answering(status))
        assert (status, outcome.kind) == (status, kind)


@pytest.mark.proves("T6")
@pytest.mark.parametrize(("header", "least", "most"), [("7", 7, 7), ("Fri, 01 Jan 2100 00:00:00 GMT", 1e8, 1e11)])
def test_retry_after_is_read_as_seconds_or_as_a_date(header: str, least: float, most: float) -> None:
    [outcome], _ = exchange({}, answering(429, {"Retry-After": header}))
    assert outcome.retry_after is not None
    assert least <= outcome.retry_after <= most


def test_a_retry_after_that_says_nothing_is_ignored() -> None:
    [outcome], _ = exchange({}, answering(503, {"Retry-After": "soon"}))
    assert outcome.retry_after is None


def test_a_redirect_is_refused_and_not_followed() -> None:
    [outcome], got = exchange({}, answering(307, {"Location": "http://169.254.169.254/latest"}))
    assert outcome.kind == "refused"
    assert "redirects are not followed" in outcome.message
    assert len(got) == 1


@pytest.mark.proves("T6")
def test_no_connection_and_a_broken_answer_are_failures_that_may_recover() -> None:
    async def run() -> Outcome:
        destination = HttpDestination({"url": f"http://127.0.0.1:{free_port()}/"})
        await destination.open(1.0)
        try:
            return await destination.send(RECORD)
        finally:
            await destination.close()

    assert asyncio.run(run()).kind == "failed"

    async def cut(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    [outcome], _ = exchange({}, cut)
    assert outcome.kind == "failed"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "ftp://example.org/"}, "url"),
        ({"url": "/events"}, "url"),
        ({"url": "http://user:pw@example.org/"}, "auth.basic"),
        ({"url": "http://example.org", "method": "GET"}, "method"),
        ({"url": "http://example.org", "headers.X": "a\r\nb: c"}, "headers.X"),
        ({"url": "http://example.org", "headers.Transfer-Encoding": "chunked"}, "headers.Transfer-Encoding"),
        ({"url": "http://example.org", "content-type": "a/b\r\nX: y"}, "content-type"),
        ({"url": "http://example.org", "idempotency-header": "X: y"}, "idempotency-header"),
        ({"url": "http://example.org", "retry-on": "404, 2xx"}, "'2xx'"),
        ({"url": "http://example.org", "retry-on": "50x"}, "retry-on"),
        ({"url": "http://example.org", "retry-on": "timeout"}, "retry-on"),
        ({"url": "http://example.org", "auth.bearer": "a", "auth.basic.username": "b"}, "exclude"),
        ({"url": "http://example.org", "tls.key-file": "k.pem"}, "tls.cert-file"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "allow-link-local"),
        ({"url": "http://[fe80::1]/"}, "allow-link-local"),
        ({"url": "http://[::ffff:169.254.169.254]/"}, "allow-link-local"),
        ({"url": "http://metadata.google.internal/"}, "allow-link-local"),
        ({}, "url"),
    ],
)
def test_wrong_settings_are_named_before_anything_is_sent(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")) as raised:
        HttpDestination(settings)
    assert "pw" not in str(raised.value)


def test_a_link_local_address_is_reached_only_on_request() -> None:
    # Given names that resolve to the metadata service, directly or as a number
    assert HttpDestination({"url": "http://169.254.169.254/", "allow-link-local": "true"})
    assert forbidden("169.254.1.1")
    assert not forbidden("10.0.0.1")

    async def send() -> Outcome:
        destination = HttpDestination({"url": "http://2852039166/"})
        await destination.open(60.0)
        try:
            return await destination.send(RECORD)
        finally:
            await destination.close()

    # When such a name is resolved for a connection, then nothing is sent
    outcome = asyncio.run(send())
    assert outcome.kind == "failed"
    assert "allow-link-local" in outcome.message


@pytest.mark.proves("T6", "T7", "T8", "C9")
def test_a_receiver_that_fails_and_refuses_now_and_then_gets_each_record_once_in_order(
    receiver: Callable[..., ReceiverProcess],
) -> None:
    # Given a receiver that answers 503 and 429 now and then, and 400 for the records 100 and 700
    target = receiver(
        "--seed", "7", "--unavailable", "0.05", "--limited", "0.01", "--retry-after", "0", "--refuse", "seq=700"
    )
    port = FakePort(1000, list(range(1000)))
    options = Delivery(order_by="partition", retry=5, backoff_delay=0.005, backoff_policy="constant")
    # When a thousand records are delivered
    report = deliver(work_of(port), HttpDestination({"url": f"{target.url}/events"}), port, options)
    # Then it has all but the refused one, once each, in order; that one is a dead letter
    summary = target.summary()
    work = work_of(port)
    expected = [r.id for r in (record_of(work, seq) for seq in range(1000) if seq != 700)]
    assert target.accepted() == expected
    assert (summary["accepted"], summary["duplicates"], summary["refused"]) == (999, 0, 1)
    assert summary["unavailable"] > 10
    assert report.counts.retried == summary["unavailable"] + summary["limited"]
    assert [(letter.seq, letter.error_class) for letter in port.stored.values()] == [(700, "http 400")]
    assert port.complete


def record_of(work: Any, seq: int) -> Record:
    return Record(b"%d" % seq, after={"seq": seq}, origin=work.origins[0])


@pytest.mark.proves("T5", "T7", "C10")
def test_a_receiver_that_is_down_for_a_while_loses_nothing_and_sees_at_most_the_unconfirmed_twice(
    receiver: Callable[..., ReceiverProcess],
) -> None:
    # Given a receiver that goes down in the middle
    target = receiver("--unavailable", "0", "--limited", "0")
    port, down = FakePort(3000, list(range(3000))), threading.Event()
    options = Delivery(order_by="key", max_unconfirmed=16, retry=1, backoff_delay=0.01)
    destination = {"url": f"{target.url}/events"}
    failure: list[Exception] = []
    work = work_of(port, key=lambda seq: b"%d" % (seq % 40))

    def gated() -> Iterator[Any]:
        for part, batch in enumerate(work.rows()):
            # However fast it takes the first thousand, the others find it down
            assert part < 10 or down.wait(240)
            yield batch

    def first() -> None:
        try:
            deliver(replace(work, rows=gated), HttpDestination(destination), port, options)
        except Unavailable as error:
            failure.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    until(lambda: target.summary()["accepted"] > 200)
    target.mode("down")
    down.set()
    thread.join(240)
    # When the run has ended, nothing is dead-lettered, and the next one finds it back
    assert failure
    assert not port.stored
    target.mode("clean")
    deliver(work_of(port, key=lambda seq: b"%d" % (seq % 40)), HttpDestination(destination), port, options)
    # Then it has everything, and nothing twice: what it took before was confirmed
    assert target.summary()["accepted"] == 3000
    assert target.summary()["duplicates"] == 0
    assert port.complete


@pytest.mark.proves("T6", "C5")
def test_with_the_default_window_a_refusal_stops_the_pipeline(receiver: Callable[..., ReceiverProcess]) -> None:
    target = receiver()
    target.mode("refuse")
    port = FakePort(100, list(range(100)), window=(1, 0))
    with pytest.raises(PipelineStopped, match="400 Bad Request"):
        deliver(work_of(port), HttpDestination({"url": target.url}), port, Delivery())
    assert not port.confirmed
    assert target.summary()["received"] == 1
