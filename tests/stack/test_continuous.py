"""A pipeline that runs without a pause, under the real scheduler: its runs hand over to each other."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stack.conftest import Receiver, Stack, until
from tests.stack.test_stack import http

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]


@pytest.fixture
def stream(stack: Stack, receiver: Receiver) -> Iterator[str]:
    """A pipeline under `@continuous`, whose runs last so long at most that they take turns every 15 s."""
    id = f"stream-{uuid.uuid4().hex[:6]}"
    (stack.home / "in" / id).mkdir(parents=True)
    text = (
        f'version: "2.2"\npipelines:\n  - id: {id}\n    schedule: "@continuous"\n    drain-limit: 30s\n'
        f"    connectors:\n"
        f'      - {{id: lines, type: source, plugin: file, settings: {{path: "in/{id}/*.jsonl", settle: 0s}}}}\n'
        f"      - {{id: out, type: destination, {http(receiver)}}}\n"
    )
    side = stack.home / f"{id}.side"
    side.write_text(text)
    with stack.lent(id):
        side.rename(stack.home / "include" / "pipelines" / f"{id}.yaml")
        yield id
        stack.conduit("stop", id, "--force")


def runs(stack: Stack, id: str) -> list[dict[str, Any]]:
    with stack.api() as api:
        found = api.request("GET", f"/dags/{id}/dagRuns", params={"order_by": "start_date", "limit": 100})
    return [run for run in found["dag_runs"] if run["start_date"]]


@pytest.mark.slow
def test_runs_hand_over_to_each_other_while_events_come(stack: Stack, receiver: Receiver, stream: str) -> None:
    # Given one event after the other, over several runs
    n, began = 0, time.monotonic()
    with stack.api() as api:
        until(lambda: api.dag(stream))
    while len([run for run in runs(stack, stream) if run["state"] == "success"]) < 2:
        assert time.monotonic() - began < 900, runs(stack, stream)
        for _ in range(2):
            n += 1
            stack.write(stream, f"{n:05d}", n, n)
            time.sleep(1.0)
    until(lambda: len(receiver.got) >= n)
    # Then all are there, in order, none twice
    assert receiver.got == list(range(1, n + 1))
    # And runs begin before the one before has ended; a busy machine may be late now and then
    times = [(run["start_date"], run["end_date"]) for run in runs(stack, stream)]
    assert any(begin < end for (_, end), (begin, _) in itertools.pairwise(times) if end)


@pytest.mark.slow
def test_a_pipeline_that_is_started_again_runs_again_at_once(stack: Stack, receiver: Receiver, stream: str) -> None:
    stack.write(stream, "a", 1, 3)
    until(lambda: len(receiver.got) == 3)
    stack.conduit("stop", stream)
    until(lambda: not any(run["state"] == "running" for run in runs(stack, stream)))
    stack.write(stream, "b", 4, 6)
    stack.conduit("start", stream)
    until(lambda: receiver.got == list(range(1, 7)))
