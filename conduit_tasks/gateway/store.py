"""What a gateway source holds in Redis: the events taken in and not yet acked (`broker/scripts/ingest_*.lua`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conduit_tasks.broker import scripts
from conduit_tasks.broker.base import BrokerBase
from conduit_tasks.broker.connection import Client, reaching
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.errors import BrokerUnavailable, SourceError
from conduit_tasks.gateway.event import split

REMEMBERED = 3600
"""Seconds for which a group that is sent again is known; a gateway gives up within seconds."""
SLICE_RECORDS, SLICE_BYTES = 50_000, 32 << 20
"""What one task reads."""
PAGE_ENTRIES, PAGE_BYTES = 5_000, 4 << 20
"""What one answer of Redis holds while a slice is read."""
FSYNC_WAIT_MS = 4000
"""Below the socket's timeout."""


@dataclass(frozen=True)
class Budget:
    """What may be stored and not yet acked (C13)."""

    records: int
    bytes: int


@dataclass(frozen=True)
class Held:
    """What is stored and not yet acked."""

    records: int
    bytes: int


class IngestStore(BrokerBase):
    """The events of one gateway source. `redis` answers in text, except for `entries`, which wants a raw client."""

    def __init__(self, pipeline: str, source: str, redis: Client) -> None:
        super().__init__(pipeline, redis)
        self.source = source

    def add(
        self,
        gateway: str,
        group: int,
        counts: Sequence[int],
        chunks: Sequence[bytes],
        budget: Budget,
        *,
        wait_fsync: bool = False,
    ) -> list[bool]:
        """Stores chunks of events (`event.join`; `counts`: how many each has); per chunk whether it was stored.

        Each whole or not at all, False where the backlog is used up. `group` counts the calls of one gateway process;
        the same one again changes nothing. `wait_fsync`: returns when the append-only file is on disk (WAITAOF).
        Raises BrokerUnavailable: whether it was stored is then not known.
        """
        keys = {
            "stream": self.keys.ingest(self.source),
            "state": self.keys.ingested(self.source),
            "group": self.keys.ingest_group(self.source, gateway),
        }
        args: dict[str, Any] = {
            "group": group,
            "ttl": REMEMBERED,
            "records": budget.records,
            "size": budget.bytes,
            "counts": list(counts),
            "chunks": chunks,
        }
        if not wait_fsync:
            return [c == "1" for c in self.run(scripts.INGEST_ADD, keys, **args)[0]]
        answer, synced = scripts.INGEST_ADD.followed(self.redis, ("WAITAOF", 1, 0, FSYNC_WAIT_MS), keys, **args)
        if int(synced[0]) < 1:
            raise BrokerUnavailable(f"Redis did not write its append-only file to disk within {FSYNC_WAIT_MS} ms")
        return [c == "1" for c in answer[1]]

    def held(self) -> Held:
        """What is stored and not yet acked."""
        state = {name: int(n) for name, n in self.hash(self.keys.ingested(self.source)).items()}
        return Held(
            state.get("last", 0) - state.get("acked", 0),
            state.get("bytes", 0) - state.get("acked_bytes", 0),
        )

    def plan(self, after: int | None, limit: Limit) -> list[Slice]:
        """Slices past number `after` within `limit`; one event is planned even where it is larger than the bytes."""
        first, *pairs = self.run(
            scripts.INGEST_PLAN,
            {"stream": self.keys.ingest(self.source), "state": self.keys.ingested(self.source)},
            after=-1 if after is None else after,
            records=limit.records or 0,
            size=limit.bytes or 0,
            slice_records=SLICE_RECORDS,
            slice_size=SLICE_BYTES,
        ) or ["0"]
        start, slices = int(first), []
        for last, size in zip(map(int, pairs[::2]), map(int, pairs[1::2])):
            slices.append(Slice("", "", start, last, records=last - start, bytes=size))
            start = last
        return slices

    def entries(self, slice: Slice) -> Iterator[list[tuple[bytes, bytes]]]:
        """Exactly the events of the slice, (position, event) in order, in pages.

        Raises SourceError where one is missing.
        """
        stream = self.keys.ingest(self.source)
        at, end, count = int(slice.start) + 1, int(slice.end), 16
        while at <= end:
            with reaching(self.redis):
                found: Any = self.redis.xrange(stream, str(at), "+", count=count)
            page: list[tuple[bytes, bytes]] = []
            size = 0
            for id, fields in found:
                last, chunk = int(id.partition(b"-")[0]), fields[b"e"]
                first = last - int(fields[b"n"]) + 1
                if first > at:
                    break
                size += len(chunk)
                events = split(chunk)[at - first : end - first + 1]
                tail = id[id.index(b"-") :]
                page += zip((b"%d%b" % (n, tail) for n in range(at, end + 1)), events)
                at += len(events)
                if at > end:
                    break
            if not page:
                raise SourceError(
                    f"gateway source {self.source} of pipeline {self.pipeline}: event {at} of those up to {end} is not "
                    f"in {stream}: Redis lost it, or somebody removed it. See docs/operations.md, Redis"
                )
            yield page
            count = max(1, min(PAGE_ENTRIES, PAGE_BYTES * len(found) // max(1, size)))

    def ack(self, to: int) -> None:
        """Removes the events up to number `to`; nothing where they are gone already."""
        keys = {"stream": self.keys.ingest(self.source), "state": self.keys.ingested(self.source)}
        self.run(scripts.INGEST_ACK, keys, to=to)
