"""A broker on the shared, real Redis; helpers that bring a micro-batch to where a test wants it; own servers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.leases import Lease
from conduit_tasks.broker.state import Stage
from conduit_tasks.connectors.base import Slice
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Record
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.redis_client.script import Script
from conduit_tasks.settings import Settings
from tests.redis_server import RedisServer

SOURCES, DESTINATIONS = ("a",), ("x", "y")


def piece(start: int, end: int, part: str = "file", partition: str = "") -> Slice:
    """A slice of `end - start` records."""
    return Slice(part, partition, start, end, records=end - start)


def letter(m: int, seq: int, node: str = "destinations.x", error_class: str = "http 400") -> DeadLetter:
    return DeadLetter(m, seq, Record(b"%d" % seq), node, "refused", error_class, at=1_700_000_000.0)


@dataclass
class Feed:
    """Drives one pipeline of source `a` and destinations `x`, `y`."""

    broker: Broker
    at: int = 0
    leases: dict[str, Lease] = field(default_factory=dict)

    def open(self, total: int = 10) -> int:
        m = self.broker.micro_batches.open(
            {"a": [piece(self.at, self.at + total)]}, "config", self.broker.micro_batches.latest_sealed() + 1
        )
        self.at += total
        return m

    def stage(self, m: int, total: int = 10, manifest: str = "stage") -> list[str]:
        with self.broker.leases.acquire("sources.a", "t") as lease:
            return self.broker.micro_batches.stage("sources.a", m, lease.token, Stage(manifest, [total], total))

    def seal(self, m: int, total: int = 10, matched: Mapping[str, int] | None = None) -> bool:
        with self.broker.leases.acquire("seal", "t") as lease:
            return self.broker.micro_batches.seal(
                m,
                lease.token,
                manifest=f"manifest-{m}",
                total=total,
                bytes=total * 100,
                matched={"x": total, "y": total} if matched is None else matched,
            )

    def sealed(self, total: int = 10, matched: Mapping[str, int] | None = None) -> int:
        m = self.open(total)
        self.stage(m, total)
        self.seal(m, total, matched)
        return m

    def lease(self, destination: str) -> Lease:
        if destination not in self.leases:
            self.leases[destination] = self.broker.leases.acquire(f"destinations.{destination}", "t")
        return self.leases[destination]

    def confirm(self, destination: str, m: int, ranges: Sequence[tuple[int, int]], **more: object) -> str:
        n = sum(b - a + 1 for a, b in ranges)
        counts = {"matched": n, "delivered": n}
        return self.broker.deliveries.confirm(destination, m, self.lease(destination).token, ranges, counts, **more)  # type: ignore[arg-type]

    def delivered(self, m: int, total: int = 10, destinations: Sequence[str] = DESTINATIONS) -> None:
        for destination in destinations:
            self.confirm(destination, m, [(0, total - 1)])


@pytest.fixture
def broker(redis_server: RedisServer) -> Iterator[Broker]:
    made = make_broker(redis_server)
    yield made
    made.close()


def make_broker(server: RedisServer, pipeline: str = "p", ttl: float = 15.0, grace: float = 1.0) -> Broker:
    broker = Broker(pipeline, connect(Settings(redis_url=server.url)), lease_ttl=ttl, lease_grace=grace)
    broker.lifecycle.initialise()
    broker.lifecycle.register(SOURCES, DESTINATIONS)
    return broker


@pytest.fixture
def feed(broker: Broker) -> Feed:
    return Feed(broker)


@pytest.fixture
def own_redis() -> Iterator[Callable[..., RedisServer]]:
    """Starts redis-servers of the test's own, which it may kill; the folder is short, as socket paths must be."""
    started: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        server = RedisServer(Path(tempfile.mkdtemp(prefix="conduit-redis-")))
        started.append(server)
        server.start(*options)
        return server

    yield start
    for server in started:
        server.kill()
        shutil.rmtree(server.folder)


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every script is run twice with the same arguments, as a client does that lost the first answer (invariant 5)."""
    once = Script.__call__

    def call(self: Script, client: object, keys: object, **args: object) -> list[object]:
        first = once(self, client, keys, **args)  # type: ignore[arg-type]
        second = once(self, client, keys, **args)  # type: ignore[arg-type]
        assert second[0] == first[0] or self.name == "vote", f"{self.name} answered {first}, then {second}"
        return first

    monkeypatch.setattr(Script, "__call__", call)


def cut_off(patch: pytest.MonkeyPatch, at: int, names: list[str] | None = None) -> None:
    """Nothing is sent from the call number `at` on."""
    once, count = Script.__call__, 0

    def call(self: Script, *args: object, **more: object) -> list[object]:
        nonlocal count
        if count == at:
            raise ConnectionResetError
        count += 1
        if names is not None:
            names.append(self.name)
        return once(self, *args, **more)  # type: ignore[arg-type]

    patch.setattr(Script, "__call__", call)
