"""The hook that tasks of other DAGs call the API with, at a real server that answers as the plugin does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from conduit_tasks.airflow import ConduitHook
from conduit_tasks.airflow.rest import ApiError
from conduit_tasks.errors import ConfigError
from tests.answering import answering

ROW = {"id": "a/b", "status": "running"}
ANSWERS: dict[str, Any] = {
    "GET /conduit/v1/pipelines?attention=true": {"items": [ROW], "total": 1},
    "GET /conduit/v1/pipelines/a%2Fb": ROW,
    "POST /conduit/v1/pipelines/p/start": {"status": "running"},
    "POST /conduit/v1/pipelines/p/stop": {"status": "stopped"},
    "POST /conduit/v1/pipelines/p/dead-letters/redrive": {"shares": [], "run_id": None},
    "GET /conduit/v1/pipelines/p/issues": {"items": []},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    """A server, and the connection that names it; what it was asked."""
    seen: list[tuple[str, Any]] = []

    def respond(what: str, headers: Mapping[str, str], text: bytes) -> tuple[int, bytes]:
        body = json.loads(text or b"null")
        if what == "POST /auth/token":
            good = body == {"username": "ann", "password": "hush"}
            return (201, b'{"access_token": "t0k3n"}') if good else (401, b'{"detail": "no"}')
        if headers.get("Authorization") != "Bearer t0k3n":
            return 401, b'{"detail": "who are you?"}'
        seen.append((what, body))
        found = ANSWERS.get(what)
        return (200, json.dumps(found).encode()) if found else (404, b'{"detail": "there is no such pipeline"}')

    with answering(respond) as url:
        connect(monkeypatch, login="ann", password="hush", port=int(url.rpartition(":")[2].rstrip("/")))
        yield seen


def connect(monkeypatch: pytest.MonkeyPatch, **about: Any) -> None:
    connection = {"conn_type": "http", "host": "127.0.0.1", **about}
    monkeypatch.setenv("AIRFLOW_CONN_CONDUIT_DEFAULT", json.dumps(connection))


def test_it_calls_the_api_as_the_user_of_its_connection(asked: list[tuple[str, Any]]) -> None:
    hook = ConduitHook()
    assert hook.pipelines(attention=True) == [ROW]
    assert hook.status("a/b") == ROW
    assert hook.start("p") == {"status": "running"}
    assert hook.stop("p", deadline=5) == {"status": "stopped"}
    assert hook.redrive("p", dry_run=True, classes=["http 503"]) == {"shares": [], "run_id": None}
    assert hook.call("GET", "/pipelines/p/issues") == {"items": []}
    assert asked == [
        ("GET /conduit/v1/pipelines?attention=true", None),
        ("GET /conduit/v1/pipelines/a%2Fb", None),
        ("POST /conduit/v1/pipelines/p/start", {}),
        ("POST /conduit/v1/pipelines/p/stop", {"deadline": 5}),
        ("POST /conduit/v1/pipelines/p/dead-letters/redrive", {"dry_run": True, "classes": ["http 503"]}),
        ("GET /conduit/v1/pipelines/p/issues", None),
    ]


def test_a_token_may_stand_in_place_of_a_login(asked: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    port = json.loads(os.environ["AIRFLOW_CONN_CONDUIT_DEFAULT"])["port"]
    connect(monkeypatch, host=f"http://127.0.0.1:{port}/", password="t0k3n")
    assert ConduitHook().start("p") == {"status": "running"}


def test_a_token_that_cannot_be_sent_is_told_by_its_connection_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, port=1, password="hush-hush\nt0k3n")
    with pytest.raises(ApiError, match="the token of connection 'conduit_default' is no header's value") as found:
        ConduitHook().pipelines()
    assert "hush" not in str(found.value)


def test_what_is_refused_says_what_the_api_said(asked: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApiError, match="404 there is no such pipeline"):
        ConduitHook().status("q")
    port = json.loads(os.environ["AIRFLOW_CONN_CONDUIT_DEFAULT"])["port"]
    connect(monkeypatch, login="ann", password="wrong", port=port)
    with pytest.raises(ApiError, match="refuses the user 'ann'; see connection 'conduit_default'") as found:
        ConduitHook().status("p")
    assert "wrong" not in str(found.value)


def test_a_connection_without_a_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, host="", login="ann")
    with pytest.raises(ConfigError, match="connection 'conduit_default' has no host"):
        ConduitHook().pipelines()
