"""`http` as a destination: body and headers of each request, one record or several in it, the idempotency header, one
more try after a refused token (SEMANTICS T6, T8).

Required: `url`. Common options: `method` (POST), `headers.<Name>`, `body` (`payload`: the record's own data;
`opencdc`: the whole record as JSON; `cloudevents-…`: a CloudEvent), `auth.bearer`, `auth.oauth2.*`. Every request
carries the record's id in the idempotency header, the same at each attempt, so that a target can drop duplicates; with
an index pipe (SEMANTICS O5–O6r) also its number. `cloudevents-batched` sends several records in a request. `sign` signs
each.

```yaml
plugin: http
settings: {url: "https://example.org/events", headers.X-Team: data, auth.bearer: "${TOKEN}"}
```
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import DELIVERED, Option, Outcome, RecordDestination, Spec
from conduit_tasks.connectors.batcher import Batcher
from conduit_tasks.connectors.connection import HTTP
from conduit_tasks.connectors.http import oauth2, sign
from conduit_tasks.connectors.http.client import Answer, Client
from conduit_tasks.connectors.http.head import head, headers, pipe_headers
from conduit_tasks.connectors.http.outcome import outcome_of_answer, outcome_of_error, statuses
from conduit_tasks.connectors.http.peer import PEER, address, guarded, tls_context
from conduit_tasks.connectors.http.source import HttpSource
from conduit_tasks.errors import ConfigError, Unavailable
from conduit_tasks.pipes.base import INDEX
from conduit_tasks.record import cloudevents_http, jsons
from conduit_tasks.record.record import Record, data_bytes

METHODS = ("POST", "PUT", "PATCH", "DELETE")
BODIES = ("payload", "opencdc", "cloudevents-binary", "cloudevents-structured", "cloudevents-batched")


class HttpDestination(RecordDestination):
    """Sends records to one URL. Connections are kept and used again, as many as there are concurrent sends."""

    spec = Spec(
        "http",
        "One HTTP request per record, with an idempotency header",
        (
            Option(
                "url",
                "where to send; http or https, no user or password in it",
                required=True,
                example="http://localhost/",
            ),
            Option("method", "the request's method", default="POST", choices=METHODS),
            Option("headers.*", "a header of every request", secret=True),
            Option(
                "body",
                "payload: the data after the change (of a deleted record, before it); opencdc: the record as JSON; "
                "cloudevents-binary and -structured: the record as a CloudEvent; cloudevents-batched: several of them",
                "payload",
                choices=BODIES,
            ),
            Option("batch.size", "events of a request at most, with cloudevents-batched", default="100"),
            Option("batch.delay", "how long the first of them waits for others", default="5ms"),
            Option("content-type", "default: application/json for structured data, application/octet-stream for raw"),
            Option(
                "retry-on",
                "statuses that may recover, so that they are tried again as `delivery` says: 404, or 5xx, a class; "
                "what is not in the list and not 2xx is refused",
                default="408, 425, 429, 5xx",
            ),
            Option("idempotency-header", "carries the record's id; empty: none", default="Idempotency-Key"),
            *sign.OPTIONS,
            *PEER,
        ),
        connection=HTTP,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        self._url = address(s["url"])
        self._guarded = guarded(s, self._url)
        self._key = s["idempotency-header"].strip()
        self._content_type = s.get("content-type")
        self._mode = s["body"]
        self._retriable = statuses(options.words(s, "retry-on"))
        self._oauth2 = oauth2.ClientCredentials.wanted(s)
        self._signer = sign.Signer(s, settings) if sign.wanted(s, settings) else None
        later = {"content-type", self._key.lower(), *(["authorization"] if self._oauth2 else [])}
        self._head = head(s["method"], self._url, headers(s), later)
        self._most, self._delay = options.integer(s, "batch.size", least=1), options.duration(s, "batch.delay")
        self._client: Client | None = None
        self._tokens: oauth2.ClientCredentials | None = None
        self._batcher: Batcher | None = None

    async def open(self, timeout: float) -> None:  # noqa: ASYNC109  # the contract of RecordDestination
        url = self._url
        if self._signer is not None:
            self._signer.open()
        if self._oauth2:
            self._tokens = oauth2.ClientCredentials(
                self.settings, guarded=self._guarded, timeout=timeout, verify=tls_context(self.settings)
            )
            await self._tokens.token()
        tls = tls_context(self.settings) if url.scheme == "https" else None
        # The engine has a timeout for every send (T5); this one is only for connecting.
        self._client = Client(url.raw_host or "", url.port or 0, tls, guarded=self._guarded, timeout=timeout)
        if self._mode == "cloudevents-batched":
            self._batcher = Batcher(self._send_batch, self._most, self._delay)

    async def send(self, record: Record) -> Outcome:
        if self._batcher is not None:
            if INDEX in record.metadata:
                return Outcome("refused", "http: body cloudevents-batched does not take the number of an index pipe")
            return await self._batcher.send(record)
        lines, body, content_type = self._body(record)
        if self._key:
            lines += f"{self._key}: {record.id}\r\n"
        if INDEX in record.metadata:
            lines += pipe_headers(record.metadata)
        return await self._request(record.id, lines, body, content_type)

    async def close(self) -> None:
        if self._batcher is not None:
            await self._batcher.close()
            self._batcher = None
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _send_batch(self, records: list[Record]) -> Outcome:
        body = jsons.dumps([cloudevents_http.structured(r) for r in records])
        # Records that come again together come under the same id.
        id = hashlib.sha256("".join(r.id for r in records).encode()).hexdigest()[:32]
        return await self._request(id, "", body, self._content_type or cloudevents_http.BATCHED)

    async def _request(self, id: str, lines: str, body: bytes, content_type: str) -> Outcome:
        """Sends one request, signed under this id, and a second one if a token was refused: the target did not accept
        the first then."""
        if self._client is None:
            raise Unavailable("http: send before open")
        tail = f"{lines}Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            if self._tokens is None:
                text = f"{self._head}{self._signed(id, body)}{tail}"
                return self._outcome(await self._client.exchange(text.encode("latin-1") + body))
            for again in (True, False):
                token = await self._tokens.token()
                text = f"{self._head}Authorization: Bearer {token}\r\n{self._signed(id, body)}{tail}"
                answer = await self._client.exchange(text.encode("latin-1") + body)
                if answer.status != 401 or not again:
                    break
                self._tokens.forget(token)
            return self._outcome(answer)
        except OSError as error:
            return outcome_of_error(error)
        except (ConfigError, Unavailable) as error:
            # A missing token is no fault of the record: it waits until somebody fixes the cause.
            return Outcome("failed", str(error))

    def _outcome(self, answer: Answer) -> Outcome:
        if answer.status == 409 and answer.taken is not None and self._signer is not None:
            # What we signed, and only that, was taken before: its answer was lost.
            return DELIVERED
        return outcome_of_answer(answer, self._retriable)

    def _signed(self, id: str, body: bytes) -> str:
        return "" if self._signer is None else self._signer.lines(id, body)

    def _body(self, record: Record) -> tuple[str, bytes, str]:
        """Returns header lines, the body (the data after the change, or before it for a deleted record), and its
        type."""
        if self._mode == "cloudevents-binary":
            lines, body, kind = cloudevents_http.binary(record)
            return lines, body, self._content_type or kind
        if self._mode == "cloudevents-structured":
            data = jsons.dumps(cloudevents_http.structured(record))
            return "", data, self._content_type or cloudevents_http.STRUCTURED
        if self._mode == "opencdc":
            data = jsons.dumps({"id": record.id, **record.to_opencdc()})
            return "", data, self._content_type or "application/json"
        payload = record.after if record.after is not None else record.before
        kind = cloudevents_http.RAW if isinstance(payload, bytes) else "application/json"
        return "", data_bytes(payload), self._content_type or kind


SOURCE = HttpSource
DESTINATION = HttpDestination
