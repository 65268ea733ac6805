"""Several tasks of Spark deliver to one destination, and their Python workers and their driver are killed (ADR 27)."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.parts import Application, Receiver, drive
from tests.faults.test_shards import all_there, lanes, pipeline, sealed
from tests.jvm import quick_options
from tests.micro_batch.harness import state
from tests.waiting import until

TASKS = 3
BOUND = TASKS * (8 + 2_000)
"""Records on their way at all tasks together, and records whose answers the broker was not told."""


def workers(application: Application) -> list[int]:
    """Python workers of an application in local mode: what its daemons have forked."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    mine = {application.process.pid}
    for _ in range(10):
        mine |= {pid for pid, parent in parents.items() if parent in mine}
    python = {pid for pid in mine if "daemon" in _command(pid)}
    return sorted(pid for pid in python if parents[pid] in python)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def environment() -> dict[str, str]:
    """Three tasks at once, each of which may fail three times."""
    options, _ = quick_options()
    java = shlex.quote(shlex.join(options))
    submit = f"--master local[{TASKS},4] --driver-java-options {java}"
    quiet = "--conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1"
    # That of a Connect server: what each of the tasks needs is loaded once
    quiet += " --conf spark.python.daemon.module=conduit_tasks.spark.daemon"
    return {"PYSPARK_SUBMIT_ARGS": f"{submit} {quiet} pyspark-shell"}


def in_the_middle(receiver: Receiver, application: Application) -> None:
    def begun() -> bool:
        assert application.process.poll() is None, application.log.read_text()[-3000:]
        return receiver.accepted() >= 599

    until(begun, "the middle of the delivery")


@pytest.mark.proves("C10")
def test_a_worker_that_is_killed_is_followed_by_another_attempt_at_its_shard_alone(
    quick: Path, receiver: Receiver, applications: Callable[..., Application], environment: dict[str, str]
) -> None:
    """Given three tasks in the middle and one worker killed, then the application goes on and ends well: Spark gives
    that shard to another worker, which waits for the lost attempt to lapse. No other shard is touched."""
    pipeline(quick, receiver.url, tasks=TASKS)
    lanes(quick / "data", 2_400)
    sealed()
    receiver.hold(600)
    application = applications("p", "destinations.to", environment=environment)
    in_the_middle(receiver, application)
    found = until(lambda: len(some := workers(application)) >= TASKS and some, "three workers")
    os.kill(found[-1], signal.SIGKILL)
    receiver.release()
    assert application.wait() == 0, application.log.read_text()[-3000:]
    all_there(receiver, 2_400, repeats=8 + 2_000)
    [delivered] = [event for event in application.events() if event.get("delivered")]
    assert delivered["tasks"] == TASKS


@pytest.mark.slow
def test_a_destination_that_leaves_it_to_spark_has_as_many_tasks_as_there_are_cores(
    quick: Path, receiver: Receiver, applications: Callable[..., Application], environment: dict[str, str]
) -> None:
    pipeline(quick, receiver.url, tasks="auto")
    lanes(quick / "data", 1_200)
    sealed()
    application = applications(
        "p", "destinations.to", environment={**environment, "CONDUIT_SMALL_RECORDS": "0", "CONDUIT_SMALL_BYTES": "0"}
    )
    assert application.wait() == 0, application.log.read_text()[-3000:]
    [delivered] = [event for event in application.events() if event.get("delivered")]
    assert delivered["tasks"] == TASKS
    all_there(receiver, 1_200)


@pytest.mark.proves("C10")
def test_a_driver_that_is_killed_is_followed_by_the_next_run(
    quick: Path, receiver: Receiver, applications: Callable[..., Application], environment: dict[str, str]
) -> None:
    pipeline(quick, receiver.url, tasks=TASKS)
    lanes(quick / "data", 2_400)
    sealed()
    receiver.hold(600)
    application = applications("p", "destinations.to", environment=environment)
    in_the_middle(receiver, application)
    orphans = workers(application)
    application.kill()
    for pid in orphans:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    receiver.release()
    broker = state("p")
    division = broker.deliveries.get("to").division
    broker.close()
    assert division is not None
    assert division.count == TASKS
    drive()
    all_there(receiver, 2_400, repeats=BOUND)
