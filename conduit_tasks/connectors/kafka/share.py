"""Shares a group's partitions between consumers: pipelines that name the same group (B6), of this installation, or of
several that name one Redis for it.

That Redis holds, per topic, the members and the owner of each partition. An owner keeps its share as long as it renews
its lease in time; partitions beyond a fair share are given away when nothing of them is in flight. A consumer that was
silent for longer than its lease may have lost a partition to another one: it can then no longer commit it (B4), and
messages that it had in flight may be read twice, but are never lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from conduit_tasks.connectors.kafka.client import part_of, topic_partition
from conduit_tasks.connectors.kafka.group import Part
from conduit_tasks.errors import BrokerUnavailable, ConfigError, Unavailable

OPTION = "share.redis"


PARTS = 1_000
"""Partitions that one command takes, unless a single topic has more."""
WHOLE = 2_000
"""Partitions of one topic that one command takes. Those of a larger topic are shared out in pieces of this size, by
their numbers, so that all members see the same pieces."""


class GroupShare:
    """One consumer's view of a group. `cluster`: id of the cluster, as groups of two clusters may have one name;
    `member`: this consumer; `lease`: seconds; `url`: of a Redis that others share, too, None = this installation's.
    Methods raise BrokerUnavailable, or Unavailable for another Redis."""

    def __init__(self, cluster: str, group: str, member: str, lease: float, url: str | None = None) -> None:
        self._tag, self._member, self._lease = f"{{conduit:kafka:{cluster}:{group}}}:topic:", member, lease
        self._url = url

    def claim(self, parts: Sequence[Part], busy: Sequence[Part]) -> list[Part]:
        """Renews this consumer's membership, and returns the partitions of these that are its own now. It keeps the
        `busy` ones that it has, however large its share is."""
        from conduit_tasks.connectors.kafka import scripts

        return self._run(scripts.SHARE, parts, busy=frozenset(busy))

    def held(self, parts: Sequence[Part]) -> list[Part]:
        """Returns the partitions of these that are still its own."""
        from conduit_tasks.connectors.kafka import scripts

        return self._run(scripts.SHARED, parts)

    def _run(self, script: Any, parts: Sequence[Part], busy: frozenset[Part] | None = None) -> list[Part]:
        found: list[Part] = []
        if parts:
            with _redis(self._url) as redis:
                for some in _portions(parts, PARTS):
                    keys = {"topics": [f"{self._tag}{topic}" for topic in dict.fromkeys(topic for topic, _ in some)]}
                    names = [part_of(*p) for p in some]
                    args = {} if busy is None else {"busy": [part_of(*p) for p in some if p in busy]}
                    answer = script(redis, keys, member=self._member, ttl=int(self._lease * 1e6), parts=names, **args)
                    found += map(topic_partition, answer)
        return found


def _portions(parts: Sequence[Part], size: int) -> Iterator[list[Part]]:
    """Yields the sorted partitions in groups: as many whole topics as fit, or one piece of a topic that is too
    large."""
    some: list[Part] = []
    for _, of in groupby(sorted(parts), key=lambda part: (part[0], part[1] // WHOLE)):
        topic = list(of)
        if some and len(some) + len(topic) > size:
            yield some
            some = []
        some += topic
    yield some


def check_url(url: str) -> None:
    """Raises ConfigError if this is no Redis address. The message does not repeat it: it may hold a password."""
    from conduit_tasks.connectors.redis.client import KINDS
    from conduit_tasks.urls import check_readable

    if not KINDS.match(url):
        raise ConfigError(f"kafka: option '{OPTION}' is no Redis address, such as redis://host:6379/0")
    check_readable(url, f"kafka: option '{OPTION}'")


@contextmanager
def _redis(url: str | None) -> Iterator[Any]:
    from conduit_tasks.redis_client.connection import connect
    from conduit_tasks.settings import Settings, settings

    try:
        redis = connect(Settings(redis_url=url) if url else settings())
        try:
            yield redis
        finally:
            redis.close()
    except (BrokerUnavailable, ConfigError) as error:
        if url is None:
            raise
        said = str(error).replace("CONDUIT_REDIS_URL", f"option '{OPTION}'")
        raise (ConfigError if isinstance(error, ConfigError) else Unavailable)(f"kafka: {said}") from None
