"""A client of the APIs that Airflow's api-server has: its own, and the one that the plugin serves there."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import orjson

from conduit_tasks.errors import ConduitError

TRIES, PAUSE = 8, 0.5
"""Tries of a request and seconds between them: SQLite sometimes answers "database error" under load; eight tries half a
second apart outlast it."""

T = TypeVar("T")


class ApiError(ConduitError):
    """A request that Airflow refused, or an Airflow that could not be reached; the message has its answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Rest:
    """A client with a token of its own; it retries requests that failed without a fault of their own. `named`: what to
    set if the address or the login is wrong."""

    def __init__(self, url: str, *, user: str, password: str = "", token: str = "", named: str) -> None:
        self.url, self._user, self._password, self.named = url.rstrip("/"), user, password, named
        # Reading the certificates to trust takes 40 ms, and http has no use for them; redirects are not followed.
        plain = self.url.lower().startswith("http://")
        self._client = httpx.Client(base_url=self.url, timeout=30.0, verify=not plain, follow_redirects=False)
        if token:
            self._sign(token, named)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def request(self, method: str, path: str, *, base: str = "/api/v2", absent: bool = False, **options: Any) -> Any:
        """Returns the answer's JSON. `path`: below `base`; `absent`: None instead of an error if there is no such thing
        (404).

        Raises ApiError.
        """
        said = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE)
            try:
                self._login()
                answer = self._client.request(method, f"{base}{path}", **options)
            except httpx.RequestError as error:
                said = f"{type(error).__name__}: {error}"
                continue
            if answer.status_code == httpx.codes.UNAUTHORIZED and self._password:
                self._client.headers.pop("Authorization", None)
            elif answer.status_code == httpx.codes.NOT_FOUND and absent:
                return None
            elif answer.status_code < httpx.codes.BAD_REQUEST:
                return self._json(answer) if answer.content else None
            elif answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                raise ApiError(f"{method} {path}: {_said(answer)}", answer.status_code)
            said = _said(answer)
        raise ApiError(f"Airflow at {self.url} did not answer {method} {path}, {TRIES} times: {said}")

    def _login(self) -> None:
        if "Authorization" in self._client.headers:
            return
        answer = self._client.post("/auth/token", json={"username": self._user, "password": self._password})
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise httpx.TransportError(_said(answer))
        if answer.status_code >= httpx.codes.BAD_REQUEST:
            raise ApiError(f"{self.url} refuses the user {self._user!r}; see {self.named}", answer.status_code)
        self._sign(part_of(self._json(answer), "access_token", str, "/auth/token"), self.url)

    def _sign(self, token: str, whose: str) -> None:
        """Sends this token from now on. Raises ApiError, without it, if it cannot be sent."""
        if not token.isascii() or not token.isprintable():
            raise ApiError(f"the token of {whose} is no header's value")
        self._client.headers["Authorization"] = f"Bearer {token}"

    def _json(self, answer: httpx.Response) -> Any:
        """Returns the JSON of a good answer. Raises ApiError if it has none, as a sign-in page or a redirect to one."""
        try:
            if answer.is_success:
                return orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            pass
        raise ApiError(
            f"{answer.request.method} {answer.request.url.path}: {answer.status_code} without JSON: what answers at "
            f"{self.url} is no Airflow API; give the address of Airflow's api-server itself ({self.named})",
            answer.status_code,
        )


def part_of(answer: Any, name: str, kind: type[T], path: str) -> T:
    """Returns a part of an answer. Raises ApiError if it is not as Airflow documents it."""
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, kind):
        raise ApiError(f"what answers to {path} is no Airflow as it is known here: it has no '{name}'")
    return found


def _said(answer: httpx.Response) -> str:
    # Does not use the encoding that the header names, which may be anything.
    text = answer.content.decode(errors="replace")
    try:
        detail = orjson.loads(answer.content).get("detail", text)
    except (ValueError, AttributeError):
        detail = text
    return f"{answer.status_code} {str(detail)[:500]}"
