"""The stack's gateway: there where a pipeline wants one, on a Redis that fsyncs before it answers."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as client

from conduit_tasks.stack import gateway, processes, redis
from conduit_tasks.stack.down import GRACE, ORDER
from conduit_tasks.stack.environment import component_environment
from conduit_tasks.stack.layout import Layout, State
from conduit_tasks.stack.ports import free_port
from tests.gateway.conftest import write_pipeline
from tests.waiting import until


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Layout, State]]:
    """The embedded Redis and nothing else."""
    for name in ("CONDUIT_REDIS_URL", "CONDUIT_PIPELINES", "CONDUIT_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    layout = Layout(tmp_path)
    layout.prepare()
    state = State(redis_url=redis.url(layout))
    state.processes["redis"] = processes.start(redis.command(layout), env={}, cwd=layout.redis, log=layout.log("redis"))
    until(lambda: redis.answers(layout))
    yield layout, state
    for process in reversed(state.processes.values()):
        processes.stop(process, timeout=60)


def ensure(layout: Layout, state: State) -> list[str]:
    said: list[str] = []
    env = component_environment(layout, "http://127.0.0.1:1", state.redis_url)
    gateway.ensure(layout, state, env, said.append, port=lambda _: free_port(), timeout=240)
    return said


@pytest.mark.slow
def test_it_is_started_only_where_a_pipeline_has_a_gateway_source(stack: tuple[Layout, State]) -> None:
    layout, state = stack
    # Given no such pipeline
    assert ensure(layout, state) == []
    assert gateway.NAME not in state.processes
    # When there is one
    write_pipeline(layout.home)
    assert ensure(layout, state) == ["starting gateway"]
    # Then Redis fsyncs before it answers, and events are taken
    with client.Redis.from_url(redis.url(layout)) as connection:
        assert connection.config_get("appendfsync")["appendfsync"] == "always"
    event = urllib.request.Request(
        f"{state.gateway_url}/ingest/p/web", json.dumps({}).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(event, timeout=60) as answer:
        assert answer.status == 202
    # And one that runs is left alone
    running = state.processes[gateway.NAME]
    assert ensure(layout, state) == []
    assert state.processes[gateway.NAME] == running
    assert processes.stop(running, timeout=240)


@pytest.mark.slow
def test_one_that_cannot_begin_is_told_and_holds_up_nothing(stack: tuple[Layout, State]) -> None:
    layout, state = stack
    write_pipeline(layout.home, auth="env:NO_SUCH_TOKEN")
    [starting, told] = ensure(layout, state)
    assert starting == "starting gateway"
    assert "NO_SUCH_TOKEN" in told
    assert "gateway.log" in told
    assert gateway.NAME not in State.load(layout).processes


def test_it_is_stopped_before_redis() -> None:
    assert {name for group in ORDER for name in group} == set(GRACE)
    assert gateway.NAME in ORDER[0]
    assert ORDER[-1] == ("redis",)
