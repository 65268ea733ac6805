"""`http`: one request per record, an outcome each (SEMANTICS T6, T8).

Required: `url`. Common options: `method` (POST), `headers.<Name>`, `body` (`payload`: the record's own data;
`opencdc`: the whole record as JSON), `auth.bearer`. Every request carries the record's id in the idempotency header,
the same at each attempt, so that a target can drop what it has; with an index pipe (SEMANTICS O5–O6r) also its number.

```yaml
plugin: http
settings: {url: "https://example.org/events", headers.X-Team: data, auth.bearer: "${TOKEN}"}
```
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import orjson
from yarl import URL

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option, Outcome, RecordDestination, Spec
from conduit_tasks.connectors.http_client import Client
from conduit_tasks.connectors.http_outcome import outcome_of_answer, outcome_of_error
from conduit_tasks.connectors.link_local import check_host
from conduit_tasks.errors import ConfigError, Unavailable
from conduit_tasks.pipes.base import AFTER, EPOCH, INDEX, LANE
from conduit_tasks.record.record import Record, data_bytes
from conduit_tasks.settings import settings as installation

_PIPE = ((LANE, "Conduit-Lane"), (EPOCH, "Conduit-Epoch"), (INDEX, "Conduit-Index"), (AFTER, "Conduit-After"))
"""Metadata of a record that travels through an index pipe, and the header it is sent in."""

METHODS = ("POST", "PUT", "PATCH", "DELETE")
FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"})
"""Headers that decide where a request ends, or what follows it on its connection."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header's name (RFC 9110, 5.1)."""


