"""A queue as a source, through whole pipelines: what is deleted is sealed, what is lost on the way comes again."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.acks import Acks
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.connectors.sqs.connector import SqsSource
from conduit_tasks.errors import AckFailed, Unavailable
from conduit_tasks.settings import forget
from tests.connectors.moto_server import MotoServer
from tests.micro_batch.endings import Crash, crash_at, lapse
from tests.micro_batch.harness import payloads, run_once, run_until_quiet, write_pipeline

pytestmark = pytest.mark.xdist_group("moto")

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 12}
    connectors:
      - id: in
        type: source
        plugin: sqs
        settings: {format: json, wait: 0s, max-parallel: "2", %s}
        processors:
          - {id: no-five, plugin: filter, condition: '{{ eq .Payload.After.n 5.0 }}'}
      - id: out
        type: destination
        plugin: file
        settings: {path: out.jsonl, format: payload}
        delivery: {timeout: 100ms}
"""
CRASHES: list[tuple[type, str]] = [
    (SqsSource, "_request"),
    (SqsSource, "reached"),
    (MicroBatches, "stage"),
    (MicroBatches, "seal"),
    (SqsSource, "_delete"),
    (Acks, "commit"),
]
"""The first call of an operation dies, before or after it is done."""


class Queue:
    """A queue whose time passes when the test says so."""

    def __init__(self, server: MotoServer) -> None:
        self.server, self.client = server, server.client("sqs")
        self.empty()

    def empty(self) -> None:
        self.name = f"q-{uuid.uuid4().hex}"
        self.url = self.client.create_queue(QueueName=self.name)["QueueUrl"]

    def put(self, first: int, count: int) -> None:
        for n in range(first, first + count):
            self.client.send_message(QueueUrl=self.url, MessageBody=json.dumps({"n": n}))

    def pipeline(self, ack_on: str = "stored") -> str:
        settings = {**self.server.settings, "queue": self.name}
        text = PIPELINE % ", ".join(f'{name}: "{value}"' for name, value in settings.items())
        return text.replace("plugin: sqs\n", f"plugin: sqs\n        ack-on: {ack_on}\n")

    def left(self) -> int:
        return len(self._messages())

    def let_visibility_lapse(self) -> None:
        for message in self._messages():
            message.change_visibility(0)

    def _messages(self) -> list[Any]:
        from moto.backends import get_backend

        return list(get_backend("sqs")["123456789012"]["eu-central-1"].queues[self.name]._messages)


@pytest.fixture
def queue(moto: MotoServer) -> Iterator[Queue]:
    made = Queue(moto)
    yield made
    made.client.close()


def numbers(home: Path) -> list[int]:
    return sorted(each["n"] for each in payloads(home / "out.jsonl"))


@pytest.mark.proves("T2", "C4")
@pytest.mark.parametrize("ack_on", ["stored", "delivered"])
def test_every_message_is_delivered_and_then_gone_from_the_queue(home: Path, queue: Queue, ack_on: str) -> None:
    queue.put(0, 20)
    write_pipeline(home, "p", queue.pipeline(ack_on))
    run_until_quiet("p")
    assert numbers(home) == [n for n in range(20) if n != 5]
    assert queue.left() == 0


@pytest.mark.proves("C10", "C12", "T2", "I1", "I3")
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_anywhere_between_receiving_and_deleting_loses_nothing(
    home: Path, redis_server: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    for number, (owner, name) in enumerate(CRASHES):
        redis_server.flush()
        this = home / str(number)
        (this / "include/pipelines").mkdir(parents=True)
        monkeypatch.setenv("CONDUIT_HOME", str(this))
        forget()
        queue.empty()
        write_pipeline(this, "p", queue.pipeline("stored" if (number + after) % 2 else "delivered"))
        queue.put(0, 8)
        with monkeypatch.context() as patch:
            crash_at(patch, [(owner, name)], 1, after)
            with pytest.raises(Crash):
                run_until_quiet("p")
        # What its dead worker held, and what was not deleted in time, comes again.
        lapse()
        queue.let_visibility_lapse()
        run_until_quiet("p")
        assert set(numbers(this)) == {0, 1, 2, 3, 4, 6, 7}, name
        assert queue.left() == 0, name


@pytest.mark.proves("T2", "I1")
def test_nothing_is_deleted_of_an_attempt_that_lost(home: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.put(0, 4)
    write_pipeline(home, "p", queue.pipeline())
    # Given an attempt that received everything and died before it could say so
    with monkeypatch.context() as patch:
        crash_at(patch, [(MicroBatches, "stage")], 1, False)
        with pytest.raises(Crash):
            run_once("p")
    # When another one finds nothing, and is sealed and acked
    run_until_quiet("p")
    # Then all messages are still there
    assert (numbers(home), queue.left()) == ([], 4)
    queue.let_visibility_lapse()
    run_until_quiet("p")
    assert (numbers(home), queue.left()) == ([0, 1, 2, 3], 0)


def test_messages_that_could_not_be_deleted_are_deleted_by_the_next_run(
    home: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put(0, 3)
    write_pipeline(home, "p", queue.pipeline())

    def away(*_: object) -> int:
        raise Unavailable("the queue is away")

    with monkeypatch.context() as patch:
        patch.setattr(SqsSource, "_delete", away)
        with pytest.raises(AckFailed):
            run_once("p", "first")
    assert queue.left() == 3
    # The ack is tried again after a delay.
    deadline = time.monotonic() + 60
    while queue.left():
        assert time.monotonic() < deadline
        run_once("p", "again")
    assert (numbers(home), queue.left()) == ([0, 1, 2], 0)
