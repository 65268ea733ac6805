"""`sqs` as a source: several workers receive, messages that have a record already are left out, and all are deleted
once delivered, or sealed (docs/connectors/sqs.md).

The source receives messages, keeps them hidden while they are worked on, and deletes them only after the broker has
said that they are delivered, or sealed (`ack-on: stored`; SEMANTICS T2). This module is light: boto3 is imported when
it is used.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import aws, options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec, Token
from conduit_tasks.connectors.capabilities import Queue
from conduit_tasks.connectors.connection import AWS
from conduit_tasks.connectors.sqs.destination import SqsDestination
from conduit_tasks.connectors.sqs.hidden import Hidden, change_all
from conduit_tasks.connectors.sqs.queue import check_queue
from conduit_tasks.errors import ConfigError, SourceError, SpoolGone, Unavailable
from conduit_tasks.settings import settings as installation

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

MESSAGES = 10
"""Messages in one request: SQS's own limit."""
LARGEST = 1 << 20
"""Bytes that one message can have."""
ROWS = 1_000
"""Rows per batch, at most; their messages have about CONDUIT_BATCH_BYTES bytes."""
DELETERS = 8
"""Requests at a time when messages are deleted."""
LONGEST = 43_200
"""Seconds that SQS hides a message at most."""
Held = tuple[str, str, int]
"""Message id, receipt handle, time when it was received (seconds since the epoch)."""


