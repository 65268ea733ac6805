"""Redis streams on a real server: through a group, with consumers that die, and appended to in transactions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.file.destination import FileDestination
from conduit_tasks.errors import ConfigError, SourceError, Unavailable
from conduit_tasks.record.schema import to_records
from tests.broker.test_connection import cluster, tcp  # noqa: F401 - a fixture
from tests.connectors.redis_entries import ORIGIN, add, step
from tests.connectors.test_redis_pending import (
    _dead,
)
from tests.micro_batch.harness import lines, run_once, run_until_quiet, write_pipeline
from tests.redis_server import RedisServer


@pytest.mark.proves("T2", "C9")
def test_entries_are_read_in_order_and_acked_by_what_was_read(client: redis.Redis, reader: Any) -> None:
    add(client, *range(7))
    source = reader()
    first, position = step(source, {}, 5)
    assert first == ["0", "1", "2", "3", "4"]
    assert client.xpending("s", "conduit.p.in")["pending"] == 5
    second, after = step(source, position, 5)
    assert second == ["5", "6"]
    # Acks are given for each micro-batch apart, and again after a crash
    for _ in range(2):
        source.ack(position)
    assert client.xpending("s", "conduit.p.in")["pending"] == 2
    source.ack(after)
    assert client.xpending("s", "conduit.p.in")["pending"] == 0
    assert source.plan(after, Limit()) == []
    assert client.xlen("s") == 7


def twice(client: redis.Redis, stream: str = "s") -> None:
    client.execute_command("XADD", stream, "*", "tag", "a", "n", "1", "tag", "b", "tag", "a")


def test_a_field_that_an_entry_has_more_than_once_loses_no_value(client: redis.Redis, reader: Any) -> None:
    # Given an entry with one field three times, of another consumer that let it lie, and one that is new
    for stream in ("s", "t"):
        client.xgroup_create(stream, "conduit.p.in", id="0", mkstream=True)
    twice(client)
    client.xreadgroup("conduit.p.in", "other", {"s": ">"})
    twice(client, "t")
    add(client, 2)
    # When both are read, that field is a list of its values in their order
    source = reader(streams="s,t", min_idle="0s")
    found = [r.after for s in source.plan({}, Limit()) for b in source.read(s) for r in to_records(b, ORIGIN)]
    assert found == [{"tag": ["a", "b", "a"], "n": "1"}, {"n": "2"}, {"tag": ["a", "b", "a"], "n": "1"}]


def test_nor_does_it_on_a_cluster(
    tcp: Callable[..., int],  # noqa: F811 - as above
    tmp_path: Path,
    reader: Any,
) -> None:
    url = cluster(tcp, tmp_path / "node")
    # Of one node, which has all keys; redis-py's own client of a cluster leaves its connection open when it is closed
    client = redis.Redis.from_url(url.replace("redis+cluster", "redis"))
    twice(client)
    client.close()
    (slice,) = (source := reader(url=url)).plan({}, Limit())
    (record,) = [r for b in source.read(slice) for r in to_records(b, ORIGIN)]
    assert record.after == {"tag": ["a", "b", "a"], "n": "1"}


@pytest.mark.parametrize("named", [{"data": "tag"}, {"data": "n", "key": "tag"}, {"key": "tag"}])
def test_where_one_value_is_asked_for_and_there_are_several_the_entry_is_nacked_whole(
    client: redis.Redis, reader: Any, named: dict[str, str]
) -> None:
    twice(client)
    source = reader(**named)
    (slice,) = source.plan({}, Limit())
    (record,) = [r for b in source.read(slice) for r in to_records(b, ORIGIN)]
    assert "the field 'tag' is there 3 times" in record.metadata["conduit.error"]
    assert record.key is None
    assert isinstance(record.after, bytes)
    assert json.loads(record.after) == {"tag": ["a", "b", "a"], "n": "1"}


def test_one_that_is_not_asked_for_may_be_there_as_often_as_it_likes(client: redis.Redis, reader: Any) -> None:
    twice(client)
    source = reader(data="n", format="text", key="n")
    (slice,) = source.plan({}, Limit())
    (record,) = [r for b in source.read(slice) for r in to_records(b, ORIGIN)]
    assert (record.after, record.key) == (b"1", b"1")


@pytest.mark.parametrize(("streams", "said"), [(" , ", "names nothing"), ("s, t, s", "names s more than once")])
def test_streams_are_named_and_each_once(reader: Any, streams: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"redis: option 'streams' {said}"):
        reader(streams=streams)


def test_a_new_group_can_begin_behind_the_last_entry_and_delete_what_is_acked(client: redis.Redis, reader: Any) -> None:
    add(client, 1)
    source = reader(start="$", delete="true", streams="s, t")
    assert step(source, {})[0] == []
    add(client, 2)
    add(client, 3, stream="t")
    got, position = step(source, {})
    assert sorted(got) == ["2", "3"]
    assert sorted(position) == ["s", "t"]
    source.ack(position)
    assert (client.xlen("s"), client.xlen("t")) == (1, 0)


def test_the_payload_may_be_one_field_and_what_is_none_is_nacked_alone(client: redis.Redis, reader: Any) -> None:
    for data in ('{"n": 1}', "[1]", "torn {"):
        client.xadd("s", {"d": data, "k": "key"})
    client.xadd("s", {"other": "x"})
    source = reader(data="d", format="json", key="k")
    [slice] = source.plan({}, Limit())
    records = [r for batch in source.read(slice) for r in to_records(batch, ORIGIN)]
    assert records[0].after == {"n": 1}
    assert [("conduit.error" in r.metadata) for r in records] == [False, True, True, True]
    assert [r.key for r in records] == [b"key", b"key", b"key", None]
    assert source.metadata(slice) == {"opencdc.collection": "s"}


def test_the_connector_keeps_its_contract(redis_server: RedisServer) -> None:
    destination = {"url": redis_server.url, "stream": "s", "fields": "payload"}
    accept("redis", source={"url": redis_server.url, "streams": "s"}, destination=destination).require()


def test_a_server_that_is_away_or_refuses_is_told_apart_without_the_password(client: redis.Redis, reader: Any) -> None:
    away = reader(url="redis://u:s3cret@127.0.0.1:1/0")
    with pytest.raises(Unavailable) as raised:
        away.plan({}, Limit())
    assert "s3cret" not in str(raised.value)
    assert "option 'url'" in str(raised.value)
    client.set("s", "no stream")
    with pytest.raises(SourceError, match="WRONGTYPE"):
        reader().plan({}, Limit())
    with pytest.raises(ConfigError, match="start"):
        reader(start="5")


@pytest.mark.proves("T2", "C10")
def test_a_pipeline_takes_from_a_stream_and_acks_when_it_is_sealed(home: Path, client: redis.Redis) -> None:
    add(client, *range(10))
    write_pipeline(
        home,
        "p",
        f"""
