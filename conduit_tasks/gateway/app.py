"""The ASGI application: `POST /ingest/<pipeline>/<connector>`, `GET /healthz`, `GET /readyz`.

Plain ASGI: a framework's routing and objects would cost as much again as all that is done here (docs/benchmarks.md).
Every refusal is a problem document (RFC 9457) that says what to do; a 2xx goes out only when the events are durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson

from conduit_tasks.connectors.gateway import GatewaySource
from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.gateway.attributes import BadEvent
from conduit_tasks.gateway.commit import Bucket, Committer, Health, NotNext
from conduit_tasks.gateway.event import join
from conduit_tasks.gateway.parse import Webhooks, parse
from conduit_tasks.gateway.pipe import place
from conduit_tasks.gateway.tokens import Tokens

log = logging.getLogger("conduit.gateway")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_TIMEOUT = 30.0
"""Seconds in which a body has to arrive."""
RETRY_BACKLOG, RETRY_AWAY = 10, 2
"""`Retry-After` in seconds: a run has to make room; Redis has to come back."""

_STORED = [(b"content-length", b"0")]


@dataclass
class Endpoint:
    """One source as it is served."""

    source: GatewaySource
    tokens: Tokens
    webhooks: Webhooks
    bucket: Bucket | None
    committer: Committer


class Refusal(Exception):
    """An answer other than 2xx. `more`: further members of the problem document."""

    def __init__(
        self, status: int, title: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.headers = status, dict(headers or {})
        self.problem = {"title": title, "status": status, "detail": detail, **more}


class Gateway:
    """`endpoints`: path → source. `in_flight`: bytes of bodies, received and not answered, above which it says 503."""

    def __init__(self, health: Health, *, in_flight: int = 256 << 20) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.health = health
        self.stopping = False
        self.answers: Counter[tuple[str, int]] = Counter()
        """Requests by path of a source and status."""
        self.taken: Counter[str] = Counter()
        """Events that were answered with 2xx, by path."""
        self._most = self._room = in_flight

    @property
    def in_flight(self) -> int:
        """Bytes of bodies that were received and not answered."""
        return self._most - self._room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        try:
            endpoint = self.endpoints.get(path)
            if endpoint is None:
                path = ""
                await self._other(scope, send)
                return
            taken = await self._ingest(endpoint, scope, receive)
        except Refusal as refusal:
            self.answers[path, refusal.status] += 1
            await _problem(send, refusal)
        except Exception:
            self.answers[path, 500] += 1
            log.exception("%s %s", scope["method"], scope["path"])
            await _problem(send, Refusal(500, "Not stored", "the gateway failed; its log says why. Send it again"))
        else:
            self.answers[path, 202] += 1
            self.taken[path] += taken
            await send({"type": "http.response.start", "status": 202, "headers": _STORED})
            await send({"type": "http.response.body"})

    async def _ingest(self, endpoint: Endpoint, scope: Scope, receive: Receive) -> int:
        """Returns when the events of the request are durable, and how many they are; raises Refusal."""
        authorization = length = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value
            elif name == b"content-length":
                length = int(value)
        if endpoint.tokens.needed and not endpoint.tokens.accept(authorization):
            said = "the token is wrong" if authorization else "a token is missing; send Authorization: Bearer <token>"
            raise Refusal(401, "Not authorised", said, headers={"WWW-Authenticate": "Bearer"})
        if scope["method"] != "POST":
            raise Refusal(405, "Method not allowed", "events are sent with POST", headers={"Allow": "POST"})
        most = endpoint.source.request_bytes
        if length is not None and length > most:
            raise _too_large(most)
        if self.health.away:
            raise _away()
        reserved = most if length is None else length
        if reserved > self._room:
            raise _busy()
        self._room -= reserved
        try:
            body = await _read(receive, most)
            try:
                events = parse(scope["headers"], body, endpoint.webhooks)
                if endpoint.source.pipe is not None:
                    for event in events:
                        place(event, endpoint.source.pipe_key)
            except BadEvent as bad:
                raise _bad(bad) from None
            await _store(endpoint, events)
        finally:
            self._room += reserved
        return len(events)

    async def _other(self, scope: Scope, send: Send) -> None:
        path = scope["path"]
        if path == "/healthz":
            await _json(send, 200, {"status": "alive"})
        elif path == "/readyz":
            ready = not (self.health.away or self.stopping)
            status = "ready" if ready else ("stopping" if self.stopping else "Redis does not serve")
            await _json(send, 200 if ready else 503, {"status": status, "sources": sorted(self.endpoints)})
        else:
            raise Refusal(
                404,
                "No such source",
                "no running pipeline file has a gateway source here; the path is /ingest/<pipeline>/<connector>",
            )


async def _read(receive: Receive, most: int) -> bytes:
    """The body; never holds more than `most` and what one read of the socket brings."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if len(body) > most:
        raise _too_large(most)
    if not message.get("more_body"):
        if message["type"] == "http.disconnect":
            raise Refusal(400, "Incomplete", "the producer left before its body was whole")
        return body
    parts, size = [body], len(body)
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            while message.get("more_body"):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "Incomplete", "the producer left before its body was whole")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise _too_large(most)
    except TimeoutError:
        raise Refusal(
            408, "Too slow", f"the body did not arrive within {BODY_TIMEOUT:g} s", headers={"Connection": "close"}
        ) from None
    return b"".join(parts)


