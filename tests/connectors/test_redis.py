"""Redis streams on a real server: through a group, with consumers that die, and appended to in transactions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.file.destination import FileDestination
from conduit_tasks.connectors.redis import connector as module
from conduit_tasks.connectors.redis.connector import RedisSource
from conduit_tasks.errors import ConfigError, SourceError, SpoolError, Unavailable
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import to_records
from tests.broker.test_connection import cluster, tcp  # noqa: F401 - a fixture
from tests.conftest import RedisServer
from tests.micro_batch.harness import lines, run_once, run_until_quiet, write_pipeline

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
            raise SpoolError(f"{name} is collected")
        return self.kept[name]


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    made = redis.Redis(unix_socket_path=redis_server.url.removeprefix("unix://"), decode_responses=True)
    yield made
    made.close()


@pytest.fixture
def make(redis_server: RedisServer) -> Iterator[Any]:
    """Makes sources that share one memory of receipts."""
    memory, made = Memory(), []

    def build(**settings: str) -> RedisSource:
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        source = RedisSource({"url": redis_server.url, "streams": "s", **given})
        source.pipeline, source.connector, source.receipts = "p", "in", memory
        made.append(source)
        return source

    yield build
    for source in made:
        source.close()


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


@pytest.mark.proves("T2", "C9")
def test_entries_are_read_in_order_and_acked_by_what_was_read(client: redis.Redis, make: Any) -> None:
    add(client, *range(7))
    source = make()
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


def test_a_field_that_an_entry_has_more_than_once_loses_no_value(client: redis.Redis, make: Any) -> None:
    # Given an entry with one field three times, of another consumer that let it lie, and one that is new
    for stream in ("s", "t"):
        client.xgroup_create(stream, "conduit.p.in", id="0", mkstream=True)
    twice(client)
    client.xreadgroup("conduit.p.in", "other", {"s": ">"})
    twice(client, "t")
    add(client, 2)
    # When both are read, that field is a list of its values in their order
    source = make(streams="s,t", min_idle="0s")
    found = [r.after for s in source.plan({}, Limit()) for b in source.read(s) for r in to_records(b, ORIGIN)]
    assert found == [{"tag": ["a", "b", "a"], "n": "1"}, {"n": "2"}, {"tag": ["a", "b", "a"], "n": "1"}]


def test_nor_does_it_on_a_cluster(
    tcp: Callable[..., int],  # noqa: F811 - as above
    tmp_path: Path,
    make: Any,
) -> None:
    url = cluster(tcp, tmp_path / "node")
    # Of one node, which has all keys; redis-py's own client of a cluster leaves its connection open when it is closed
    client = redis.Redis.from_url(url.replace("redis+cluster", "redis"))
    twice(client)
    client.close()
    (slice,) = (source := make(url=url)).plan({}, Limit())
    (record,) = [r for b in source.read(slice) for r in to_records(b, ORIGIN)]
    assert record.after == {"tag": ["a", "b", "a"], "n": "1"}


@pytest.mark.parametrize("named", [{"data": "tag"}, {"data": "n", "key": "tag"}, {"key": "tag"}])
def test_where_one_value_is_asked_for_and_there_are_several_the_entry_is_nacked_whole(
    client: redis.Redis, make: Any, named: dict[str, str]
) -> None:
    twice(client)
    source = make(**named)
    (slice,) = source.plan({}, Limit())
    (record,) = [r for b in source.read(slice) for r in to_records(b, ORIGIN)]
    assert "the field 'tag' is there 3 times" in record.metadata["conduit.error"]
    assert record.key is None
    assert isinstance(record.after, bytes)
    assert json.loads(record.after) == {"tag": ["a", "b", "a"], "n": "1"}


def test_one_that_is_not_asked_for_may_be_there_as_often_as_it_likes(client: redis.Redis, make: Any) -> None:
    twice(client)
    source = make(data="n", format="text", key="n")
    (slice,) = source.plan({}, Limit())
    (record,) = [r for b in source.read(slice) for r in to_records(b, ORIGIN)]
    assert (record.after, record.key) == (b"1", b"1")


@pytest.mark.proves("T2", "C10", "I3")
def test_what_an_attempt_read_and_did_not_stage_is_read_again_at_once(client: redis.Redis, make: Any) -> None:
    add(client, *range(6))
    _, position = step(make(), {}, 2)
    # Given an attempt that died with what it read, of which nothing was staged
    assert step(make(), position, 3)[0] == ["2", "3", "4"]
    # Then the next one reads the same, and what is staged but not acked is not read again
    assert step(make(), position, 3)[0] == ["2", "3", "4"]
    assert step(make(), position)[0] == ["2", "3", "4", "5"]


@pytest.mark.proves("T2")
def test_what_a_dead_consumer_held_is_taken_over_and_hides_nothing_of_ours(client: redis.Redis, make: Any) -> None:
    # Given entries that another consumer of the group holds, some behind and some before ours
    add(client, 0)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "other", {"s": ">"}, count=1)
    add(client, 1, 2)
    source = make(group="g", min_idle="1h")
    read, position = step(source, {}, 2)
    assert read == ["1", "2"]
    assert step(make(group="g", min_idle="1h"), position)[0] == []
    add(client, 3, 4)
    assert step(make(group="g", min_idle="1h"), position, 1)[0] == ["3"]  # and dies
    client.xreadgroup("g", "other", {"s": ">"}, count=1)
    # When that consumer has been silent for too long, and there is room for two only
    eager = make(group="g", min_idle="0s")
    taken, after = step(eager, position, 2)
    assert taken == ["0", "4"]
    # Then what the attempt before left is still there for the next micro-batch
    rest, end = step(eager, after)
    assert "3" in rest
    for token in (position, after, end):
        eager.ack(token)
    assert client.xpending("s", "g")["pending"] == 0


@pytest.mark.proves("T2", "C9", "C10")
@pytest.mark.parametrize("second", ["a lost answer", "a second task"])
def test_pages_that_became_ours_without_this_task_are_read_by_it_in_order(
    client: redis.Redis,
    make: Any,
    monkeypatch: pytest.MonkeyPatch,
    second: str,
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    add(client, *range(9))
    source, other = make(), make()
    [slice] = source.plan({}, Limit())
    beside = other.read(slice)
    if second == "a second task":
        next(beside)
    reading = source.read(slice)
    read = next(reading).num_rows
    # When new entries are given to our consumer, and this task never sees that answer
    if second == "a second task":
        next(beside)
    else:
        client.xreadgroup("conduit.p.in", "p.in", {"s": ">"}, count=2)
    # Then it reads all of them all the same: nothing that it passed over lies before where it ends
    read += sum(batch.num_rows for batch in reading)
    assert read == 9
    position = {"s": source.reached(slice)}
    assert step(make(), position)[0] == []
    source.ack(position)
    assert client.xpending("s", "conduit.p.in")["pending"] == 0
    beside.close()


def _dead(client: redis.Redis, *numbers: int) -> None:
    """Entries that a consumer of the group was given before it died."""
    add(client, *numbers)
    client.xreadgroup("g", "other", {"s": ">"}, count=len(numbers))


@pytest.mark.proves("T2", "T4")
def test_what_was_taken_over_and_staged_is_not_taken_again_before_its_ack(
    client: redis.Redis,
    make: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given what was taken over by one micro-batch, and by the next, neither of them acked yet
    monkeypatch.setattr(module, "PAGE", 2)
    client.xgroup_create("s", "g", id="0", mkstream=True)
    ends: list[dict[str, Any]] = []

    def source() -> Any:
        made = make(group="g", min_idle="0s")
        made.unsettled = tuple(ends)
        return made

    _dead(client, 0, 1, 2)
    first, position = step(source(), {})
    ends.append(position)
    _dead(client, 3)
    second, after = step(source(), position)
    ends.append(after)
    assert (first, second) == (["0", "1", "2"], ["3"])
    # Then neither comes again, however long they wait, and an attempt that staged nothing hides nothing
    assert source().plan(after, Limit()) == []
    _dead(client, 4)
    for _ in range(2):
        assert step(source(), after)[0] == ["4"]
    # When the first is acked, and what was kept beside it is collected
    source().ack(position)
    del source().receipts.kept[position["s"]["receipts"]]
    third, end = step(source(), after)
    ends.append(end)
    assert third == ["4"]
    for token in (after, end):
        source().ack(token)
    assert client.xpending("s", "g")["pending"] == 0
    assert source().plan(end, Limit()) == []


@pytest.mark.proves("T2")
def test_entries_trimmed_before_they_were_read_are_acked_and_plan_nothing_for_ever(
    client: redis.Redis,
    make: Any,
) -> None:
    # Given entries that nobody was given yet
    source = make(group="g", min_idle="0s")
    source.plan({}, Limit())
    add(client, 0, 1)
    client.xtrim("s", maxlen=0)
    assert source.plan({}, Limit()) == []
    # And some that a consumer held, one of which is there
    _dead(client, 2, 3)
    client.xdel("s", client.xrange("s")[0][0])
    read, position = step(source, {})
    assert read == ["3"]
    source.ack(position)
    assert client.xpending("s", "g")["pending"] == 0
    assert source.plan(position, Limit()) == []


@pytest.mark.parametrize(("streams", "said"), [(" , ", "names nothing"), ("s, t, s", "names s more than once")])
def test_streams_are_named_and_each_once(make: Any, streams: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"redis: option 'streams' {said}"):
        make(streams=streams)


def test_a_new_group_can_begin_behind_the_last_entry_and_delete_what_is_acked(client: redis.Redis, make: Any) -> None:
    add(client, 1)
    source = make(start="$", delete="true", streams="s, t")
    assert step(source, {})[0] == []
    add(client, 2)
    add(client, 3, stream="t")
    got, position = step(source, {})
    assert sorted(got) == ["2", "3"]
    assert sorted(position) == ["s", "t"]
    source.ack(position)
    assert (client.xlen("s"), client.xlen("t")) == (1, 0)


def test_the_payload_may_be_one_field_and_what_is_none_is_nacked_alone(client: redis.Redis, make: Any) -> None:
    for data in ('{"n": 1}', "[1]", "torn {"):
        client.xadd("s", {"d": data, "k": "key"})
    client.xadd("s", {"other": "x"})
    source = make(data="d", format="json", key="k")
    [slice] = source.plan({}, Limit())
    records = [r for batch in source.read(slice) for r in to_records(batch, ORIGIN)]
    assert records[0].after == {"n": 1}
    assert [("conduit.error" in r.metadata) for r in records] == [False, True, True, True]
    assert [r.key for r in records] == [b"key", b"key", b"key", None]
    assert source.metadata(slice) == {"opencdc.collection": "s"}


def test_the_connector_keeps_its_contract(redis_server: RedisServer) -> None:
    destination = {"url": redis_server.url, "stream": "s", "fields": "payload"}
    accept("redis", source={"url": redis_server.url, "streams": "s"}, destination=destination).require()


def test_a_server_that_is_away_or_refuses_is_told_apart_without_the_password(client: redis.Redis, make: Any) -> None:
    away = make(url="redis://u:s3cret@127.0.0.1:1/0")
    with pytest.raises(Unavailable) as raised:
        away.plan({}, Limit())
    assert "s3cret" not in str(raised.value)
    assert "option 'url'" in str(raised.value)
    client.set("s", "no stream")
    with pytest.raises(SourceError, match="WRONGTYPE"):
        make().plan({}, Limit())
    with pytest.raises(ConfigError, match="start"):
        make(start="5")


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
