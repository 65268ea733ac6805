"""A forceful stop while a node waits for something that never comes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_tasks.exit_codes import STOPPED
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from tests.faults.parts import ROOT, events
from tests.micro_batch.harness import here, state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: to, type: destination, plugin: file, settings: {path: out/file.jsonl}}
"""
ASKING = """
        processors: [{id: ask, plugin: webhook.http, settings: {request.url: "URL", timeout: 900s}}]
"""
APPLICATION = """
import sys
from conduit_tasks.application import app
from conduit_tasks.spark import session
session.run_all = lambda function, pieces: [function(piece) for piece in pieces]
sys.exit(app.main(["--pipeline", "p", "--node", sys.argv[1], "--run", "run"]))
"""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def application(node: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", APPLICATION, node]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)


@pytest.mark.proves("C16")
@pytest.mark.parametrize("node", ["sources.in", "destinations.to"])
def test_a_forceful_stop_ends_a_node_that_waits_for_an_answer(quick: Path, silent: socket.socket, node: str) -> None:
    # Given a node that waits a quarter of an hour for a server that does not answer
    asking = ASKING.replace("URL", f"http://127.0.0.1:{silent.getsockname()[1]}/").strip()[:-1]
    text = PIPELINE
    for id in ("in", "to"):
        if node.endswith(f".{id}"):
            text = "\n".join(
                line.rstrip()[:-1] + ", " + asking + "]}" if f"id: {id}," in line else line
                for line in text.splitlines()
            )
    write_pipeline(quick, "p", text)
    events(quick / "data", 10)
    plan_run("p", "run")
    if node == "destinations.to":
        with opened("p", "run") as context:
            read_source(context, "in", here, 5.0)
    process = application(node)
    silent.settimeout(240)
    asked, _ = silent.accept()
    # When the pipeline is stopped by force
    broker = state("p")
    broker.lifecycle.force_stop()
    # Then the node ends long before that, and says why
    _, said = process.communicate(timeout=240)
    asked.close()
    assert process.returncode == STOPPED, said.decode()
    assert b"stopped by force" in said
    # And its lease is renewed no more: after the start the next one takes over
    broker.lifecycle.start()
    with broker.leases.acquire(node, "the next run", wait=60):
        pass
    broker.close()
