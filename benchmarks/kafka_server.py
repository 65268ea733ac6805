"""A real Kafka of our own for tests and benchmarks: one node (KRaft), a free loopback port, a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
JARS = ROOT / ".conduit" / "kafka" / "jars"
UNVERIFIED = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
"""Options of Java. To verify the classes of a release that others have run takes a fifth of a start."""
PATIENCE = 240.0
"""Seconds that a start may take."""


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])


@dataclass
class KafkaServer:
    """Can be killed and started again on the same data. `settings`: of the server, beside those here."""

    settings: Mapping[str, str] = field(default_factory=dict)
    memory: str = "512m"
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="kafka-")))
    ports: tuple[int, int] = field(default_factory=_free_ports)
    process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """Where clients begin."""
        return f"127.0.0.1:{self.ports[0]}"

    def create(self) -> KafkaServer:
        """Writes its configuration and formats its storage."""
        subprocess.run([str(ROOT / "scripts" / "kafka.sh")], check=True)
        port, controller = self.ports
        own = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # Messages with times of long ago stay.
            "log.retention.ms": "-1",
            "log.cleaner.dedupe.buffer.size": "2097152",
            "log.cleaner.backoff.ms": "200",
            # A broker that was killed may come back once its session is over.
            "broker.session.timeout.ms": "1500",
            "broker.heartbeat.interval.ms": "300",
            "controller.quorum.election.timeout.ms": "300",
            "controller.quorum.fetch.timeout.ms": "500",
            # No records to say that nothing has happened.
            "metadata.max.idle.interval.ms": "0",
        }
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            own |= {f"{topic}.replication.factor": "1", f"{topic}.num.partitions": "1"}
        own |= {"transaction.state.log.min.isr": "1", "share.coordinator.state.topic.min.isr": "1"}
        own |= self.settings
        lines = [f"{name}={value}" for name, value in own.items()]
        self._properties.write_text("\n".join(lines) + "\n")
        cluster = uuid.uuid4().hex[:22]
        self._java(
            "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties), "--standalone"
        ).wait()
        return self

    def start(self) -> KafkaServer:
        self.process = self._java("kafka.Kafka", str(self._properties))
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start:\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """As a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def remove(self) -> None:
        if self.process is not None:
            self.kill()
        shutil.rmtree(self.folder)

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _java(self, *arguments: str) -> subprocess.Popen[Any]:
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else Path("java")
        command = [str(java), f"-Xmx{self.memory}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *UNVERIFIED]
        command += ["-cp", f"{JARS}/*"]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen([*command, *arguments], stdout=log, stderr=log)

    def _answers(self) -> bool:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.ports[0])):
                return False
        # Asked for a group's offsets, it makes the topic that keeps them, which takes a moment.
        asking = Consumer({"bootstrap.servers": self.servers, "log_level": 0, "group.id": "ready"})
        try:
            asking.committed([TopicPartition("ready", 0)], timeout=2)
        except KafkaException:
            return False
        finally:
            asking.close()
        return True


@contextmanager
def running() -> Iterator[KafkaServer]:
    """A new one for the block, with memory for a million messages."""
    server = KafkaServer(memory="1g").create()
    try:
        yield server.start()
    finally:
        server.remove()
