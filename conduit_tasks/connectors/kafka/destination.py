"""Kafka as a destination: an idempotent producer; remembers what was confirmed of a write that failed, refuses topics
that are not there, uses transactions if asked (SEMANTICS C17, invariant 10).

Without a transaction, a chunk that fails may be written in part. Records that the reports confirmed are remembered and
not sent again when the engine halves or repeats the chunk, except those behind a record that failed in the same
partition: they are sent again after it, so that the last message of each record is in order.

With `guarantee: effectively-once` a chunk and the number of its last row are one transaction (see `index`), by several
tasks also (ADR 48).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import kept, options
from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.connection import KAFKA
from conduit_tasks.connectors.kafka import client
from conduit_tasks.connectors.kafka.index import Mark, Transactions
from conduit_tasks.connectors.kafka.outgoing import Message, Messages, identities
from conduit_tasks.connectors.rows import RowNumbers, Rows, ShardName
from conduit_tasks.errors import ConfigError, Refused, Unavailable

if TYPE_CHECKING:
    from conduit_tasks.connectors.kafka.reports import Reports

_SDK_FORMAT = "sdk.record.format"
PROPAGATION = 5.0
"""Seconds after which a topic that no broker knows counts as missing."""


class KafkaDestination(BatchDestination):
    """Sends records to topics, key and headers included."""

    effectively_once = True
    keeps_index = True
    once_by_shards = True

    spec = Spec(
        "kafka",
        "Messages in topics of Kafka, by an idempotent producer; in transactions where asked for.",
        (
            *client.CONNECTION,
            Option("topic", "the topic: a name, or a template", default='{{ index .Metadata "opencdc.collection" }}'),
            Option(
                "format",
                "value of a message; opencdc: the whole record as JSON; payload: the payload alone, JSON or raw bytes, "
                "and none (a tombstone) for a delete",
                default="opencdc",
                choices=("opencdc", "payload"),
            ),
            Option("id-header", "the header that carries the record's id, the same at each attempt; empty: none", ""),
            Option(
                "timestamp",
                "time of a message; now: when it is sent; created: the record's opencdc.createdAt, by which retention "
                "may remove an old one at once",
                default="now",
                choices=("now", "created"),
            ),
            Option("acks", "only all: less would confirm what may be lost", default="all", choices=("all",)),
            Option("compression", "of batches", "snappy", choices=("none", "gzip", "snappy", "lz4", "zstd")),
            Option("batchBytes", "the largest message, and batch, in bytes", default="1000012"),
            Option("deliveryTimeout", "how long a message may be on its way", default="10s"),
            Option("chunk", "records per write, or transaction", default="20000"),
            Option(
                "index-topic",
                "for effectively-once: an empty topic for whose partition 0 the number of the last record is stored, "
                "as an offset; made where it is missing",
                default="conduit-index",
            ),
        ),
        connection=KAFKA,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        client.check_connection(s, self.spec)
        asked = s.get(_SDK_FORMAT, "opencdc/json")
        if asked != "opencdc/json":
            raise ConfigError(
                f"kafka: option '{_SDK_FORMAT}' can only be opencdc/json, not '{asked}'; for the payload alone write "
                "format: payload"
            )
        Messages(s)  # Only checks: templates do not travel to executors.
        self._messages: Messages | None = None
        self._timeout = options.duration(s, "timeout")
        self._delivery = options.duration(s, "deliveryTimeout")
        self._bytes = options.integer(s, "batchBytes", least=1_000)
        self.chunk = options.integer(s, "chunk", least=1)  # type: ignore[misc]  # a setting here, a class's constant elsewhere
        self._producer: Any = None
        self._made = 0.0
        self._transactions: Transactions | None = None
        self._broken = False
        self._topics: set[str] = set()
        self._missing: set[str] = set()
        self._there: set[Any] = set()
        """Rows that were confirmed in a write that failed, as `identities` names them."""

    def owned(self) -> list[str]:
        """Returns the id of its transactions (`effectively-once`), which also names the index of what it wrote."""
        name = client.transactional_id(self.pipeline, self.connector)
        return [f"the transactional id {name} at {server}" for server in options.words(self.settings, "servers")]

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        return ""

    @classmethod
    def in_any_order(cls, settings: Mapping[str, str]) -> bool:
        return True

    def open(self, state: dict[str, Any] | None) -> None:
        """Closes clients that failed, so that nothing of theirs is in flight any more. There is no state to restore."""
        client.library()
        self._messages = Messages(self.settings)
        if self._broken:
            self.close()

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Sends the rows. Raises Refused (a message is too large, a topic is not there), Unavailable, Fenced,
        ConfigError."""
        assert self._messages is not None
        messages = self._messages.of(rows)
        self._broken = rows.numbers is not None
        if rows.numbers is None:
            self._write(rows, messages)
        else:
            self._write_once(rows, rows.numbers, messages)
        self._broken = False
        return None

    def left_by(self, shards: Sequence[ShardName], sealed: str) -> list[int]:
        """See BatchDestination. Each shard's earlier producers are fenced before its number is read."""
        client.library()
        found = []
        for shard in shards:
            transactions = self._begun(self.pipeline, self.connector, shard)
            try:
                mark = Mark.of_shard(self.pipeline, self.connector, sealed, shard)
                found.append(transactions.written(mark) - 1)
            finally:
                transactions.close()
        return found

    def close(self) -> None:
        if self._transactions is not None:
            self._transactions.close()
        if self._producer is not None and not self._broken:
            kept.give(self._kept_as(), self._producer, lambda: None, self._made)
        self._transactions = self._producer = None
        self._topics.clear()
        self._broken = False

    def _write(self, rows: Rows, messages: Sequence[Message]) -> None:
        if self._producer is None and (found := kept.take(self._kept_as())) is not None:
            self._producer, self._made = found
        if self._producer is None:
            # If one message fails for good, nothing behind it in its partition is sent either (C9).
            self._made = time.monotonic()
            self._producer = self._connected({"enable.gapless.guarantee": True})
        from conduit_tasks.connectors.kafka.reports import Reports

        ids = identities(rows) if self._there else []
        wanted = [n for n in range(len(messages)) if not ids or ids[n] not in self._there]
        reports = Reports([messages[n] for n in wanted] if ids else messages)
        self._send(self._producer, reports)
        if not reports.complete:
            ids = ids or identities(rows)
            self._there.update(ids[wanted[n]] for n in reports.settled())
            self._broken = reports.not_taken() is None
            raise reports.error(wanted)
        self._there.difference_update(ids)

    def _begun(self, pipeline: str, destination: str, shard: ShardName | None) -> Transactions:
        name = client.transactional_id(pipeline, destination, None if shard is None else shard.number)
        return Transactions(
            self.settings,
            name,
            self._connected,
            timeout=self._timeout,
            delivery=self._delivery,
            still_ours=self.still_ours,
        )

    def _write_once(self, rows: Rows, numbers: RowNumbers, messages: Sequence[Message]) -> None:
        """Writes the rows that were not written before, in one transaction: all of them or none."""
        if self._transactions is None:
            self._transactions = self._begun(numbers.pipeline, numbers.destination, self.shard)
        with self._transactions.of(numbers, Mark.of_rows(rows, numbers, self.shard)) as known:
            from conduit_tasks.connectors.kafka.reports import Reports

            if known < len(messages):
                reports = Reports(messages[known:])
                self._send(self._transactions.producer, reports)
                if not reports.complete:
                    raise reports.error(range(known, len(messages)))

    def _send(self, producer: Any, reports: Reports) -> None:
        try:
            self._look_at(producer, reports.topics() - self._topics)
        except (ConfigError, Unavailable):
            # Its connections may be dead; those of a new one are not.
            self._broken = True
            raise
        self._broken = True
        reports.send(producer, self._delivery + self._timeout)

    def _look_at(self, producer: Any, topics: set[str]) -> None:
        """Raises Refused if one of the topics does not exist and the brokers do not create it by themselves. If a
        broker has just started, or a topic was just created, the topic is unknown for a moment: missing topics are
        looked for again, all together and only once, because a micro-batch may name many."""
        give_up = time.monotonic() + min(PROPAGATION, self._timeout)
        while refused := {topic: why for topic in topics - self._missing if (why := self._refusal(producer, topic))}:
            if time.monotonic() > give_up:
                self._missing |= refused.keys()
                break
            time.sleep(0.1)
        for topic in sorted(topics & self._missing):
            if why := self._refusal(producer, topic):
                raise Refused(f"kafka: topic {topic}: {why}")

    def _refusal(self, producer: Any, topic: str) -> str:
        """Returns the reason why nothing can be sent to a topic; empty if something can."""
        from conduit_tasks.connectors.kafka.reports import REFUSALS

        with client.reaching(f"looking for topic {topic}"):
            error = producer.list_topics(topic, timeout=self._timeout).topics[topic].error
        if error is None:
            self._topics.add(topic)
        return "" if error is None or error.code() not in REFUSALS else str(error.str())

    def _kept_as(self) -> tuple[object, ...]:
        """Returns all that its producer is made of. A new one costs 30 ms, and often half a second more, for which
        librdkafka waits before it asks for the producer's id again."""
        return ("kafka producer", frozenset(self.settings.items()))

    def _connected(self, config: Mapping[str, Any]) -> Any:
        """Makes a producer."""
        kafka = client.library()
        whole = {
            "linger.ms": 5,
            **client.configuration(self.settings),
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": self.settings["compression"],
            "message.max.bytes": self._bytes,
            "batch.size": self._bytes,
            "message.timeout.ms": int(self._delivery * 1000),
            "queue.buffering.max.messages": max(2 * self.chunk, 100_000),
            **config,
        }
        return client.made(lambda: kafka.Producer(whole))
