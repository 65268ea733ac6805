"""Applications on a Spark Connect server, which ends, forgets, or is left with the jobs of killed drivers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from conduit_tasks.exit_codes import ENDED, HELD
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.settings import forget
from conduit_tasks.spark.connect import ConnectExecutors
from conduit_tasks.spark.daemon import FIRST
from conduit_tasks.spark.remote import TOKEN
from conduit_tasks.spark.server import answers
from conduit_tasks.topology import UNTOLD
from conduit_tasks.waits import still_running
from tests.connect_server import SILENT, ConnectServer
from tests.faults.parts import Application, Receiver, account, drive, events
from tests.faults.test_deadly_record import PIPELINE as DEADLY
from tests.faults.test_deadly_record import check, given
from tests.faults.test_killed_applications import COUNT, IN_FLIGHT, pipeline, until_sealed
from tests.faults.test_terminated import PATIENT, still
from tests.micro_batch.harness import payloads, state, write_pipeline
from tests.waiting import until

Start = Callable[..., Application]
LONG = "15"
"""Seconds of a lease that a driver on a loaded machine renews in time, or it fails by that before its server is lost.
Another server takes as long to start."""


def delivering(
    home: Path, receiver: Receiver, start: Start, server: ConnectServer, timeout: str = "5s"
) -> tuple[list[Any], Application]:
    """An application in the middle of a delivery over HTTP. `timeout`: of its sends."""
    rows = events(home / "data", COUNT)
    text = pipeline(receiver.url, slow="destinations.web")
    write_pipeline(home, "p", text.replace("timeout: 5s, max", f"timeout: {timeout}, max"))
    assert plan_run("p", "before").micro_batch == 1
    until_sealed()
    application = start("p", "destinations.web", "one", server.environment, PATIENT)
    until(lambda: receiver.accepted() >= 100 or application.process.poll() is not None, "the middle")
    assert application.process.poll() is None, application.log.read_text()[-3000:]
    return rows, application


def fast(home: Path, receiver: Receiver) -> None:
    """The next attempt need not take as long as the one that was in the middle."""
    write_pipeline(home, "p", pipeline(receiver.url, slow=""))


def arrived(home: Path, receiver: Receiver, rows: list[Any], most: int) -> None:
    """Everything is everywhere, in order, at most so many requests twice."""
    drive()
    assert payloads(home / "out/file.jsonl") == rows
    seen = receiver.summary()
    assert (seen["accepted"], seen["out_of_order"]) == (COUNT, 0)
    assert seen["duplicates"] <= most
    account()


@pytest.mark.slow
def test_a_server_that_is_watched_writes_no_line_about_it(
    connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What watches it has the token, and asks every ten seconds for as long as it lives
    monkeypatch.setenv(TOKEN, connect_server.token)
    before = connect_server.log.stat().st_size
    for _ in range(3):
        assert answers(connect_server.address, 60.0)
    with connect_server.log.open() as log:
        log.seek(before)
        assert "ErrorUtils" not in log.read()


@pytest.mark.proves("C9", "C10", "I4")
def test_what_a_killed_driver_left_running_at_the_server_is_interrupted_or_waited_for_by_the_next(
    home: Path, receiver: Receiver, applications: Start, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "2")
    forget()
    # Given a driver that is killed, whose job the server goes on with
    rows, first = delivering(home, receiver, applications, connect_server)
    first.kill()
    fast(home, receiver)
    # When the next attempt begins
    second = applications("p", "destinations.web", "two", connect_server.environment)
    # Then it delivers the rest, or leaves it to what is still at it and keeps its lease
    assert second.wait() in (0, HELD), second.log.read_text()[-3000:]
    arrived(home, receiver, rows, IN_FLIGHT + UNTOLD)


@pytest.mark.proves("C9", "C10", "C11")
def test_a_server_that_stands_still_is_killed_and_started_again_and_the_next_attempt_goes_on(
    home: Path, receiver: Receiver, applications: Start, connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDUIT_LEASE_TTL", LONG)
    forget()
    # Given a server with a worker that stays in the middle
    rows, application = delivering(home, receiver, applications, connect_server, timeout="240s")
    receiver.hold(150)
    workers = connect_server.workers()
    # When the server, which all share, stands still
    stood = connect_server.jvm()
    stood.suspend()
    # Then what watches it kills it; the attempt that waits for it ends, says why, and no worker of it is left
    assert application.wait() == 1, application.log.read_text()[-3000:]
    [failed] = [e for e in application.events() if e["event"] == "failed"]
    assert failed["error"] == "SparkLost"
    assert "nothing is lost" in failed["reason"]
    assert still_running([stood, *workers], 300) == []
    assert f"has answered nobody for {SILENT} s; it is killed" in connect_server.log.read_text()
    receiver.release()
    # And the server is there again by itself, and the next attempt goes on
    until(connect_server.address.listens, "another server")
    fast(home, receiver)
    again = applications("p", "destinations.web", "two", connect_server.environment)
    assert again.wait() == 0, again.log.read_text()[-3000:]
    arrived(home, receiver, rows, IN_FLIGHT + UNTOLD)


@pytest.mark.proves("C9")
def test_a_pipeline_that_kills_its_worker_leaves_the_others_of_the_server_alone(
    home: Path,
    receiver: Receiver,
    applications: Start,
    connect_server: ConnectServer,
    connected: Any,
) -> None:
    # Given two pipelines, one of them in the middle of a delivery
    other = ConnectExecutors(str(connect_server.address), "other", "destinations.out")
    assert other.run_all(abs, [-1]) == [1]
    # Its sends wait for as long as the other one takes, however long that is here
    rows, application = delivering(home, receiver, applications, connect_server, timeout="240s")
    assert receiver.process is not None
    receiver.process.send_signal(signal.SIGSTOP)
    assert application.process.poll() is None
    # When the work of the other one ends the Python worker that it runs in
    with pytest.raises(PySparkException, match="worker"):
        other.run_all(os._exit, [1, 1])
    receiver.process.send_signal(signal.SIGCONT)
    # Then the first one delivers to its end
    assert application.wait() == 0, application.log.read_text()[-3000:]
    arrived(home, receiver, rows, IN_FLIGHT)
    # And the other one's next job has a worker again, which Linux would end before the server where memory runs out
    score = Path("/proc/self/oom_score_adj")
    assert [int(text) for text in other.run_all(Path.read_text, [score])] >= [int(FIRST)]
    other.release()


@pytest.mark.proves("C10", "C15", "C9")
def test_a_driver_that_is_asked_to_end_interrupts_its_job_and_gives_its_lease_up(
    home: Path, receiver: Receiver, applications: Start, connect_server: ConnectServer
) -> None:
    # Given a driver that stays in the middle, however late it is asked
    rows, application = delivering(home, receiver, applications, connect_server, timeout="240s")
    receiver.hold(150)
    application.process.send_signal(signal.SIGTERM)
    assert application.wait(240) == ENDED, application.log.read_text()[-2000:]
    # Then nobody is at work, and nothing is waited for
    [ended] = [e for e in application.events() if e["event"] == "ended"]
    assert ended["lease"] == "given up"
    broker = state("p")
    assert broker.leases.held_for("destinations.web") == 0
    broker.close()
    # And nothing is sent any more, once what was on its way has arrived: the job would have gone on to its end
    receiver.release()
    until(lambda: still(receiver), "the last sends to arrive, and none after them")
    assert receiver.accepted() < COUNT // 2
    fast(home, receiver)
    arrived(home, receiver, rows, IN_FLIGHT + UNTOLD)


@pytest.mark.proves("C10", "C14")
def test_a_worker_killed_by_a_record_fails_its_attempt_and_the_next_one_finds_the_record(
    home: Path, applications: Start, connect_server: ConnectServer
) -> None:
    node = "destinations.file"
    rows = given(home, node, DEADLY.replace("max-redeliveries: 3", "max-redeliveries: 1"))
    plan_run("p", "r")
    read = applications("p", "sources.in", "r", connect_server.environment)
    assert read.wait() == 0, read.log.read_text()[-3000:]
    codes = [applications("p", node, run, connect_server.environment).wait() for run in ("first", "second")]
    assert codes == [1, 0]
    drive()
    check(home, node, rows)
