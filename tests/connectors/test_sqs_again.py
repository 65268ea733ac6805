"""Messages between their micro-batch and their ack: hidden while somebody works, recognized where they come again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors.file.connector import FileDestination
from conduit_tasks.connectors.sqs.connector import SqsSource
from conduit_tasks.connectors.sqs.hidden import Hidden
from conduit_tasks.errors import Unavailable
from tests.connectors.moto_server import MotoServer
from tests.connectors.test_sqs_pipeline import Queue, numbers
from tests.micro_batch.harness import run_once, run_until_quiet, write_pipeline
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("moto")


@pytest.fixture
def queue(moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """A queue in which only the newest handle of a message deletes it; with an older one nothing happens."""
    from moto.sqs.models import Message
    from moto.sqs.models import Queue as Model

    monkeypatch.setattr(Message, "had_receipt_handle", lambda self, handle: handle == self.receipt_handle)
    delete = Model.delete_message

    def only_newest(self: Any, handle: str) -> None:
        if any(message.receipt_handle == handle for message in self._messages):
            delete(self, handle)

    monkeypatch.setattr(Model, "delete_message", only_newest)
    made = Queue(moto)
    yield made
    made.client.close()


def pipeline(queue: Queue, ack_on: str = "delivered") -> str:
    text = queue.pipeline(ack_on)
    text = text.replace("wait: 0s,", "wait: 0s, visibility-timeout: 15s,").replace(
        'max-parallel: "2"', 'max-parallel: "1"'
    )
    return text.replace("max-records: 12}", "max-records: 12}\n    lag-budget: {records: 100}\n    schedule: 1s")


@pytest.mark.proves("T2", "C10")
def test_messages_stay_hidden_while_a_destination_takes_longer_than_their_time(
    home: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a destination that needs longer than messages are hidden for, the second that follows included
    seen: list[Any] = []
    write = FileDestination.write

    def slow(self: FileDestination, rows: Any) -> Any:
        until = time.monotonic() + 17
        while time.monotonic() < until:
            seen.extend(queue.client.receive_message(QueueUrl=queue.url, WaitTimeSeconds=0).get("Messages", ()))
            time.sleep(0.2)
        return write(self, rows)

    monkeypatch.setattr(FileDestination, "write", slow)
    queue.put(0, 12)
    write_pipeline(home, "p", pipeline(queue))
    run_once("p")
    # Then nobody else is handed one meanwhile, and all are deleted
    assert not seen
    assert (numbers(home), queue.left()) == ([n for n in range(12) if n != 5], 0)


@pytest.mark.proves("T2", "C10", "I2")
def test_what_comes_again_before_its_ack_is_not_doubled_and_goes_with_its_newest_handle(
    home: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given messages that are stored, and a destination that is down for longer than they are hidden
    queue.put(0, 4)
    write_pipeline(home, "p", pipeline(queue).replace("delivery: {", "delivery: {on-unavailable: wait, "))

    def down(*_: object) -> None:
        raise Unavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(FileDestination, "write", down)
        for run in range(3):
            run_once("p", f"down-{run}")
            queue.let_visibility_lapse()
    assert queue.left() == 4
    queue.put(6, 2)
    # When it is back
    time.sleep(1)
    run_until_quiet("p")
    assert (numbers(home), queue.left()) == ([0, 1, 2, 3, 6, 7], 0)


@pytest.mark.proves("C10")
@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("retention", ["1d", "0s"])
def test_what_the_queue_hands_out_again_although_it_was_deleted_is_not_doubled(
    home: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch, retention: str
) -> None:
    queue.put(0, 4)
    text = pipeline(queue, "stored").replace(
        "    schedule: 1s", f"    schedule: 1s\n    spool: {{retention: {retention}}}"
    )
    write_pipeline(home, "p", text)
    # Given a queue that says yes to a deletion, and forgets it
    with monkeypatch.context() as patch:
        patch.setattr(SqsSource, "_delete", lambda *_: 0)
        run_once("p", "first")
    assert queue.left() == 4
    queue.let_visibility_lapse()
    run_until_quiet("p")
    assert (numbers(home), queue.left()) == ([0, 1, 2, 3], 0)


@pytest.mark.proves("T2")
def test_messages_whose_extension_was_throttled_are_extended_again_and_given_back(queue: Queue) -> None:
    from botocore.exceptions import ClientError

    asked: list[set[int]] = []

    class Throttled:
        """Refuses once."""

        def change_message_visibility_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> Any:
            asked.append({entry["VisibilityTimeout"] for entry in Entries})
            if len(asked) == 1:
                raise ClientError({"Error": {"Code": "RequestThrottled", "Message": "slow down"}}, "Change")
            return queue.client.change_message_visibility_batch(QueueUrl=QueueUrl, Entries=Entries)

    url = queue.client.get_queue_url(QueueName=queue.name)["QueueUrl"]
    queue.client.send_message(QueueUrl=url, MessageBody="1")
    [message] = queue.client.receive_message(QueueUrl=url, VisibilityTimeout=3)["Messages"]
    hidden = Hidden(Throttled(), url, 3)
    hidden.add([message["ReceiptHandle"]])
    until(lambda: len(asked) >= 2)
    hidden.close()
    hidden.give_back()
    assert (asked[0], asked[1], asked[-1]) == ({3}, {3}, {0})
    assert len(queue.client.receive_message(QueueUrl=url).get("Messages", ())) == 1
