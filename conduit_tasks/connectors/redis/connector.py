"""`redis` as a source: takes over entries that others left idle or an attempt of ours did not stage, reads new ones,
and acks them by their ids (docs/connectors/redis.md).

This module is light: the client is imported when there is something to ask.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import missing, options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec, Token
from conduit_tasks.connectors.capabilities import Queue
from conduit_tasks.connectors.connection import REDIS
from conduit_tasks.connectors.portion import Portion
from conduit_tasks.connectors.redis.client import URL, asking, check_url, entries_as_pairs, opened
from conduit_tasks.connectors.redis.destination import RedisDestination
from conduit_tasks.connectors.redis.message import Entry, batch_of, id_of, order_of, size_of, text
from conduit_tasks.errors import ConfigError, Missing, SourceError, SpoolGone

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

PAGE = 1_000
"""Entries asked for, or acked, at a time."""
UNBOUNDED = 100_000
"""Entries of one stream per micro-batch if the limit names no number of records."""


class RedisSource(Queue):
    """A part, and a partition, is a stream. Token: {"last": the highest entry id that was staged, "receipts"}.

    Entries that an earlier attempt of ours read and did not stage lie behind `last`, and are read again at once.
    Entries that other consumers of the group hold are taken over after `min-idle`. An ack (XACK) covers the entries
    that the receipts name, per micro-batch.
    """

    spec = Spec(
        "redis",
        "Reads streams through a consumer group; entries are acked when they are delivered.",
        (
            URL,
            Option("streams", "names, comma-separated; each is a partition", required=True),
            Option("group", "the consumer group; made where it is not there; default: conduit.PIPELINE.CONNECTOR"),
            Option("start", "where a new group begins: 0, at the first entry; $, behind the last", default="0"),
            Option("min-idle", "how long another consumer may hold an entry before it is taken over", default="5m"),
            Option("data", "the field that holds the payload; default: all fields, as an object of strings (UTF-8)"),
            Option("format", "of `data`: text, raw; json, an object", default="text", choices=("text", "json")),
            Option("key", "the field whose value is the record's key"),
            Option("delete", "delete entries from the stream once they are acked", default="false"),
            Option(
                "missing",
                "a stream or its group that is removed after its entries were planned: fail, or skip them, logged and "
                "counted",
                default="fail",
                choices=("fail", "skip"),
            ),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
        connection=REDIS,
    )
    comes_again = 0.0  # an acked entry is never handed out again

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        check_url(self.settings)
        self._streams = options.names(self.spec, self.settings, "streams")
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

    @property
    def _taker(self) -> str:
        """Consumer that holds entries taken over from others. Among our own consumer's entries those up to `last` are
        staged; an entry that is taken over may lie anywhere, so it is held under another name."""
        return f"{self._consumer}.taken"

    def owned(self) -> list[str]:
        """Returns its consumer: entries that this holds are taken for those of an earlier attempt."""
        from conduit_tasks.redis_client.connection import address

        where = address(self.settings["url"])
        return [f"the consumer {self._consumer} of {self.group}, stream {s} at {where}" for s in self._streams]

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        """Returns an open slice for each stream with entries that wait, with an equal share of the limit."""
        with asking(SourceError, "cannot be asked what waits"):
            waiting = [s for s in self._streams if self._waits(s, position.get(s))]
        slices = []
        for n, stream in enumerate(waiting):
            room = UNBOUNDED if limit.records is None else (limit.records + len(waiting) - 1 - n) // len(waiting)
            size = None if limit.bytes is None else max(1, limit.bytes // len(waiting))
            if room:
                slices.append(Slice(stream, stream, position.get(stream), None, hint=[room, size], open=True))
        return slices

    def _waits(self, stream: str, token: Token) -> bool:
        client = self._open()
        self._make_group(stream, token)
        mine = self._group(stream)
        # Asks for the entry itself: the stream also counts entries that were trimmed unread and never come.
        if client.xrange(stream, f"({id_of(mine['last-delivered-id'])}", "+", 1):
            return True
        if not mine["pending"]:
            return False
        ours = self._pending(stream, self._consumer, after=_known(mine, _last(token)))
        return any(ours) or any(self._idle_elsewhere(stream))

    def _idle_elsewhere(self, stream: str) -> Iterator[str]:
        """Yields the ids of entries that another consumer has held for too long, or that a task of ours took over and
        did not stage."""
        staged: set[str] | None = None
        for consumer in self._open().xinfo_consumers(stream, self.group):
            name = text(consumer["name"])
            if name == self._consumer or not consumer["pending"]:
                continue
            for id in self._pending(stream, name, idle=self._idle):
                if name == self._taker:
                    staged = self._staged(stream) if staged is None else staged
                    if id in staged:
                        continue
                yield id

    def _pending(self, stream: str, consumer: str, *, after: str = "", idle: int | None = None) -> Iterator[str]:
        """Yields the ids of the entries that a consumer holds behind `after`, in order."""
        while True:
            found = self._open().xpending_range(
                stream, self.group, f"({after}" if after else "-", "+", PAGE, consumer, idle
            )
            for entry in found:
                yield (after := id_of(entry["message_id"]))
            if len(found) < PAGE:
                return

    def _staged(self, stream: str) -> set[str]:
        """Returns the ids of entries that are staged and may not be acked yet."""
        found: set[str] = set()
        for token in (position[stream] for position in self.unsettled if stream in position):
            try:
                found.update(json.loads(self.receipts.get(token["receipts"])))
            except SpoolGone:
                # Receipts are collected after the ack; if they were lost, a second delivery is better than none.
                continue
        return found

    def _make_group(self, stream: str, token: Token) -> None:
        """Makes the group where it is not there. One that was removed after we had read from it begins at the first
        entry, whatever `start` says: the stream may be another one, with lower ids, and records that come twice are
        better than lost ones."""
        from redis.exceptions import ResponseError

        start = "0" if token else self.settings["start"]
        try:
            self._open().xgroup_create(stream, self.group, id=start, mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        else:
            if token:
                log.warning(
                    "redis: the group %s of %s was removed; it is made again, at the first entry", self.group, stream
                )

    def _group(self, stream: str) -> dict[str, Any]:
        """Returns what the server knows of the group. Raises Missing."""
        for group in self._open().xinfo_groups(stream):
            if text(group["name"]) == self.group:
                return dict(group)
        raise Missing(f"redis: the stream {stream} has no group {self.group}")

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        pipeline, stream, group = self.pipeline or "PIPELINE", shlex.quote(slice.part), shlex.quote(self.group)
        once = f"on that server `XGROUP CREATE {stream} {group} 0 MKSTREAM`, `conduit start {pipeline}`"
        return missing.tolerated(self, slice, self._read(slice), once)

    def _read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        room, size = slice.hint
        self._last, self._ids = _last(slice.start), []
        used = 0
        with asking(SourceError, f"cannot be read from {slice.part}"):
            self._last = _known(self._group(slice.part), self._last)
            for entries, ours in self._entries(slice.part, self._last, room):
                ids = [id_of(id) for id, _ in entries]
                self._ids += ids
                if ours:
                    self._last = ids[-1]
                there = [(id, fields) for id, fields in entries if fields]
                if gone := len(entries) - len(there):
                    log.warning("redis: %d entries of %s were trimmed before they were read", gone, slice.part)
                if there:
                    yield batch_of(slice.part, there, self.settings)
                used += size_of(there)
                if size is not None and used >= size:
                    break

    def _entries(self, stream: str, last: str, room: int) -> Iterator[tuple[list[Entry], bool]]:
        """Yields entries that others left idle, that an attempt of ours did not stage, and new ones; at most `room`
        altogether. With each page, whether it was read under our own consumer's name."""
        client = self._open()
        idle = list(islice(self._idle_elsewhere(stream), room))
        portion = Portion(PAGE)
        while idle:
            asked_for, idle = idle[: portion.size], idle[portion.size :]
            if taken := self._take(stream, asked_for):
                portion.came(len(taken), size_of(taken))
                room -= len(taken)
                yield taken, False
        after, new = last or "0", False
        while room > 0:
            asked = {stream: ">" if new else after}
            found = client.xreadgroup(self.group, self._consumer, asked, count=min(portion.size, room))
            entries = found[0][1] if found else []
            if not entries:
                if new:
                    return
                new = True
            elif new and self._missed(stream, after, id_of(entries[0][0])):
                new = False
            else:
                portion.came(len(entries), size_of(entries))
                room -= len(entries)
                after = id_of(entries[-1][0])
                yield entries, True

    def _missed(self, stream: str, after: str, before: str) -> bool:
        """Returns whether new entries were assigned to our consumer without reaching this task: the answer that held
        them was lost and requested again, or a second task reads the slice. This page is then held by our consumer,
        too, and is read again with them, in order."""
        return bool(self._open().xpending_range(stream, self.group, f"({after}", f"({before}", 1, self._consumer))

    def _take(self, stream: str, ids: list[str]) -> list[Entry]:
        """Takes over those of these entries that are still idle; trimmed ones are returned without fields, so that they
        are acked."""
        client = self._open()
        found = client.xclaim(stream, self.group, self._taker, self._idle, ids)
        there = [(id, fields) for id, fields in found if id is not None]
        if len(there) < len(found):
            known = {id_of(id) for id, _ in there}
            there += [(id.encode(), []) for id in ids if id not in known and not client.xrange(stream, id, id, 1)]
        return there

    def reached(self, slice: Slice) -> Token:
        return {"last": self._last, "receipts": self.receipts.put(json.dumps(self._ids).encode())}

    def ack(self, position: Position) -> None:
        """Acks the entries that the receipts name; a second call changes nothing."""
        with asking(SourceError, "cannot be acked to"):
            client = self._open()
            for stream, token in position.items():
                ids = json.loads(self.receipts.get(token["receipts"]))
                for first in range(0, len(ids), PAGE):
                    client.xack(stream, self.group, *ids[first : first + PAGE])
                    if self._delete:
                        client.xdel(stream, *ids[first : first + PAGE])

    def metadata(self, slice: Slice) -> dict[str, str]:
        return {"opencdc.collection": slice.part}

    def _open(self) -> Any:
        if self._client is None:
            self._client = entries_as_pairs(opened(self.settings["url"]))
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _last(token: Token) -> str:
    return token["last"] if token else ""


def _known(group: Mapping[str, Any], last: str) -> str:
    """Returns the highest id that this group handed out and we staged: none, if `last` is of one that was removed."""
    return last if last and order_of(id_of(group["last-delivered-id"])) >= order_of(last) else ""


SOURCE = RedisSource
DESTINATION = RedisDestination
