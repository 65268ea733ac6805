"""Queues that answer as Amazon SQS does, for the product's own `sqs` source: a received message is hidden, comes again
when its timeout is over, and is gone only once it was deleted by its newest handle. They lose nothing themselves.

`tests/connectors/test_verify_queues.py` compares them with a server that speaks SQS's protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

HIDDEN = 30.0
"""Seconds that a received message is hidden, if nothing else is said."""


@dataclass
class Message:
    """A message that is not deleted yet. `until`: the time up to which it is hidden; `handle`: the newest one."""

    id: str
    body: str
    until: float = 0.0
    handle: str = ""
    received: int = 0


class Queues:
    """All queues of a world, by name. `now`: its clock; `point`: called before a queue changes."""

    def __init__(self, random: Random, now: Callable[[], float], point: Callable[[str], None]) -> None:
        self.random, self.now, self.point = random, now, point
        self.messages: dict[str, dict[str, Message]] = {}
        self.on_delete: Callable[[str, str], None] = lambda queue, id: None

    def send(self, queue: str, id: str, body: str) -> None:
        """Adds a producer's message."""
        self.messages.setdefault(queue, {})[id] = Message(id, body)

    def left(self) -> int:
        """Returns the number of messages that are not deleted."""
        return sum(map(len, self.messages.values()))

    def next_visible(self) -> float | None:
        """Returns the time at which the next hidden message can be received again; None if none is hidden."""
        hidden = [m.until for of in self.messages.values() for m in of.values() if m.until > self.now()]
        return min(hidden, default=None)

    def client(self, *_: Any, **__: Any) -> Client:
        """Returns a client, in place of `aws.client`."""
        return Client(self)


class Client:
    """The calls that the source makes."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def get_queue_url(self, *, QueueName: str) -> dict[str, str]:
        return {"QueueUrl": QueueName}

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: Sequence[str]) -> dict[str, Any]:
        visible = sum(m.until <= self._queues.now() for m in self._of(QueueUrl).values())
        return {"Attributes": {"ApproximateNumberOfMessages": str(visible)}}

    def receive_message(
        self,
        *,
        QueueUrl: str,
        MaxNumberOfMessages: int = 1,
        VisibilityTimeout: float = HIDDEN,
        **_: Any,
    ) -> dict[str, Any]:
        """Returns some of the visible messages, in no order, and hides them from now on."""
        queues = self._queues
        queues.point(f"receive from {QueueUrl}")
        there = [m for m in self._of(QueueUrl).values() if m.until <= queues.now()]
        found = queues.random.sample(there, min(len(there), MaxNumberOfMessages))
        for message in found:
            message.received += 1
            message.until = queues.now() + VisibilityTimeout
            message.handle = f"{message.id}#{message.received}"
        return {
            "Messages": [
                {"MessageId": m.id, "ReceiptHandle": m.handle, "Body": m.body, "Attributes": {"SentTimestamp": "0"}}
                for m in found
            ]
        }

    def change_message_visibility_batch(
        self,
        *,
        QueueUrl: str,
        Entries: Sequence[Mapping[str, Any]],
    ) -> dict[str, Any]:
        queues = self._queues
        queues.point(f"hide in {QueueUrl}")

        def change(message: Message, entry: Mapping[str, Any]) -> bool:
            if message.until <= queues.now():
                return False
            message.until = queues.now() + entry["VisibilityTimeout"]
            return True

        return self._each(QueueUrl, Entries, change)

    def delete_message_batch(
        self,
        *,
        QueueUrl: str,
        Entries: Sequence[Mapping[str, Any]],
    ) -> dict[str, Any]:
        queues = self._queues
        queues.point(f"delete in {QueueUrl}")

        def delete(message: Message, _: Mapping[str, Any]) -> bool:
            queues.on_delete(QueueUrl, message.id)
            del self._of(QueueUrl)[message.id]
            return True

        return self._each(QueueUrl, Entries, delete)

    def close(self) -> None:
        """Does nothing: nothing is open."""

    def _of(self, queue: str) -> dict[str, Message]:
        return self._queues.messages.setdefault(queue, {})

    def _each(
        self, queue: str, entries: Sequence[Mapping[str, Any]], act: Callable[[Message, Mapping[str, Any]], bool]
    ) -> dict[str, Any]:
        """Returns an outcome per entry: a handle that is not the newest fails; a deleted message succeeds unchanged."""
        done, failed = [], []
        for entry in entries:
            message = self._of(queue).get(entry["ReceiptHandle"].rpartition("#")[0])
            fits = message is None or (message.handle == entry["ReceiptHandle"] and act(message, entry))
            if fits:
                done.append({"Id": entry["Id"]})
            else:
                failed.append({"Id": entry["Id"], "SenderFault": True, "Code": "ReceiptHandleIsInvalid"})
        return {"Successful": done, "Failed": failed}
