"""A real PostgreSQL of our own for tests and benchmarks: Debian's binaries, a temporary folder, a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from conduit_tasks.stack.ports import free_port


def binaries() -> Path:
    """Where initdb is; raises with what to install."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    if found is None:
        raise RuntimeError(
            "tests and benchmarks of sql and postgres need PostgreSQL's server: apt-get install postgresql"
        )
    return Path(found).parent


@dataclass
class PostgresServer:
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pg-")))
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql+psycopg2://postgres@127.0.0.1:{self.port}/postgres"

    def create(self) -> PostgresServer:
        # PostgreSQL refuses to run as root.
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres")
        data = self.folder / "data"
        command = [str(binaries() / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, user=self._user(), cwd=self.folder)
        return self

    def start(self) -> PostgresServer:
        command = [str(binaries() / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        # Compiling a query takes longer than any query here does.
        command += ["-k", str(self.folder), "-h", "127.0.0.1", "-c", "wal_level=logical", "-c", "jit=off"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, user=self._user(), cwd=self.folder)
        ready = [str(binaries() / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        deadline = time.monotonic() + 120
        while subprocess.run(ready, check=False).returncode != 0:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        if self.process is not None:
            # SIGINT is its fast shutdown: transactions are rolled back.
            self.process.send_signal(2)
            self.process.wait(60)
            self.process = None

    def kill(self) -> None:
        """As a crash: what was not flushed is gone, and its log is recovered at the next start."""
        if self.process is not None:
            # SIGQUIT is its immediate shutdown; SIGKILL would leave children behind that keep its memory.
            self.process.send_signal(3)
            self.process.wait(60)
            self.process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def _user(self) -> int | None:
        return pwd.getpwnam("postgres").pw_uid if os.getuid() == 0 else None


@contextmanager
def running() -> Iterator[PostgresServer]:
    """A new one for the block."""
    server = PostgresServer().create()
    try:
        yield server.start()
    finally:
        server.remove()