class SqsSource(Queue):
    """Messages of one queue, as one partition: a message's position is its id. A slice holds the messages that one
    worker receives; its end names the receipt handles by which the ack deletes them (docs/adr/0007-open-slices.md)."""

    spec = Spec(
        "sqs",
        "Receives messages of an Amazon SQS queue, and deletes them once they are stored.",
        (
            Option("queue", "the queue's name or URL", required=True),
            Option("format", "text: each body raw; json: an object", default="text", choices=("text", "json")),
            Option("key-attribute", "message attribute that becomes the record's key; default: the message group"),
            Option("max-parallel", "workers that receive at a time", default="1"),
            Option("max-messages", "messages of one micro-batch per worker", default="20000"),
            Option("max-time", "longest time that one micro-batch receives for", default="30s"),
            Option("wait", "how long a request waits for messages (long poll), at most 20s", default="2s"),
            Option(
                "visibility-timeout",
                "how long a message stays hidden after its worker has died; extended while it works",
                default="5m",
            ),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template over the record"),
            *aws.OPTIONS,
        ),
        connection=AWS,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        check_queue(s)
        self._parallel = options.integer(s, "max-parallel", least=1)
        self._most = options.integer(s, "max-messages", least=1)
        self._longest = options.duration(s, "max-time")
        self._wait = options.duration(s, "wait")
        self._visibility = options.duration(s, "visibility-timeout")
        self.hold_every = self._visibility / 3
        if self._wait > 20:
            raise ConfigError("sqs: option 'wait' is at most 20s")
        if not 3 <= self._visibility <= LONGEST:
            raise ConfigError("sqs: option 'visibility-timeout' is at least 3s and at most 12h")
        self._client: Any = None
        self._url = ""
        self._hidden: Hidden | None = None
        self._held: list[Held] = []
        self._told = False

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        """Returns a slice per worker if messages wait; SQS's count is approximate, and late by seconds."""
        with self._failing(SourceError, "cannot be looked at"):
            client, url = self._open()
            answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
        waiting = int(answer["Attributes"]["ApproximateNumberOfMessages"])
        room = self._most * self._parallel if limit.records is None else limit.records
        workers = min(self._parallel, room, -(-waiting // MESSAGES))
        slices = []
        for worker in range(workers):
            hint = {
                "records": min(self._most, (room + workers - 1 - worker) // workers),
                "bytes": None if limit.bytes is None else limit.bytes // workers,
                "waiting": -(-waiting // workers),
            }
            slices.append(Slice(str(worker), "", None, None, hint=hint, open=True))
        return slices

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        """Yields the messages that wait, within the slice's limits; they are kept hidden from others until `close`."""
        from conduit_tasks.connectors.sqs.known import Known
        from conduit_tasks.connectors.sqs.message import batch_of, size_of

        json, key = self.settings["format"] == "json", self.settings.get("key-attribute")
        records, size = slice.hint["records"], slice.hint["bytes"]
        end = time.monotonic() + self._longest
        with self._failing(SourceError, "cannot be received from"):
            client, url = self._open()
        self._hidden = self._hidden or Hidden(client, url, self._visibility)
        self._held, self._told = [], False
        found: list[dict[str, Any]] = []
        held, full = 0, installation().batch_bytes
        # Messages that already have a record: their micro-batch is not acked yet, or SQS forgot that they were deleted.
        known = Known(self._ids())
        came = used = 0
        while came < records and (size is None or used < size) and time.monotonic() < end:
            most = min(MESSAGES, records - came)
            if size is not None:
                # Invariant 7: never more than one message beyond the limit.
                most = min(most, max(1, (size - used) // LARGEST))
            # Once the messages that waited at the plan are here, no request waits for more.
            messages = self._request(most, 0.0 if came >= slice.hint["waiting"] else self._wait)
            if not messages:
                break
            self._hidden.add([m["ReceiptHandle"] for m in messages])
            now = int(time.time())
            self._held += [(m["MessageId"], m["ReceiptHandle"], now) for m in messages]
            came += len(messages)
            used += sum(len(m["Body"].encode()) for m in messages)
            own = sum(map(size_of, messages))
            if found and held + own > full:
                yield batch_of(found, json=json, key=key)
                found, held = [], 0
            held += own
            # A message that was handed out twice is deleted by its newest handle: this one, in this micro-batch, which
            # is acked after the micro-batch with its record.
            for message in messages:
                if known.new(message["MessageId"]):
                    found.append(message)
            if len(found) >= ROWS:
                yield batch_of(found, json=json, key=key)
                found, held = [], 0
        if found:
            yield batch_of(found, json=json, key=key)

    def reached(self, slice: Slice) -> Token:
        import orjson

        if self._hidden is not None:
            # From here on this worker no longer keeps them hidden.
            self._hidden.renew()
        from conduit_tasks.connectors.sqs.known import packed

        # Stored apart from the handles, which are ten times as large: later reads need the ids only.
        ids = self.receipts.put(packed(id for id, _, _ in self._held))
        token = {"receipts": self.receipts.put(orjson.dumps(self._held)), "ids": ids}
        self._told = True
        return token

    def _ids(self) -> Iterator[bytes]:
        """Yields the ids of messages that came not long ago, packed, the newest first."""
        from conduit_tasks.connectors.sqs.known import packed

        for token in (token for position in reversed(self.unsettled) for token in position.values()):
            try:
                yield (
                    packed(h[0] for h in self._kept(token))
                    if isinstance(token, str)
                    else self.receipts.get(token["ids"])
                )
            except SpoolGone:
                continue  # collected meanwhile: acked long ago

    def _kept(self, token: Token) -> list[Held]:
        import orjson

        try:
            return list(orjson.loads(self.receipts.get(_receipts(token))))
        except SpoolGone:
            return []  # collected meanwhile: acked long ago

    def hold(self, positions: Sequence[Position], spare: float) -> None:
        # The newest handle is the one that works; SQS hides a message for at most 12 hours after it was received.
        newest = {id: (handle, at) for p in positions for token in p.values() for id, handle, at in self._kept(token)}
        now = time.time()
        entries = []
        for handle, at in newest.values():
            seconds = min(self._visibility + spare, LONGEST - (now - at) - 60)
            if seconds > 0:
                entries.append((handle, round(seconds)))
        with self._failing(Unavailable, "cannot be told to keep messages"):
            client, url = self._open()
            change_all(client, url, entries)

    def _request(self, most: int, wait: float) -> list[dict[str, Any]]:
        client, url = self._open()
        more = {}
        if url.endswith(".fifo"):
            # If the client repeats a request whose answer was lost, it gets the same messages.
            more["ReceiveRequestAttemptId"] = uuid.uuid4().hex
        with self._failing(SourceError, "cannot be received from"):
            try:
                answer = client.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=most,
                    WaitTimeSeconds=round(wait),
                    VisibilityTimeout=round(self._visibility),
                    MessageSystemAttributeNames=["All"],
                    MessageAttributeNames=["All"],
                    **more,
                )
            except aws.errors() as error:
                if aws.code(error) == "OverLimit":
                    # As many messages are hidden as SQS allows: they have to be deleted first.
                    return []
                raise
        return list(answer.get("Messages", ()))

    def ack(self, position: Position) -> None:
        """Deletes the messages that these slices received. A message that SQS has handed out again since is left alone:
        it comes a second time, under the same id (C10). Raises Unavailable."""
        import orjson

        for token in position.values():
            self._settle([handle for _, handle, _ in orjson.loads(self.receipts.get(_receipts(token)))])

    def _settle(self, receipts: Sequence[str]) -> None:
        with self._failing(Unavailable, "cannot be deleted from"):
            self._open()
        chunks = [receipts[at : at + MESSAGES] for at in range(0, len(receipts), MESSAGES)]
        with ThreadPoolExecutor(DELETERS, "sqs") as pool:
            late = sum(pool.map(self._delete, chunks))
        if late:
            log.warning(
                "%d of %d messages of the queue %s are visible again before they were deleted, and come a second time; "
                "a longer `visibility-timeout` avoids it",
                late,
                len(receipts),
                self.settings["queue"],
            )

    def _delete(self, receipts: Sequence[str]) -> int:
        """Deletes messages, and returns the number of those that SQS did not delete because it hands them out again.
        Raises Unavailable."""
        client, url = self._open()
        entries = [{"Id": str(n), "ReceiptHandle": receipt} for n, receipt in enumerate(receipts)]
        with self._failing(Unavailable, "cannot be deleted from"):
            answer = client.delete_message_batch(QueueUrl=url, Entries=entries)
        # An outcome per entry: the answer is 200 even if none was deleted.
        failed = answer.get("Failed", ())
        faults = [each for each in failed if not each.get("SenderFault")]
        if faults:
            raise Unavailable(f"sqs queue {self.settings['queue']}: {faults[0].get('Message')}; it is tried again")
        return len(failed)

    def close(self) -> None:
        if self._hidden is not None:
            self._hidden.close()
            if not self._told:
                # The attempt failed: the messages that it received become visible at once.
                self._hidden.give_back()
            self._hidden = None
        if self._client is not None:
            self._client.close()
            self._client = None

    def _open(self) -> tuple[Any, str]:
        if self._client is None:
            self._client = aws.client("sqs", self.settings, DELETERS + 2)
        if not self._url:
            queue = self.settings["queue"]
            self._url = queue if "://" in queue else self._client.get_queue_url(QueueName=queue)["QueueUrl"]
        return self._client, self._url

    def _failing(self, kind: type[Exception], what: str) -> aws.Failing:
        return aws.Failing(kind, f"sqs queue {self.settings['queue']} {what}")


def _receipts(token: Token) -> str:
    """Returns the name by which a slice's handles are stored; in earlier versions the token was this name alone."""
    return token if isinstance(token, str) else str(token["receipts"])


SOURCE = SqsSource
DESTINATION = SqsDestination
