"""A client of the plugin's API on a real Redis, spool and dead-letter store; a stand-in for Airflow says who may do
what."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.airflow.conftest  # noqa: F401 - Airflow's home, before its first import
from conduit_tasks.broker.broker import Broker
from tests.faults.parts import Receiver, events
from tests.micro_batch.harness import run_once, write_pipeline

__all__ = ["airflow", "api", "delivered", "site"]

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 5}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
      - id: web
        type: destination
        plugin: http
        settings: {url: "URL?secret=hush"}
        delivery: {timeout: 20s}
        dead-letter-queue: {window-size: 0}
"""
ASK = {"X-Conduit-Request": "1"}


class Airflow:
    """Stands for Airflow's auth manager: what the user may do."""

    methods: tuple[str, ...] = ("GET", "POST")
    hidden: tuple[str, ...] = ()
    logs: bool = True
    without_logs: tuple[str, ...] = ()
    """DAGs whose tasks' logs may not be read."""
    code: tuple[str, ...] | None = None
    """DAGs whose code may be read; None: all."""

    def is_authorized_dag(self, *, method: str, details: Any, access_entity: Any = None, **_: Any) -> bool:
        if str(getattr(access_entity, "name", "")) == "TASK_LOGS" and (
            not self.logs or details.id in self.without_logs
        ):
            return False
        if str(getattr(access_entity, "name", "")) == "CODE" and self.code is not None and details.id not in self.code:
            return False
        return method in self.methods and details.id not in self.hidden

    def get_authorized_dag_ids(self, *, user: Any) -> set[str]:
        return {"p", *(f"p{n}" for n in range(100))} - set(self.hidden)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    """One who may do everything, until the test says otherwise."""
    import airflow.api_fastapi.core_api.security as security
    from airflow.models.dag import DagModel

    from conduit_tasks.airflow.api import access, pipelines

    manager = Airflow()
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(DagModel, "get_team_name", lambda *_, **__: None)
    monkeypatch.setattr(pipelines, "see_to_a_run", lambda dag, user: "")
    return manager


@pytest.fixture
def api(home: Path, airflow: Airflow) -> Iterator[Any]:
    """A signed-in client."""
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi.testclient import TestClient

    from conduit_tasks.airflow.api.app import app

    app.dependency_overrides[get_user] = lambda: SimpleNamespace(get_name=lambda: "ann")
    with TestClient(app) as client:
        yield client
    app.dependency_overrides.clear()


@pytest.fixture
def site(home: Path, airflow: Airflow) -> Iterator[str]:
    """The address of the plugin's own app, served; whoever asks is signed in."""
    import uvicorn
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import FastAPI

    from conduit_tasks.airflow.api.app import app

    app.dependency_overrides[get_user] = lambda: SimpleNamespace(get_name=lambda: "ann")
    outer = FastAPI()
    outer.mount("/conduit", app)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(outer, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(60)
    listening.close()
    app.dependency_overrides.clear()


@pytest.fixture
def delivered(home: Path, refusing_receiver: Receiver) -> None:
    """`p` with ten records delivered, of which the web refused one."""
    write_pipeline(home, "p", PIPELINE.replace("URL", refusing_receiver.url))
    events(home / "data", 10)
    run_once("p", "first")
    run_once("p", "second")


def broker_of(pipeline: str) -> Broker:
    from conduit_tasks.micro_batch.context import open_broker

    return open_broker(pipeline)
