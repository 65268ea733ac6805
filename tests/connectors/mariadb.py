"""A real MariaDB of our own: Debian's binaries, a temporary folder, a free port of the loopback."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pymysql

from conduit_tasks.stack.ports import free_port


def binary(name: str) -> str:
    """Raises with what to install."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise RuntimeError("the tests of mysql need MariaDB's server: apt-get install mariadb-server")
    return found


@dataclass
class MariadbServer:
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="my-")))
    port: int = field(default_factory=free_port)
    number: int = 1
    """Its server id."""
    more: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "") -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def create(self) -> MariadbServer:
        # The server does not run as root.
        if os.getuid() == 0:
            shutil.chown(self.folder, "mysql")
        command = [binary("mariadb-install-db"), "--no-defaults", f"--datadir={self.folder / 'data'}"]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        user = ["--user=mysql"] if os.getuid() == 0 else []
        subprocess.run([*command, *user], check=True, capture_output=True, cwd=self.folder)
        return self

    def start(self) -> MariadbServer:
        data = self.folder / "data"
        command = [binary("mariadbd"), "--no-defaults", f"--datadir={data}", f"--port={self.port}"]
        command += [f"--socket={self.folder / 's'}", "--bind-address=127.0.0.1", "--skip-name-resolve"]
        command += [f"--server-id={self.number}", "--log-bin=bin", "--binlog-format=ROW", "--binlog-row-metadata=FULL"]
        command += ["--log-slave-updates", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"]
        command += ["--innodb-flush-log-at-trx-commit=2", "--max-allowed-packet=32M", *self.more]
        user = pwd.getpwnam("mysql").pw_uid if os.getuid() == 0 else None
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, user=user, cwd=self.folder)
        deadline = time.monotonic() + 120
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        try:
            pymysql.connect(host="127.0.0.1", port=self.port, user="root", ssl_disabled=True).close()
        except pymysql.Error:
            return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            self.process = None

    def kill(self) -> None:
        """As a crash: its log is recovered at the next start."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)
