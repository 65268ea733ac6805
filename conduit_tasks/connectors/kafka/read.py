"""Reads a range of offsets of one partition, and makes records of messages (tombstones, headers); what retention has
removed is an error, or passed over (`on-lost`).

A range ends by position, never by count: compaction and transactions leave holes in it. Only committed messages are
read, up to the end that `plan` fixed at or below the last stable offset, so that reading again gives the same.
"""

from __future__ import annotations

import base64
import logging
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.base import Slice
from conduit_tasks.connectors.kafka.client import part_of, topic_partition
from conduit_tasks.connectors.portion import Portion
from conduit_tasks.errors import Missing, SourceError
from conduit_tasks.record import jsons

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

BATCH = 10_000
"""Messages per Arrow batch."""
PATIENCE = 0.2
"""Seconds for which the client gathers a batch."""
HEADER, BINARY_HEADER, HEADERS = "kafka.header.", "kafka.header.base64.", "kafka.header.list."
"""Prefixes of a header's metadata: its value as text; in base64 if it is not text; the JSON of `listed` if several
headers have that name, or if one has no value."""
_OWN = (BINARY_HEADER.removeprefix(HEADER), HEADERS.removeprefix(HEADER))
"""Beginnings of a header's name that would be mistaken for the prefixes above: such a header is a list, too."""
ERROR = "conduit.error"
_CE = re.compile(r"ce_([a-z0-9]+)")
"""Header of an event in binary mode (CloudEvents Kafka binding, 3.2)."""


class RangeReader:
    """Consumer that reads ranges; a range that follows the one read before is read without a new seek.

    `skip`: what was removed meanwhile is passed over. Otherwise messages that retention removed raise SourceError, and
    a partition that is gone raises Missing.
    """

    def __init__(self, consumer: Any, *, timeout: float, skip: bool) -> None:
        self._consumer, self._timeout, self._skip = consumer, timeout, skip
        self._at: tuple[str, int] | None = None
        self._deleted: set[str] = set()
        """Partitions that were gone when they were read."""
        self.skipped = 0
        """Number of ranges in which messages were gone."""

    def messages(self, slice: Slice) -> Iterator[list[Any]]:
        """Yields the messages of [start, end), in order, in lists of at most BATCH and a bounded size. Raises
        SourceError."""
        if slice.part in self._deleted and not self._exists(slice.part):
            self._gone(slice, int(slice.start))
            return
        if self._at != (slice.part, slice.start):
            self._seek(slice.part, slice.start)
        position, end, quiet_since = int(slice.start), int(slice.end), time.monotonic()
        portion = Portion(BATCH)
        self._at = None
        while position < end:
            # At most the rest of the range: without holes nothing beyond it is taken from the client.
            got = self._consumer.consume(min(portion.size, end - position), PATIENCE)
            found = [m for m in got if m.error() is None]
            if found:
                portion.came(len(found), sum(map(len, found)))
                quiet_since = time.monotonic()
                position = found[-1].offset() + 1
                if wanted := [m for m in found if m.offset() < end] if position > end else found:
                    yield wanted
            for event in got if len(found) < len(got) else ():
                if event.error() is not None:
                    position = max(position, self._event(slice, event))
            if not found and time.monotonic() - quiet_since > self._timeout:
                if not self._exists(slice.part):
                    position = self._gone(slice, position)
                    continue
                raise SourceError(
                    f"kafka: {slice.part}: nothing was read at offset {position} for {self._timeout:g} s, though the "
                    f"partition reached to {end} when it was planned; look at the brokers"
                )
        if position == end:
            self._at = (slice.part, end)

    def _seek(self, part: str, offset: int) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(*topic_partition(part), offset)])

    def _event(self, slice: Slice, event: Any) -> int:
        """Returns the consumer's offset if an event that is no message tells it, otherwise 0."""
        from confluent_kafka import KafkaError

        error, part = event.error(), part_of(event.topic(), event.partition()) if event.topic() else ""
        if error.code() == KafkaError._PARTITION_EOF:
            # If the part is another one, the event belongs to a range read before.
            return int(event.offset()) if part == slice.part else 0
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return self._lost(slice)
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            # A broker that was just restarted may not know its partitions yet: then the range is read on.
            return 0 if self._exists(slice.part) else self._gone(slice, int(slice.start))
        if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._BAD_MSG):
            raise SourceError(f"kafka: {slice.part}: {error.str()}; look at the topic, and at the rights on it")
        return 0

    def _exists(self, part: str) -> bool:
        """Returns whether the cluster has the partition."""
        topic, partition = topic_partition(part)
        found = self._consumer.list_topics(timeout=self._timeout).topics.get(topic)
        return found is not None and partition in found.partitions

    def _gone(self, slice: Slice, position: int) -> int:
        """Returns the end of a slice whose partition is gone, or raises Missing."""
        self._deleted.add(slice.part)
        if not self._skip:
            raise Missing(f"kafka: {slice.part} is gone, the topic was deleted before all of it was read")
        log.warning(
            "kafka: %s is gone, the topic was deleted: %d offsets are passed over",
            slice.part,
            int(slice.end) - position,
        )
        self.skipped += 1
        return int(slice.end)

    def _lost(self, slice: Slice) -> int:
        from confluent_kafka import TopicPartition

        low, _ = self._consumer.get_watermark_offsets(
            TopicPartition(*topic_partition(slice.part)), timeout=self._timeout, cached=False
        )
        if not self._skip:
            raise SourceError(lost(slice.part, int(slice.start), low))
        gone = min(int(low), int(slice.end)) - int(slice.start)
        log.warning("kafka: %s: %d offsets from %s on are gone and passed over", slice.part, gone, slice.start)
        self.skipped += 1
        if slice.start < low < slice.end:
            self._seek(slice.part, low)
            return int(low)
        return int(slice.end)


