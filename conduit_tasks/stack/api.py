"""Airflow's REST API, as far as it is needed: tokens, runs, tasks, pools."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any, TypeVar

import httpx
import orjson

from conduit_tasks.airflow.at_once import at_once
from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.stack.environment import USER, load_secrets
from conduit_tasks.stack.layout import Layout, State

URL, NAME, PASSWORD, TOKEN = (f"CONDUIT_AIRFLOW_{name}" for name in ("URL", "USER", "PASSWORD", "TOKEN"))
TRIES, PAUSE = 8, 0.5
"""Tries of a request and seconds between them: SQLite sometimes answers "database error" under load; eight tries half a
second apart outlast it."""


T = TypeVar("T")


class ApiError(ConduitError):
    """A request that Airflow refused, or an Airflow that could not be reached; the message has its answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """A client with a token of its own; it retries requests that failed without a fault of their own."""

    def __init__(self, url: str, *, user: str = USER, password: str = "", token: str = "") -> None:
        self.url, self._user, self._password = url.rstrip("/"), user, password
        # Reading the certificates to trust takes 40 ms, and http has no use for them; redirects are not followed.
        plain = self.url.lower().startswith("http://")
        self._client = httpx.Client(base_url=self.url, timeout=30.0, verify=not plain, follow_redirects=False)
        if token:
            self._client.headers["Authorization"] = f"Bearer {token}"

    @classmethod
    def of(cls, layout: Layout) -> Api:
        """Makes the client of the Airflow that `CONDUIT_AIRFLOW_URL` names, with its token or user and password; else
        of the embedded stack's.

        Raises ConfigError if there is neither.
        """
        url, environ = os.environ.get(URL), os.environ
        if url:
            return cls(
                url, user=environ.get(NAME, USER), password=environ.get(PASSWORD, ""), token=environ.get(TOKEN, "")
            )
        state = State.load(layout)
        if not state.api_url:
            raise ConfigError(
                f"no stack runs in {layout.home}: `conduit stack up`, or set {URL} to an Airflow's address"
            )
        return cls(state.api_url, password=load_secrets(layout)["password"])

    def __enter__(self) -> Api:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def health(self) -> dict[str, Any]:
        """Returns each component's health by its last heartbeat; {} if the API does not answer. No retries."""
        try:
            answer = self._client.get("/api/v2/monitor/health", timeout=5.0)
            return answer.json() if answer.status_code == httpx.codes.OK else {}
        except (httpx.HTTPError, ValueError):
            return {}

    def request(self, method: str, path: str, *, absent: bool = False, **options: Any) -> Any:
        """Returns the answer's JSON. `absent`: None instead of an error if there is no such thing (404).

        Raises ApiError.
        """
        said = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE)
            try:
                self._login()
                answer = self._client.request(method, f"/api/v2{path}", **options)
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
            raise ApiError(f"{self.url} refuses the user {self._user!r}; set {NAME} and {PASSWORD}", answer.status_code)
        token = _part(self._json(answer), "access_token", str, "/auth/token")
        if not token.isascii() or not token.isprintable():
            raise ApiError(f"{self.url} gives a token that is no header's value")
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
            f"{self.url} is no Airflow API; set {URL} to the address of Airflow's api-server itself",
            answer.status_code,
        )

    def dag(self, dag_id: str) -> dict[str, Any] | None:
        """Returns the DAG, or None if Airflow has not seen it (yet)."""
        path = f"/dags/{dag_id}"
        found: dict[str, Any] | None = self.request("GET", path, absent=True)
        if found is not None:
            _part(found, "is_paused", bool, path)
        return found

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any]) -> None:
        """Starts a run under an id of ours, so that a repeated request starts no second one."""
        body = {"dag_run_id": run_id, "logical_date": None, "run_after": at_once().isoformat(), "conf": conf}
        try:
            self.request("POST", f"/dags/{dag_id}/dagRuns", json=body)
        except ApiError as error:
            if error.status != httpx.codes.CONFLICT:
                raise

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        path = f"/dags/{dag_id}/dagRuns/{run_id}"
        found: dict[str, Any] = self.request("GET", path)
        _part(found, "state", str, path)
        return found

    def active_runs(self, dag_id: str) -> list[str]:
        """Returns the ids of the runs that are queued or running."""
        path = f"/dags/{dag_id}/dagRuns"
        found = self.request("GET", path, params={"state": ["queued", "running"], "limit": 100})
        return [_part(run, "dag_run_id", str, path) for run in _part(found, "dag_runs", list, path)]

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Returns the run's task instances."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        found = self.request("GET", path, params={"limit": 200})
        instances: list[dict[str, Any]] = _part(found, "task_instances", list, path)
        for instance in instances:
            _part(instance, "task_id", str, path)
            _part(instance, "try_number", int, path)
        return instances

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int) -> list[str]:
        """Returns the lines of a task's log."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        found = self.request("GET", path, params={"full_content": "true"}, headers={"Accept": "application/json"})
        lines = _part(found, "content", list, path)
        return [str(line.get("event", "")) if isinstance(line, dict) else str(line) for line in lines]

    def set_pool(self, name: str, slots: int) -> None:
        """Makes a pool, or changes its number of slots."""
        body = {"name": name, "slots": slots, "description": "Spark drivers at once", "include_deferred": False}
        if self.request("GET", f"/pools/{name}", absent=True) is None:
            self.request("POST", "/pools", json=body)
        else:
            self.request("PATCH", f"/pools/{name}", json=body)


def _part(answer: Any, name: str, kind: type[T], path: str) -> T:
    """Returns a part of an answer. Raises ApiError if it is not as Airflow documents it."""
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, kind):
        raise ApiError(f"what answers to {path} is no Airflow as it is known here: it has no '{name}'; check {URL}")
    return found


def _said(answer: httpx.Response) -> str:
    # Does not use the encoding that the header names, which may be anything.
    text = answer.content.decode(errors="replace")
    try:
        detail = orjson.loads(answer.content).get("detail", text)
    except (ValueError, AttributeError):
        detail = text
    return f"{answer.status_code} {str(detail)[:500]}"
