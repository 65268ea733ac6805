"""CloudEvents sent by the http destination, read back by the CloudEvents SDK; batches; access tokens."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest
from aiohttp import web
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from conduit_tasks.connectors.base import Outcome
from conduit_tasks.connectors.http.connector import HttpDestination
from conduit_tasks.errors import ConfigError, Unavailable
from conduit_tasks.gateway.parse import parse
from conduit_tasks.pipes.base import INDEX
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.stack.ports import free_port

ORIGIN = Origin("flights", "departures", "")
FLIGHT = Record(b"1", "create", {"zone": "E\u00fc\r\nce-id: x"}, b'EWR "1"', None, {"delay": 61}, origin=ORIGIN)
RAW = Record(b"2", "create", {"cloudevents.datacontenttype": "text/plain"}, after="grüße".encode(), origin=ORIGIN)
BYTES = Record(b"3", "create", {"opencdc.collection": "x"}, after=b"\xff\x00", origin=ORIGIN)
GONE = Record(b"4", "delete", {}, b"k", {"delay": 1}, None, origin=ORIGIN)
ALL = (FLIGHT, RAW, BYTES, GONE)

Answer = Callable[[web.BaseRequest, bytes], Awaitable[web.Response]]


def serve(
    settings: dict[str, str], answer: Answer, work: Callable[[HttpDestination], Awaitable[list[Outcome]]]
) -> tuple[list[Outcome], list[tuple[dict[str, str], bytes]]]:
    """Outcomes of what `work` does with a destination, and what its target got (`{port}` in settings is filled in)."""
    got: list[tuple[dict[str, str], bytes]] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        if request.path != "/token":
            got.append((dict(request.headers), body))
        return await answer(request, body)

    async def run() -> list[Outcome]:
        runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        filled = {name: value.replace("{port}", str(port)) for name, value in settings.items()}
        destination = HttpDestination({"url": f"http://127.0.0.1:{port}/events", **filled})
        try:
            await destination.open(60.0)
            return await work(destination)
        finally:
            await destination.close()
            await runner.cleanup()

    return asyncio.run(run()), got


def each(*records: Record) -> Callable[[HttpDestination], Awaitable[list[Outcome]]]:
    async def work(destination: HttpDestination) -> list[Outcome]:
        return [await destination.send(record) for record in records]

    return work


def together(*records: Record) -> Callable[[HttpDestination], Awaitable[list[Outcome]]]:
    async def work(destination: HttpDestination) -> list[Outcome]:
        return list(await asyncio.gather(*(destination.send(record) for record in records)))

    return work


async def taken(_: web.BaseRequest, __: bytes) -> web.Response:
    return web.Response(status=202)


def meant(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "source": "flights/departures",
        "type": f"departures.{record.operation}",
        "subject": record.key.decode() if isinstance(record.key, bytes) else None,
    }


def read(headers: dict[str, str], body: bytes) -> CloudEvent:
    event = from_http(HTTPMessage(headers, body), JSONFormat(), CloudEvent)
    assert isinstance(event, CloudEvent)
    return event


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_the_cloudevents_sdk_reads_what_is_sent(mode: str) -> None:
    outcomes, got = serve({"body": f"cloudevents-{mode}"}, taken, each(*ALL))
    assert [o.kind for o in outcomes] == ["delivered"] * 4
    events = [read(headers, body) for headers, body in got]
    for event, record in zip(events, ALL):
        attributes = event.get_attributes()
        assert {name: attributes.get(name) for name in meant(record)} == meant(record)
    flight, raw, data, gone = events
    # A line break in metadata ends no header
    assert flight.get_extension("zone") == "Eü\ufffd\ufffdce-id: x"
    assert (flight.get_data(), gone.get_data()) == ({"delay": 61}, {"delay": 1})
    assert raw.get_data() in ("grüße", "grüße".encode())
    assert data.get_data() == b"\xff\x00"
    # CloudEvents allows no dot in a name
    assert data.get_extension("opencdc.collection") is None
    assert all(headers["Idempotency-Key"] == record.id for (headers, _), record in zip(got, ALL))


@pytest.mark.parametrize("mode", ["binary", "structured", "batched"])
def test_a_gateway_takes_what_is_sent(mode: str) -> None:
    _, got = serve({"body": f"cloudevents-{mode}"}, taken, together(*ALL))
    events = [
        event
        for headers, body in got
        for event in parse([(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()], body)
    ]
    assert len(events) == len(ALL)


@pytest.mark.proves("C17")
def test_records_sent_together_share_a_request_and_one_at_fault_is_refused_alone() -> None:
    # Given a target that refuses a batch with record 7, and takes at most 8 in one
    records = [Record(b"%d" % n, after={"n": n}, origin=ORIGIN) for n in range(20)]
    kept: list[int] = []

    async def answer(_: web.BaseRequest, body: bytes) -> web.Response:
        numbers = [event["data"]["n"] for event in orjson.loads(body)]
        if 7 in numbers:
            return web.Response(status=422, text="seven")
        kept.extend(numbers)
        return web.Response(status=202)

    # When they are sent at once
    settings = {"body": "cloudevents-batched", "batch.size": "8"}
    outcomes, got = serve(settings, answer, together(*records))
    # Then that one is refused, every other was taken once, and no request had more than 8
    assert [n for n, o in enumerate(outcomes) if o.kind == "refused"] == [7]
    assert sum(o.kind == "delivered" for o in outcomes) == 19
    assert sorted(kept) == [n for n in range(20) if n != 7]
    assert all(headers["Content-Type"] == "application/cloudevents-batch+json" for headers, _ in got)
    assert max(len(orjson.loads(body)) for _, body in got) == 8


@pytest.mark.proves("T6")
def test_a_batch_that_fails_fails_for_each_of_its_records_and_is_not_taken_apart() -> None:
    async def away(_: web.BaseRequest, __: bytes) -> web.Response:
        return web.Response(status=503, headers={"Retry-After": "3"})

    outcomes, got = serve({"body": "cloudevents-batched"}, away, together(FLIGHT, GONE))
    assert [(o.kind, o.retry_after) for o in outcomes] == [("failed", 3.0)] * 2
    assert len(got) == 1


def test_a_batch_carries_no_number_of_an_index_pipe() -> None:
    numbered = Record(b"1", metadata={INDEX: "4"}, after={}, origin=ORIGIN)
    outcomes, got = serve({"body": "cloudevents-batched"}, taken, each(numbered))
    assert (outcomes[0].kind, got) == ("refused", [])


class Issuer:
    """A token server and its target: token n is good while `good` says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, dict[str, list[str]]]] = []
        self.good = "token-1"
        self.status, self.life = 200, 3600.0

    async def __call__(self, request: web.BaseRequest, body: bytes) -> web.Response:
        if request.path == "/token":
            self.asked.append((request.headers.get("Authorization"), parse_qs(body.decode())))
            if self.status != 200:
                return web.json_response({"error": "invalid_client", "echo": body.decode()}, status=self.status)
            return web.json_response({"access_token": f"token-{len(self.asked)}", "expires_in": int(self.life)})
        fine = request.headers.get("Authorization") == f"Bearer {self.good}"
        return web.Response(status=202 if fine else 401)


