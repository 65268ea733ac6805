"""`redis`: streams, read through a consumer group and appended to (docs/connectors/redis.md).

This module is light: the client is imported when there is something to ask.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Source, Spec, Token
from conduit_tasks.connectors.redis_client import URL, asking, opened
from conduit_tasks.connectors.redis_destination import RedisDestination
from conduit_tasks.errors import ConfigError, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

PAGE = 1_000
"""Entries asked for, or acked, at a time."""
UNBOUNDED = 100_000
"""Entries of one stream per micro-batch where the limit says nothing."""
Entry = tuple[bytes, dict[bytes, bytes]]


class RedisSource(Source):
    """A part, and a partition, is a stream. Token: {"last": the highest entry id that was staged, "receipts"}.

    What an attempt of ours read and did not stage lies behind `last`, and is read again at once. What other consumers
    of the group hold is taken over after `min-idle`. Acked (XACK) is what the receipts name, per micro-batch.
    """

    spec = Spec(
        "redis",
        "Reads streams through a consumer group; entries are acked when they are stored.",
        (
            URL,
            Option("streams", "names, comma-separated; each is a partition", required=True),
            Option("group", "the consumer group; made where it is not there; default: conduit.PIPELINE.CONNECTOR"),
            Option("start", "where a new group begins: 0, at the first entry; $, behind the last", default="0"),
            Option("min-idle", "how long another consumer may hold an entry before it is taken over", default="5m"),
            Option("data", "the field that holds the payload; default: all fields, as an object of strings"),
            Option("format", "of `data`: text, raw; json, an object", default="text", choices=("text", "json")),
            Option("key", "the field whose value is the record's key"),
            Option("delete", "delete entries from the stream once they are acked", default="false"),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
    )
    ack_on: ClassVar[Literal["delivered", "stored"]] = "stored"
    settles = True

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._streams = options.words(self.settings, "streams")
        if self.settings["start"] not in ("0", "$"):
            raise ConfigError("redis: option 'start' is 0 or $")
        self._idle = int(options.duration(self.settings, "min-idle") * 1000)
        self._delete = options.boolean(self.settings, "delete")
        self._client: Any = None
        self._last = ""
        self._ids: list[str] = []

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.settings.get("group") or f"conduit.{self.pipeline}.{self.connector}"

    @property
    def _consumer(self) -> str:
        return f"{self.pipeline}.{self.connector}"

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        """An open slice for each stream in which something waits, with an equal share of the limit."""
        with asking(SourceError, "cannot be asked what waits"):
            waiting = [s for s in self._streams if self._waits(s, _last(position.get(s)))]
        slices = []
        for n, stream in enumerate(waiting):
            room = UNBOUNDED if limit.records is None else (limit.records + len(waiting) - 1 - n) // len(waiting)
            size = None if limit.bytes is None else max(1, limit.bytes // len(waiting))
            if room:
                slices.append(Slice(stream, stream, position.get(stream), None, hint=[room, size], open=True))
        return slices

    def _waits(self, stream: str, last: str) -> bool:
        client = self._open()
        self._group(stream)
        about = client.xinfo_stream(stream)
        newest = _id(about["last-generated-id"])
        mine = next(g for g in client.xinfo_groups(stream) if _text(g["name"]) == self.group)
        if _order(newest) > _order(_id(mine["last-delivered-id"])):
            return True
        if not mine["pending"]:
            return False
        ours = client.xpending_range(stream, self.group, f"({last}" if last else "-", "+", 1, self._consumer)
        return bool(ours) or bool(self._idle_elsewhere(stream))

    def _idle_elsewhere(self, stream: str) -> list[str]:
        """Entries that another consumer has held for too long."""
        found = self._open().xpending_range(stream, self.group, "-", "+", PAGE, idle=self._idle)
        return [_id(e["message_id"]) for e in found if _text(e["consumer"]) != self._consumer]

    def _group(self, stream: str) -> None:
        from redis.exceptions import ResponseError

        try:
            self._open().xgroup_create(stream, self.group, id=self.settings["start"], mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        room, size = slice.hint
        self._last, self._ids = _last(slice.start), []
        used = 0
        with asking(SourceError, f"cannot be read from {slice.part}"):
            for entries, ours in self._entries(slice.part, self._last, room):
                self._ids += [_id(id) for id, _ in entries]
                if ours:
                    # They come in the order of their ids; what was taken over may lie anywhere.
                    self._last = self._ids[-1]
                there = [(id, fields) for id, fields in entries if fields]
                if gone := len(entries) - len(there):
                    log.warning("redis: %d entries of %s were trimmed before they were read", gone, slice.part)
                if there:
                    yield self._batch(slice.part, there)
                used += sum(len(k) + len(v) for _, fields in there for k, v in fields.items())
                if size is not None and used >= size:
                    break

    def _entries(self, stream: str, last: str, room: int) -> Iterator[tuple[list[Entry], bool]]:
        """What others let lie, what an attempt of ours did not stage, and what is new; at most `room` altogether. With
        each page, whether it was read under our own name."""
        client = self._open()
        # Under a name of its own: of ours, what lies at or before `last` is what was staged.
        for first in range(0, len(idle := self._idle_elsewhere(stream)[:room]), PAGE):
            taken = client.xclaim(stream, self.group, f"{self._consumer}.taken", self._idle, idle[first : first + PAGE])
            if taken:
                room -= len(taken)
                yield taken, False
        after = last or "0"
        while room > 0:
            found = client.xreadgroup(self.group, self._consumer, {stream: after}, count=min(PAGE, room))
            entries = found[0][1] if found else []
            if entries:
                room -= len(entries)
                yield entries, True
            if after == ">" and not entries:
                return
            after = ">" if after == ">" or not entries else _id(entries[-1][0])

    def reached(self, slice: Slice) -> Token:
        return {"last": self._last, "receipts": self.receipts.put(json.dumps(self._ids).encode())}

    def ack(self, position: Position) -> None:
        """Acks what the receipts name; the same again changes nothing."""
        with asking(SourceError, "cannot be acked to"):
            client = self._open()
            for stream, token in position.items():
                ids = json.loads(self.receipts.get(token["receipts"]))
                for first in range(0, len(ids), PAGE):
                    client.xack(stream, self.group, *ids[first : first + PAGE])
                    if self._delete:
                        client.xdel(stream, *ids[first : first + PAGE])

    def _batch(self, stream: str, entries: list[Entry]) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        from conduit_tasks.record.schema import AFTER_STRUCTURED, RECORD_FIELDS, read_batch

        data, key = (self.settings[n].encode() if n in self.settings else None for n in ("data", "key"))
        structured, payloads, errors = [], [], []
        for id, fields in entries:
            payload, error = _payload(fields, data, self.settings["format"] == "json")
            payloads.append(payload)
            structured.append(not error and (data is None or self.settings["format"] == "json"))
            errors.append([("conduit.error", f"{stream} {_id(id)}: {error}")] if error else None)
        batch = read_batch(
            pa.array([f"{stream}/{_id(id)}".encode() for id, _ in entries], pa.binary()),
            after=pa.array(payloads, pa.binary()),
            key=None if key is None else pa.array([fields.get(key) for _, fields in entries], pa.binary()),
            metadata=pa.array(errors, RECORD_FIELDS[2].type) if any(errors) else None,
        )
        shapes = pa.array(np.where(structured, AFTER_STRUCTURED, 0).astype(np.int8))
        return batch.set_column(batch.schema.get_field_index("shape"), batch.schema.field("shape"), shapes)

    def metadata(self, slice: Slice) -> dict[str, str]:
        return {"opencdc.collection": slice.part}

    def _open(self) -> Any:
        if self._client is None:
            self._client = opened(self.settings["url"])
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _payload(fields: dict[bytes, bytes], data: bytes | None, as_json: bool) -> tuple[bytes, str]:
    """The payload, and why it is none of the kind it should be (it is raw then)."""
    if data is None:
        return json.dumps({_text(k): v.decode(errors="replace") for k, v in fields.items()}).encode(), ""
    if data not in fields:
        return b"", f"there is no field '{_text(data)}'"
    if not as_json:
        return fields[data], ""
    try:
        if isinstance(json.loads(fields[data]), dict):
            return fields[data], ""
    except ValueError:
        pass
    return fields[data], f"'{_text(data)}' is no JSON object"


def _last(token: Token) -> str:
    return token["last"] if token else ""


def _id(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw)


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def _order(id: str) -> tuple[int, int]:
    """An entry id as it is ordered; empty comes first."""
    time, _, number = (id or "0-0").partition("-")
    return int(time), int(number or 0)


SOURCE = RedisSource
DESTINATION = RedisDestination
