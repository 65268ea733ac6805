"""What bounds a gateway, looked at without one: room, lanes, options."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.gateway.app import _read, _Taken
from conduit_tasks.gateway.commit import Committer, Health
from conduit_tasks.gateway.connector import GatewaySource
from conduit_tasks.gateway.event import join, pack
from conduit_tasks.gateway.limits import OVERHEAD, Limits, Room
from conduit_tasks.gateway.pipe import LANES, PipedStore
from conduit_tasks.gateway.store import CROWDED, Budget, IngestStore
from conduit_tasks.redis_client.connection import Client


def test_no_more_lanes_are_moved_in_one_call_than_redis_has_time_for() -> None:
    """Given requests whose events may be of a lane each, then as many are stored together as may be; a larger one alone
    (the door sees to its lanes). Without a pipe there is no such limit."""

    async def groups(hold: float | None) -> list[list[int]]:
        told: list[list[int]] = []

        def add(_: str, __: int, counts: list[int], *___: object) -> list[str | None]:
            told.append(counts)
            return ["1-1"] * len(counts)

        with ThreadPoolExecutor(1) as pool:
            committer = Committer(add, Budget(10**6, 1 << 30), pool, Health(), hold)
            some = (LANES // 2, LANES // 2, 1, LANES - 1, LANES, 3 * LANES, 1, 1)
            assert all(await asyncio.gather(*(committer.store(n, b"x") for n in some)))
        return told

    half = LANES // 2
    assert asyncio.run(groups(1.0)) == [[half, half], [1, LANES - 1], [LANES], [3 * LANES], [1, 1]]
    assert asyncio.run(groups(None)) == [[6 * LANES + 2]]


def test_a_lane_that_was_silent_is_forgotten_and_only_it(client: Client) -> None:
    source = GatewaySource({"auth": "none", "pipe": "monotonic", "pipe.lanes": "2", "pipe.forget": "1h"})
    store = IngestStore("p", "web", client)
    piped = PipedStore(store, source.receiver, source.pipe_key, source.lanes)
    ample, group = Budget(1_000, 1 << 20), count(1)

    def send(source: str, sequence: int) -> str | None:
        meta = {"cloudevents.source": source, "cloudevents.sequence": str(sequence)}
        [said] = piped.add("g", next(group), [1], [join([pack(b"n", meta, b"")])], ample)
        return said

    assert send("/a", 5)
    assert send("/b", 5)
    assert send("/c", 5) == CROWDED
    # Given one that was silent for longer
    client.zincrby(store.keys.ingest_lanes("web"), -3_601, "/a ")
    assert send("/c", 5) not in ("", CROWDED)
    # Then the others are known: what they had is not stored again
    assert send("/b", 5) == ""
    assert sorted(client.hkeys(store.keys.ingest_index("web"))) == ["/b ", "/c "]
    assert client.zcard(store.keys.ingest_lanes("web")) == 2


def test_room_is_kept_for_each_and_the_rest_is_shared() -> None:
    room = Room(1_000)
    room.serve({"a", "b"})
    # Half is the pipelines' own, a quarter each; the other half is anybody's
    assert room.take("a", 250)
    assert room.take("a", 500)
    assert not room.take("a", 1)
    assert room.take("b", 250)
    assert not room.take("b", 1)
    room.give("a", 1)
    assert room.take("b", 1)
    room.give("b", 251)
    room.give("a", 749)
    assert room.used == 0
    # A pipeline that comes, or goes, changes what is whose
    assert room.take("a", 700)
    room.serve({"a", "b", "c", "d", "e"})
    assert room.take("c", 100)
    assert not room.take("c", 1)
    room.give("a", 700)
    assert room.take("c", 400)


def test_a_request_takes_room_for_more_than_its_body() -> None:
    """Given a request without a body, then what it costs beside it counts, so that many of them find an end as well."""
    room = Room(1 << 20)
    room.serve({"p"})

    async def none() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    taken = _Taken(room, "p")
    assert asyncio.run(_read({}, none, 100, taken)) == b""
    assert room.used == OVERHEAD
    taken.back()
    assert room.used == 0


OPTIONS = {
    "head_size": "1KiB",
    "head_timeout": "2s",
    "body_timeout": "1m",
    "answer_timeout": "3s",
    "connections": "7",
    "connections_per_peer": "3",
    "memory": "1MiB",
}


def test_limits_are_options_of_the_command() -> None:
    assert Limits.of(**OPTIONS) == Limits(1024, 2.0, 60.0, 3.0, 7, 3, 1 << 20)
    for name in OPTIONS:
        for wrong in ("lots", "0", "-1"):
            with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} .CONDUIT_GATEWAY_{name.upper()}"):
                Limits.of(**{**OPTIONS, name: wrong})
