"""A forceful stop while a task without Spark, or a command, waits in a call that never gets an answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.exit_codes import STOPPED
from conduit_tasks.micro_batch import read
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from tests.faults.parts import ROOT, events
from tests.faults.silent import INCLUDE, PLUGINS, Server, serving
from tests.forked import MODULES, Program
from tests.micro_batch import harness
from tests.micro_batch.endings import lapse
from tests.micro_batch.harness import here, run_once, state, write_pipeline
from tests.waiting import until

TASKS = (
    *MODULES,
    "conduit_tasks.airflow.operator",
    "conduit_tasks.airflow.resend",
    "conduit_tasks.airflow.tasks",
    "conduit_tasks.cli.dead_letters",
    "conduit_tasks.cli.replay",
    "tests.faults.silent",
)
"""Modules of what the tasks are forked from, as the scheduler has them."""
SOON = 60.0
"""Seconds that an end may take on a busy machine; without a forceful stop there is none."""

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    event-time: .Payload.After.t
    lag-budget: {{records: 1000}}
    dead-letter-queue: {{window-size: 0{queue}}}
    handlers: [{handlers}]
    connectors:
      - id: in
        type: source
        plugin: {source}
        settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}}
        processors: [{processors}]
      - id: to
        type: destination
        plugin: silent
        settings: {{path: out/to.jsonl}}
        delivery: {{timeout: 120s, max-redeliveries: 1}}
"""
PROCESSOR = '{id: f, plugin: python, settings: {call: "include.calls:processor"}}'
LETTERS = ', plugin: http, settings: {{url: "http://127.0.0.1:{port}/"}}'
TASK = """
from types import SimpleNamespace as Of
from tests.faults import silent
silent.register()
ti, run = Of(max_tries=0, try_number=1, xcom_push=print), Of(triggering_user_name="ada", run_type="manual")
"""
COMMAND = """
import sys
from tests.faults import silent
silent.register()
from conduit_tasks.cli.main import main
"""
INTERVAL = {"from": "2013-03-01", "to": "2013-03-02", "destinations": ["to"], "what": "all", "dry-run": False}
PLAN = f"""{TASK}
from conduit_tasks.airflow.tasks import plan
plan("p", "next", {{}})
"""
ACKS = f"""{TASK}
from conduit_tasks.airflow.tasks import ack
ack("p", "in", "run")
"""
NODE = f"""{TASK}
from conduit_tasks.airflow.operator import ConduitSubmitOperator
made = ConduitSubmitOperator(task_id="n", pipeline_id="p", node="sources.in", drain_limit=60.0)
made._worked({{"run_id": "run", "params": {{}}, "ti": ti}}, Of())
"""
REDRIVE = f"""{TASK}
from conduit_tasks.airflow.resend import redrive_run
redrive_run(pipeline_id="p", params={{}}, run_id="run", ti=ti, dag_run=run)
"""
PREPARE = f"""{TASK}
from conduit_tasks.airflow.resend import plan_run
plan_run(pipeline_id="p", params={INTERVAL!r}, run_id="run", ti=ti, dag_run=run)
"""
DELIVER = f"""{TASK}
from conduit_tasks.airflow.resend import deliver_run
deliver_run(pipeline_id="p", destination="to", params={INTERVAL!r}, run_id="run", ti=ti, dag_run=run)
"""
REDRIVE_COMMAND = COMMAND + 'sys.argv[1:] = ["dead-letters", "redrive", "p"]; main()'
REPLAY_COMMAND = COMMAND + (
    'sys.argv[1:] = ["replay", "p", "--from", "2013-03-01", "--to", "2013-03-02", "--what", "all"]; main()'
)


@dataclass
class Place:
    """Pipeline `p` from data/ to the server."""

    home: Path
    server: Server
    unsealed: Callable[[], None]
    """Has what is staged from now on not sealed."""

    def write(self, *, source: str = "silent", processors: str = "", handlers: str = "", queue: str = "") -> None:
        (self.home / "include/calls.py").write_text(INCLUDE)
        port = self.server.port
        each = {"processors": processors, "handlers": handlers, "queue": queue.format(port=port)}
        write_pipeline(self.home, "p", PIPELINE.format(source=source, **each))
        events(self.home / "data", 3, t="2013-03-01T12:00:00Z")

    def read(self) -> None:
        plan_run("p", "run")
        with opened("p", "run") as context:
            read_source(context, "in", here, 5.0)

    def dies_often(self) -> None:
        """Has the next delivery to the destination be made in children."""
        broker = state("p")
        for _ in range(2):
            broker.leases.acquire("destinations.to", "one that died", wait=30, ttl=0.1)
        broker.close()


