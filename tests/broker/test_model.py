"""The broker against a model of it (`model.py`): after every step what Redis holds equals what the model holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from conduit_tasks.redis_client.script import Script
from tests.broker.model import Doubled, Machine
from tests.redis_server import RedisServer


@pytest.mark.proves("C3", "C11", "C12", "C16", "I2", "I3", "I4", "I5", "I6", "I9")
def test_the_broker_behaves_as_the_model(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    once = Script.__call__

    def call(self: Script, *args: Any, **kwargs: Any) -> list[Any]:
        first = once(self, *args, **kwargs)
        if not Doubled.twice:
            return first
        # Invariant 5: the repeat is what the caller hears of, as when the first answer was lost
        return once(self, *args, **kwargs)

    monkeypatch.setattr(Script, "__call__", call)
    Doubled.twice = False
    Machine.server = redis_server
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