OAUTH = {
    "auth.oauth2.token-url": "http://127.0.0.1:{port}/token",
    "auth.oauth2.client-id": "us",
    "auth.oauth2.client-secret": "s3cret",
    "auth.oauth2.scope": "events:write",
}


def test_a_token_is_fetched_once_and_sent_with_every_request() -> None:
    issuer = Issuer()
    outcomes, _ = serve(OAUTH, issuer, each(*ALL))
    assert [o.kind for o in outcomes] == ["delivered"] * 4
    [(login, form)] = issuer.asked
    assert login == "Basic " + base64.b64encode(b"us:s3cret").decode()
    assert form == {"grant_type": ["client_credentials"], "scope": ["events:write"]}


def test_the_secret_can_travel_in_the_body() -> None:
    issuer = Issuer()
    serve({**OAUTH, "auth.oauth2.client-authentication": "body"}, issuer, each(FLIGHT))
    [(login, form)] = issuer.asked
    assert login is None
    assert (form["client_id"], form["client_secret"]) == (["us"], ["s3cret"])


def test_a_token_that_is_refused_or_at_its_end_is_replaced_and_nothing_is_blamed_for_it() -> None:
    issuer = Issuer()

    async def work(destination: HttpDestination) -> list[Outcome]:
        first = await destination.send(FLIGHT)
        issuer.good, issuer.life = "token-2", 0.0  # revoked; the next has no time left
        second = await destination.send(GONE)
        issuer.good = "token-3"
        return [first, second, await destination.send(RAW)]

    outcomes, _ = serve(OAUTH, issuer, work)
    assert [o.kind for o in outcomes] == ["delivered"] * 3
    assert len(issuer.asked) == 3


def test_without_a_token_records_wait_and_no_message_holds_the_secret() -> None:
    issuer = Issuer()
    issuer.status = 503
    with pytest.raises(Unavailable) as away:
        serve(OAUTH, issuer, each(FLIGHT))
    issuer.status = 401
    with pytest.raises(ConfigError, match=r"client-secret") as wrong:
        serve(OAUTH, issuer, each(FLIGHT))
    assert "s3cret" not in f"{away.value}{wrong.value}"

    late = Issuer()

    async def work(destination: HttpDestination) -> list[Outcome]:
        late.good, late.status = "none", 503
        return [await destination.send(FLIGHT)]

    [outcome], _ = serve(OAUTH, late, work)
    assert outcome.kind == "failed"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"auth.oauth2.client-id": "us"}, "auth.oauth2.token-url"),
        ({**OAUTH, "auth.bearer": "x"}, "exclude each other"),
        ({**OAUTH, "auth.oauth2.token-url": "ftp://x"}, "http://"),
        ({"batch.size": "0"}, "batch.size"),
        ({"body": "cloudevents"}, "cloudevents-binary"),
    ],
)
def test_options_that_do_not_fit_are_named(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        HttpDestination({"url": "http://localhost/", **settings})
