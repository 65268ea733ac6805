"""A Redis that forgets: its append-only file as it was before, put back as a crash of its machine leaves it."""

from __future__ import annotations

import time

import redis

from tests.conftest import RedisServer


class Forgetful:
    """A broker's Redis that can be taken back to what its append-only file was."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._log = next(path for path in server.folder.rglob("*.aof") if path.is_file())

    def log(self) -> bytes:
        """All that Redis has said so far: it holds back what it writes while the disk is at its last fsync."""
        with redis.Redis(unix_socket_path=str(self.server.socket)) as client:
            deadline = time.monotonic() + 60
            while client.info("persistence")["aof_buffer_length"]:
                assert time.monotonic() < deadline, "Redis does not write its append-only file"
                time.sleep(0.01)
        return self._log.read_bytes()

    def put_back(self, log: bytes) -> None:
        self.server.kill()
        self._log.write_bytes(log)
        self.server.start("--aof-load-truncated", "yes")
