"""The JVM of a driver that is there before it: Spark's gateway for Python, by the command line of a submit.

`spark-submit app.py` starts a JVM, and that a Python. Where the driver's process was forked from its task it is the
other way round, as PySpark itself does outside of `spark-submit`: told `pyspark-shell` in place of an application,
SparkSubmit writes into a file where it listens, and ends with its standard input, so with the driver however that ends.
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
"""What a submit is given for an application."""
SAID = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Spark's variable for the file that its gateway writes, beside which it writes it."""
START = 600.0
"""Seconds that a JVM has until it listens."""
END = 60.0
"""Seconds that it has to end after its driver's last job; it is left to itself then."""
_LOOK = 0.01


@dataclass(frozen=True)
class _Jvm:
    process: subprocess.Popen[bytes]
    said: Path
    """The file with its port, 4 bytes, and the secret that it lets in, after 4 bytes of its length."""


_jvm: _Jvm | None = None


@contextmanager
def told_in_folder() -> Iterator[dict[str, str]]:
    """For who starts the driver, around all of it: what it needs of environment, where a folder of ours is for SAID.
    A driver that is killed, or that ends before its first job, leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="conduit-jvm-", ignore_cleanup_errors=True) as folder:
        yield {SAID: str(Path(folder) / "said")}


def begin(command: Sequence[str]) -> None:
    """Starts it with this process's environment, which has SAID, and output; `command` ends with SHELL, and arguments
    to be shown."""
    global _jvm  # noqa: PLW0603 - one per process
    said = Path(os.environ[SAID])
    environment = {**os.environ, "SPARK_CONNECT_MODE": "0"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)  # noqa: S603 - that of a submit
    _jvm = _Jvm(process, said)
    atexit.register(_end, _jvm)


def connect() -> None:
    """Says where it is to PySpark, once it listens; nothing where this process began none.

    Raises Terminated; SparkLost where it does not listen in time; SystemExit with its exit code where it has ended.
    """
    global _jvm  # noqa: PLW0603
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
    said = _jvm.said.read_bytes()
    _jvm.said.unlink()
    os.environ["PYSPARK_GATEWAY_PORT"] = str(int.from_bytes(said[:4], "big"))
    os.environ["PYSPARK_GATEWAY_SECRET"] = said[8:].decode()
    _jvm = None


def _end(jvm: _Jvm) -> None:
    _quiet()
    if jvm.process.stdin is not None:
        jvm.process.stdin.close()
    try:
        jvm.process.wait(END)
    except subprocess.TimeoutExpired:
        return


def _quiet() -> None:
    """From here on nobody reads what PySpark's threads say of connections that end with the JVM. It has its own."""
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
