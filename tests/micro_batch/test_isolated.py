"""A function in a process of its own: what is handed over, and what counts as its death."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from conduit_tasks.delivery.isolated import ChildDied, ChildFailed, in_child
from conduit_tasks.errors import LeaseHeld, Unavailable
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver_task import DeliverTask
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.waits import still_running
from tests.micro_batch.handed_over import a_library_s, double, killed, lambda_, particular, raising
from tests.micro_batch.harness import here, run_until_quiet, state, write_pipeline
from tests.micro_batch.test_whole import events
from tests.waiting import until

ways = pytest.mark.parametrize("forks", [True, False], ids=["fork", "new process"])


@ways
def test_an_answer_and_an_error_are_handed_over(forks: bool) -> None:
    assert in_child(double, 21, forks=forks) == 42
    with pytest.raises(Unavailable, match="down") as raised:
        in_child(raising, Unavailable("down", status=503), forks=forks)
    assert raised.value.status == 503
    with pytest.raises(LeaseHeld) as held:
        in_child(raising, LeaseHeld("seal", "me", 7), forks=forks)
    assert (held.value.node, held.value.owner, held.value.until) == ("seal", "me", 7)


@pytest.mark.proves("C10")
@ways
@pytest.mark.parametrize(
    ("function", "said"),
    [(particular, "Particular: it: broken"), (a_library_s, "Panic: the table is not there"), (lambda_, "handed over")],
)
def test_what_cannot_be_pickled_is_no_death_and_its_error_is_shown(forks: bool, function: Any, said: str) -> None:
    with pytest.raises(ChildFailed, match=said) as raised:
        in_child(function, forks=forks)
    assert "Traceback" in str(raised.value) or function is lambda_


@pytest.mark.proves("C10")
@ways
@pytest.mark.parametrize(
    ("function", "args", "how"),
    [(killed, (), "signal 9"), (sys.exit, (3,), "exit code 1, SystemExit: 3"), (os._exit, (5,), "exit code 5")],
)
def test_a_death_says_how(forks: bool, function: Any, args: tuple[Any, ...], how: str) -> None:
    with pytest.raises(ChildDied) as raised:
        in_child(function, *args, forks=forks)
    assert raised.value.how == how


ORPHAN = """
import os, pathlib, sys, time
from conduit_tasks.delivery.isolated import in_child
def hang(place):
    pathlib.Path(place).write_text(f"{os.getpid()} ")
    time.sleep(3600)
if __name__ == "__main__":
    sys.modules["orphan"] = sys.modules["__main__"]
    hang.__module__ = "orphan"
    in_child(hang, sys.argv[1], forks=sys.argv[2] == "True")
"""


@pytest.mark.proves("C10", "C16")
@ways
def test_a_child_ends_with_the_worker_that_is_killed(forks: bool, tmp_path: Path) -> None:
    # Given a worker whose child hangs in a record
    (tmp_path / "orphan.py").write_text(ORPHAN)
    said = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}{os.pathsep}{tmp_path}"}
    command = [sys.executable, str(tmp_path / "orphan.py"), str(said), str(forks)]
    with subprocess.Popen(command, env=environment) as worker:
        until(lambda: said.exists() and said.read_text().endswith(" "), "the child's id")
        child = psutil.Process(int(said.read_text()))
        assert child.is_running()
        # When the worker is killed, then so is the child, which nobody would stop
        worker.kill()
    assert still_running([child], 240) == []


DELTA = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 10}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: out, type: destination, plugin: delta, settings: {path: t}}
"""


@pytest.mark.proves("C10")
def test_a_library_that_does_not_survive_a_fork_costs_no_record_when_poison_is_isolated(home: Path) -> None:
    # Given a process that has delivered to a Delta table, as an executor that serves one pipeline after another
    import deltalake

    write_pipeline(home, "p", DELTA)
    events(home / "data", "a.jsonl", 0, 10)
    run_until_quiet("p")
    # When it delivers the next micro-batch and isolates poison
    events(home / "data", "a.jsonl", 10, 10)
    plan_run("p", "run")
    with opened("p", "run") as context:
        read_source(context, "in", here, 5.0)
        with context.broker.leases.acquire("destinations.out", "driver", ttl=60.0) as lease, keeping(lease):
            report = DeliverTask(get_pipeline("p"), "out", 2, lease.token, "run", isolate_poison=True)(0)
    # Then none of its records is blamed
    assert getattr(report, "counts", report).delivered == 10
    assert sorted(deltalake.DeltaTable(home / "t").to_pyarrow_table()["n"].to_pylist()) == list(range(20))
    broker = state("p")
    assert not list(broker.dead_letters.entries("out"))
    broker.close()
