"""The task `plan`: which runs may leave their work to the run under way (docs/schedules.md, "A stream")."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conduit_tasks.airflow import tasks
from conduit_tasks.micro_batch import plan
from conduit_tasks.micro_batch.plan import PlanResult
from conduit_tasks.pipeline.names import AFTER


@pytest.mark.parametrize(
    ("kind", "name", "attempt", "limit"),
    [
        ("scheduled", "scheduled__1", 1, 60.0),
        ("asset_triggered", "asset_triggered__1", 1, 60.0),
        # It was cleared, and may have to send again
        ("scheduled", "scheduled__1", 2, 0.0),
        ("manual", "manual__1", 1, 0.0),
        # A run had to be followed at once
        ("manual", f"{AFTER}1", 1, 0.0),
    ],
)
def test_a_run_that_its_schedule_begins_may_leave_an_idle_one_to_go_on(
    monkeypatch: pytest.MonkeyPatch, home: Any, kind: str, name: str, attempt: int, limit: float
) -> None:
    given: dict[str, Any] = {}

    def plan_run(*_: Any, **options: Any) -> PlanResult:
        given.update(options)
        return PlanResult(None, False, "nothing new")

    monkeypatch.setattr(plan, "plan_run", plan_run)
    run = SimpleNamespace(run_type=kind, run_id=name, dag_id="p")
    assert tasks.plan("p", name, {}, run, SimpleNamespace(try_number=attempt), drain_limit=60.0) is False
    assert given["drain_limit"] == limit