def lost(part: str, start: int, low: int) -> str:
    """Returns the error message for records that were removed before they were read."""
    return (
        f"kafka: {part}: offset {start} is gone, the partition begins at {low}: retention removed what was not read "
        "yet, or the topic was created again. on-lost: skip goes on with what is there; a longer retention keeps more"
    )


def batch_of(part: str, messages: Sequence[Any]) -> pa.RecordBatch:
    """Returns messages as a READ_SCHEMA batch: key and value are raw; a message without a value is a delete (a
    tombstone)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from conduit_tasks.record.record import OPERATIONS
    from conduit_tasks.record.schema import READ_SCHEMA

    count = len(messages)
    offsets = pa.array([m.offset() for m in messages], pa.int64())
    values = pa.array([m.value() for m in messages], pa.binary())
    none = pa.nulls(count, pa.binary())
    operation = pa.array([OPERATIONS.index("create"), OPERATIONS.index("delete")], pa.int8())
    return pa.RecordBatch.from_arrays(
        [
            pc.binary_join_element_wise(f"{part}:", offsets.cast(pa.string()), "").cast(pa.binary()),
            operation.take(values.is_null().cast(pa.int8())),
            _metadata(part, messages),
            pa.array([m.key() for m in messages], pa.binary()),
            none,
            values,
            pa.repeat(pa.scalar(0, pa.int8()), count),
        ],
        schema=READ_SCHEMA,
    )


def _metadata(part: str, messages: Sequence[Any]) -> pa.MapArray:
    """Returns `opencdc.createdAt` (nanoseconds) from each message's time, and its headers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from conduit_tasks.record.schema import READ_SCHEMA

    map_type = READ_SCHEMA.field("metadata").type
    headers = [_of(m) for m in messages]
    kinds, times = zip(*(m.timestamp() for m in messages))
    if any(headers) or not all(kinds):
        own = [[("opencdc.createdAt", f"{t}000000")] if k else [] for k, t in zip(kinds, times)]
        return pa.array(
            [[*o, *_named(part, m, h)] for m, o, h in zip(messages, own, headers)],
            map_type,
        )
    count = len(messages)
    items = pc.binary_join_element_wise(pa.array(times, pa.int64()).cast(pa.string()), "000000", "")
    keys = pa.repeat(pa.scalar("opencdc.createdAt", pa.string()), count)
    return pa.MapArray.from_arrays(pa.array(range(count + 1), pa.int32()), keys, items).cast(map_type)


def _of(message: Any) -> list[tuple[str, bytes | None]] | str | None:
    """Returns a message's headers, or the reason as text if the client cannot decode a name, as it then gives no header
    at all."""
    try:
        found: list[tuple[str, bytes | None]] | None = message.headers()
        # The client may answer and leave an exception set, which the next call then raises: this one.
        next(iter(()), None)
    except (SystemError, UnicodeDecodeError):
        return "the name of a header is not UTF-8"
    return found


def _named(part: str, message: Any, headers: list[tuple[str, bytes | None]] | str | None) -> list[tuple[str, str]]:
    if isinstance(headers, str):
        return [(ERROR, f"{part}:{message.offset()}: {headers}")]
    return _headers(headers or ())


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    several: dict[str, list[bytes | None]] = {}
    plain = all(value is not None and not name.startswith(_OWN) for name, value in headers)
    if not plain or len({name for name, _ in headers}) < len(headers):
        for name, value in headers:
            several.setdefault(name, []).append(value)
    for name, value in headers:
        try:
            text = (value or b"").decode()
        except UnicodeDecodeError:
            text = None
        if text is not None and (attribute := _CE.fullmatch(name)):
            found[f"cloudevents.{attribute[1]}"] = text
        if len(several.get(name, ())) > 1 or value is None or name.startswith(_OWN):
            found[HEADERS + name] = listed(several[name])
        elif text is None:
            found[BINARY_HEADER + name] = base64.b64encode(value).decode()
        else:
            found[HEADER + name] = text
    return list(found.items())


def listed(values: Sequence[bytes | None]) -> str:
    """Returns the values of all headers of one name, in order, as a JSON array: text, null, or {"base64": …} if a value
    is not text."""
    return jsons.dumps([_value(value) for value in values]).decode()


def _value(value: bytes | None) -> str | dict[str, str] | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value or b"").decode()}
