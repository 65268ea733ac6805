"""Entries of streams, read step by step."""

from __future__ import annotations

import json
from typing import Any

import redis

from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.redis.connector import RedisSource
from conduit_tasks.errors import SpoolGone
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import to_records
from tests.broker.test_connection import cluster, tcp  # noqa: F401 - a fixture

ORIGIN = Origin("p", "in", "")


class Memory:
    """Receipts in a dict, through JSON as the engine's are."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        self.kept[name := str(len(self.kept))] = data
        return name

    def get(self, name: str) -> bytes:
        if name not in self.kept:
            raise SpoolGone(f"{name} is collected")
        return self.kept[name]


def add(client: redis.Redis, *numbers: int, stream: str = "s") -> None:
    for n in numbers:
        client.xadd(stream, {"n": str(n)})


def step(source: RedisSource, position: dict[str, Any], most: int | None = None) -> tuple[list[str], dict[str, Any]]:
    """What one micro-batch reads, and where it ends."""
    got: list[str] = []
    position = dict(position)
    for slice in source.plan(position, Limit(records=most)):
        through: Slice = Slice(**json.loads(json.dumps(slice.__dict__)))
        for batch in source.read(through):
            got += [r.after["n"] for r in to_records(batch, ORIGIN) if isinstance(r.after, dict)]
        position[slice.part] = json.loads(json.dumps(source.reached(through)))
    return got, position
