"""Runs that need not wait do not, also where the database's clock has whole seconds."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time import comms, task_runner
from pydantic import BaseModel

from conduit_tasks.airflow.at_once import at_once, trigger
from conduit_tasks.stack.api import Api


def due(at: datetime) -> bool:
    """As Airflow asks SQLite, in the form in which SQLAlchemy stores it."""
    with sqlite3.connect(":memory:") as database:
        stored = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        return bool(database.execute("SELECT ? <= CURRENT_TIMESTAMP", (stored,)).fetchone()[0])


def test_what_is_due_at_once_is_due_to_sqlite() -> None:
    assert due(at_once())
    assert not due(at_once() + timedelta(minutes=5))


def test_a_run_that_is_asked_for_is_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[dict[str, Any]] = []
    api = Api("http://127.0.0.1:1", password="none")
    monkeypatch.setattr(api, "request", lambda *_, json: bodies.append(json))
    api.trigger("p", "run", {})
    assert due(datetime.fromisoformat(bodies[0]["run_after"]))


class Before(BaseModel, extra="forbid"):
    """The request as Airflow 3.1 has it."""

    dag_id: str
    run_id: str
    conf: dict[str, Any] | None = None


@pytest.mark.parametrize("model", [comms.TriggerDagRun, Before])
def test_a_task_asks_for_a_run_as_its_airflow_takes_it(monkeypatch: pytest.MonkeyPatch, model: type[BaseModel]) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(comms, "TriggerDagRun", model)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=asked.append), raising=False)
    trigger("p", "run", {"max-records": 7}, "no run follows")
    (request,) = asked
    assert (request.dag_id, request.run_id, request.conf) == ("p", "run", {"max-records": 7})
    assert model is Before or due(request.run_after)
