"""Requests of the `http` source: one for each page, made again if it gets no answer, with our headers and token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from yarl import URL

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Token
from conduit_tasks.connectors.http import oauth2
from conduit_tasks.connectors.http.head import headers
from conduit_tasks.connectors.http.outcome import seconds_of
from conduit_tasks.connectors.http.peer import address, guarded, quiet, tls_context
from conduit_tasks.errors import SourceError, Unavailable

if TYPE_CHECKING:
    import httpx

PAGE = 64 << 20
"""Limit of a page, in bytes."""


class PageClient:
    """Client of one URL. Connects with the first request. Raises ConfigError if a setting is wrong."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = settings
        self.url = address(settings["url"])
        self._guarded = guarded(settings, self.url)
        self._headers = {"Accept": "application/json", "User-Agent": "conduit-tasks", **headers(settings)}
        self._oauth2 = oauth2.ClientCredentials.wanted(settings)
        self._timeout = options.duration(settings, "timeout")
        self._attempts = options.integer(settings, "attempts", least=1)
        self._client: httpx.Client | None = None
        self._tokens: oauth2.ClientCredentials | None = None

    @property
    def shown(self) -> str:
        """The URL without its query, which may hold a secret."""
        return str(self.url.with_query(None))

    def ask(self, token: Token) -> httpx.Response:
        """Returns the answer with the page at `token`: 2xx or 304. Raises SourceError."""
        import httpx
        from tenacity import retry_if_exception_type, stop_after_attempt

        from conduit_tasks.retrying import Retrying

        retrying = Retrying(
            stop=stop_after_attempt(self._attempts),
            wait=_wait,
            retry=retry_if_exception_type((Unavailable, httpx.RequestError)),
            reraise=True,
        )
        try:
            return retrying(self._once, token)
        except (httpx.RequestError, OSError) as error:
            raise SourceError(f"http: {self.shown} does not answer: {type(error).__name__}: {error}") from None
        except httpx.InvalidURL as error:
            raise SourceError(f"http: the next page of {self.shown} is at no URL: {error}") from None
        except Unavailable as error:
            raise SourceError(str(error)) from None

    def _once(self, token: Token) -> httpx.Response:
        from conduit_tasks.connectors.http.guard import ask

        url, extra = str(self.url), dict[str, str | bytes]()
        token = token or {}
        if "url" in token:
            ours = {name: value for name, value in self.url.query.items() if name in token.get("with", ())}
            url = str(URL(token["url"]).extend_query(ours)) if ours else token["url"]
        cursor = token.get("cursor", self.settings.get("cursor.first"))
        if cursor is not None and "cursor.param" in self.settings:
            url = str(self.url.update_query({self.settings["cursor.param"]: cursor}))
        if "etag" in token:
            extra["If-Modified-Since" if token["since"] else "If-None-Match"] = token["etag"].encode(
                "latin-1", "replace"
            )
        for again in (True, False):
            bearer = self._token()
            sent = {**extra, "Authorization": f"Bearer {bearer}"} if bearer else extra
            answer = ask(self._opened(), "GET", url, within=self._timeout, most=PAGE, headers=sent)
            if answer.status_code != 401 or not bearer or not again:
                break
            assert self._tokens is not None
            self._tokens.forget(bearer)
        return self._good(answer)

    def _good(self, answer: httpx.Response) -> httpx.Response:
        status = answer.status_code
        if answer.is_success or status == 304:
            return answer
        said = f"http: {self.shown} answers {status} {answer.reason_phrase}".strip()
        if status in (408, 425, 429) or status >= 500:
            raise Unavailable(said, retry_after=seconds_of(answer.headers.get("Retry-After")), status=status)
        if 300 <= status < 400:
            said += " (redirects are not followed; set 'url' to its target)"
        raise SourceError(f"{said}; correct 'url', the cursor or the credentials")

    def _opened(self) -> httpx.Client:
        import httpx

        from conduit_tasks.connectors.http.guard import transport

        if self._client is None:
            quiet()
            self._client = httpx.Client(
                headers=self._headers,
                timeout=self._timeout,
                transport=transport(guarded=self._guarded, verify=tls_context(self.settings)),
                trust_env=False,
            )
        return self._client

    def _token(self) -> str:
        if not self._oauth2:
            return ""
        if self._tokens is None:
            self._tokens = oauth2.ClientCredentials(
                self.settings, guarded=self._guarded, timeout=self._timeout, verify=tls_context(self.settings)
            )
        return asyncio.run(self._tokens.token())

    def close(self) -> None:
        """Leaves nothing open."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _wait(state: Any) -> float:
    """Returns the seconds to wait: `Retry-After` up to a minute, else 0.2 s, 0.4 s, …"""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, Unavailable) else None
    return min(60.0, asked if asked is not None else 0.2 * 2 ** (state.attempt_number - 1))