async def _store(endpoint: Endpoint, events: list[bytes]) -> None:
    if not events:
        return
    chunk = join(events)
    budget = endpoint.committer.budget
    if len(events) > budget.records or len(chunk) > budget.bytes:
        raise Refusal(
            413,
            "Too many events",
            f"the request has {len(events)} events of {len(chunk)} bytes; the whole backlog of this source holds "
            f"{budget.records} and {budget.bytes} bytes. Send smaller batches",
        )
    if endpoint.bucket is not None:
        wait = endpoint.bucket.take(len(events))
        if wait:
            raise Refusal(
                429,
                "Too fast",
                f"this source takes {endpoint.bucket.rate:g} events per second",
                headers={"Retry-After": str(max(1, round(wait + 0.5)))},
            )
    try:
        stored = await endpoint.committer.store(len(events), chunk)
    except BrokerUnavailable:
        raise _away() from None
    except NotNext:
        raise Refusal(
            409,
            "Not the next",
            "an event with a lower sequence of the same source and key has not come; send that one, then this again",
            headers={"Retry-After": "1"},
        ) from None
    if not stored:
        raise Refusal(
            429,
            "Backlog full",
            "the pipeline is behind: as much as may wait is waiting. Nothing of this request was stored; send it again",
            headers={"Retry-After": str(RETRY_BACKLOG)},
        )


def _bad(bad: BadEvent) -> Refusal:
    more: dict[str, Any] = {}
    if bad.attribute is not None:
        more["attribute"] = bad.attribute
    if bad.event is not None:
        more["event"] = bad.event
    return Refusal(bad.status, "Not an event" if bad.status == 415 else "Bad event", bad.detail, **more)


def _too_large(most: int) -> Refusal:
    # Closed: what the producer goes on sending is not read.
    return Refusal(
        413, "Too large", f"a request may have {most} bytes (max-request-size)", headers={"Connection": "close"}
    )


def _away() -> Refusal:
    return Refusal(
        503,
        "Not stored",
        "the broker does not serve, so the event may not be stored; send it again",
        headers={"Retry-After": str(RETRY_AWAY)},
    )


def _busy() -> Refusal:
    return Refusal(503, "Busy", "too many requests are on their way; send it again", headers={"Retry-After": "1"})


async def _problem(send: Send, refusal: Refusal) -> None:
    await _json(send, refusal.status, refusal.problem, "application/problem+json", refusal.headers)


async def _json(
    send: Send,
    status: int,
    content: Mapping[str, Any],
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> None:
    body = orjson.dumps(content)
    sent = {"Content-Type": content_type, "Content-Length": str(len(body)), **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
