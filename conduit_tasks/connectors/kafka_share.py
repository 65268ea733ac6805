"""Sharing a group's partitions between consumers: pipelines of this installation that name the same group (B6).

Kept in Redis, per topic: who is there, and whose each partition is. A share is kept as long as its owner is heard of
within the lease; what exceeds a fair share is given away when nothing of it is in flight. A consumer that was silent
for too long may find its partition with another one: then it cannot commit it any more (B4), and what it had in flight
may be read twice, never lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from conduit_tasks.connectors.kafka_client import part_of, topic_partition
from conduit_tasks.connectors.kafka_group import Part


class Share:
    """One consumer's view of a group. `cluster`: its id, as groups of two clusters may have one name; `member`: who
    asks; `lease`: seconds. Methods raise BrokerUnavailable."""

    def __init__(self, cluster: str, group: str, member: str, lease: float) -> None:
        self._tag, self._member, self._lease = f"{{conduit:kafka:{cluster}:{group}}}:topic:", member, lease

    def claim(self, parts: Sequence[Part], busy: Sequence[Part]) -> list[Part]:
        """Says that this consumer is there; which of all these partitions are its own now. It keeps the `busy` ones
        that it has, whatever its share is."""
        from conduit_tasks.broker import scripts

        return self._run(scripts.SHARE, parts, busy=[part_of(*p) for p in busy])

    def held(self, parts: Sequence[Part]) -> list[Part]:
        """Which of these are its own still."""
        from conduit_tasks.broker import scripts

        return self._run(scripts.SHARED, parts)

    def _run(self, script: Any, parts: Sequence[Part], **args: Any) -> list[Part]:
        if not parts:
            return []
        keys = {"topics": [f"{self._tag}{topic}" for topic in sorted({topic for topic, _ in parts})]}
        names = [part_of(*p) for p in sorted(parts)]
        with _redis() as redis:
            answer = script(redis, keys, member=self._member, ttl=int(self._lease * 1e6), parts=names, **args)
        return [topic_partition(part) for part in answer]


@contextmanager
def _redis() -> Iterator[Any]:
    from conduit_tasks.broker.connection import connect
    from conduit_tasks.settings import settings

    redis = connect(settings())
    try:
        yield redis
    finally:
        redis.close()
