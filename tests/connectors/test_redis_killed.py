"""A Redis that is killed under a pipeline that reads from it and writes to it, and comes back with its log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from conduit_tasks.connectors.redis.connector import RedisDestination, RedisSource
from conduit_tasks.errors import ConduitError
from tests.micro_batch.harness import run_once, run_until_quiet, write_pipeline
from tests.redis_server import RedisServer

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 6}
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - {id: in, type: source, plugin: redis, settings: {url: "URL", streams: in, group: g}}
      - id: out
        type: destination
        plugin: redis
        settings: {url: "URL", stream: out, fields: payload}
        delivery: {guarantee: effectively-once, timeout: 100ms}
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[RedisServer]:
    """Another server than the broker's; what it said yes to is in its log."""
    folder = tmp_path / "r"
    folder.mkdir()
    server = RedisServer(folder)
    server.start("--appendfsync", "always")
    yield server
    server.kill()


def numbers(server: RedisServer, stream: str) -> list[int]:
    client = redis.Redis(unix_socket_path=server.url.removeprefix("unix://"))
    try:
        return [int(fields[b"n"]) for _, fields in client.xrange(stream)]
    finally:
        client.close()


@pytest.mark.proves("C10", "B8", "T2")
@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (RedisSource, "_entries", False),
        (RedisSource, "reached", True),
        (RedisDestination, "write", False),
        (RedisDestination, "write", True),
        (RedisSource, "ack", False),
        (RedisSource, "ack", True),
    ],
)
def test_every_entry_is_there_once_when_the_server_is_back(
    home: Path, theirs: RedisServer, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: bool
) -> None:
    client = redis.Redis(unix_socket_path=theirs.url.removeprefix("unix://"))
    for n in range(10):
        client.xadd("in", {"n": str(n)})
    client.close()
    write_pipeline(home, "p", PIPELINE.replace("URL", theirs.url))
    original: Callable[..., Any] = getattr(owner, name)
    killed = False

    def killing(*args: Any, **kwargs: Any) -> Any:
        nonlocal killed
        if not after and not killed:
            killed = True
            theirs.kill()
        answer = original(*args, **kwargs)
        if after and not killed:
            killed = True
            theirs.kill()
        return answer

    # Given a server that is killed, and stays away for a run or two
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killing)
        for run in range(2):
            with contextlib.suppress(ConduitError):
                run_once("p", f"killed-{run}")
    assert killed
    # When it is back
    theirs.start()
    run_until_quiet("p")
    # Then each entry arrived once, and is acked
    assert numbers(theirs, "out") == list(range(10))
    client = redis.Redis(unix_socket_path=theirs.url.removeprefix("unix://"))
    assert client.xpending("in", "g")["pending"] == 0
    client.close()
