"""A pipeline as it goes: server-sent events, one connection for a page, bounded in number and time."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.requests import ClientDisconnect

from conduit_tasks.airflow.api import live
from conduit_tasks.airflow.api.live import changes
from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.settings import forget
from tests.airflow.api_client import Airflow, airflow, api, broker_of, delivered, site
from tests.faults.parts import events
from tests.fork import script
from tests.micro_batch.harness import run_once
from tests.waiting import until

__all__ = ["airflow", "api", "delivered", "site"]

pytestmark = pytest.mark.timeout(300)


@contextmanager
def stream(site: str, query: str = "") -> Iterator[Iterator[tuple[str, Any]]]:
    """An open stream: its events, name and data."""
    connection = http.client.HTTPConnection(urlsplit(site).netloc, timeout=60)
    connection.request("GET", f"/conduit/v1/pipelines/p/live{query}")
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    try:
        yield parsed(answer)
    finally:
        answer.close()
        connection.close()


def parsed(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in answer:
        field, _, text = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = text
        elif field == "data":
            yield name, json.loads(text)


def test_a_stream_begins_with_all_of_it_and_goes_on_with_what_changes(site: str, delivered: None, home: Path) -> None:
    with stream(site, "?seconds=7200&most=1") as found:
        name, first = next(found)
        assert (name, first["sealed"], first["bottleneck"]) == ("look", 2, None)
        assert [d["id"] for d in first["graph"]["destinations"]] == ["file", "web"]
        assert first["front"]["state"] == "done"
        # The curves come along
        name, curves = next(found)
        assert (name, list(curves["destinations"]), sum(curves["outcomes"]["delivered"])) == ("series", ["file"], 19)
        # Nothing happens
        name, quiet = next(found)
        assert (name, list(quiet)) == ("look", ["at"])
        # The web is stopped, and more comes
        broker_of("p").lifecycle.halt_destination("web")
        events(home / "data", 15)
        run_once("p", "third")
        seen: dict[str, Any] = {}
        for _, more in found:
            seen |= more
            if {"bottleneck", "front"} <= seen.keys() and seen["front"]["delivered"]["file"]["done"] == 5:
                break
        assert "graph" not in seen
        assert seen["sealed"] == 3
        assert (seen["bottleneck"]["node"], seen["bottleneck"]["rule"]) == ("destinations.web", "stopped")
        # What did not change is not told again
        web = next(more["destinations"] for _, more in found if "destinations" in more)
        assert [d["id"] for d in web] == ["web"], "its age grows"


def test_what_has_changed_is_told_and_nothing_else() -> None:
    before = {
        "at": 1,
        "status": "running",
        "sources": [{"id": "a"}],
        "destinations": [{"id": "x", "n": 1}, {"id": "y"}],
    }
    assert changes(None, before) == before
    assert changes(before, {**before, "at": 2}) == {"at": 2}
    now = {**before, "at": 2, "destinations": [{"id": "x", "n": 2}, {"id": "y"}]}
    assert changes(before, now) == {"at": 2, "destinations": [{"id": "x", "n": 2}]}


@pytest.mark.slow
def test_streams_hold_no_thread_and_are_bounded_in_number(
    site: str, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LASTS", 120.0)
    client = broker_of("p").redis
    before = len(client.client_list())
    with ExitStack() as streams:
        # More than a server has threads for requests
        open_ = [streams.enter_context(stream(site)) for _ in range(live.MOST)]
        until(lambda: len(live._streams) == live.MOST, "all streams")
        assert sum(t.name.startswith("conduit-live") for t in threading.enumerate()) <= 4
        for _ in range(2):
            assert all(next(found)[0] == "look" for found in open_)
        # Others are answered
        connection = http.client.HTTPConnection(urlsplit(site).netloc, timeout=30)
        connection.request("GET", "/conduit/v1/pipelines/p")
        assert connection.getresponse().status == 200
        connection.close()
        # And one more is not
        connection.request("GET", "/conduit/v1/pipelines/p/live")
        refused = connection.getresponse()
        assert (refused.status, refused.headers["Retry-After"]) == (503, "120")
        assert "from time to time" in json.loads(refused.read())["detail"]
        connection.close()
    # Once their pages are gone, they end, with their connections
    until(lambda: not live._streams, "the end of streams")
    until(lambda: len(client.client_list()) <= before, "the end of their connections")


class Looks:
    """Stands for a stream whose pages see nothing."""

    closed = threading.Event()

    def look(self) -> bytes:
        return b"."

    def close(self) -> None:
        self.closed.set()


def test_a_page_that_goes_while_it_is_sent_something_leaves_no_stream_behind() -> None:
    # Given a response whose second chunk finds nobody
    stream: Any = Looks()
    response = live.Streamed(live._events(stream))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 3:
            assert stream in live._streams
            raise OSError("gone")

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def goes() -> None:
        # When it has failed, and its frames live on in the error
        with pytest.raises(ClientDisconnect) as kept:
            await response({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
        # Then it counts no more
        assert kept
        assert stream not in live._streams
        assert stream.closed.wait(60)

    asyncio.run(goes())


def test_a_look_that_begins_after_the_page_has_gone_opens_no_connection() -> None:
    stream = live.Stream(None, None, {"lost": 0}, None)  # type: ignore[arg-type]
    stream.close()
    assert stream.look() == b""


def test_a_stream_ends_by_itself_and_says_when_to_come_back(
    api: Any, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LASTS", 0.0)
    said = api.get("/v1/pipelines/p/live")
    assert said.text.startswith("retry: 500\n\nevent: look\ndata: {")
    assert said.text.count("event: ") == 1
    assert (said.headers["X-Accel-Buffering"], said.headers["Cache-Control"]) == ("no", "no-store, no-transform")
    assert api.get("/v1/pipelines/p/live?seconds=1").status_code == 422
    assert api.get("/v1/pipelines/q/live").status_code == 404


def test_a_redis_that_is_down_is_told_and_the_stream_goes_on_when_it_is_back(
    site: str, delivered: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = os.environ["CONDUIT_REDIS_URL"]
    with stream(site) as found:
        assert next(found)[0] == "look"
        live._shared.clear()
        monkeypatch.setenv("CONDUIT_REDIS_URL", f"unix://{tmp_path}/nobody")
        forget()
        name, problem = next(each for each in found if each[0] != "look")
        assert name == "problem"
        assert "does not serve" in problem["detail"]
        monkeypatch.setenv("CONDUIT_REDIS_URL", there)
        forget()
        assert next(each for each in found if each[0] == "look")[1]["at"]


def test_curves_that_cannot_be_read_take_no_look_away(
    api: Any, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(*_: Any) -> Any:
        raise BrokerUnavailable("Redis at x does not serve")

    monkeypatch.setattr(live, "LASTS", 0.0)
    monkeypatch.setattr(live, "drawn", drawn)
    said = api.get("/v1/pipelines/p/live?seconds=60").text
    assert [line for line in said.splitlines() if line.startswith("event")] == ["event: look", "event: problem"]
    assert '"graph":' in said


def test_errors_and_secrets_are_streamed_to_who_may_read_logs_only(
    api: Any, airflow: Airflow, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LASTS", 0.0)
    broker_of("p").lifecycle.fail("destinations.web", "403: token abc is not valid", "Refused", 1)
    for logs in (True, False):
        airflow.logs = logs
        text = api.get("/v1/pipelines/p/live").text
        assert ("token abc" in text) is logs
        assert "degraded" in text
        assert "hush" not in text


SERVER = """
import socket
import uvicorn
from fastapi import FastAPI
from types import SimpleNamespace
import tests.airflow.conftest
from airflow.api_fastapi.core_api.security import get_user
from conduit_tasks.airflow.api import access
from conduit_tasks.airflow.api.app import app
import airflow.api_fastapi.core_api.security as security
from airflow.models.dag import DagModel
from concurrent.futures import ThreadPoolExecutor
from conduit_tasks.airflow.api import live
from tests.airflow.api_client import Airflow
live._threads, live._streams = ThreadPoolExecutor(4), set()  # not those of the process that was forked
security.get_auth_manager = access.get_auth_manager = lambda: Airflow()
DagModel.get_team_name = lambda *_, **__: None
app.dependency_overrides[get_user] = lambda: SimpleNamespace(get_name=lambda: "ann")
outer = FastAPI()
outer.mount("/conduit", app)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(outer, log_level="warning", timeout_graceful_shutdown=120)).run(sockets=[listening])
"""


def test_a_server_that_is_stopped_does_not_wait_for_the_pages_that_are_open(delivered: None) -> None:
    with script(SERVER) as server:
        # Among warnings of what Airflow imports
        port = next(line for line in map(str.strip, server.stdout) if line.isdigit())
        with stream(f"http://127.0.0.1:{port}") as found:
            assert next(found)[0] == "look"
            os.kill(server.pid, signal.SIGTERM)
            # The stream ends by itself, long before it would have
            assert len(list(found)) < live.LASTS / live.TICK / 2
        assert server.wait() == -signal.SIGTERM