@pytest.fixture
def place(quick: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name, module in PLUGINS.items():
        monkeypatch.setitem(registry.BUILTIN, name, module)
    monkeypatch.setattr(harness, "ack_source", lambda *_: None)
    with serving() as server:
        yield Place(quick, server, lambda: monkeypatch.setattr(read, "seal_if_complete", lambda *_: ""))


def nothing_yet(place: Place) -> None:
    place.write()


def held(place: Place) -> None:
    place.write(source="queue")
    place.read()
    # Nobody has held the messages just now.
    lapse()


def more_to_read(place: Place) -> None:
    place.write()
    place.read()
    assert plan_run("p", "run").work


def unsealed(place: Place, **given: str) -> None:
    place.write(processors=PROCESSOR, **given)
    place.unsealed()
    place.read()


def unsealed_with_a_handler(place: Place) -> None:
    unsealed(place, handlers='{on: nacked, call: "include.calls:handler"}')


def unsealed_with_letters(place: Place) -> None:
    unsealed(place, queue=LETTERS)


def delivered(place: Place) -> None:
    place.write(handlers='{on: acked, of: message, call: "include.calls:handler"}')
    run_once("p")


def refused(place: Place) -> None:
    (place.home / "refuses").touch()
    delivered(place)


def refused_and_dies(place: Place) -> None:
    refused(place)
    place.dies_often()


def failed(place: Place) -> None:
    place.write(processors=PROCESSOR, handlers='{on: nacked, call: "include.calls:handler"}')
    run_once("p")


def failed_with_letters(place: Place) -> None:
    place.write(processors=PROCESSOR, queue=LETTERS)
    run_once("p")


HANGS: dict[str, tuple[Callable[[Place], None], str, str]] = {
    "plan asks a source": (nothing_yet, "plan", PLAN),
    "plan looks for what is gone": (nothing_yet, "gone", PLAN),
    "plan holds messages": (held, "hold", PLAN),
    "a node asks a source before it submits": (more_to_read, "plan", NODE),
    "a node tells handlers before it seals": (unsealed_with_a_handler, "handler", NODE),
    "a node stores dead letters before it seals": (unsealed_with_letters, "-", NODE),
    "acks tell a source": (delivered, "ack", ACKS),
    "acks tell handlers": (delivered, "handler", ACKS),
    "a redrive sends": (refused, "write", REDRIVE),
    "a redrive sends in a child": (refused_and_dies, "write", REDRIVE),
    "a redrive processes": (failed, "processor", REDRIVE),
    "a redrive tells handlers": (failed, "handler", REDRIVE),
    "a redrive stores dead letters": (failed_with_letters, "-", REDRIVE),
    "a replay reads": (failed, "processor", PREPARE),
    "a replay sends": (delivered, "write", DELIVER),
    "a replay sends in a child": (refused_and_dies, "write", DELIVER),
    "conduit dead-letters redrive sends": (refused, "write", REDRIVE_COMMAND),
    "conduit replay reads": (failed, "processor", REPLAY_COMMAND),
    "conduit replay sends": (delivered, "write", REPLAY_COMMAND),
}
"""What hangs → what is done before, the call that waits ("-": of the letters' destination), and the program."""


@pytest.mark.proves("C16")
@pytest.mark.parametrize("what", HANGS)
def test_a_forceful_stop_ends_a_call_that_gets_no_answer(place: Place, what: str) -> None:
    # Given a process that waits for an answer in a call
    before, call, program = HANGS[what]
    before(place)
    place.server.silence(place.home, call)
    file, log = place.home / "program.py", place.home / "said.log"
    file.write_text(program)
    process = Program([file], os.environ, ROOT, log, TASKS)
    try:
        until(lambda: place.server.asked.is_set() or process.poll() is not None, "a call", seconds=120)
        assert process.poll() is None, log.read_text()
        children = psutil.Process(process.pid).children(recursive=True)
        # When the pipeline is stopped by force
        broker = state("p")
        broker.lifecycle.force_stop()
        broker.close()
        # Then the process ends with what it has started, and says why
        process.wait(SOON)
        psutil.wait_procs(children, timeout=SOON)
    finally:
        process.kill()
    said = log.read_text()
    assert "stopped by force" in said
    assert process.returncode == (1 if program.startswith(COMMAND) else STOPPED), said
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert bool(children) == what.endswith("in a child")
