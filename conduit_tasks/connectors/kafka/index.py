"""Transactions for effectively-once (B8): a chunk and the number of its last row, kept in Kafka, are one, and earlier
producers are fenced (receiver of a monotonic pipe, SEMANTICS O5).

A chunk and the number of its last row are one transaction. The number is kept as a committed offset: of partition 0 of
the index topic, by a group named for pipeline, destination and epoch. The transactional id is the destination's own:
the producer that initialises it last fences all earlier ones (invariant 4), and their open transactions are aborted.

Each of several tasks has a transactional id and a group of its own, named for the number of its shard (ADR 48). What is
stored beside the number says which rows it counts: micro-batch, division and shard. For any other rows it is no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from conduit_tasks.connectors.kafka import client
from conduit_tasks.connectors.rows import RowNumbers, Rows, ShardName
from conduit_tasks.errors import ConfigError, Unavailable

GRACE = 2.0
"""Seconds after a timeout in which librdkafka may still report it itself."""
TRANSACTION_MS = 60_000
"""Milliseconds after which the brokers abort an abandoned transaction, if no later producer does."""


class Mark(NamedTuple):
    """Place where the number of the last row is kept. `of`: the rows that it counts, if one group counts several."""

    group: str
    of: str = ""

    @classmethod
    def of_rows(cls, rows: Rows, numbers: RowNumbers, shard: ShardName | None) -> Mark:
        """Returns the place for these rows. `shard`: whose they are, if several tasks write."""
        if shard is not None:
            return cls.of_shard(numbers.pipeline, numbers.destination, rows.sealed, shard)
        return cls(f"{client.transactional_id(numbers.pipeline, numbers.destination)}.{numbers.epoch}")

    @classmethod
    def of_shard(cls, pipeline: str, destination: str, sealed: str, shard: ShardName) -> Mark:
        """Returns the place for a shard of a micro-batch. `sealed`: as in `Rows`."""
        return cls(client.transactional_id(pipeline, destination, shard.number), f"{sealed} {shard.lot}")


class Transactions:
    """Transactions of one destination, or of one of its shards. Raises Unavailable, Fenced (the lease was lost),
    ConfigError."""

    def __init__(
        self,
        settings: Mapping[str, str],
        name: str,
        connect: Callable[[Mapping[str, Any]], Any],
        *,
        timeout: float,
        delivery: float,
        still_ours: Callable[[], None],
    ) -> None:
        self._settings, self._timeout = settings, timeout
        self._topic = settings["index-topic"]
        self._groups: dict[str, Any] = {}
        self._current: dict[Mark, int] = {}
        still_ours()
        longest = max(TRANSACTION_MS, int(delivery * 1000))
        self.producer = connect({"transactional.id": name, "transaction.timeout.ms": longest})
        self._within("beginning transactions", self.producer.init_transactions, timeout)
        # Invariant 4: earlier producers cannot write any more. A later one must not be disturbed by us.
        still_ours()
        self._make_topic()

    @contextmanager
    def of(self, numbers: RowNumbers, mark: Mark) -> Iterator[int]:
        """Opens a transaction for these rows, and yields the number of them, from the first, that were written before.
        Commits at the end of the block, and aborts if the block raises. If all rows were written before, there is no
        transaction. `mark`: where their numbers are kept."""
        known, last = numbers.received(self.written(mark))
        if known == len(numbers.numbers):
            yield known
            return
        with client.reaching("beginning a transaction"):
            self.producer.begin_transaction()
        try:
            yield known
        except BaseException:
            self._abort()
            raise
        self._commit(mark, last)

    def close(self) -> None:
        """Leaves nothing open."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()

    def _commit(self, mark: Mark, number: int) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        place, what = [TopicPartition(self._topic, 0, number, mark.of)], "committing a transaction"
        group = self._group(mark.group).consumer_group_metadata()

        def commit() -> None:
            try:
                self.producer.send_offsets_to_transaction(place, group, self._timeout)
                self.producer.commit_transaction(self._timeout)
            except KafkaException as error:
                if client.error_of(error).txn_requires_abort():
                    self._abort()
                raise

        # Each of the three calls (offsets, commit, abort) may take its whole timeout.
        self._within(what, commit, times=3)
        self._current[mark] = number

    def _within(self, what: str, call: Callable[..., None], *arguments: Any, times: int = 1) -> None:
        """Calls librdkafka within a time limit of our own. Its timeout does not hold if the group's coordinator goes
        away during the call: it then waits for a minute, or for ever (librdkafka 5456). An abandoned call changes
        nothing any more: the next producer with this transactional id fences it. Raises Unavailable, ConfigError."""
        answers: SimpleQueue[BaseException | None] = SimpleQueue()

        def run() -> None:
            try:
                call(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
                answers.put(error)
            else:
                answers.put(None)

        Thread(target=run, name="kafka transaction", daemon=True).start()
        try:
            error = answers.get(timeout=times * self._timeout + GRACE)
        except Empty:
            raise Unavailable(f"kafka: {what}: no answer within {times * self._timeout:g} s") from None
        if error is not None:
            try:
                with client.reaching(what):
                    raise error
            finally:
                del error  # which holds this frame, and so the producer

    def _abort(self) -> None:
        """Aborts the transaction, so that no reader waits for it. If the brokers do not get the abort, the next
        producer aborts it."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException):
            self.producer.abort_transaction(self._timeout)

    def written(self, mark: Mark) -> int:
        """Returns the number of the last row that is written, by whom ever; 0 if none is."""
        if mark not in self._current:
            from confluent_kafka import TopicPartition

            with client.reaching("reading the index"):
                (place,) = self._group(mark.group).committed([TopicPartition(self._topic, 0)], timeout=self._timeout)
                if place.error is not None:
                    raise Unavailable(f"kafka: reading the index: {place.error.str()}")
            self._current[mark] = max(0, place.offset) if (place.metadata or "") == mark.of else 0
        return self._current[mark]

    def _group(self, name: str) -> Any:
        if name not in self._groups:
            kafka = client.library()
            config = {
                **client.configuration(self._settings),
                "group.id": name,
                "enable.auto.commit": False,
                # Answers only when the pending offsets of an earlier transaction are decided.
                "isolation.level": "read_committed",
            }
            self._groups[name] = client.made(lambda: kafka.Consumer(config))
        return self._groups[name]

    def _make_topic(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        with client.reaching("looking for the index topic"):
            topics = self.producer.list_topics(timeout=self._timeout).topics
            if self._topic in topics:
                return
            admin = AdminClient(client.configuration(self._settings))
            try:
                for made in admin.create_topics([NewTopic(self._topic, 1)]).values():
                    made.result(self._timeout)
            except KafkaException as error:
                code = client.error_of(error).code()
                if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
                    raise ConfigError(
                        f"kafka: the topic {self._topic} is not there and we may not make it; create it with one "
                        "partition, or name another one (index-topic)"
                    ) from None
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
