"""Small micro-batches are worked on beside the driver, without Spark: when, when not, and killed in the middle."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.settings import forget
from conduit_tasks.topology import UNTOLD
from conduit_tasks.waits import still_running
from tests.faults.functions import hold
from tests.faults.parts import SMALL, Application, Receiver, account, drive, events, table
from tests.faults.test_killed_applications import COUNT, IN_FLIGHT, pipeline, until_read, until_sealed
from tests.micro_batch.harness import here, payloads, run_once, state, write_pipeline
from tests.waiting import until

Start = Callable[..., Application]
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    lag-budget: {records: 100000}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: to, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
"""
SOON = 240.0


def sealed(home: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """A pipeline with sealed micro-batches of these sizes; returns the events."""
    write_pipeline(home, "p", PIPELINE)
    rows: list[dict[str, Any]] = []
    for number, size in enumerate(sizes):
        rows += events(home / "data", size, len(rows))
        plan_run("p", f"read-{number}")
        with opened("p", f"read-{number}") as context:
            read_source(context, "in", here, 5.0)
    return rows


@pytest.mark.slow
def test_every_node_does_small_work_without_a_jvm(home: Path, applications: Start, receiver: Receiver) -> None:
    # Given three events, and no Java
    rows = events(home / "data", 3)
    write_pipeline(home, "p", pipeline(receiver.url, slow=""))
    plan_run("p", "run")
    # When the real application of each node runs
    for node in ("sources.in", "processors", "destinations.file", "destinations.web", "destinations.table"):
        application = applications("p", node, "run", SMALL)
        assert application.wait() == 0, application.log.read_text()[-3000:]
    # Then everything is everywhere
    run_once("p")
    assert payloads(home / "out/file.jsonl") == rows
    assert table(home / "out/table.db") == [0, 1, 2]
    assert receiver.accepted() == 3
    account()


@pytest.mark.slow
@pytest.mark.parametrize(("records", "size"), [("2", "4000000"), ("20000", "10"), ("0", "4000000"), ("20000", "0")])
@pytest.mark.parametrize("node", ["sources.in", "destinations.to"])
def test_what_is_larger_than_the_settings_say_is_done_in_spark(
    home: Path, applications: Start, node: str, records: str, size: str
) -> None:
    # Given three events, more than the limit, or no limit
    if node == "destinations.to":
        sealed(home, [3])
    else:
        write_pipeline(home, "p", PIPELINE)
        events(home / "data", 3)
        plan_run("p", "run")
    # When the application runs where no JVM can start
    limits = {**SMALL, "CONDUIT_SMALL_RECORDS": records, "CONDUIT_SMALL_BYTES": size}
    application = applications("p", node, "run", limits)
    # Then it fails, as it asked for one
    assert application.wait() == 1
    assert "JAVA_HOME" in application.log.read_text() or "Java" in application.log.read_text()


@pytest.mark.proves("C9", "I10")
def test_small_and_large_micro_batches_follow_each_other_in_order_in_one_run(home: Path, applications: Start) -> None:
    # Given micro-batches of which every second one is large
    rows = sealed(home, [5, 500, 3, 400, 7, 2])
    # When one application delivers them
    application = applications("p", "destinations.to", "run", {"CONDUIT_SMALL_RECORDS": "100"})
    assert application.wait() == 0, application.log.read_text()[-3000:]
    # Then all are there once and in order, and both ways were taken
    assert payloads(home / "out/file.jsonl") == rows
    log = application.log.read_text()
    assert log.count("done beside the driver") == 1
    assert log.count("not small is done in Spark") == 1
    run_once("p")
    account()


KILLED: dict[str, tuple[str, Callable[[], None]]] = {
    "the source": ("sources.in", lambda: None),
    "the processors": ("processors", until_read),
    "the file": ("destinations.file", until_sealed),
    "HTTP": ("destinations.web", until_sealed),
    "the table": ("destinations.table", until_sealed),
}


@pytest.mark.proves("C9", "C10", "C11", "C12", "T1", "I2", "I3", "I10")
@pytest.mark.parametrize("case", KILLED)
def test_a_child_that_is_killed_ends_the_attempt_which_counts_and_the_next_goes_on(
    case: str,
    home: Path,
    receiver: Receiver,
    applications: Start,
    acks: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, before = KILLED[case]
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "15")
    forget()
    # Given a node in the middle of small work
    rows = events(home / "data", COUNT)
    write_pipeline(home, "p", pipeline(receiver.url, slow=node))
    plan_run("p", "before")
    before()
    hold().touch()
    application = applications("p", node, "run", SMALL)
    until(lambda: workers(application) or application.process.poll() is not None, "its child")
    time.sleep(random.uniform(0.0, 1.0))  # at any point: whatever it is in the middle of
    # When its child is killed
    [worker] = workers(application) or pytest.fail(application.log.read_text()[-3000:])
    worker.kill()
    # Then the attempt ends, says why, and counts as one without progress, with its lease given up
    assert application.wait(SOON) == 1, application.log.read_text()[-3000:]
    [failed] = [e for e in application.events() if e["event"] == "failed"]
    assert failed["error"] == "WorkerLost"
    assert "signal 9" in failed["reason"]
    broker = state("p")
    # Unless it had confirmed records before it died, as one that sends them by and by may have
    _, sends, id = node.rpartition("destinations.")
    progress = broker.deliveries.get(id).confirmed_records if sends else 0
    assert broker.lifecycle.attempts()[node] == (0 if progress else 1)
    assert broker.leases.held_for(node) == 0
    assert [f.failures for f in broker.failures.failing(node)] == [1]
    broker.close()
    hold().unlink()
    # And the next attempts lose nothing, in order
    write_pipeline(home, "p", pipeline(receiver.url, slow=""))
    drive()
    assert payloads(home / "out/file.jsonl") == rows
    assert table(home / "out/table.db") == [row["n"] for row in rows]
    seen = receiver.summary()
    assert (seen["accepted"], seen["out_of_order"]) == (COUNT, 0)
    assert seen["duplicates"] <= (IN_FLIGHT + UNTOLD if node == "destinations.web" else 0)
    account()
    assert acks


@pytest.mark.proves("I4")
def test_a_driver_that_is_killed_leaves_no_child_that_sends(
    home: Path, receiver: Receiver, applications: Start
) -> None:
    # Given a delivery in the middle
    events(home / "data", COUNT)
    write_pipeline(home, "p", pipeline(receiver.url, slow="destinations.web"))
    plan_run("p", "before")
    until_sealed()
    application = applications("p", "destinations.web", "run", SMALL)
    until(lambda: receiver.accepted() >= 50 or application.process.poll() is not None, "the middle")
    below = psutil.Process(application.process.pid).children(recursive=True)
    assert workers(application)
    # When its driver alone is killed
    os.kill(application.process.pid, signal.SIGKILL)
    application.process.wait(SOON)
    # Then nothing is left of it
    assert still_running(below, SOON) == []


def workers(application: Application) -> list[psutil.Process]:
    """The process that works for the application: its keeper's child."""
    try:
        return [worker for keeper in psutil.Process(application.process.pid).children() for worker in keeper.children()]
    except psutil.NoSuchProcess:
        return []
