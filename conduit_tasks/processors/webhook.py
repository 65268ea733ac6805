"""`webhook.http`: one HTTP request per record; the answer goes into the record.

URL and body are Go templates. If there is no answer, or a status of 500 and above, the request is repeated as
`backoffRetry.*` says, then the record is nacked; every other status is an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from yarl import URL

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.connectors.http.head import FRAMING
from conduit_tasks.connectors.http.link_local import check_host
from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.field import reference
from conduit_tasks.processors.http_calls import BACKOFF, COMMON, HttpProcessor, backoff
from conduit_tasks.record.record import Record
from conduit_tasks.templates import template

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADERS = "headers."


class Webhook(HttpProcessor):
    """See the module."""

    spec = Spec(
        "webhook.http",
        "Makes an HTTP request for every record.",
        (
            Option("request.url", "Go template of the URL", required=True, example="http://localhost/"),
            Option("request.method", "the request's method", default="GET"),
            Option("request.body", "Go template of the body; {{ toJson . }} is the whole record"),
            Option("request.contentType", "deprecated: use headers.Content-Type"),
            Option("headers.*", "a header; Content-Type is application/json unless set", secret=True),
            Option("response.body", "the field that gets the answer's body", default=".Payload.After"),
            Option("response.status", "the field that gets the answer's status; default: none"),
            *BACKOFF,
            *COMMON,
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        self.retry = backoff(s)
        self._method = s["request.method"].strip().upper()
        if not _TOKEN.fullmatch(self._method):
            raise ConfigError(f"webhook.http: option 'request.method': {self._method!r} is no method")
        self._url, self._body = (_template(name, s.get(name, "")) for name in ("request.url", "request.body"))
        if self._url.constant is not None:
            self._check_url(self._url.constant)
        self._headers = self._read_headers()
        self._into = reference("webhook.http", "response.body", s["response.body"])
        self._status = (
            reference("webhook.http", "response.status", s["response.status"]) if s.get("response.status") else None
        )
        if self._status is not None and self._status.text == self._into.text:
            raise ConfigError("webhook.http: the options 'response.body' and 'response.status' name the same field")

    async def handle(self, record: Record) -> Record:
        answer = await self.request(
            self._method,
            self._url.render(record),
            body=self._body.render(record).encode(),
            headers=self._headers,
            again=lambda status: status >= 500,
        )
        self._into.set(record, answer.body)
        if self._status is not None:
            self._status.set(record, str(answer.status))
        return record

    def _check_url(self, text: str) -> None:
        try:
            url = URL(text)
        except ValueError as error:
            raise ConfigError(f"webhook.http: option 'request.url' is no URL: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigError("webhook.http: option 'request.url' must begin with http:// or https:// and name a host")
        if self._guarded:
            check_host(url.host, "webhook.http: option 'request.url'")

    def _read_headers(self) -> dict[str, str]:
        headers = {k.removeprefix(_HEADERS): v for k, v in self.settings.items() if k.startswith(_HEADERS)}
        for name, value in headers.items():
            if not _TOKEN.fullmatch(name) or re.search(r"[\r\n\0]", value):
                raise ConfigError(f"webhook.http: option '{_HEADERS}{name}' is no header")
            if name.lower() in FRAMING:
                raise ConfigError(f"webhook.http: option '{_HEADERS}{name}' is written by the client; leave it out")
        given = any(name.lower() == "content-type" for name in headers)
        deprecated = self.settings.get("request.contentType")
        if given and deprecated:
            raise ConfigError("webhook.http: give 'headers.Content-Type' alone, without 'request.contentType'")
        return headers if given else {**headers, "Content-Type": deprecated or "application/json"}


def _template(option: str, text: str) -> template.Template:
    try:
        return template.compile(text)
    except ConfigError as error:
        raise ConfigError(f"webhook.http: option '{option}': {error}") from None
