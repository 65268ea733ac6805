"""Access tokens by the client credentials grant (RFC 6749, 4.4) for the `http` connector."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import orjson

from conduit_tasks.connectors.base import Option
from conduit_tasks.connectors.http.link_local import check_host
from conduit_tasks.errors import ConfigError, Unavailable

PREFIX = "auth.oauth2."
OPTIONS = (
    Option(f"{PREFIX}token-url", "where an access token is had for client id and secret (client credentials)"),
    Option(f"{PREFIX}client-id", "the client's id"),
    Option(f"{PREFIX}client-secret", "its secret", secret=True),
    Option(f"{PREFIX}scope", "scopes to ask for, parted by blanks"),
    Option(f"{PREFIX}audience", "the audience to ask for, where the server wants one"),
    Option(
        f"{PREFIX}client-authentication",
        "how id and secret are sent: header (HTTP basic) or body",
        default="header",
        choices=("header", "body"),
    ),
)
MARGIN = 30.0
"""Seconds before its expiry from which a token is not used any more; a tenth of its life if that is less."""
LIFE = 300.0
"""Seconds that a token is used if its server does not say how long it lasts (RFC 6749, 5.1)."""


class ClientCredentials:
    """The token of one client, fetched when it is needed and kept until shortly before its expiry."""

    def __init__(self, settings: Mapping[str, str], *, guarded: bool, timeout: float, verify: Any) -> None:
        self._settings = {n.removeprefix(PREFIX): v for n, v in settings.items() if n.startswith(PREFIX)}
        self._guarded, self._timeout, self._verify = guarded, timeout, verify
        self._token, self._until = "", 0.0
        self._fetching = asyncio.Lock()

    @staticmethod
    def wanted(settings: Mapping[str, str]) -> bool:
        """Returns whether the settings ask for it. Raises ConfigError if some are missing, or another way is set as
        well."""
        given = {n for n in settings if n.startswith(PREFIX) and n != f"{PREFIX}client-authentication"}
        if not given:
            return False
        for name in ("token-url", "client-id", "client-secret"):
            if not settings.get(PREFIX + name, "").strip():
                raise ConfigError(f"http: option '{PREFIX}{name}' is missing: {sorted(given)[0]} needs it")
        if not settings[f"{PREFIX}token-url"].startswith(("http://", "https://")):
            raise ConfigError(f"http: option '{PREFIX}token-url' must begin with http:// or https://")
        if "auth.bearer" in settings or "auth.basic.username" in settings:
            raise ConfigError(f"http: auth.bearer, auth.basic.username and {PREFIX}client-id exclude each other")
        return True

    async def token(self) -> str:
        """Returns a token that is valid now.

        Raises Unavailable if the server gives none at present, ConfigError if it refuses id or secret.
        """
        if time.monotonic() < self._until:
            return self._token
        async with self._fetching:
            if time.monotonic() >= self._until:
                await self._fetch()
            return self._token

    def forget(self, token: str) -> None:
        """Drops a token that the target refused: another is fetched, unless it has been already."""
        if token == self._token:
            self._until = 0.0

    async def _fetch(self) -> None:
        import httpx

        from conduit_tasks.connectors.http.guard import ask_async, async_transport

        s = self._settings
        form = {"grant_type": "client_credentials"} | {n: s[n] for n in ("scope", "audience") if s.get(n)}
        auth: Any = (s["client-id"], s["client-secret"])
        if s["client-authentication"] == "body":
            form |= {"client_id": s["client-id"], "client_secret": s["client-secret"]}
            auth = None
        where = f"http: {PREFIX}token-url"
        if self._guarded:
            check_host(httpx.URL(s["token-url"]).host, where)
        began = time.monotonic()
        try:
            transport = async_transport(guarded=self._guarded, verify=self._verify)
            async with httpx.AsyncClient(timeout=self._timeout, transport=transport, trust_env=False) as client:
                accept = {"Accept": "application/json"}
                answer = await ask_async(
                    client, "POST", s["token-url"], within=self._timeout, data=form, auth=auth, headers=accept
                )
        except httpx.HTTPError as error:
            raise Unavailable(f"{where}: {type(error).__name__}: {error}") from None
        told: Any = _json(answer)
        if answer.status_code >= 500 or answer.status_code in (408, 425, 429):
            raise Unavailable(f"{where} answers {answer.status_code}: no token at present")
        if not answer.is_success or not isinstance(told.get("access_token"), str):
            # `error` is a code of RFC 6749, 5.2; the rest of the answer may quote what was sent.
            code = told.get("error")
            raise ConfigError(
                f"{where} gives no token ({answer.status_code}{f' {code[:60]!r}' if isinstance(code, str) else ''}): "
                "check client-id, client-secret and scope"
            )
        token = told["access_token"]
        if not token.isascii() or not token.isprintable():
            raise ConfigError(f"{where} gives a token that is no header's value")
        life = _seconds(told.get("expires_in"))
        self._token, self._until = token, began + life - min(MARGIN, life / 10)


def _json(answer: Any) -> dict[str, Any]:
    try:
        told = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return {}
    return told if isinstance(told, dict) else {}


def _seconds(said: Any) -> float:
    """Returns the seconds that a token lives by `expires_in`, which some servers write as text."""
    if isinstance(said, str) and said.isdecimal():
        said = float(said[:20])
    if isinstance(said, bool) or not isinstance(said, int | float) or said < 0:
        return LIFE
    return float(said)