class HttpDestination(RecordDestination):
    """Sends records to one URL. Connections are kept and used again, as many as there are sends at a time."""

    spec = Spec(
        "http",
        "One HTTP request per record, with an idempotency header",
        (
            Option("url", "where to send; http or https, no user or password in it", required=True),
            Option("method", "the request's method", default="POST", choices=METHODS),
            Option("headers.*", "a header of every request", secret=True),
            Option(
                "body",
                "payload: the data after the change (of a deleted record, before it); opencdc: the record as JSON",
                "payload",
                choices=("payload", "opencdc"),
            ),
            Option("content-type", "default: application/json for structured data, application/octet-stream for raw"),
            Option("idempotency-header", "carries the record's id; empty: none", default="Idempotency-Key"),
            Option("auth.bearer", "token of an Authorization: Bearer header", secret=True),
            Option("auth.basic.username", "user of HTTP basic authentication"),
            Option("auth.basic.password", "its password", secret=True),
            Option("tls.verify", "check the server's certificate", default="true"),
            Option("tls.ca-file", "certificates to trust, PEM"),
            Option("tls.cert-file", "certificate of ours, PEM"),
            Option("tls.key-file", "its key, PEM"),
            Option("allow-link-local", "allow link-local and cloud metadata addresses", default="false"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        self._url = _url(s["url"])
        self._guarded = not options.boolean(s, "allow-link-local")
        if self._guarded:
            check_host(self._url.host or "", "http: option 'url'")
        self._verify = options.boolean(s, "tls.verify")
        self._key = s["idempotency-header"].strip()
        self._content_type = s.get("content-type")
        self._opencdc = s["body"] == "opencdc"
        self._head = _head(s["method"], self._url, _headers(s), {"content-type", self._key.lower()})
        if ("tls.key-file" in s) and ("tls.cert-file" not in s):
            raise ConfigError("http: option 'tls.key-file' needs 'tls.cert-file'")
        self._client: Client | None = None

    async def open(self, timeout: float) -> None:  # noqa: ASYNC109  # the contract of RecordDestination
        url = self._url
        # The engine times every send (T5); this bounds only how long a connection takes.
        self._client = Client(url.raw_host or "", url.port or 0, self._tls(), guarded=self._guarded, timeout=timeout)

    async def send(self, record: Record) -> Outcome:
        if self._client is None:
            raise Unavailable("http: send before open")
        body, content_type = self._body(record)
        key = f"{self._key}: {record.id}\r\n" if self._key else ""
        if INDEX in record.metadata:
            key += _pipe_headers(record.metadata)
        head = f"{self._head}{key}Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            return outcome_of_answer(await self._client.exchange(head.encode("latin-1") + body))
        except OSError as error:
            return outcome_of_error(error)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _body(self, record: Record) -> tuple[bytes, str]:
        """What is sent: the data after the change, or before it where it was deleted."""
        if self._opencdc:
            data = orjson.dumps({"id": record.id, **record.to_opencdc()}, option=orjson.OPT_NON_STR_KEYS)
            return data, self._content_type or "application/json"
        payload = record.after if record.after is not None else record.before
        kind = "application/octet-stream" if isinstance(payload, bytes) else "application/json"
        return data_bytes(payload), self._content_type or kind

    def _tls(self) -> ssl.SSLContext | None:
        if self._url.scheme != "https":
            return None
        s = self.settings
        try:
            context = ssl.create_default_context(cafile=_path(s.get("tls.ca-file")))
            if "tls.cert-file" in s:
                context.load_cert_chain(_path(s["tls.cert-file"]) or "", _path(s.get("tls.key-file")))
        except OSError as error:
            raise ConfigError(f"http: tls.ca-file, tls.cert-file or tls.key-file cannot be read: {error}") from error
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _url(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError as error:
        raise ConfigError(f"http: option 'url' is no URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError("http: option 'url' must begin with http:// or https:// and name a host")
    if url.user or url.password:
        raise ConfigError(
            "http: option 'url' must not hold a password; use auth.basic.username and auth.basic.password"
        )
    return url


def _head(method: str, url: URL, headers: Mapping[str, str], later: set[str]) -> str:
    """The part of every request's head that is the same; `later`: names, in small letters, that each brings itself."""
    fixed = {"Host": url.host_port_subcomponent or "", "Accept": "*/*", "User-Agent": "conduit-tasks"}
    given = {name.lower() for name in headers}
    merged = {**{k: v for k, v in fixed.items() if k.lower() not in given}, **headers}
    lines = [f"{name}: {value}\r\n" for name, value in merged.items() if name.lower() not in later]
    return f"{method} {url.raw_path_qs} HTTP/1.1\r\n{''.join(lines)}"


def _checked(option: str, name: str, value: str) -> None:
    """Raises ConfigError where this is no header, or one that decides where a request ends."""
    if not _TOKEN.fullmatch(name) or any(c in value for c in "\r\n\0") or not value.isascii():
        raise ConfigError(f"http: option '{option}' is no header")
    if name.lower() in FRAMING:
        raise ConfigError(f"http: option '{option}': {name} is written by the client; leave it out")


def _headers(settings: Mapping[str, str]) -> dict[str, str]:
    headers = {name.removeprefix("headers."): v for name, v in settings.items() if name.startswith("headers.")}
    for name, value in headers.items():
        _checked(f"headers.{name}", name, value)
    if settings["idempotency-header"].strip():
        _checked("idempotency-header", settings["idempotency-header"].strip(), "")
    _checked("content-type", "Content-Type", settings.get("content-type", ""))
    user, bearer = settings.get("auth.basic.username"), settings.get("auth.bearer")
    if bearer and user:
        raise ConfigError("http: auth.bearer and auth.basic.username exclude each other")
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    elif user:
        pair = f"{user}:{settings.get('auth.basic.password', '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return headers


def _pipe_headers(metadata: Mapping[str, str]) -> str:
    """The number of a record in an index pipe. Quoted: metadata of a foreign record must not end a header."""
    present = [(header, metadata[name]) for name, header in _PIPE if name in metadata]
    return "".join(f"{header}: {quote(value, safe='/%')}\r\n" for header, value in present)


def _path(text: str | None) -> Path | None:
    return Path(installation().path(text)) if text else None


DESTINATION = HttpDestination
