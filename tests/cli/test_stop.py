"""`conduit stop` and `conduit start`: who drains, what is reported, and what a missed deadline says (C15, C16)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.cli.main import app
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.operate import control
from conduit_tasks.settings import forget, settings
from tests.faults.parts import drive, events
from tests.micro_batch.harness import payloads, state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
"""


@dataclass
class Airflow:
    """What Airflow's API says of the DAG `p`; a run that is started drains the pipeline, if `drains`."""

    paused: bool = False
    known: bool = True
    running: list[str] = field(default_factory=list)
    drains: bool = True
    started: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path.endswith("/dagRuns") and method == "POST":
            self.started.append(body["dag_run_id"])
            if self.drains:
                drive()
            return 200, {}
        if path.endswith("/dagRuns"):
            return 200, {"dag_runs": [{"dag_run_id": id} for id in self.running]}
        return (200, {"is_paused": self.paused}) if self.known else (404, {"detail": "no such DAG"})


@pytest.fixture
def airflow(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Airflow]:
    airflow = Airflow()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, said = airflow.answer(self.command, self.path.partition("?")[0], json.loads(body or b"null"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        do_GET = do_POST = _answer

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    monkeypatch.setenv("CONDUIT_AIRFLOW_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("CONDUIT_AIRFLOW_TOKEN", "t")
    write_pipeline(home, "p", PIPELINE)
    events(home / "data", 10)
    yield airflow
    server.shutdown()
    server.server_close()
    thread.join()
    forget()


def conduit(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.proves("C15", "C3")
@pytest.mark.parametrize("wait", ["--wait", "--no-wait"])
def test_a_stop_without_a_run_under_way_starts_one_that_drains(home: Path, airflow: Airflow, wait: str) -> None:
    # Given a micro-batch in flight that no run works on
    plan_run("p", "killed")
    # When the pipeline is stopped
    done = conduit("stop", "p", wait)
    # Then a run is started, and with it everything is delivered and the pipeline stopped
    assert done.exit_code == 0, done.output
    assert len(airflow.started) == 1
    assert airflow.started[0].startswith("drain__")
    assert state("p").lifecycle.status().status == "stopped"
    assert len(payloads(home / "out/file.jsonl")) == 10
    # And it stays so until it is started
    events(home / "data", 5, 10)
    assert "is stopped" in drive()[0]["plan"]
    assert "p: running" in conduit("start", "p").output
    drive()
    assert len(payloads(home / "out/file.jsonl")) == 15


@pytest.mark.proves("C15")
def test_a_stop_with_nothing_in_flight_is_done_at_once_and_starts_no_run(airflow: Airflow) -> None:
    done = conduit("stop", "p")
    assert (done.exit_code, airflow.started) == (0, [])
    assert "p: stopped" in done.output


@pytest.mark.proves("C15")
def test_a_missed_deadline_is_reported_and_what_is_in_flight_is_delivered_all_the_same(
    home: Path, airflow: Airflow
) -> None:
    # Given a run under way that does not get on
    plan_run("p", "slow")
    airflow.running = ["slow"]
    # When the deadline is over
    done = conduit("stop", "p", "--deadline", "0.2")
    # Then that is said, with what is left, and by the status too; no second run was started
    assert done.exit_code == 1
    assert "the deadline of 0.2 s is missed" in done.output
    assert "in flight: micro-batch 1 is not sealed" in done.output
    assert airflow.started == []
    assert "the deadline of the graceful stop is missed" in conduit("status", "p").output
    # And a later run delivers it, and stops the pipeline
    drive()
    assert state("p").lifecycle.status().status == "stopped"
    assert len(payloads(home / "out/file.jsonl")) == 10


@pytest.mark.proves("C15")
@pytest.mark.parametrize(
    ("known", "says"), [(True, "its DAG is paused, so nothing drains it"), (False, "its DAG is unknown to Airflow")]
)
def test_a_dag_that_is_paused_or_unknown_is_reported(airflow: Airflow, known: bool, says: str) -> None:
    plan_run("p", "r")
    airflow.paused, airflow.known = True, known
    done = conduit("stop", "p", "--deadline", "0.2")
    assert done.exit_code == 1
    assert says in done.output
    assert airflow.started == []
    assert state("p").lifecycle.status().status == "stopping"


class Clock:
    """A clock that only sleeping moves; `then` is called when it has come so far."""

    def __init__(self, at: float = float("inf"), then: Callable[[], object] = bool) -> None:
        self.now, self._at, self._then = 0.0, at, then

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self._at:
            self._at = float("inf")
            self._then()


@pytest.mark.proves("C15")
def test_where_no_run_can_be_started_nobody_is_waited_for(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Given something in flight, and no stack
    plan_run("p", "r")
    monkeypatch.delenv("CONDUIT_AIRFLOW_URL")
    monkeypatch.setattr(control, "time", clock := Clock())
    # When it is stopped, that is said, and the deadline is not waited for
    done = conduit("stop", "p", "--deadline", "60")
    assert done.exit_code == 1
    assert "no run could be started to drain it: no stack runs in" in done.output
    assert "nobody works on it: the next run delivers it" in done.output
    assert "deadline" not in done.output
    assert clock.now < 2 * control.QUIET
    assert state("p").lifecycle.status().status == "stopping"
    # When a changed file is applied, it goes the same way, and what is in flight keeps its place
    conduit("start", "p")
    changed = tmp_path / "changed.yaml"
    changed.write_text(PIPELINE.replace("out/file", "out/other"))
    monkeypatch.setattr(control, "time", clock := Clock())
    done = conduit("apply", str(changed))
    assert done.exit_code == 0, done.output
    assert "no stack runs in" in done.output
    assert clock.now < 2 * control.QUIET
    drive()
    assert len(payloads(settings().home / "out/other.jsonl")) == 10


@pytest.mark.proves("C15")
def test_who_works_is_waited_for_all_the_same(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given somebody at work for longer than the silence that is believed, whom nobody could follow
    plan_run("p", "r")
    airflow.known = False
    broker = state("p")
    lease = broker.leases.acquire("sources.in", "somebody", wait=1.0)
    monkeypatch.setattr(control, "time", clock := Clock(4 * control.QUIET, lambda: (lease.release(), drive())))
    # When it is stopped, the end of that is waited for
    done = conduit("stop", "p", "--deadline", "60")
    assert done.exit_code == 0, done.output
    assert "p: stopped" in done.output
    assert 4 * control.QUIET <= clock.now < 5 * control.QUIET
    broker.close()


@pytest.mark.proves("C16")
def test_a_forceful_stop_is_explicit_and_at_once(airflow: Airflow) -> None:
    plan_run("p", "r")
    assert "p: stopped" in conduit("stop", "p", "--force").output
    assert airflow.started == []
    assert state("p").lifecycle.status().status == "stopped"
