"""The ASGI application: the steps of a request and its answer at `POST /ingest/<pipeline>/<connector>`, `GET /healthz`,
`GET /readyz`.

Plain ASGI: a framework's routing and objects would double the cost of a request (docs/benchmarks.md). Every refusal is
a problem document (RFC 9457) that says what to do; a 2xx goes out only when the events are durable.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from conduit_tasks.errors import ConduitError
from conduit_tasks.gateway.attributes import BadEvent
from conduit_tasks.gateway.commit import Bucket, Committer, Health
from conduit_tasks.gateway.connector import GatewaySource
from conduit_tasks.gateway.event import join
from conduit_tasks.gateway.limits import DEFAULT, OVERHEAD, Limits, Room
from conduit_tasks.gateway.parse import Webhooks, parse
from conduit_tasks.gateway.pipe import LANES, place
from conduit_tasks.gateway.protocol import LATE
from conduit_tasks.gateway.refusals import (
    Refusal,
    away,
    backlog_full,
    bad_event,
    busy,
    not_stored,
    too_fast,
    too_large,
    unverified,
)
from conduit_tasks.gateway.services import Reply, handshake
from conduit_tasks.gateway.tokens import Tokens
from conduit_tasks.gateway.verify import Mark, Unverified, Verifier

log = logging.getLogger("conduit.gateway")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


_STORED = [(b"content-length", b"0")]


@dataclass
class Endpoint:
    """One source that the gateway serves."""

    pipeline: str
    source: GatewaySource
    tokens: Tokens
    webhooks: Webhooks
    bucket: Bucket | None
    committer: Committer
    verifier: Verifier | None = None


class Gateway:
    """The ASGI application. `serve` sets its sources by path."""

    def __init__(self, health: Health, limits: Limits = DEFAULT) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.health = health
        self.stopping = False
        self.answers: Counter[tuple[str, int]] = Counter()
        """Requests by path of a source and status."""
        self.taken: Counter[str] = Counter()
        """Events that were answered with 2xx, by path."""
        self.room = Room(limits.memory)

    def serve(self, endpoints: dict[str, Endpoint]) -> None:
        """Serves these endpoints from the next request on."""
        self.endpoints = endpoints
        self.room.serve({endpoint.pipeline for endpoint in endpoints.values()})

    @property
    def in_flight(self) -> int:
        """Bytes of requests that were received and not answered yet."""
        return self.room.used

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
            taken, reply = await self._ingest(endpoint, scope, receive)
        except Refusal as refusal:
            self.answers[path, refusal.status] += 1
            await _problem(send, refusal)
        except Exception:
            self.answers[path, 500] += 1
            log.exception("%s %s", scope["method"], scope["path"])
            await _problem(send, Refusal(500, "Not stored", "the gateway failed; its log says why. Send it again"))
        else:
            status = 202 if reply is None else 200
            self.answers[path, status] += 1
            self.taken[path] += taken
            if reply is not None:
                await _answer(send, status, reply.body, reply.content_type)
                return
            await send({"type": "http.response.start", "status": status, "headers": _STORED})
            await send({"type": "http.response.body"})

    async def _ingest(self, endpoint: Endpoint, scope: Scope, receive: Receive) -> tuple[int, Reply | None]:
        """Returns the number of events in the request, once they are durable, and an answer other than 202. Raises
        Refusal."""
        self._admit(endpoint, scope)
        taken = _Taken(self.room, endpoint.pipeline)
        verifier = endpoint.verifier
        marks: Sequence[Mark] = ()
        try:
            if verifier is None:
                body = await _read(scope, receive, endpoint.source.request_bytes, taken)
            else:
                body, marks = await _verified(verifier, endpoint, scope, receive, taken)
                if (reply := handshake(verifier.scheme.name, scope["headers"], body)) is not None:
                    return 0, reply
            count, chunk = _events(endpoint, scope, body)
            del body
            if endpoint.bucket is not None:
                endpoint.bucket.charge(count - 1)
            if count:
                await _store(endpoint, count, chunk, marks)
        finally:
            taken.back()
        # Slack shows its users an error for any other answer to what they did.
        return count, Reply() if verifier is not None and verifier.scheme.name == "slack" else None

    def _admit(self, endpoint: Endpoint, scope: Scope) -> None:
        """Checks what can be checked before a body is read. Raises Refusal."""
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
        if length is not None and length > endpoint.source.request_bytes:
            raise too_large(endpoint.source.request_bytes)
        if self.health.away:
            raise away()
        if endpoint.bucket is not None and (wait := endpoint.bucket.take(1)):
            raise too_fast(endpoint.bucket, wait)

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


class _Taken:
    """Bytes that one request has taken of the room."""

    def __init__(self, room: Room, pipeline: str) -> None:
        self._room, self._pipeline, self._size = room, pipeline, 0

    def more(self, size: int) -> None:
        """Takes more bytes. Raises Refusal if there is no room."""
        if not self._room.take(self._pipeline, size):
            raise busy()
        self._size += size

    def back(self) -> None:
        self._room.give(self._pipeline, self._size)


async def _read(scope: Scope, receive: Receive, most: int, taken: _Taken) -> bytes:
    """Returns the body; never holds more than `most` bytes and one read of the socket. The protocol bounds the time."""
    parts, size, room = [], 0, OVERHEAD
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            status = 408 if LATE in scope["state"] else 400
            raise Refusal(status, "Incomplete", "the producer left before its body was whole")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > most:
            raise too_large(most)
        taken.more(room + len(part))
        room = 0
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _verified(
    verifier: Verifier, endpoint: Endpoint, scope: Scope, receive: Receive, taken: _Taken
) -> tuple[bytes, list[Mark]]:
    """Returns the body of a request that is signed rightly, and what is to be remembered of it. Raises Refusal."""
    try:
        claim = verifier.claim(scope["headers"])
        body = await _read(scope, receive, endpoint.source.request_bytes, taken)
        return body, verifier.check(claim, body)
    except Unverified as error:
        raise unverified(error) from None


def _events(endpoint: Endpoint, scope: Scope, body: bytes) -> tuple[int, bytes]:
    """Returns the number of events in the request, and the events as a chunk. Raises Refusal."""
    source = endpoint.source
    try:
        events = parse(scope["headers"], body, endpoint.webhooks, source.attributes_size)
        if source.pipe is not None:
            lanes = {place(event, source.pipe_key)[0] for event in events}
            if len(lanes) > LANES:
                raise Refusal(
                    413,
                    "Too many lanes in one request",
                    f"the request has events of {len(lanes)} lanes (CloudEvents source and pipe.key), and {LANES} is "
                    "the most that one may have. Send smaller batches",
                )
    except BadEvent as bad:
        raise bad_event(bad) from None
    return len(events), join(events)


async def _store(endpoint: Endpoint, count: int, chunk: bytes, marks: Sequence[Mark]) -> None:
    budget = endpoint.committer.budget
    if count > budget.records or len(chunk) > budget.bytes:
        raise Refusal(
            413,
            "Too many events",
            f"the request has {count} events of {len(chunk)} bytes; the whole backlog of this source holds "
            f"{budget.records} and {budget.bytes} bytes. Send smaller batches",
        )
    try:
        stored = await endpoint.committer.store(count, chunk, marks)
    except ConduitError as error:
        raise not_stored(error) from None
    if not stored:
        raise backlog_full()


async def _problem(send: Send, refusal: Refusal) -> None:
    await _json(send, refusal.status, refusal.problem, "application/problem+json", refusal.headers)


async def _json(
    send: Send,
    status: int,
    content: Mapping[str, Any],
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> None:
    await _answer(send, status, orjson.dumps(content), content_type, headers)


async def _answer(
    send: Send, status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None
) -> None:
    sent = {"Content-Type": content_type, "Content-Length": str(len(body)), **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
