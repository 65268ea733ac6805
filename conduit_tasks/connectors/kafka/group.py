"""A consumer group as a store of offsets (B1): partitions and offsets that can be read, those that are committed, and
committing, which fails if consumers have joined the group.

The group is never joined, so no rebalance can take a partition away in the middle of a micro-batch. Leases of ours
decide which consumer reads a partition (`share`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conduit_tasks.connectors.kafka import client
from conduit_tasks.errors import SourceError
from conduit_tasks.patterns import compiled

Part = tuple[str, int]
"""Topic and partition."""


class Group:
    """One client of the cluster. Methods raise KafkaException if the brokers cannot be asked."""

    def __init__(self, settings: Mapping[str, str], group: str, timeout: float) -> None:
        kafka = client.library()
        self._settings, self.name, self._timeout = settings, group, timeout
        tuned = {
            # If a range ends in a hole, its end is reported only when a fetch comes back empty.
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": 4 << 20,
            # Messages fetched beyond the end of a range are thrown away.
            "queued.min.messages": 20_000,
        }
        config = {
            **tuned,
            **client.configuration(settings),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
        self.consumer = client.made(lambda: kafka.Consumer(config))
        self._admin: Any = None

    def cluster(self) -> str:
        """Returns the id of the cluster."""
        return str(self.consumer.list_topics(timeout=self._timeout).cluster_id)

    def partitions(self, topics: Sequence[str]) -> list[Part]:
        """Returns every partition of these topics, sorted; a topic that begins with ^ is a pattern. Raises SourceError
        if a topic that is named does not exist."""
        found = self.consumer.list_topics(timeout=self._timeout).topics
        patterns = [compiled(t) for t in topics if t.startswith("^")]
        names = {t for t in topics if not t.startswith("^")}
        missing = sorted(t for t in names if t not in found or found[t].error is not None)
        if missing:
            raise SourceError(f"kafka: there is no topic {', '.join(missing)}; create it, or fix the option 'topics'")
        names |= {t for t in found if any(p.search(t.encode()) for p in patterns) and not t.startswith("__")}
        return sorted((t, p) for t in names for p in found[t].partitions)

    def beginnings(self, parts: Sequence[Part]) -> dict[Part, int]:
        """Returns the first offset of each partition."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(parts, OffsetSpec.earliest())

    def ends(self, parts: Sequence[Part], *, stable: bool = True) -> dict[Part, int]:
        """Returns the offset behind the last message of each partition; `stable`: but not behind the first open
        transaction."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(parts, OffsetSpec.latest(), stable=stable)

    def since(self, parts: Sequence[Part], when: int) -> dict[Part, int]:
        """Returns the offset of the first message whose time is `when` (ms since the epoch) or later; the end if there
        is none."""
        from confluent_kafka.admin import OffsetSpec

        ends = self.ends(parts)
        found = self._offsets(parts, OffsetSpec.for_timestamp(when))
        return {p: offset if offset >= 0 else ends[p] for p, offset in found.items()}

    def _offsets(self, parts: Sequence[Part], spec: Any, *, stable: bool = True) -> dict[Part, int]:
        from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient

        if not parts:
            return {}
        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(*p): spec for p in parts}
        while True:
            made = self._admin is None
            if made:
                self._admin = AdminClient(client.configuration(self._settings))
            asked = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=self._timeout)
            try:
                return {
                    (tp.topic, tp.partition): future.result(self._timeout + 1.0).offset for tp, future in asked.items()
                }
            except KafkaException as error:
                moved = {
                    KafkaError._UNKNOWN_PARTITION,
                    KafkaError.UNKNOWN_TOPIC_OR_PART,
                    KafkaError.NOT_LEADER_FOR_PARTITION,
                    KafkaError.LEADER_NOT_AVAILABLE,
                    KafkaError.FENCED_LEADER_EPOCH,
                    KafkaError.UNKNOWN_LEADER_EPOCH,
                }
                if made or client.error_of(error).code() not in moved:
                    raise
                # The client only knows the partitions, and their leaders, that were there when it was made.
                self._admin = None

    def committed(self, parts: Sequence[Part]) -> dict[Part, int]:
        """Returns the group's committed offsets, without partitions that have none. Raises KafkaException if one is not
        known."""
        from confluent_kafka import KafkaException, TopicPartition

        if not parts:
            return {}
        answered = self.consumer.committed([TopicPartition(*p) for p in parts], timeout=self._timeout)
        for tp in answered:
            # An unknown offset must not count as never committed: the partition would begin again, and commit that
            # beginning.
            if tp.error is not None:
                raise KafkaException(tp.error)
        return {(tp.topic, tp.partition): tp.offset for tp in answered if tp.offset >= 0}

    def commit(self, offsets: Mapping[Part, int]) -> None:
        """Commits the offsets of the next messages; of a topic that was deleted, none. Raises SourceError if consumers
        that joined the group own it."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        if not offsets:
            return
        joined = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS}
        try:
            answered = self.consumer.commit(
                offsets=[TopicPartition(*p, offset) for p, offset in offsets.items()], asynchronous=False
            )
            for tp in answered:
                if tp.error is not None and tp.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise KafkaException(tp.error)
        except KafkaException as error:
            code = client.error_of(error).code()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                there = self._existing(offsets)
                if len(there) < len(offsets):
                    self.commit({p: offsets[p] for p in there})
                    return
            if code not in joined:
                raise
            raise SourceError(
                f"kafka: consumers that subscribe have joined the group {self.name}, so its offsets cannot be "
                "committed; give this connector a groupID of its own"
            ) from None

    def _existing(self, parts: Iterable[Part]) -> list[Part]:
        found = self.consumer.list_topics(timeout=self._timeout).topics
        return [p for p in parts if p[0] in found and p[1] in found[p[0]].partitions]

    def close(self) -> None:
        """Leaves nothing open."""
        self._admin = None
        self.consumer.close()
