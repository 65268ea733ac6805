"""`dedupe`: duplicates are filtered, redelivered records are not, and Redis is asked once per block."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.processors.chain import Chain
from conduit_tasks.record.record import Origin, Record
from tests.processors.conftest import step
from tests.redis_server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("home")


def event(position: int, key: Any, connector: str = "in", **more: Any) -> Record:
    return Record(b"%d" % position, key=key, origin=Origin("p", connector, ""), **more)


def kept(records: list[Record], *steps: Any) -> list[int]:
    """Positions of the records that go on."""
    chain = Chain(steps or (step("dedupe"),))
    results = chain.run(records)
    chain.close()
    assert [r.error for r in results] == [None] * len(results)
    return [int(each.position) for result in results for each in result.records]


def test_only_the_first_of_each_key_goes_on_in_order() -> None:
    assert kept([event(1, b"a"), event(2, b"b"), event(3, b"a"), event(4, None), event(5, None), event(6, b"b")]) == [
        1,
        2,
        4,
        5,
    ]
    assert kept([event(7, b"a"), event(8, b"c"), event(9, {"k": 1}), event(10, {"k": 1}), event(11, b'{"k":1}')]) == [
        8,
        9,
        11,
    ]


@pytest.mark.proves("C10")
def test_a_record_that_comes_again_after_a_crash_is_not_its_own_duplicate() -> None:
    # Given records that passed, and a worker that died before anything was stored
    block = [event(1, b"a"), event(2, b"b"), event(3, b"a")]
    assert kept(block) == [1, 2]
    # When they come again: the same, cut differently, or next to later ones
    # Then exactly the same go on
    assert kept([event(1, b"a"), event(2, b"b"), event(3, b"a")]) == [1, 2]
    assert kept([event(1, b"a")]) == [1]
    assert kept([event(3, b"a"), event(2, b"b"), event(9, b"b"), event(1, b"a")]) == [2, 1]


def test_derived_records_of_one_position_are_told_apart() -> None:
    split = step("split", field=".Payload.After.l")
    dedupe = step("dedupe", key=".Payload.After.l")
    block = [event(1, None, after={"l": ["x", "y", "x"]}), event(2, None, after={"l": ["y", "z"]})]
    for _ in range(2):
        chain = Chain([split, dedupe])
        results = chain.run([each.copy() for each in block])
        chain.close()
        assert [[r.after["l"] for r in result.records] for result in results] == [["x", "y"], ["z"]]  # type: ignore[index,call-overload]
        assert [[r.ordinal for r in result.records] for result in results] == [[0, 1], [0]]


def test_a_key_is_forgotten_after_its_time_to_live() -> None:
    short = step("dedupe", ttl="150ms")
    assert kept([event(1, b"a"), event(2, b"a")], short) == [1]
    until(lambda: kept([event(3, b"a")], short) == [3])


def test_memories_are_apart() -> None:
    assert kept([event(1, b"a")], step("dedupe", id="one")) == [1]
    assert kept([event(2, b"a")], step("dedupe", id="two")) == [2]
    assert kept([event(3, b"a")], step("dedupe", id="two", memory="one")) == []
    assert kept([Record(b"4", key=b"a", origin=Origin("other", "in", ""))], step("dedupe", id="one")) == [4]


def test_processors_of_one_id_in_two_sections_remember_apart() -> None:
    one = step("dedupe", id="once")
    there, elsewhere = (replace(one, section=f"destinations.{name}") for name in ("a", "b"))
    assert kept([event(1, b"a")], there) == [1]
    assert kept([event(2, b"a")], elsewhere) == [2]
    assert kept([event(3, b"a")], there) == []


def test_redis_is_asked_once_per_block(redis_server: RedisServer) -> None:
    chain = Chain([step("dedupe")])
    chain.run([event(0, b"warm")])
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_resetstat()
        for block in range(4):
            chain.run([event(n, b"%d" % (n % 300)) for n in range(block * 500, block * 500 + 500)])
        calls = {k: v["calls"] for k, v in client.info("commandstats").items() if "eval" in k}
        assert sum(calls.values()) == 4
        assert all(client.pttl(key) > 0 for key in client.scan_iter("*dedupe*"))
    chain.close()


def test_an_outage_of_redis_stops_the_task_and_nacks_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from conduit_tasks.settings import forget

    monkeypatch.setenv("CONDUIT_REDIS_URL", f"unix://{tmp_path}/nobody.sock")
    forget()
    with pytest.raises(BrokerUnavailable):
        kept([event(1, b"a")])


def test_a_condition_decides_who_is_looked_at() -> None:
    named = step("dedupe", '{{ eq .Operation "create" }}')
    block = [event(1, b"a"), event(2, b"a", operation="update"), event(3, b"a")]
    assert kept(block, named, step("field.set", field=".Metadata.x", value="1")) == [1, 2]
    # What fails before it or after it fails alone
    chain = Chain(
        [step("error", '{{ eq .Operation "update" }}'), named, step("error", '{{ eq .Operation "delete" }}', id="last")]
    )
    block = [event(4, b"b", operation="update"), event(5, b"b"), event(6, b"c", operation="delete")]
    results = chain.run(block)
    chain.close()
    assert [(r.processor, len(r.records)) for r in results] == [("error", 0), (None, 1), ("last", 0)]
