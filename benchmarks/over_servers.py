"""`servers`: PostgreSQL, SQL, Kafka (in transactions also), Redis and SQS, each by one and by two Spark tasks.

Each server is real (SQS is moto) and on the same cores, its CPU told apart, so that it is a limit of its own. What has
arrived is counted at the server, not by the destination's word.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import kafka_server, postgres_server
from benchmarks.over_bulk import moto
from benchmarks.over_kafka import PARTITIONS, arrived
from benchmarks.place import PIPELINE, Place, serving
from benchmarks.tables import Figure, Result
from benchmarks.three import drive, source
from conduit_tasks.connectors import aws
from conduit_tasks.micro_batch.context import open_broker
from conduit_tasks.stack.layout import Layout
from conduit_tasks.stack.redis import command

COLUMNS = 'id text, kind text, "user" text, amount double precision, pad text'
UNCONFIRMED = 100
"""Of a task at SQS, which takes ten messages a request."""


@dataclass(frozen=True)
class Target:
    """Where to deliver to. `settings` and `count`: by number of tasks, as each number has a place of its own there;
    `pid`: of the server."""

    plugin: str
    settings: Callable[[int], dict[str, Any]]
    count: Callable[[int], int]
    pid: int
    delivery: dict[str, Any]


def run(place: Place, count: int, messages: int) -> Result:
    """`count` events to each, but `messages` to SQS."""
    place.archive()
    place = replace(place, master="local[2]")
    rows: list[list[object]] = []
    figures, facts = [], dict[str, float]()
    for kind, at in TARGETS.items():
        many = messages if kind == "sqs" else count
        with at(place) as target:
            seconds = []
            for tasks in place.numbers_of_tasks:
                took, cpu, beside = _delivered(place, target, many, tasks)
                seconds.append(took)
                rows.append([kind, tasks, many, took, round(many / took), cpu / many * 1e6, beside / many * 1e6])
                facts[f"{kind}.{tasks}"] = many
        if len(seconds) > 1:
            figures.append(
                Figure(f"{kind}: 2 tasks / 1, the server on the same two cores", seconds[0] / seconds[1], unit=" ×")
            )
    return Result(
        f"servers: {count:,} events of 225 bytes by one and by two tasks, {messages:,} to SQS",
        ("to", "tasks", "events", "seconds", "events/s", "CPU s per M", "the server's"),
        rows,
        figures,
        ["Seconds: of the destination's stage. SQS is moto, of one thread."],
        facts,
    )


def _delivered(place: Place, target: Target, count: int, tasks: int) -> tuple[float, float, float]:
    """Returns seconds of the destination's stage, CPU of all, and of the server. Raises SystemExit unless everything is
    there."""
    delivery = {"order-by": "none", "parallelism": tasks, **target.delivery}
    settings = target.settings(tasks)
    to = {"id": "to", "type": "destination", "plugin": target.plugin, "settings": settings, "delivery": delivery}
    place.pipeline(source(place.events(count)), to)
    with serving(place) as (_, _, redis_pid):
        ours = drive(place, redis_pid, "--beside", str(target.pid), spark=tasks > 1)
        broker = open_broker(PIPELINE)
        delivered = broker.deliveries.get("to").counters["delivered"]
        broker.close()
    if not delivered == (there := target.count(tasks)) == count:
        raise SystemExit(f"{target.plugin}, {tasks} tasks: {count} events, {delivered} delivered, {there} are there")
    return ours["stages"]["destinations.to"], ours["cpu"], ours["cpu_beside"]


@contextmanager
def _postgres(place: Place, plugin: str, scheme: str) -> Iterator[Target]:
    """Rows are appended: by `postgres` with COPY, by `sql` with INSERT."""
    import sqlalchemy as sa

    with place.server(postgres_server.running) as server:
        engine = sa.create_engine(server.url)
        with engine.begin() as connection:
            for tasks in (1, 2):
                connection.execute(sa.text(f"create table {plugin}_{tasks} ({COLUMNS})"))

        def count(tasks: int) -> int:
            with engine.begin() as connection:
                return int(connection.execute(sa.text(f"select count(*) from {plugin}_{tasks}")).scalar_one())

        assert server.process is not None
        at = {"url": f"{scheme}://postgres@127.0.0.1:{server.port}/postgres", "mode": "append"}
        yield Target(plugin, lambda tasks: {**at, "table": f"{plugin}_{tasks}"}, count, server.process.pid, {})
        engine.dispose()


@contextmanager
def _kafka(place: Place, guarantee: str) -> Iterator[Target]:
    from confluent_kafka.admin import AdminClient, NewTopic

    with place.server(kafka_server.running) as server:
        at = {"servers": server.servers}
        topics = {tasks: f"{guarantee}-{tasks}" for tasks in (1, 2)}
        admin = AdminClient({"bootstrap.servers": server.servers})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics.values()]).values():
            made.result(30)
        assert server.process is not None
        yield Target(
            "kafka",
            lambda tasks: {"topic": topics[tasks], "format": "payload", **at},
            lambda tasks: arrived(server, topics[tasks]),
            server.process.pid,
            {"guarantee": guarantee},
        )


@contextmanager
def _redis(place: Place) -> Iterator[Target]:
    """A Redis beside the broker's."""
    import redis

    layout = Layout(place.base / "to")
    process = subprocess.Popen(command(layout), stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(unix_socket_path=str(layout.socket), retry=_patient()) as client:
            client.flushall()
            yield Target(
                "redis",
                lambda tasks: {"url": f"unix://{layout.socket}", "stream": f"to-{tasks}"},
                lambda tasks: int(client.xlen(f"to-{tasks}")),
                process.pid,
                {},
            )
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _sqs(place: Place) -> Iterator[Target]:
    with place.server(moto) as (store, pid):
        client = aws.client("sqs", store)
        urls = {tasks: client.create_queue(QueueName=f"to-{tasks}")["QueueUrl"] for tasks in (1, 2)}

        def count(tasks: int) -> int:
            name = "ApproximateNumberOfMessages"
            found = client.get_queue_attributes(QueueUrl=urls[tasks], AttributeNames=[name])
            return int(found["Attributes"][name])

        yield Target(
            "sqs",
            lambda tasks: {"queue": f"to-{tasks}", **store},
            count,
            pid,
            {"max-unconfirmed": UNCONFIRMED, "timeout": "60s"},
        )
        client.close()


def _patient() -> Any:
    """Returns a policy that waits for a server which is starting."""
    from redis.backoff import ConstantBackoff
    from redis.retry import Retry

    return Retry(ConstantBackoff(0.1), 200)


TARGETS: dict[str, Callable[[Place], Any]] = {
    "postgres": lambda place: _postgres(place, "postgres", "postgresql"),
    "sql": lambda place: _postgres(place, "sql", "postgresql+psycopg2"),
    "kafka": lambda place: _kafka(place, "at-least-once"),
    "kafka, once": lambda place: _kafka(place, "effectively-once"),
    "redis": _redis,
    "sqs": _sqs,
}
