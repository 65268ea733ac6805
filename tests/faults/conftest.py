"""A home whose leases are short, so that successors wait little; receivers, Spark applications, Redis to be killed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.application import APPLICATION
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.settings import forget
from tests.faults.parts import Application, Receiver
from tests.redis_server import RedisServer


@pytest.fixture
def quick(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`home` with leases of one second."""
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "1")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.1")
    forget()
    return home


@pytest.fixture
def own_redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A Redis of the test's own, which it may kill; to be used before `home`. Socket paths must be short."""
    server = RedisServer(Path(tempfile.mkdtemp(prefix="conduit-redis-")))
    server.start()
    yield server
    server.kill()
    shutil.rmtree(server.folder)


@pytest.fixture
def receivers(tmp_path: Path) -> Iterator[Callable[..., Receiver]]:
    """Starts HTTP receivers with the arguments given."""
    started: list[Receiver] = []

    def start(*arguments: str) -> Receiver:
        receiver = Receiver(tmp_path / f"receiver-{len(started)}")
        receiver.arguments = (*receiver.arguments, *arguments)
        started.append(receiver)
        receiver.start()
        return receiver

    yield start
    for receiver in started:
        receiver.stop()


@pytest.fixture
def receiver(receivers: Callable[..., Receiver]) -> Receiver:
    """One that takes everything."""
    return receivers()


@pytest.fixture
def applications(tmp_path: Path) -> Iterator[Callable[..., Application]]:
    """Starts Spark applications."""
    started: list[Application] = []

    def start(
        pipeline: str,
        node: str,
        run: str = "app",
        environment: dict[str, str] | None = None,
        program: Path = APPLICATION,
    ) -> Application:
        application = Application(tmp_path, pipeline, node, run, environment or {}, program)
        started.append(application)
        return application.start()

    yield start
    for application in started:
        application.end()


@pytest.fixture
def acks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Every position that a file source of this process was told, checked at the end: in order, and each once (C12)."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(FileSource, "ack", lambda _, position: given.append(position))
    yield given
    offsets = [sum(token["offset"] for token in position.values()) for position in given]
    assert offsets == sorted(set(offsets)), f"acks were not given in order and once: {offsets}"