version: "2.2"
pipelines:
  - id: p
    micro-batch: {{max-records: 4}}
    connectors:
      - {{id: in, type: source, plugin: redis, settings: {{url: "{_url(client)}", streams: s}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.jsonl, format: payload}}}}
""",
    )
    run_once("p")
    assert client.xpending("s", "conduit.p.in")["pending"] == 0
    run_until_quiet("p")
    assert [json.loads(line)["n"] for line in lines(home / "out.jsonl")] == [str(n) for n in range(10)]


@pytest.mark.proves("T2", "T4")
def test_what_waits_for_a_destination_is_not_taken_over_again_by_its_pipeline(
    home: Path, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.xgroup_create("s", "g", id="0", mkstream=True)
    _dead(client, 0, 1, 2)
    settings = f'{{url: "{_url(client)}", streams: s, group: g, min-idle: 0s}}'
    write_pipeline(
        home,
        "p",
        f"""
version: "2.2"
pipelines:
  - id: p
    lag-budget: {{records: 1000}}
    connectors:
      - {{id: in, type: source, plugin: redis, ack-on: delivered, settings: {settings}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.jsonl, format: payload}}}}
""",
    )

    def down(self: FileDestination, state: Any) -> None:
        raise Unavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(FileDestination, "open", down)
        for _ in range(2):
            run_once("p")
    run_until_quiet("p")
    assert [json.loads(line)["n"] for line in lines(home / "out.jsonl")] == ["0", "1", "2"]
    assert client.xpending("s", "g")["pending"] == 0


def _url(client: redis.Redis) -> str:
    return f"unix://{client.connection_pool.connection_kwargs['path']}"
