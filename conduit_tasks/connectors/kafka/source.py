"""Kafka as a source: where each partition goes on, how a micro-batch is divided among them, and which offsets are
committed to the group (SEMANTICS B1–B6).

A partition begins at the pipeline's position, or at the group's committed offset if that is higher (another consumer of
the group has read there meanwhile); if there is neither, as `readFromBeginning` says. A partition that appears later,
in a known topic, begins at its first message, so that nothing is lost between two plans.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from conduit_tasks.connectors import missing, options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec
from conduit_tasks.connectors.capabilities import Replayable, Watchable
from conduit_tasks.connectors.connection import KAFKA
from conduit_tasks.connectors.kafka import client
from conduit_tasks.connectors.kafka.client import part_of, topic_partition
from conduit_tasks.errors import ConfigError, Missing, SourceError, Unavailable
from conduit_tasks.patterns import compiled

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.kafka.group import Group, Part
    from conduit_tasks.connectors.kafka.read import RangeReader
    from conduit_tasks.connectors.kafka.share import GroupShare

log = logging.getLogger(__name__)

SLICE = 50_000
"""Offsets that one task reads."""
UNBOUNDED = 1_000_000
"""Offsets per plan if the limit names no number of records."""
TYPICAL = 300
"""Bytes assumed for a message that nobody measured; only the grouping of small slices depends on it."""
SAMPLE = 100
"""Messages looked at, per partition, if a limit is in bytes."""


class KafkaSource(Watchable, Replayable):
    """Token: the offset of the next message. A part, and a partition, is a topic's partition: `topic:number`."""

    spec = Spec(
        "kafka",
        "Topics of Kafka, read by offset; the group's offsets are committed when everything is delivered.",
        (
            *client.CONNECTION,
            Option(
                "topics",
                "topics to read, comma-separated; one that begins with ^ is a regular expression of names, and topics "
                "that appear later and match it are read too",
                required=True,
            ),
            Option(
                "groupID",
                "the consumer group whose offsets are committed; pipelines that name the same one share the "
                "partitions; default: conduit.PIPELINE.CONNECTOR, which is this connector's alone",
            ),
            Option(
                "readFromBeginning",
                "where a partition without a committed offset begins: true, at its first message; false, behind the "
                "last one that is there at the first look",
                default="false",
            ),
            Option(
                "on-lost",
                "where messages were removed before they were read: fail, or skip to what is there",
                default="fail",
                choices=("fail", "skip"),
            ),
            Option("partition-lease", "a consumer of a shared group that is silent for so long loses its share", "5m"),
            Option(
                "share.redis",
                "a Redis that several installations name, so that their pipelines with the same groupID share its "
                "partitions; as CONDUIT_REDIS_URL; default: this installation's own",
                secret=True,
            ),
            Option("share.as", "what this installation is called there; each has a name of its own"),
            Option("retryGroupJoinErrors", "of Conduit's connector; no group is joined here, so it changes nothing"),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
        connection=KAFKA,
    )

    stays_open = True

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        client.check_connection(self.settings, self.spec)
        self._timeout = options.duration(self.settings, "timeout")
        self._lease = options.duration(self.settings, "partition-lease")
        self._from_beginning = options.boolean(self.settings, "readFromBeginning")
        self._skip = self.settings["on-lost"] == "skip"
        if ("share.redis" in self.settings) != ("share.as" in self.settings):
            raise ConfigError("kafka: options 'share.redis' and 'share.as' are given together, or neither")
        if "share.redis" in self.settings:
            if not self.settings.get("groupID"):
                raise ConfigError("kafka: option 'share.redis' shares a group, and 'groupID' names none")
            from conduit_tasks.connectors.kafka.share import check_url

            check_url(self.settings["share.redis"])
        self._topics = options.names(self.spec, self.settings, "topics")
        for topic in self._topics:
            try:
                compiled(topic)
            except ValueError as error:
                raise ConfigError(f"kafka: option 'topics': {error}") from None
        self._connected: Group | None = None
        self._reader: RangeReader | None = None
        self._replays = False

    @property
    def group(self) -> str:
        """Name of the consumer group."""
        return self.settings.get("groupID") or f"conduit.{self.pipeline}.{self.connector}"

    def owned(self) -> list[str]:
        """Returns its own group; a group that `groupID` names may be shared."""
        if self.settings.get("groupID"):
            return []
        return [f"the consumer group {self.group} at {server}" for server in options.words(self.settings, "servers")]

    def news(self, position: Position) -> bool:
        """Returns whether the group has a lag. A partition that was never planned counts, too, if its first offset is
        still to be committed."""
        with client.reaching("looking at the lag"):
            group = self._group()
            parts = group.partitions(self._topics)
            if (share := self._shared()) is not None:
                parts = share.held(parts) or parts
            committed, ends = group.committed(parts), group.ends(parts)
            known = {p: max(committed.get(p, 0), int(position.get(part_of(*p), 0))) for p in parts}
            fresh = [p for p in parts if p not in committed and part_of(*p) not in position]
            if fresh and not self._from_beginning:
                return True
            low = group.beginnings(fresh)
        return any(ends[p] > max(known[p], low.get(p, 0)) for p in parts)

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        with client.reaching("planning"):
            group = self._group()
            there = group.partitions(self._topics)
            committed = {} if self._replays else group.committed(there)
            parts = there if self._replays else self._share_of(there, position, committed)
            low, end = group.beginnings(parts), group.ends(parts)
            if self._replays:
                starts = {p: max(low[p], position.get(part_of(*p), 0)) for p in parts}
            else:
                starts = self._starts(parts, position, committed, low, end)
            ready = {p: end[p] - starts[p] for p in parts if end[p] > starts[p]}
            sizes = {p: self._size(p, starts[p], end[p]) for p in ready} if limit.bytes is not None else {}
            if sizes:
                # The client would go on to fetch behind the last sample, for as long as it stays open.
                self._reader = None
                group.consumer.unassign()
        take = shared_out(ready, UNBOUNDED if limit.records is None else limit.records)
        if limit.bytes is not None:
            room = shared_out({p: n * sizes[p] for p, n in take.items()}, limit.bytes)
            # At least one, however large it is: otherwise it would never be read.
            take = {p: min(take[p], max(1, size // sizes[p])) for p, size in room.items()}
        return [s for p, n in sorted(take.items()) for s in _slices(p, starts[p], n, sizes.get(p, TYPICAL))]

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        from conduit_tasks.connectors.kafka.read import RangeReader, batch_of

        try:
            with client.reaching(f"reading {slice.part}"):
                if self._reader is None:
                    self._reader = RangeReader(self._group().consumer, timeout=self._timeout, skip=self._skip)
                for messages in self._reader.messages(slice):
                    yield batch_of(slice.part, messages)
                self.skipped = self._reader.skipped
        except Missing as error:
            once = missing.forgotten(self, slice.part)
            raise Missing(f"{error}. {missing.ways_out(self, once, 'on-lost: skip')}") from None
        except Unavailable as error:
            raise SourceError(f"{error}; it is read again") from error

    def before(self, position: bytes, at: Position) -> bool:
        part, _, offset = position.decode().rpartition(":")
        return int(offset) < at.get(part, 0)

    def history(self, since: int | None) -> Position:
        self._replays = True
        if since is None:
            return {}
        with client.reaching("planning"):
            group = self._group()
            # The first message of that time or later: in whatever order times are, no such message lies before it.
            found = group.since(group.partitions(self._topics), since // 1000)
        return {part_of(*p): offset for p, offset in found.items()}

    def metadata(self, slice: Slice) -> dict[str, str]:
        topic, partition = topic_partition(slice.part)
        return {"opencdc.collection": topic, "kafka.partition": str(partition)}

    def ack(self, position: Position) -> None:
        """Commits the offsets (B1, B4): forwards only, and only of partitions that are still this consumer's.

        Raises Unavailable, and SourceError if consumers that subscribe have joined the group.
        """
        due = {topic_partition(part): int(offset) for part, offset in position.items()}
        with client.reaching("committing offsets"):
            if (share := self._shared()) is not None:
                held = share.held(list(due))
                if gone := [part_of(*p) for p in due if p not in held]:
                    log.warning("kafka: %s went to another consumer of the group %s", ", ".join(gone), self.group)
                due = {p: offset for p, offset in due.items() if p in held}
            committed = self._group().committed(list(due))
            self._group().commit({p: offset for p, offset in due.items() if offset > committed.get(p, -1)})

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
        self._connected = self._reader = None

    def _group(self) -> Group:
        if self._connected is None:
            from conduit_tasks.connectors.kafka.group import Group

            self._connected = Group(self.settings, self.group, self._timeout)
        return self._connected

    def _shared(self) -> GroupShare | None:
        """Returns this consumer's share of the group's partitions; None if the group is this connector's alone."""
        if not self.settings.get("groupID"):
            return None
        from conduit_tasks.connectors.kafka.share import GroupShare

        url, member = self.settings.get("share.redis"), f"{self.pipeline}/{self.connector}"
        if url is not None:
            member = f"{self.settings['share.as']}/{member}"
        return GroupShare(self._group().cluster(), self.group, member, self._lease, url)

    def _share_of(self, parts: Sequence[Part], position: Position, committed: Mapping[Part, int]) -> list[Part]:
        """Returns the partitions to read (B6). One with messages in flight is not given away by us."""
        if (share := self._shared()) is None:
            return list(parts)
        busy = [p for p in parts if position.get(part_of(*p), -1) > committed.get(p, -1)]
        return share.claim(parts, busy)

    def _starts(
        self,
        parts: Sequence[Part],
        position: Position,
        committed: Mapping[Part, int],
        low: Mapping[Part, int],
        end: Mapping[Part, int],
    ) -> dict[Part, int]:
        """Returns the offset at which each partition goes on. Raises SourceError if that is gone, and `on-lost` is
        fail."""
        known = {topic_partition(part)[0] for part in position} | {topic for topic, _ in committed}
        starts, fresh = {}, {}
        for p in parts:
            before = [o for o in (position.get(part_of(*p)), committed.get(p)) if o is not None]
            appeared = p[0] in known or (known and p[0] not in self._topics)
            if before:
                starts[p] = self._there(p, max(before), low[p], end[p])
            elif self._from_beginning or appeared:
                starts[p] = low[p]
            else:
                starts[p] = fresh[p] = end[p]
        # Committed though there is nothing to read yet, so that messages that arrive before the next plan are read.
        self._group().commit(fresh)
        return starts

    def _there(self, part: Part, start: int, low: int, end: int) -> int:
        if low <= start <= end or (start > end and start <= self._group().ends([part], stable=False)[part]):
            return start
        from conduit_tasks.connectors.kafka.read import lost

        if not self._skip:
            raise SourceError(lost(part_of(*part), start, low))
        log.warning("kafka: %s: offset %d is gone, going on at %d", part_of(*part), start, low)
        return low

    def _size(self, part: Part, start: int, end: int) -> int:
        """Returns the bytes of a message there, from a sample of the next ones."""
        sample = Slice(part_of(*part), "", start, min(end, start + SAMPLE))
        sizes = [b.nbytes / b.num_rows for b in self.read(sample)]
        return max(1, int(sum(sizes) / len(sizes))) if sizes else TYPICAL


def shared_out(wanted: Mapping[Part, int], room: int) -> dict[Part, int]:
    """Divides `room` equally; what one partition does not need goes to the others, and those that get nothing are left
    out. If there is less room than partitions, those that are furthest behind come first."""
    few = room < len(wanted)
    order = sorted(wanted, key=lambda p: (-wanted[p] if few else wanted[p], p))
    out = {}
    for left, p in zip(range(len(order), 0, -1), order):
        out[p] = min(wanted[p], -(-room // left) if not few else min(1, room))
        room -= out[p]
    return {p: n for p, n in out.items() if n > 0}


def _slices(part: Part, start: int, count: int, size: int) -> Iterator[Slice]:
    name = part_of(*part)
    for first in range(start, start + count, SLICE):
        end = min(start + count, first + SLICE)
        yield Slice(name, name, first, end, bytes=(end - first) * size)
