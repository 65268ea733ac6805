"""The JVM of a driver whose Python process exists before it: Spark's gateway for Python, by a submit's command line.

`spark-submit app.py` starts a JVM, which starts a Python. If the driver's process was forked from its task, the Python
starts the JVM, as PySpark itself does outside of `spark-submit`: with `pyspark-shell` in place of an application,
SparkSubmit writes the port at which it listens into a file, and ends when its standard input does, so with the driver,
however that ends. It is started when the first work for Spark is in sight, which may be never.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from conduit_tasks.errors import SparkLost
from conduit_tasks.spark.ended import going_on

SHELL = "pyspark-shell"
"""Word that a submit gets in place of an application."""
SAID = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Spark's environment variable with the path of the file that its gateway writes."""
START = 600.0
"""Seconds at most until a JVM listens."""
END = 60.0
"""Seconds to wait for the JVM's end after its driver's last job; then it is left to itself."""
_LOOK = 0.01


@dataclass(frozen=True)
class _Jvm:
    process: subprocess.Popen[bytes]
    said: Path
    """File with the JVM's port (4 bytes), the length of its secret (4 bytes), and the secret."""


_jvm: _Jvm | None = None
_command: tuple[str, ...] | None = None
"""Command line of a JVM that was not started yet."""


@contextmanager
def told_in_folder() -> Iterator[dict[str, str]]:
    """Yields the environment that a driver needs: SAID, with a path in a temporary folder. The process that starts the
    driver keeps the folder until the driver has ended, so a driver that is killed, or that ends before its first job,
    leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="conduit-jvm-", ignore_cleanup_errors=True) as folder:
        yield {SAID: str(Path(folder) / "said")}


def prepare(command: Sequence[str]) -> None:
    """Keeps the command line of this process's JVM until `begin`; it ends with SHELL, and arguments that lists of
    processes show."""
    global _command  # noqa: PLW0603 - one per process
    _command = tuple(command)


def prepared() -> bool:
    """Returns whether there is a JVM that was not started yet."""
    return _command is not None


def begun() -> bool:
    """Returns whether a JVM was started, and is not used yet."""
    return _jvm is not None


def begin() -> None:
    """Starts the JVM that was prepared, with this process's output and its environment, which has SAID; does not wait
    for it. Does nothing if none was prepared, or it was started before."""
    global _jvm, _command
    if _command is None:
        return
    said = Path(os.environ[SAID])
    environment = {**os.environ, "SPARK_CONNECT_MODE": "0"}
    process = subprocess.Popen(_command, stdin=subprocess.PIPE, env=environment)  # noqa: S603 - that of a submit
    _jvm, _command = _Jvm(process, said), None
    atexit.register(_end, _jvm)


def connect() -> None:
    """Starts the JVM that was prepared, waits until it listens, and passes port and secret to PySpark; does nothing if
    there is none.

    Raises Terminated; SparkLost if it does not listen in time; SystemExit with its exit code if it has ended.
    """
    global _jvm  # noqa: PLW0603
    begin()
    if _jvm is None:
        return
    deadline = time.monotonic() + START
    while not _jvm.said.exists():
        going_on()
        if (code := _jvm.process.poll()) is not None:
            raise SystemExit(code if code >= 0 else 128 - code)
        if time.monotonic() > deadline:
            raise SparkLost(f"the JVM of the driver does not listen after {START:g} s")
        time.sleep(_LOOK)
    os.environ.update(gateway(_jvm.said))
    _jvm.said.unlink()
    _jvm = None


def gateway(said: Path) -> dict[str, str]:
    """Returns the environment in which PySpark meets the JVM that wrote this file."""
    written = said.read_bytes()
    port, secret = int.from_bytes(written[:4], "big"), written[8:].decode()
    return {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}


def _end(jvm: _Jvm) -> None:
    _quiet()
    if jvm is _jvm:
        jvm.process.kill()  # nobody has used it: it has nothing to end
    if jvm.process.stdin is not None:
        jvm.process.stdin.close()
    try:
        jvm.process.wait(END)
    except subprocess.TimeoutExpired:
        return


def _quiet() -> None:
    """Discards this process's stderr: PySpark's threads would report connections that end with the JVM. The JVM has a
    stderr of its own."""
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
