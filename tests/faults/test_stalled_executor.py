"""A machine of a real cluster stands still, Spark gives its task to another, and the Python that was sending wakes up.

The relative of `test_two_attempts` with everything around it: master, two workers, the driver's heartbeats.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.cluster import Cluster
from conduit_tasks.application import APPLICATION
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.spark.submit import launch
from tests.faults.parts import Receiver, account, drive, events
from tests.jvm import quick_executors
from tests.micro_batch.harness import here, write_pipeline
from tests.waiting import until

EVENTS, FIRST, UNCONFIRMED = 600, 60, 8
"""Of them, those that the first attempt sends at least, and those that may be on their way."""
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: to
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {timeout: 12s, max-unconfirmed: 8, order-by: key}
"""
SILENCE = {
    # Heartbeats that are missing for so long mean that an executor is lost; by default it is two minutes.
    "spark.network.timeout": "6s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
    "spark.executor.cores": "1",
}


def driver(home: Path, master: str) -> subprocess.Popen[str]:
    """The destination's application, as the operator starts it; its output is in `driver.log`."""
    start = launch(home, master, "client", {**SILENCE, **quick_executors()})
    options = [word for key, value in start.conf.items() for word in ("--conf", f"{key}={value}")]
    ids = ["--pipeline", "p", "--node", "destinations.to", "--run", "run"]
    command = [*(start.command or ["spark-submit"]), "--master", master, *options, str(APPLICATION), *ids]
    environment = {**os.environ, **start.env, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (home / "driver.log").open("w") as log:
        return subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log, text=True)


def talks(process: psutil.Process, port: int) -> bool:
    try:
        return any(c.raddr and c.raddr.port == port for c in process.net_connections("tcp"))
    except psutil.NoSuchProcess:  # it has ended
        return False


def sending(workers: list[subprocess.Popen[bytes]], port: int) -> list[psutil.Process]:
    """What runs on the machine whose executor talks to the receiver: the sending Python first, then what it descends
    from, up to Spark's worker, which would otherwise kill it."""
    for worker in workers:
        own = psutil.Process(worker.pid)
        for process in own.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # small ones of Spark's start end at any time
                if talks(process, port) and own in (above := process.parents()):
                    return [process, *above[: above.index(own) + 1]]
    return []


@pytest.mark.proves("C10", "I4")
def test_an_executor_of_a_cluster_that_stood_still_sends_no_more_once_another_has_its_task(
    quick: Path, receiver: Receiver, cluster: Cluster
) -> None:
    # Given a delivery by an executor of a cluster, in the middle: the receiver holds what comes after FIRST
    write_pipeline(quick, "p", PIPELINE.replace("URL", receiver.url))
    events(quick / "data", EVENTS)
    plan_run("p", "run")
    with opened("p", "run") as context:
        read_source(context, "in", here, 5.0)
    receiver.hold(FIRST)
    application = driver(quick, cluster.master)
    log = quick / "driver.log"
    stopped: list[psutil.Process] = []
    try:
        until(lambda: receiver.accepted() >= FIRST or application.poll() is not None, "the middle of the delivery")
        assert application.poll() is None, log.read_text()[-3000:]

        # When its machine stands still, and Spark gives the task to the other one
        stopped = until(lambda: sending(cluster.workers, receiver.port), "somebody who sends")
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        receiver.hold(EVENTS // 2)
        until(lambda: receiver.accepted() >= EVENTS // 2 or application.poll() is not None, "the middle of the second")
        assert application.poll() is None, log.read_text()[-3000:]
        assert "Lost executor" in log.read_text()

        # And the Python that was sending wakes up, before those who would end it
        stopped[0].send_signal(signal.SIGCONT)
        receiver.release()
        until(lambda: not talks(stopped[0], receiver.port), "the first attempt to end")
        assert application.wait(240) == 0, log.read_text()[-3000:]
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        application.kill()
        application.wait()

    # Then nothing is there twice but what the first had sent before it stood still
    drive()
    account()
    seen = receiver.summary()
    assert seen["accepted"] == EVENTS
    assert seen["duplicates"] <= FIRST + UNCONFIRMED
    assert seen["out_of_order"] == 0
