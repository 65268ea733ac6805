"""`sqs` as a destination: body, message group and deduplication id of a message per record, sent in batches, an outcome
for each entry (SEMANTICS C17, T6)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conduit_tasks.connectors import aws, options
from conduit_tasks.connectors.base import DELIVERED, Option, Outcome, RecordDestination, Spec
from conduit_tasks.connectors.batcher import Batcher
from conduit_tasks.connectors.connection import AWS
from conduit_tasks.connectors.sqs.queue import check_queue
from conduit_tasks.errors import ConduitError, ConfigError, Unavailable
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record, data_bytes

MESSAGES = 10
"""Messages in one request: SQS's own limit, which is also that of attributes of a message."""
GATHER = 0.005
"""Seconds that a record waits for others to share its request."""

_NOT_SENT = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that a message may not hold (SQS, SendMessage)."""
_RECORDS_FAULT = frozenset({"InvalidMessageContents", "BatchRequestTooLong", "InvalidParameterValue"})
_GROUP = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")


class SqsDestination(RecordDestination):
    """A message's attribute `conduit-id` is the record's id, the same at every attempt; a FIFO queue takes it as the
    deduplication id, and drops what comes again within five minutes (T8)."""

    spec = Spec(
        "sqs",
        "Sends a message per record to an Amazon SQS queue, in batches.",
        (
            Option("queue", "the queue's name or URL", required=True),
            Option(
                "body",
                "payload: the payload alone; opencdc: the whole record as JSON",
                default="payload",
                choices=("payload", "opencdc"),
            ),
            Option("attributes", "names of metadata, comma-separated, that become message attributes; at most 9"),
            Option("group", "FIFO: key: the record's key is the message group; connector: all are one group",
                   default="key", choices=("key", "connector")),
            Option("delay", "how long a message stays hidden at first, at most 15m (not FIFO)", default="0s"),
            Option("max-request-size", "bytes of one request, and so of a message", default="256KiB"),
            Option("connections", "requests at a time", default="8"),
            *aws.OPTIONS,
        ),
        connection=AWS,
    )  # fmt: skip

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        check_queue(s)
        self._attributes = options.words(s, "attributes")
        if len(self._attributes) > MESSAGES - 1:
            raise ConfigError(f"sqs: option 'attributes' names {len(self._attributes)}; SQS takes 9 beside ours")
        self._delay = round(options.duration(s, "delay"))
        # The URL of a queue ends with its name.
        self._fifo = s["queue"].endswith(".fifo")
        if self._fifo and self._delay:
            raise ConfigError("sqs: option 'delay' is not for FIFO queues; remove it")
        if self._delay > 900:
            raise ConfigError("sqs: option 'delay' is at most 15m")
        self._largest = options.size(s, "max-request-size", least=1024)
        self._connections = options.integer(s, "connections", least=1)
        self._client: Any = None
        self._url = ""
        self._pool: ThreadPoolExecutor | None = None
        self._batcher: Batcher | None = None

    async def open(self, timeout: float) -> None:  # noqa: ASYNC109  # the contract of RecordDestination
        await self.close()
        self._pool = ThreadPoolExecutor(self._connections, "sqs")
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(loop.run_in_executor(self._pool, self._connect, timeout), timeout)
        except TimeoutError:
            await self.close()
            raise Unavailable(f"sqs queue {self.settings['queue']} did not answer within {timeout:g} s") from None
        except ConduitError as error:
            await self.close()
            raise error.with_traceback(None) from None  # else asyncio's frames hold it, and the client
        self._batcher = Batcher(self._request, MESSAGES, GATHER)

    def _connect(self, timeout: float) -> None:
        queue = self.settings["queue"]
        self._client = aws.client("sqs", self.settings, self._connections, timeout=timeout)
        try:
            self._url = queue if "://" in queue else self._client.get_queue_url(QueueName=queue)["QueueUrl"]
        except aws.errors() as error:
            kind = Unavailable if aws.transient(error) else ConfigError
            raise kind(aws.explain(f"sqs queue {queue} cannot be found", error)) from None

    async def send(self, record: Record) -> Outcome:
        if self._batcher is None:
            raise Unavailable("sqs: send before open")
        return await self._batcher.send(record)

    async def _request(self, records: list[Record]) -> list[Outcome]:
        """Sends the records in as few requests as their sizes allow, one after the other."""
        outcomes: list[Outcome] = [DELIVERED] * len(records)
        entries: list[tuple[int, dict[str, Any], int]] = []
        for n, record in enumerate(records):
            entry, size = self._entry(record)
            if isinstance(entry, Outcome):
                outcomes[n] = entry
                continue
            if sum(each[2] for each in entries) + size > self._largest:
                await self._exchange(entries, outcomes)
                entries = []
            entries.append((n, entry, size))
        if entries:
            await self._exchange(entries, outcomes)
        return outcomes

    def _entry(self, record: Record) -> tuple[dict[str, Any] | Outcome, int]:
        raw = data_bytes(record.after) if self.settings["body"] == "payload" else _opencdc(record)
        try:
            body = raw.decode()
        except UnicodeDecodeError:
            return Outcome("refused", "sqs: the payload is not UTF-8; write `body: opencdc`, which has it in base64"), 0
        if not body:
            return Outcome("refused", "sqs: a message cannot be empty; write `body: opencdc` to send deletes, too"), 0
        if found := _NOT_SENT.search(body):
            return Outcome("refused", f"sqs: a message cannot hold the character U+{ord(found[0]):04X}"), 0
        metadata = record.meta() if self._attributes else {}
        attributes = {"conduit-id": record.id}
        attributes |= {name: metadata[name] for name in self._attributes if metadata.get(name)}
        entry: dict[str, Any] = {
            "MessageBody": body,
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
            },
        }
        if self._fifo:
            entry |= {"MessageGroupId": self._group(record), "MessageDeduplicationId": record.id}
        elif self._delay:
            entry["DelaySeconds"] = self._delay
        size = len(raw) + sum(len(name) + len("String") + len(value.encode()) for name, value in attributes.items())
        if size > self._largest:
            return Outcome("refused", f"sqs: the message has {size} bytes, more than {self._largest}", status=413), 0
        return entry, size

    def _group(self, record: Record) -> str:
        """Returns the message group: the key as it is if SQS takes it so, otherwise a hash of it."""
        from hashlib import blake2b

        if self.settings["group"] == "connector" or record.key is None:
            key = f"{record.origin.connector}/{record.origin.partition}".encode()
        else:
            key = data_bytes(record.key)
        text = key.decode(errors="replace")
        return text if _GROUP.fullmatch(text) else blake2b(key, digest_size=16).hexdigest()

    async def _exchange(self, entries: list[tuple[int, dict[str, Any], int]], outcomes: list[Outcome]) -> None:
        batch = [{"Id": str(n), **entry} for n, entry, _ in entries]
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._pool, self._send, batch)
        except aws.errors() as error:
            # A queue that is gone, or credentials that have expired, are no record's fault.
            kind: Any = "refused" if aws.code(error) in _RECORDS_FAULT else "failed"
            said = aws.explain(f"sqs queue {self.settings['queue']}", error)
            for n, _, _ in entries:
                outcomes[n] = Outcome(kind, said, status=aws.status(error))
            return
        # 200 says nothing of the entries: each has an outcome of its own.
        told = {each["Id"]: DELIVERED for each in answer.get("Successful", ())}
        for each in answer.get("Failed", ()):
            kind = "refused" if each.get("SenderFault") and "Throttl" not in each["Code"] else "failed"
            told[each["Id"]] = Outcome(kind, f"sqs: {each['Code']}: {each.get('Message', '')}")
        for n, _, _ in entries:
            outcomes[n] = told.get(str(n), Outcome("failed", "sqs: the answer does not name the message"))

    def _send(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.send_message_batch(QueueUrl=self._url, Entries=batch)
        return answer

    async def close(self) -> None:
        if self._pool is not None:
            # Not waited for, as that would block the event loop: requests in flight end by the client's own timeout.
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        if self._batcher is not None:
            await self._batcher.close()
            self._batcher = None
        if self._client is not None:
            self._client.close()
            self._client = None


def _opencdc(record: Record) -> bytes:
    return jsons.dumps(record.to_opencdc())
