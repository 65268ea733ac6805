"""A real Spark Connect server, started as the stack starts its own; it can be killed, and starts again by itself."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from conduit_tasks.spark.remote import TOKEN, Address
from conduit_tasks.spark.server import CLASS
from conduit_tasks.stack.ports import free_port
from tests.jvm import shallow

ROOT = Path(__file__).parents[1]
SILENT = 45
"""Seconds without an answer after which the server of all tests is killed and started again."""


@dataclass
class ConnectServer:
    folder: Path
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        return Address("localhost", self.port)

    @property
    def environment(self) -> dict[str, str]:
        """Of applications that are to work there."""
        return {**self.address.environment(), TOKEN: self.token}

    @property
    def log(self) -> Path:
        return self.folder / "connect.log"

    def start(self, *options: str) -> None:
        self.port = self.port or free_port()
        environment = {**os.environ, TOKEN: self.token, "CONDUIT_HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        shallow(self.folder)
        command = [sys.executable, "-m", "conduit_tasks.spark.server", "--port", str(self.port), "--master", "local[2]"]
        command += options
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
        self.await_it()

    def await_it(self, seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.address.listens():
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, f"no server after {seconds:g} s: {self.log.read_text()[-3000:]}"
            time.sleep(0.05)

    def jvm(self) -> psutil.Process:
        assert self.process is not None
        found = []
        for process in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # what watches the server starts processes that end at any time
                if CLASS in process.cmdline():
                    found.append(process)
        [jvm] = found
        return jvm

    def workers(self) -> list[psutil.Process]:
        """Python daemons and workers of all sessions."""
        found = []
        for process in self.jvm().children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # idle ones end at any time
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self) -> None:
        """SIGKILL to the server itself; what watches it starts another one."""
        self.jvm().send_signal(signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(240)
