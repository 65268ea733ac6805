"""The queues of `conduit verify` keep to SQS's contract: one test asks them and a server that speaks its protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from conduit_tasks.verify.queues import Queues
from tests.connectors.moto_server import MotoServer


class Ours:
    """The world's."""

    def __init__(self) -> None:
        self._now = 0.0
        self.queues = Queues(Random(1), lambda: self._now, lambda what: None)
        self.client = self.queues.client()
        self.url = self.client.get_queue_url(QueueName="q")["QueueUrl"]

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.queues.send("q", f"id-{body}", body)

    def wait(self, seconds: float) -> None:
        self._now += seconds


class Theirs:
    """A server's."""

    def __init__(self, moto: MotoServer) -> None:
        import boto3

        self.client: Any = boto3.client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{moto.port}",
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
        self.url = self.client.create_queue(QueueName="contract")["QueueUrl"]

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.client.send_message(QueueUrl=self.url, MessageBody=body)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture(params=["ours", "theirs"])
def queue(request: pytest.FixtureRequest) -> Iterator[Ours | Theirs]:
    found = Ours() if request.param == "ours" else Theirs(request.getfixturevalue("moto"))
    yield found
    found.client.close()


def received(queue: Ours | Theirs, hidden: int = 30) -> dict[str, str]:
    """Body → handle."""
    answer = queue.client.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=10, VisibilityTimeout=hidden)
    return {m["Body"]: m["ReceiptHandle"] for m in answer.get("Messages", ())}


def waiting(queue: Ours | Theirs) -> int:
    answer = queue.client.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["ApproximateNumberOfMessages"])
    return int(answer["Attributes"]["ApproximateNumberOfMessages"])


def test_a_message_is_hidden_when_received_comes_again_and_is_gone_once_deleted(queue: Ours | Theirs) -> None:
    queue.send("a", "b")
    assert waiting(queue) == 2
    # Received: nobody else gets it
    first = received(queue)
    assert sorted(first) == ["a", "b"]
    assert waiting(queue) == 0
    assert not received(queue)
    # Not settled in its time: it comes again, under another handle
    entries = [{"Id": b, "ReceiptHandle": handle, "VisibilityTimeout": 1} for b, handle in first.items()]
    assert len(queue.client.change_message_visibility_batch(QueueUrl=queue.url, Entries=entries)["Successful"]) == 2
    queue.wait(1.2)
    again = received(queue)
    assert sorted(again) == ["a", "b"]
    assert again["a"] != first["a"]
    # Given back: at once
    entries = [{"Id": "0", "ReceiptHandle": again["b"], "VisibilityTimeout": 0}]
    said = queue.client.change_message_visibility_batch(QueueUrl=queue.url, Entries=entries)
    assert [each["Id"] for each in said["Successful"]] == ["0"]
    assert waiting(queue) == 1
    # Deleted: for ever, and a second time is no error
    for _ in range(2):
        entries = [{"Id": "0", "ReceiptHandle": again["a"]}]
        said = queue.client.delete_message_batch(QueueUrl=queue.url, Entries=entries)
        assert [each["Id"] for each in said["Successful"]] == ["0"]
        assert not said.get("Failed")
    assert sorted(received(queue)) == ["b"]
