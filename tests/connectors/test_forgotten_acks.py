"""Redis forgets the second from the plan to the ack: what Kafka, PostgreSQL and SQS were told is delivered (T2, X7)."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conduit_tasks.settings import forget
from tests.connectors.kafka import Kafka
from tests.connectors.moto_server import MotoServer
from tests.connectors.postgres_database import Database
from tests.connectors.test_sqs_pipeline import Queue
from tests.faults.forgetful import Forgetful
from tests.faults.parts import account, drive
from tests.micro_batch.endings import lapse
from tests.micro_batch.harness import payloads, run_once, write_pipeline
from tests.redis_server import RedisServer

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 5}
    lag-budget: {records: 1000}
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - {id: in, type: source, plugin: PLUGIN, settings: SETTINGS}
      - id: out
        type: destination
        plugin: file
        settings: {path: out.jsonl, format: payload}
        delivery: {timeout: 100ms}
"""


@pytest.fixture
def broker(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forgetful]:
    """The home's Redis."""
    server = RedisServer(Path(tempfile.mkdtemp(prefix="conduit-redis-")))
    server.start()
    monkeypatch.setenv("CONDUIT_REDIS_URL", server.url)
    forget()
    yield Forgetful(server)
    server.kill()
    shutil.rmtree(server.folder)


def given(home: Path, plugin: str, **settings: str) -> None:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    write_pipeline(home, "p", PIPELINE.replace("PLUGIN", plugin).replace("SETTINGS", json.dumps(named)))


def forgetting(
    home: Path, broker: Forgetful, put: Callable[[int, int], None], again: Callable[[], None] = lambda: None
) -> None:
    """`put`: the numbers from … to below … into the source; `again`: what time brings back is back."""
    put(0, 3)
    drive()
    count, early = 3, broker.log()
    for part in range(4):
        # Given everything from the plan to the ack in one second
        put(count, count + 7)
        count += 7
        run_once("p")
        late = broker.log()
        # When Redis keeps a part of it
        broker.put_back(early + late[len(early) : len(early) + (len(late) - len(early)) * part // 4])
        lapse()
        again()
        drive()
        # Then nothing is missing, or twice
        found = sorted(int(row["n"]) for row in payloads(home / "out.jsonl"))
        assert found == list(range(count)), f"{part}/4 of it were kept"
        early = broker.log()
    account()


@pytest.mark.proves("B4", "C10", "T2", "X7")
def test_what_kafka_was_told(home: Path, broker: Forgetful, kafka: Kafka) -> None:
    topic, producer = kafka.topic(2), kafka.producer()

    def put(first: int, end: int) -> None:
        for n in range(first, end):
            producer.produce(topic, json.dumps({"n": n}).encode(), key=f"k{n}".encode())
        assert producer.flush(120) == 0

    given(home, "kafka", servers=kafka.servers, topics=topic, readFromBeginning="true", timeout="30s")
    forgetting(home, broker, put)


@pytest.mark.proves("C10", "T2", "X7")
def test_what_a_slot_of_postgresql_was_told(home: Path, broker: Forgetful, db: Database) -> None:
    db.run("CREATE TABLE a (n int PRIMARY KEY)")

    def put(first: int, end: int) -> None:
        for n in range(first, end):
            db.run(f"INSERT INTO a VALUES ({n})")

    given(home, "builtin:postgres", url=db.url, tables="a", logrepl__publicationName="pub", logrepl__slotName="p_in")
    forgetting(home, broker, put)


@pytest.mark.proves("C10", "T2", "X7")
def test_what_a_queue_of_sqs_was_told(home: Path, broker: Forgetful, moto: MotoServer) -> None:
    queue = Queue(moto)
    given(home, "sqs", queue=queue.name, format="json", wait="0s", **moto.settings)
    forgetting(home, broker, lambda first, end: queue.put(first, end - first), queue.let_visibility_lapse)
    assert queue.left() == 0
    queue.client.close()
