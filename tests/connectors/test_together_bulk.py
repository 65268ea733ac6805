"""Several micro-batches of a destination that writes in batches under way at once: a Redis stream, a topic, tables that
are appended to (ADR 41)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis

from conduit_tasks.connectors.registry import destination_class
from conduit_tasks.pipeline.parallel import together
from conduit_tasks.topology import Delivery, Destination
from tests.faults.beside import Beside
from tests.faults.conftest import quick  # noqa: F401 - a fixture
from tests.faults.grouped import PIPELINE, sealed
from tests.faults.parts import drive, events
from tests.faults.test_shards import beside, deliver  # noqa: F401 - a fixture
from tests.micro_batch.harness import state, write_pipeline

HTTP = """        plugin: http
        settings: {url: "URL"}
"""
COUNT, LAST = 950, 4
"""Events, and the micro-batches that they are read in."""
WRITE = 50
"""Records of one write."""


@dataclass
class Target:
    """A destination of one kind: its lines in the file, and the numbers of the records that are in it."""

    lines: str
    found: Callable[[], list[int]]

    def pipeline(self, home: Path) -> None:
        assert HTTP in PIPELINE
        # So that a task is in the middle for a while.
        text = (
            PIPELINE.replace(HTTP, self.lines).replace("RECORDS", "300").replace("none,", 'none, rate-limit: "450/s",')
        )
        write_pipeline(home, "p", text)
        events(home / "data", COUNT)


def plugin(name: str, settings: str) -> str:
    return f"        plugin: {name}\n        settings: {{{settings}}}\n"


def in_redis(request: pytest.FixtureRequest) -> Target:
    url = request.getfixturevalue("redis_server").url

    def found() -> list[int]:
        with redis.Redis.from_url(url, decode_responses=True) as client:
            return [int(fields["n"]) for _, fields in client.xrange("together")]

    return Target(plugin("redis", f'url: "{url}", stream: together, fields: payload'), found)


def in_kafka(request: pytest.FixtureRequest) -> Target:
    kafka = request.getfixturevalue("kafka")
    topic = kafka.topic(2)
    settings = f'servers: "{kafka.servers}", topic: {topic}, format: payload, chunk: "{WRITE}"'
    return Target(plugin("kafka", settings), lambda: [json.loads(value)["n"] for value in kafka.values(topic)])


def in_postgres(request: pytest.FixtureRequest) -> Target:
    db = request.getfixturevalue("db")
    db.run("CREATE TABLE events (n bigint, k text, at text)")
    settings = f'url: "{db.url}", table: events, mode: append, unknown-fields: ignore, chunk: "{WRITE}"'
    return Target(plugin("postgres", settings), lambda: [n for (n,) in db.run("SELECT n FROM events")])


@pytest.fixture(params=[in_redis, in_kafka, in_postgres])
def target(request: pytest.FixtureRequest, quick: Path) -> Iterator[Target]:  # noqa: F811
    made: Target = request.param(request)
    made.pipeline(quick)
    return made


def whole(target: Target, repeats: int = 0) -> None:
    """Every record is there, so many of them twice at most, and nothing of the group is left in the state."""
    counted = Counter(target.found())
    assert sorted(counted) == list(range(COUNT))
    assert counted.total() - COUNT <= repeats
    broker = state("p")
    found = broker.deliveries.get("to")
    stored = broker.access.hash(broker.keys.destination("to"))
    broker.close()
    assert (found.cursor, found.divisions, found.counters["delivered"]) == (LAST, (), COUNT)
    assert not [name for name in stored if name.startswith(("shard:", "divided", "group", "ranges"))]


@pytest.mark.proves("C10", "C13")
def test_the_micro_batches_that_are_there_are_written_by_one_job(target: Target, beside: Beside) -> None:  # noqa: F811
    sealed(LAST)
    deliver(beside)
    assert beside.jobs == [[0, 1, 2]]
    whole(target)


@pytest.mark.proves("C1", "C10", "I4")
def test_a_task_that_is_killed_is_run_again_and_writes_one_write_twice_at_most(
    target: Target,
    beside: Beside,  # noqa: F811
) -> None:
    sealed(LAST)
    # The lanes have some 317 records each, of two micro-batches and more
    beside.cut_off(deliver, lambda: len(target.found()) > COUNT // 2)
    assert len(target.found()) < COUNT
    drive()
    whole(target, repeats=WRITE if "redis" not in target.lines else 1_000)


@pytest.mark.parametrize(
    ("name", "settings", "may"),
    [
        ("kafka", {}, True),
        ("redis", {}, True),
        ("http", {}, True),
        ("sqs", {}, True),
        # A row of an older micro-batch would replace that of a younger one
        ("postgres", {}, False),
        ("postgres", {"mode": "append"}, True),
        ("mysql", {}, False),
        ("mysql", {"mode": "append"}, True),
        ("sql", {}, False),
        ("sql", {"mode": "append"}, True),
        ("iceberg", {"mode": "upsert"}, False),
        # What was written is told apart by the name of the shard
        ("iceberg", {}, False),
        ("delta", {}, False),
        ("s3", {}, False),
        ("file", {"format": "parquet"}, False),
    ],
)
def test_a_destination_may_have_several_micro_batches_where_nothing_it_keeps_depends_on_their_order(
    name: str, settings: dict[str, str], may: bool
) -> None:
    destination = Destination(
        id="to", plugin=name, settings=settings, delivery=Delivery(order_by="none", parallelism=3)
    )
    assert together(destination, destination_class(name)) is may
    assert not together(replace(destination, delivery=Delivery(order_by="key", parallelism=3)), destination_class(name))
