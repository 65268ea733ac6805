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

REMEMBERED = 3600
"""Seconds for which a group that is sent again is known; a gateway gives up within seconds."""
SLICE_RECORDS, SLICE_BYTES = 50_000, 32 << 20
"""What one task reads."""
PAGE_RECORDS, PAGE_BYTES = 5_000, 4 << 20
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
        events: Sequence[bytes],
        budget: Budget,
        *,
        wait_fsync: bool = False,
    ) -> list[bool]:
        """Stores the events of some requests (`counts`: how many each has); per request whether it was stored.

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
            "events": events,
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
        """Exactly the entries of the slice, (id, event) in order, in pages. Raises SourceError where one is missing."""
        stream = self.keys.ingest(self.source)
        at, wanted = int(slice.start) + 1, int(slice.records or 0)
        size = max(1, (slice.bytes or 0) // max(1, wanted))
        count = max(1, min(PAGE_RECORDS, PAGE_BYTES // size))
        while at <= slice.end:
            with reaching(self.redis):
                found: Any = self.redis.xrange(stream, str(at), str(slice.end), count=count)
            if not found:
                break
            page = [(id, fields[b"e"]) for id, fields in found]
            wanted -= len(page)
            yield page
            at = int(page[-1][0].partition(b"-")[0]) + 1
        if wanted:
            raise SourceError(
                f"gateway source {self.source} of pipeline {self.pipeline}: {wanted} events between {slice.start} and "
                f"{slice.end} are not in {stream}: Redis lost them, or somebody removed them. See docs/operations.md, "
                "Redis"
            )

    def ack(self, to: int) -> None:
        """Removes the events up to number `to`; nothing where they are gone already."""
        keys = {"stream": self.keys.ingest(self.source), "state": self.keys.ingested(self.source)}
        self.run(scripts.INGEST_ACK, keys, to=to)
