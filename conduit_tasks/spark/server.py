"""A Spark Connect server of one's own, started again if it ends or hangs: `python -m conduit_tasks.spark.server --port
15002`.

It is started by Spark's own submit, with the class-data archive if there is one, on loopback by default; its token
comes from the environment. If it ends, it is started again at the same address, with growing pauses; so is a server
that hangs and answers nobody. SIGTERM ends this process and the server.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from conduit_tasks import logs
from conduit_tasks.settings import settings
from conduit_tasks.spark.remote import PORT, TOKEN, Address
from conduit_tasks.spark.submit import Launch, launch, properties_file

log = logging.getLogger(__name__)

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
MEMORY_VARIABLE = "CONDUIT_SPARK_CONNECT_MEMORY"
MEMORY = "1g"
"""Size of the JVM's heap. Rows pass through Python workers, which have memory of their own."""
PAUSES = (0.0, 1.0, 2.0, 5.0, 10.0)
"""Seconds before the first, second, … new start in a row; the first again after a server that lived for LIVED."""
LIVED = 60.0
START = 60.0
"""Seconds in which the server must listen; and seconds in which it must have run its first job."""
GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL."""
SILENT = 60.0
"""Seconds without an answer after which a server that has answered before is killed and started again."""

CONF = {
    # Pipelines share the cores, each has a pool of its own.
    "spark.scheduler.mode": "FAIR",
    "spark.python.daemon.module": "conduit_tasks.spark.daemon",
    # An idle session costs little, and a new one seconds.
    "spark.connect.session.manager.defaultSessionTimeout": "24h",
    # A job whose driver was killed: the next attempt interrupts it; this timeout is for jobs without a next attempt.
    "spark.connect.execute.manager.detachedTimeout": "60s",
    # The server lives for months, so the history of its jobs is bounded.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.connect.ui.retainedStatements": "20",
    "spark.sql.connect.ui.retainedSessions": "20",
}


def prepared(home: Path, host: str, port: int, master: str) -> Launch:
    """Returns the start of a server. `include/spark-defaults.conf` wins over CONF.

    Raises ConfigError if that file cannot be read.
    """
    memory = os.environ.get(MEMORY_VARIABLE) or MEMORY
    own = {**CONF, "spark.driver.memory": memory}
    fixed = {"spark.connect.grpc.binding.address": host, "spark.connect.grpc.binding.port": str(port)}
    return launch(home, master, None, fixed, own=own, jvm=["-XX:+ExitOnOutOfMemoryError"], quick_jit=False)


def command(start: Launch, master: str, file: str | None) -> list[str]:
    """Returns the server's argv. `file`: its settings; every user of the machine could read them on a command line."""
    argv = [*(start.command or ["spark-submit"]), "--master", master]
    if file:
        argv += ["--properties-file", file, "--load-spark-defaults"]
    return [*argv, "--class", CLASS, "spark-internal"]


def serve(host: str, port: int, master: str, silent: float = SILENT) -> int:
    """Runs a server until SIGTERM, and starts another one if it ends or answers nobody for `silent` seconds."""
    home = settings().home.resolve()
    start = prepared(home, host, port, master)
    child: subprocess.Popen[bytes] | None = None
    ending = False

    def end(*_: Any) -> None:
        nonlocal ending
        ending = True
        if child is not None:
            child.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    deaths = 0
    while not ending:
        started = time.monotonic()
        with properties_file(start.conf) as file:
            argv = command(start, master, file)
            child = subprocess.Popen(argv, env={**os.environ, **start.env}, cwd=home)  # noqa: S603  Spark's own
            if ending:
                child.terminate()
            threading.Thread(target=_warm, args=(child, host, port), daemon=True).start()
            threading.Thread(target=_watch, args=(child, _reached(host, port), silent), daemon=True).start()
            code = _wait(child, lambda: ending)
        if ending:
            break
        deaths = 1 if time.monotonic() - started > LIVED else deaths + 1
        pause = PAUSES[min(deaths, len(PAUSES)) - 1]
        log.warning("the Spark Connect server ended with %s; starting it again in %g s", code, pause)
        deadline = time.monotonic() + pause
        while not ending and time.monotonic() < deadline:
            time.sleep(0.1)
    return 0


def _warm(child: subprocess.Popen[bytes], host: str, port: int) -> None:
    """Runs a first small job on the new server, so that the first real job finds its classes loaded and compiled."""
    address = _reached(host, port)
    deadline = time.monotonic() + START
    while not address.listens():
        if child.poll() is not None or time.monotonic() > deadline:
            return
        time.sleep(0.1)
    code = f"from conduit_tasks.spark.connect import warm; warm({str(address)!r})"
    try:
        subprocess.run([sys.executable, "-c", code], timeout=START, check=False, stderr=subprocess.DEVNULL)  # noqa: S603
    except subprocess.TimeoutExpired:
        return


def _reached(host: str, port: int) -> Address:
    """Returns the address by which this machine reaches a server that listens at `host`."""
    return Address("localhost" if host in ("127.0.0.1", "0.0.0.0", "::", "::1") else host, port)  # noqa: S104


def _watch(child: subprocess.Popen[bytes], address: Address, silent: float) -> None:
    """Kills a server that has answered once and then nobody for `silent` seconds: it is overloaded or hangs, and its
    clients would wait for it."""
    answered = 0.0
    while child.poll() is None:
        if answers(address, silent / 4):
            answered = time.monotonic()
        elif answered and time.monotonic() - answered > silent:
            log.warning("the Spark Connect server has answered nobody for %g s; it is killed", silent)
            child.kill()
            return
        time.sleep(silent / 6)


def answers(address: Address, seconds: float) -> bool:
    """Returns whether a server answers within this time. It is asked without the token and refuses: that is an answer,
    too, one that opens no session and leaves no line in its log."""
    import grpc

    with grpc.insecure_channel(address.target) as channel:
        ask = channel.unary_unary("/spark.connect.SparkConnectService/Config")
        try:
            ask(b"", timeout=seconds)
        except grpc.RpcError as error:
            return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return True


def _wait(child: subprocess.Popen[bytes], ending: Any) -> int:
    """Returns the exit code of the server; kills it if it has not ended GRACE seconds after it was asked to."""
    deadline = None
    while True:
        try:
            return child.wait(1.0)
        except subprocess.TimeoutExpired:
            if ending():
                deadline = deadline or time.monotonic() + GRACE
                if time.monotonic() > deadline:
                    child.kill()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="conduit-spark-connect", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--master", default=os.environ.get("CONDUIT_SPARK_CONNECT_MASTER", "local[*]"))
    parser.add_argument(
        "--silent",
        type=float,
        default=SILENT,
        help="seconds without an answer after which it is started again (%(default)g)",
    )
    options = parser.parse_args(argv)
    if options.silent < 1:
        parser.error("--silent: at least 1 second")
    logs.configure()
    if not os.environ.get(TOKEN):
        parser.error(f"{TOKEN} is not set: whoever reaches the port could run code. Set it, here and for the clients")
    return serve(options.host, options.port, options.master, options.silent)


if __name__ == "__main__":
    sys.exit(main())
