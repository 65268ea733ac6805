"""A Redis that forgets: its append-only file as it was before, put back as a crash of its machine leaves it; and a
queue whose acks cannot be taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from conduit_tasks.settings import forget
from tests.micro_batch.harness import payloads
from tests.redis_server import RedisServer
from tests.waiting import until


class Forgetful:
    """A broker's Redis that can be taken back to what its append-only file was."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._log = next(path for path in server.folder.rglob("*.aof") if path.is_file())

    def log(self) -> bytes:
        """All that Redis has said so far: it holds back what it writes while the disk is at its last fsync."""
        with redis.Redis(unix_socket_path=str(self.server.socket)) as client:
            until(lambda: not client.info("persistence")["aof_buffer_length"], "Redis to write its append-only file")
        return self._log.read_bytes()

    def put_back(self, log: bytes) -> None:
        self.server.kill()
        self._log.write_bytes(log)
        self.server.start("--aof-load-truncated", "yes")


QUEUE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 5}
    lag-budget: {records: 1000}
    spool: {retention: RETENTION}
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - id: in
        type: source
        plugin: redis
        ack-on: ACK_ON
        settings: {url: "URL", streams: in, group: g, data: d, format: json, min-idle: 1ms, delete: "true"}
      - id: out
        type: destination
        plugin: file
        settings: {path: out.jsonl, format: payload}
        delivery: {timeout: 100ms}
"""
MINUTES = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 20}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - {id: a, type: destination, plugin: file, settings: {path: out/a.jsonl, format: payload}}
"""


class Queue:
    """A stream on another server than the broker's; what is acked is gone from it."""

    def __init__(self, server: RedisServer) -> None:
        self.url = server.url
        self._client = redis.Redis(unix_socket_path=str(server.socket))
        self.count = 0

    def put(self, count: int) -> None:
        for _ in range(count):
            self._client.xadd("in", {"d": json.dumps({"n": self.count})})
            self.count += 1

    def left(self) -> int:
        return int(self._client.xlen("in"))

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def broker(own_redis: RedisServer, quick: Path, monkeypatch: pytest.MonkeyPatch) -> Forgetful:
    monkeypatch.setenv("CONDUIT_REDIS_URL", own_redis.url)
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "0.2")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.05")
    forget()
    return Forgetful(own_redis)


@pytest.fixture
def queue(redis_server: RedisServer) -> Iterator[Queue]:
    made = Queue(redis_server)
    yield made
    made.close()


def pipeline(queue: Queue, ack_on: str = "stored", retention: str = "24h") -> str:
    return QUEUE.replace("URL", queue.url).replace("ACK_ON", ack_on).replace("RETENTION", retention)


def numbers(home: Path, name: str = "out.jsonl") -> list[int]:
    return [row["n"] for row in payloads(home / name)]
