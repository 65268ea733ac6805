"""`kafka`: from topic to topic with an outcome per record, the server on the same cores.

Once at least once, by an idempotent producer, and once effectively once, in transactions. The server is a real Kafka of
one node (`benchmarks.kafka_server`); its CPU is told apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.kafka_server import KafkaServer, running
from benchmarks.place import Place, serving
from benchmarks.tables import Figure, Result
from benchmarks.three import drive, stages
from conduit_tasks.micro_batch.context import open_broker

PARTITIONS = 4
FROM = "events"


def run(place: Place, count: int) -> Result:
    """`count` events of 225 bytes, in four partitions by key."""
    place.archive()
    with place.server(running) as server:
        fill(server, place.events(count))
        ways = {g: once(place, server, g, count) for g in ("at-least-once", "effectively-once")}
    million = count / 1e6
    rows = [
        [g, ours["seconds"], round(count / ours["seconds"]), ours["cpu"] / million, ours["cpu_beside"] / million]
        for g, ours in ways.items()
    ]
    return Result(
        f"kafka: from topic to topic, an outcome per record, {count:,} events of 225 bytes, {PARTITIONS} partitions",
        ("guarantee", "seconds", "events/s", "CPU s per M", "the server's"),
        rows,
        [Figure(f"{g}: events/s", count / ours["seconds"], "≥", 80_000) for g, ours in ways.items()],
        [stages(ours) for ours in ways.values()],
        {"events": count, **{f"arrived.{g}": ours["arrived"] for g, ours in ways.items()}},
    )


def fill(server: KafkaServer, events: Path) -> None:
    """A message per line, keyed."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.servers})
    for made in admin.create_topics(
        [NewTopic(t, PARTITIONS) for t in (FROM, "at-least-once", "effectively-once")]
    ).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": server.servers, "linger.ms": 20, "compression.type": "snappy"})
    with events.open("rb") as file:
        for n, line in enumerate(file):
            producer.produce(FROM, line[:-1], key=b"%d" % (n % 1000))
            if n % 10_000 == 0:
                producer.flush()
    producer.flush()


def once(place: Place, server: KafkaServer, guarantee: str, count: int) -> dict[str, Any]:
    """One pipeline until nothing is new. Raises SystemExit where counters and topic do not say the same."""
    at = {"servers": server.servers}
    source = {"topics": FROM, "readFromBeginning": "true", "groupID": guarantee, **at}
    target = {"topic": guarantee, "format": "payload", **at}
    place.pipeline(
        {"id": "in", "type": "source", "plugin": "kafka", "settings": source},
        {
            "id": "out",
            "type": "destination",
            "plugin": "kafka",
            "settings": target,
            "delivery": {"guarantee": guarantee},
        },
    )
    with serving(place) as (_, _, redis_pid):
        assert server.process is not None
        ours = drive(place, redis_pid, "--beside", str(server.process.pid))
        broker = open_broker("bench")
        delivered, acked = broker.deliveries.get("out").counters["delivered"], broker.positions.acked("in")
        broker.close()
    ours["arrived"] = arrived(server, guarantee)
    if not delivered == ours["arrived"] == sum(acked.values()) == count:
        raise SystemExit(f"{count} events: {delivered} delivered, {ours['arrived']} arrived, acked up to {acked}")
    return ours


def arrived(server: KafkaServer, topic: str) -> int:
    """Committed messages in a topic."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": server.servers, "group.id": "count", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    count, open_ones = 0, PARTITIONS
    while open_ones:
        for message in consumer.consume(10_000, 0.1):
            count += message.error() is None
            open_ones -= message.error() is not None
    consumer.close()
    return count
