"""Two executors at one task: one stands still, the driver gives its task to another, and the first wakes up again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import Fenced
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver_task import DeliverTask
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.topology import UNTOLD
from tests.faults.parts import Receiver, drive, events
from tests.forked import Forked
from tests.micro_batch.harness import here, payloads, state, write_pipeline
from tests.waiting import until

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: to
        type: destination
"""
HTTP = """
        plugin: http
        settings: {url: "URL"}
        delivery: {timeout: 4s, max-unconfirmed: 8, order-by: key, guarantee: GUARANTEE}
"""
FILE = """
        plugin: file
        settings: {path: out/file.jsonl, format: payload}
        delivery: {timeout: 4s}
"""


@pytest.fixture
def executors() -> Iterator[Callable[[DeliverTask], Forked]]:
    """Starts a task in a process of its own."""
    started: list[Forked] = []

    def start(task: DeliverTask) -> Forked:
        started.append(Forked(task, 0))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def answer(process: Forked) -> str:
    """What the task answered, behind the name of its class."""
    said = process.answer()
    return f"{type(said).__name__} {said}"


def at_rate(task: DeliverTask, rate: float) -> DeliverTask:
    """The same, so many records a second."""
    [to] = task.pipeline.destinations
    slower = replace(to, delivery=replace(to.delivery, rate_limit=rate))
    return replace(task, pipeline=replace(task.pipeline, destinations=(slower,)))


def two_attempts(executors: Any, begun: Callable[[], Any]) -> tuple[str, str]:
    """What the first and the second attempt at a micro-batch answer, where the first stands still once `begun`, until
    the second has ended. The first would need half a minute or more: it is in the middle for long."""
    plan_run("p", "run")
    with opened("p", "run") as context:
        read_source(context, "in", here, 5.0)
        with context.broker.leases.acquire("destinations.to", "driver", ttl=6.0) as lease, keeping(lease):
            task = DeliverTask(get_pipeline("p"), "to", 1, lease.token, "run")
            first = executors(at_rate(task, 100))
            until(lambda: begun() or first.poll() is not None, "the middle of the delivery")
            first.send_signal(signal.SIGSTOP)
            second = executors(task)
            said = answer(second)
            first.send_signal(signal.SIGCONT)
            return answer(first), said


@pytest.mark.proves("C10", "B8", "I4")
@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_an_executor_that_stood_still_while_another_got_its_task_is_fenced(
    quick: Path, receiver: Receiver, executors: Any, guarantee: str
) -> None:
    # Given a delivery whose executor stands still in the middle
    write_pipeline(quick, "p", PIPELINE + HTTP.replace("URL", receiver.url).replace("GUARANTEE", guarantee))
    events(quick / "data", 6_000)
    # When another executor is given the same task under the same lease, ends it, and the first wakes up
    first, second = two_attempts(executors, lambda: receiver.accepted() >= 60)
    # Then the first is fenced, and the second has done the rest
    assert first.startswith(Fenced.__name__), first
    assert second.startswith("DeliveryReport"), second
    broker = state("p")
    assert broker.deliveries.get("to").cursor == 1
    broker.close()
    seen = receiver.summary()
    if guarantee == "at-most-once":
        assert seen["duplicates"] == 0
    else:
        assert seen["accepted"] == 6_000
        assert seen["duplicates"] <= 8 + UNTOLD
        assert seen["out_of_order"] == 0


@pytest.mark.proves("C10", "C17", "I4")
def test_a_file_that_two_attempts_wrote_has_every_line_once(quick: Path, executors: Any) -> None:
    # Given a file, which one process has open at a time
    write_pipeline(quick, "p", PIPELINE + FILE)
    rows = events(quick / "data", 3_000)
    out = quick / "out" / "file.jsonl"
    # When its writer stands still, another attempt waits for a later run, and the first wakes up
    first, second = two_attempts(executors, lambda: out.exists() and out.stat().st_size > 1_000)
    assert first.startswith(Fenced.__name__), first
    assert second.startswith("Unavailable"), second
    # Then the run that follows writes the rest
    drive()
    assert payloads(out) == rows
