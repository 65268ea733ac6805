"""Several micro-batches of a destination that writes in batches under way at once: a Redis stream, a topic, tables that
are appended to (ADR 41)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier

import pytest
import redis

from conduit_tasks.connectors.registry import destination_class
from conduit_tasks.connectors.sql.connector import SqlDestination
from conduit_tasks.errors import Unavailable
from conduit_tasks.pipeline.parallel import together
from conduit_tasks.settings import forget
from conduit_tasks.topology import Delivery, Destination
from tests.connectors.postgres_database import Database
from tests.faults.beside import Beside
from tests.faults.conftest import quick  # noqa: F401 - a fixture
from tests.faults.functions import hold
from tests.faults.grouped import PIPELINE, WAITS, sealed
from tests.faults.parts import drive, events
from tests.faults.test_shards import beside, deliver  # noqa: F401 - a fixture
from tests.micro_batch.harness import here, state, write_pipeline
from tests.waiting import until

HTTP = """        plugin: http
        settings: {url: "URL"}
"""
COUNT, LAST = 3_650, 4
"""Events, and the micro-batches that they are read in."""
HELD = {*range(2_700, 2_800), *range(3_100, 3_200), *range(3_500, COUNT)}
"""Records that wait while there is the file `hold`: of each lane, which has some 1,200 of all four, the last."""
WRITE = 50
"""Records of one write."""
IN_REDIS = 1_000
"""The same, of a Redis stream."""


@dataclass
class Target:
    """A destination of one kind: its lines in the file, and the numbers of the records that are in it."""

    lines: str
    found: Callable[[], list[int]]

    def pipeline(self, home: Path) -> None:
        assert HTTP in PIPELINE
        text = (
            PIPELINE.replace(HTTP, self.lines)
            .replace("RECORDS", "1200")
            .replace("none,", 'none, rate-limit: "5000/s",')
        )
        write_pipeline(home, "p", text + WAITS)
        (home / "data").mkdir()
        rows = [{"n": n, "k": "k", "waits": n in HELD} for n in range(COUNT)]
        (home / "data" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


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


@pytest.fixture(autouse=True)
def _small(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Up to so many records one process works on, without Spark."""
    monkeypatch.setenv("CONDUIT_SMALL_RECORDS", "1000")
    forget()


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
    hold().touch()
    beside.cut_off(deliver, lambda: len(target.found()) > COUNT // 2, hold().unlink)
    assert len(target.found()) < COUNT
    drive()
    whole(target, repeats=WRITE if "redis" not in target.lines else IN_REDIS)


def test_small_micro_batches_are_written_by_one_process_without_spark(
    quick: Path,  # noqa: F811
    request: pytest.FixtureRequest,
    beside: Beside,  # noqa: F811
) -> None:
    target = in_redis(request)
    write_pipeline(quick, "p", PIPELINE.replace(HTTP, target.lines).replace("RECORDS", "150"))
    events(quick / "data", 600)
    sealed(4)
    # Each of them is one task's: nothing is divided
    deliver(here)
    assert sorted(target.found()) == list(range(600))
    with closing(state("p")) as broker:
        assert not any(
            name.startswith(("shard", "group")) for name in broker.access.hash(broker.keys.destination("to"))
        )


def test_a_group_whose_rows_replace_each_other_by_now_is_finished_one_after_the_other(
    quick: Path,  # noqa: F811
    db: Database,
    beside: Beside,  # noqa: F811
) -> None:
    """Given a group that was begun while the file said `append`, and an older record that is held up: the younger one
    of the same key waits for it."""
    db.run("CREATE TABLE events (id bigint PRIMARY KEY, n bigint)")
    held = range(900, 1_200)
    rows = [{"id": 7 if n in (1_100, 1_210) else 10_000 + n, "n": n, "waits": n in held} for n in range(2_400)]
    (quick / "data").mkdir()
    (quick / "data" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def says(url: str, mode: str) -> None:
        lines = plugin("postgres", f'url: "{url}", table: events, mode: {mode}, key: id, unknown-fields: ignore')
        text = PIPELINE.replace(HTTP, lines).replace("RECORDS", "1200")
        write_pipeline(quick, "p", text.replace("parallelism: 3}\n", "parallelism: 3}\n" + WAITS))

    says("postgresql://nobody@127.0.0.1:1/nothing", "append")
    sealed(2)
    with pytest.raises(Unavailable):
        deliver(beside)
    with closing(state("p")) as broker:
        assert [d.micro_batch for d in broker.deliveries.get("to").divisions] == [1, 2]
    # When the file says `upsert`, then the first one is finished before the second begins
    says(db.url, "upsert")
    hold().touch()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(deliver, beside, "two")
        until(lambda: bool(beside.jobs[1:]), "the second delivery")
        time.sleep(3.0)
        assert db.run("SELECT n FROM events WHERE n >= 1200") == []
        hold().unlink()
        done.result()
    assert beside.jobs == [[0, 1, 2]] * 3
    assert db.run("SELECT n FROM events WHERE id = 7") == [(1_210,)]


def test_tasks_that_create_a_table_at_once_all_find_it(db: Database) -> None:
    """PostgreSQL refuses some of them by a unique violation of its own catalogue: no fault of a record."""

    def opened(table: str) -> None:
        destination = SqlDestination({"url": db.url, "table": table, "mode": "append"})
        at_once.wait(60)
        try:
            destination.open(None)
        finally:
            destination.close()

    at_once = Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        for n in range(12):
            list(pool.map(opened, [f"t{n}"] * 6))


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
