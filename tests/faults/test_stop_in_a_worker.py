"""A forceful stop while a worker of an executor hangs: it ends, although a Connect server outlives its driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from conduit_tasks.exit_codes import STOPPED
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.waits import still_running
from tests.faults.parts import SMALL, Application, events
from tests.micro_batch.harness import here, state, write_pipeline
from tests.waiting import until

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}IN}
      - {id: to, type: destination, plugin: file, settings: {path: out/file.jsonl}TO}
"""
HANGING = ', processors: [{id: h, plugin: python, settings: {call: "include.hang:hang"}}]'
HANG = """
import os, pathlib, time
def hang(record):
    pathlib.Path("PID").write_text(f"{os.getpid()} ")
    time.sleep(3600)
"""
SOON = 240.0
"""Seconds that the ends may take on a busy machine; without a forceful stop they take an hour."""


@pytest.mark.proves("C16")
@pytest.mark.parametrize(
    ("node", "mode"),
    [
        ("sources.in", "connect"),
        ("destinations.to", "connect"),
        ("destinations.to", "plain"),
        ("sources.in", "small"),
        ("destinations.to", "small"),
    ],
)
def test_a_forceful_stop_ends_a_worker_that_hangs(
    node: str, mode: str, home: Path, applications: Callable[..., Application], request: pytest.FixtureRequest
) -> None:
    environment = SMALL if mode == "small" else {}
    if mode == "connect":
        environment = request.getfixturevalue("connect_server").environment
    # Given a node whose worker hangs in the user's code
    said = home / "pid"
    (home / "include").mkdir(exist_ok=True)
    (home / "include/hang.py").write_text(HANG.replace("PID", str(said)))
    text = PIPELINE.replace("IN", HANGING if node == "sources.in" else "")
    write_pipeline(home, "p", text.replace("TO", HANGING if node == "destinations.to" else ""))
    events(home / "data", 3)
    plan_run("p", "run")
    if node == "destinations.to":
        with opened("p", "run") as context:
            read_source(context, "in", here, 5.0)
    application = applications("p", node, "run", environment)
    until(lambda: said.exists() and said.read_text().endswith(" "), "the worker's id")
    worker = psutil.Process(int(said.read_text()))
    # When the pipeline is stopped by force
    broker = state("p")
    broker.lifecycle.force_stop()
    broker.close()
    # Then the driver ends and says so, and the worker ends
    assert application.process is not None
    assert application.process.wait(SOON) == STOPPED, application.log.read_text()[-2000:]
    assert "stopped by force" in application.log.read_text()
    assert still_running([worker], SOON) == []
