"""A real Kafka, and what tests do with it beside the connector."""

from __future__ import annotations

import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from benchmarks.kafka_server import KafkaServer
from conduit_tasks.connectors.base import Limit, Position, Slice
from conduit_tasks.connectors.kafka.source import KafkaSource
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import to_records
from conduit_tasks.stack.ports import free_port
from tests.connectors.tls import NEW_KEY
from tests.waiting import until

READ_COMMITTED, READ_UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def secured(server: KafkaServer) -> int:
    """Gives a server that is not created yet a further listener, for TLS and SASL alone; its port. The certificate is
    `tls.pem` in the server's folder, and stands for itself; the user is conduit, the password right."""
    port, pem = free_port(), server.folder / "tls.pem"
    command = ["openssl", "req", "-x509", *NEW_KEY, "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "-", "-out", "-"]
    pem.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    listeners = f"PLAINTEXT://127.0.0.1:{server.ports[0]},CONTROLLER://127.0.0.1:{server.ports[1]}"
    server.settings = {
        "listeners": f"{listeners},SECURE://127.0.0.1:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": f'{plain} required user_conduit="right";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem),
    }
    return port


def answers(asked: Future[Any]) -> bool:
    """Whether what was asked for came without an error."""
    return asked.exception(60) is None


@dataclass
class Kafka:
    """A server and clients of it; topics are new for each test."""

    server: KafkaServer
    secure_port: int = 0
    """Of the listener that takes TLS and SASL alone."""
    _closing: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Kept: what it was asked is forgotten with it.
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    @property
    def servers(self) -> str:
        return self.server.servers

    def topic(self, partitions: int = 1, *, prefix: str = "t", name: str = "", **config: str) -> str:
        name = name or f"{prefix}-{uuid.uuid4().hex[:12]}"
        made = self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])
        made[name].result(120)
        self._led(name, partitions)
        return name

    def remove(self, topic: str) -> None:
        """Removes a topic, and waits until no broker lists it."""
        self.admin.delete_topics([topic])[topic].result(120)
        until(lambda: topic not in self.admin.list_topics(timeout=30).topics)

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(120)
        self._led(topic, partitions)

    def _led(self, topic: str, partitions: int) -> None:
        """Waits until each partition has a leader that answers: a server says that a topic is made before it is."""
        latest = {TopicPartition(topic, n): OffsetSpec.latest() for n in range(partitions)}

        def led() -> bool:
            # A new one each time: what a client knows of a topic it keeps for minutes.
            admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
            return all(answers(asked) for asked in admin.list_offsets(latest, request_timeout=10).values())

        until(led, f"a leader of {topic}")

    def producer(self, **config: Any) -> Producer:
        dotted = {name.replace("_", "."): value for name, value in config.items()}
        return Producer({"bootstrap.servers": self.servers, "log_level": 0, "error_cb": lambda _: None, **dotted})

    def put(self, topic: str, values: Sequence[bytes | None], partition: int = 0, **message: Any) -> None:
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, partition=partition, **message)
        assert producer.flush(120) == 0

    def put_with_header(self, topic: str, value: bytes, header: bytes) -> None:
        """A message with a header of this name, which no client makes of what is not UTF-8: the request's own bytes
        (Produce, version 3, with one batch of one record)."""
        record = b"\0\0\0\1" + _varint(len(value)) + value + _varint(1) + _varint(len(header)) + header + _varint(-1)
        now = int(time.time() * 1000)
        body = struct.pack(">hiqqqhii", 0, 0, now, now, -1, -1, -1, 1) + _varint(len(record)) + record
        batch = struct.pack(">ibI", -1, 2, _crc32c(body)) + body
        batch = struct.pack(">qi", 0, len(batch)) + batch
        name = topic.encode()
        request = struct.pack(">hhih", 0, 3, 1, -1) + struct.pack(">hhii", -1, -1, 10_000, 1)
        request += struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
        host, _, port = self.servers.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(65_536)
        (error,) = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(name) + 4 + 4)
        assert error == 0, answer

    def transaction(self, topic: str, values: Sequence[bytes], *, abort: bool = False) -> None:
        producer = self.producer(transactional_id=uuid.uuid4().hex)
        producer.init_transactions(120)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(120)
        self.decide(producer, topic, abort=abort)

    def decide(self, producer: Producer, topic: str, *, abort: bool = False) -> None:
        """Commits or aborts a transaction on a topic, and waits until readers see it: the coordinator answers before
        the partitions have its word."""
        producer.abort_transaction(120) if abort else producer.commit_transaction(120)
        self._decided(topic)

    def _decided(self, topic: str) -> None:
        """Waits until no transaction is open on a topic."""
        partitions = self.admin.list_topics(topic, timeout=120).topics[topic].partitions
        latest = {TopicPartition(topic, n): OffsetSpec.latest() for n in partitions}
        until(lambda: self._none_open(latest), f"the end of the transaction on {topic}")

    def _none_open(self, latest: dict[TopicPartition, OffsetSpec]) -> bool:
        try:
            return self._ends(latest, READ_COMMITTED) == self._ends(latest, READ_UNCOMMITTED)
        except KafkaException as error:
            # It passes: client and broker know different epochs of the leader.
            if error.args[0].code() != KafkaError.UNKNOWN_LEADER_EPOCH:
                raise
            return False

    def _ends(self, latest: dict[TopicPartition, OffsetSpec], level: IsolationLevel) -> list[int]:
        asked = self.admin.list_offsets(latest, isolation_level=level, request_timeout=30)
        return [each.result(60).offset for each in asked.values()]

    def cut(self, topic: str, before: int) -> None:
        """Removes the first messages of partition 0, as retention does."""
        (done,) = self.admin.delete_records([TopicPartition(topic, 0, before)]).values()
        done.result(120)

    def messages(self, topic: str, *, committed: bool = True) -> list[Message]:
        """Everything in a topic, by partition and offset."""
        if committed:
            self._decided(topic)
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "reader",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        partitions = consumer.list_topics(topic, timeout=120).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        found, ended, deadline = [], set(), time.monotonic() + 120
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline
            for message in consumer.consume(1000, 0.05):
                if message.error() is None:
                    found.append(message)
                else:
                    ended.add(message.partition())
        consumer.close()
        return sorted(found, key=lambda m: (m.partition(), m.offset()))

    def values(self, topic: str, *, committed: bool = True) -> list[bytes | None]:
        return [m.value() for m in self.messages(topic, committed=committed)]

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """What lag tools see."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group})
        (place,) = consumer.committed([TopicPartition(topic, partition)], timeout=120)
        consumer.close()
        return place.offset if place.offset >= 0 else None

    def source(self, topics: str, *, connector: str = "in", **settings: str) -> KafkaSource:
        """A source as the engine makes it; closed with the test."""
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        source = KafkaSource({"servers": self.servers, "topics": topics, "readFromBeginning": "true", **given})
        source.pipeline, source.connector = "p", connector
        self._closing.append(source.close)
        return source

    def close(self) -> None:
        while self._closing:
            self._closing.pop()()
        # The frame of a test that caught an error holds this until garbage is collected.
        del self.admin


def records(source: KafkaSource, slices: Sequence[Slice]) -> list[Record]:
    """What the slices hold, in order."""
    out = []
    for each in slices:
        origin = Origin("p", "in", each.partition, source.metadata(each))
        for batch in source.read(each):
            out += to_records(batch, origin)
    return out


def everything(source: KafkaSource, position: Position | None = None, limit: Limit | None = None) -> list[Record]:
    """One plan, read."""
    return records(source, source.plan(position or {}, limit or Limit()))


def after(position: Position, slices: Sequence[Slice]) -> Position:
    """Where a source is once these are planned."""
    return {**position, **{s.part: s.end for s in slices}}


def _varint(number: int) -> bytes:
    """As a batch's records have numbers: the sign in the last bit, seven bits a byte."""
    number, out = (number << 1) ^ (number >> 63), bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
