"""Records as messages: topic, key, value, time and headers of each row, before anything is sent."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from conduit_tasks.connectors.kafka.read import BINARY_HEADER, HEADER, HEADERS
from conduit_tasks.errors import ConfigError, RecordError, Refused
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record, data_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.rows import Rows

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""A topic's name."""
Headers = list[tuple[str, str | bytes | None]]


class Message(NamedTuple):
    """One message; `time` in milliseconds, 0: the time when it is sent."""

    topic: str
    key: bytes | None
    value: bytes | None
    time: int
    headers: Headers | None


class Messages:
    """Makes messages of rows as the options say."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        from conduit_tasks.templates import template

        try:
            self._topic = template.compile(settings["topic"])
        except ConfigError as error:
            raise ConfigError(f"kafka: option 'topic': {error}") from None
        if self._topic.constant is not None and not _NAME.fullmatch(self._topic.constant):
            raise ConfigError("kafka: option 'topic' is no name of a topic: letters, digits, '.', '_' and '-'")
        self._opencdc = settings["format"] == "opencdc"
        self._created = settings["timestamp"] == "created"
        self._id_header = settings["id-header"].strip()
        self._looks_at_records = self._opencdc or self._created or bool(self._id_header)

    def of(self, rows: Rows) -> list[Message]:
        """Returns a message per row, in order. Raises Refused if a record has no topic, or one that is no valid
        name."""
        batch = rows.batch
        if self._topic.constant is None or self._looks_at_records or _has_headers(batch.column("metadata")):
            return list(self._each(rows.records()))
        # Structured data is stored as the JSON text that is sent.
        pairs = zip(batch.column("key").to_pylist(), batch.column("after").to_pylist())
        return [Message(self._topic.constant, key, value, 0, None) for key, value in pairs]

    def _each(self, records: list[Record]) -> Iterator[Message]:
        constant = self._topic.constant
        for record in records:
            topic = constant if constant is not None else self._topic_of(record)
            key = None if record.key is None else data_bytes(record.key)
            yield Message(topic, key, self._value(record), self._time(record), self._headers(record))

    def _topic_of(self, record: Record) -> str:
        try:
            topic = self._topic.render(record)
        except RecordError as error:
            raise Refused(f"kafka: option 'topic': {error}") from error
        if not _NAME.fullmatch(topic) or topic in (".", ".."):
            raise Refused(f"kafka: {topic[:80]!r} is no name of a topic")
        return topic

    def _value(self, record: Record) -> bytes | None:
        if self._opencdc:
            return jsons.dumps(record.to_opencdc())
        return None if record.after is None else data_bytes(record.after)

    def _time(self, record: Record) -> int:
        """Returns the milliseconds of `opencdc.createdAt`, or 0 if they are not asked for or are no time that Kafka can
        keep."""
        if not self._created:
            return 0
        text = record.meta().get("opencdc.createdAt", "")
        return max(0, int(text) // 1_000_000) if text.isdigit() and len(text) < 20 else 0

    def _headers(self, record: Record) -> Headers | None:
        headers: Headers = []
        if record.metadata:
            for name, value in record.metadata.items():
                if name.startswith(HEADERS) and (several := _several(value)) is not None:
                    headers += [(name.removeprefix(HEADERS), one) for one in several]
                elif name.startswith(BINARY_HEADER) and value is not None:
                    headers.append((name.removeprefix(BINARY_HEADER), _bytes(value)))
                elif name.startswith(HEADER) and value is not None:
                    headers.append((name.removeprefix(HEADER), value))
        if self._id_header:
            headers = [h for h in headers if h[0] != self._id_header]
            headers.append((self._id_header, record.id))
        return headers or None


def _has_headers(metadata: pa.MapArray) -> bool:
    """Returns whether a record may have headers of its own."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.starts_with(metadata.keys.unique(), HEADER)).as_py())


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text.encode()


def _several(text: str | None) -> list[str | bytes | None] | None:
    """Returns the values that `read.listed` put together; None for any other text, which is one header's value as
    it is."""
    try:
        values = jsons.loads(text or "")
    except jsons.JSONDecodeError:
        return None
    if not isinstance(values, list):
        return None
    out: list[str | bytes | None] = []
    for value in values:
        if value is None or isinstance(value, str):
            out.append(value)
        elif isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
            out.append(_bytes(value["base64"]))
        else:
            return None
    return out


def identities(rows: Rows) -> list[Any]:
    """Returns a key per row that no other row of its destination has."""
    batch = rows.batch
    return list(
        zip(
            [rows.micro_batch] * batch.num_rows,
            batch.column("slice").to_pylist(),
            batch.column("n").to_pylist(),
            batch.column("ord").to_pylist(),
        )
    )
