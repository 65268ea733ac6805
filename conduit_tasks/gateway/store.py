"""Events of a gateway source in Redis: stored within the backlog, planned, read, and removed once acked
(`broker/scripts/ingest/`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.errors import BrokerUnavailable, ConduitError, SourceError
from conduit_tasks.gateway.event import split
from conduit_tasks.gateway.verify import LEEWAY, REPLAY, Mark
from conduit_tasks.redis_client.connection import Client, reaching

REMEMBERED = 3600
"""Seconds for which Redis recognises a group that is sent again; a gateway gives up within seconds."""
SLICE_RECORDS, SLICE_BYTES = 50_000, 32 << 20
"""Limits of a slice, which one task reads."""
PAGE_ENTRIES, PAGE_BYTES = 5_000, 4 << 20
"""Limits of one answer of Redis while a slice is read."""
MOVED = "moved"
"""Answer in place of an id: a lane was not in the state that the caller saw."""
CROWDED = "crowded"
"""Answer in place of an id: there would be more lanes than the limit."""
REPLAYED, FORGETFUL = "replayed", "forgetful"
"""Answers in place of an id: a signed request came before; no further one may be remembered."""
UNSETTLED = "unsettled"
"""Answer in place of an id: the same signed request came before, and is not known to be in the journal yet."""
REPEATED = ""
"""Answer in place of an id: nothing had to be stored, as all of it was before."""
FSYNC_WAIT_MS = 4000
"""Timeout of WAITAOF, below the socket's timeout."""
SETTLING = 30
"""Seconds for which a signed request is unsettled: its gateway writes it to its journal, or has died."""


_SAID = {"2": MOVED, "3": CROWDED, "4": REPLAYED, "5": REPEATED, "6": FORGETFUL, "7": UNSETTLED}


class JournalLost(ConduitError):
    """A Redis that does not know a gateway's journal: the journal's chunks have to be put back first."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some events under their id in Redis. `number`: of the last event; `total`: bytes of all events ever up to it,
    inclusive."""

    number: int
    total: int
    count: int
    data: bytes

    @property
    def id(self) -> str:
        return f"{self.number}-{self.total}"


@dataclass(frozen=True)
class Budget:
    """Limit of events that are stored and not yet acked (C13)."""

    records: int
    bytes: int


@dataclass(frozen=True)
class Held:
    """Events that are stored and not yet acked."""

    records: int
    bytes: int


class IngestStore:
    """The events of one gateway source. `redis` answers in text, except for `entries`, which needs a raw client."""

    def __init__(self, pipeline: str, source: str, redis: Client) -> None:
        self._access = Access(pipeline, redis)
        self.keys = self._access.keys
        self.source = source

    def close(self) -> None:
        """Closes the connections."""
        self._access.close()

    def add(
        self,
        gateway: str,
        group: int,
        counts: Sequence[int],
        chunks: Sequence[bytes],
        budget: Budget,
        *,
        marks: Sequence[Sequence[Mark]] = (),
        wait_fsync: bool = False,
        journal: str = "",
        known: int = 0,
        moves: Sequence[Sequence[tuple[str, str, str]]] = (),
        lanes: tuple[int, float] = (0, 0.0),
        remembered: tuple[int, float] = (0, 0.0),
    ) -> list[str | None]:
        """Stores chunks of events (`event.join`; `counts`: events of each) and returns the id of each stored chunk.

        A chunk is stored whole or not at all: None if the backlog is full. `group` counts the calls of one gateway
        process; a repeated call with the same number changes nothing. `wait_fsync`: returns when the append-only file
        is on disk (WAITAOF). `journal`, `known`: name and highest number of the journal that Redis must know (else
        JournalLost). `moves`: per chunk (lane, state it must have, state it gets); MOVED in place of an id if a lane
        has another state. `lanes`: number of lanes at most, and the seconds of silence after which a lane is forgotten;
        CROWDED if there would be more. `marks`: per chunk what is remembered of its signed requests; REPLAYED if one of
        them came before, REPEATED if one is signed again; in a chunk of several requests, each is to be tried by itself
        then. `remembered`: marks at most, and the seconds for which a source that gets no more keeps them; FORGETFUL if
        there would be more. With a `journal` marks are unsettled until `settle`; UNSETTLED if the same request is.
        Raises BrokerUnavailable: it is then not known whether the chunks are stored.
        """
        keys = {
            **self._streams(),
            "group": self.keys.ingest_group(self.source, gateway),
            "index": self.keys.ingest_index(self.source),
            "lanes": self.keys.ingest_lanes(self.source),
            "seen": self.keys.ingest_seen(self.source),
        }
        args: dict[str, Any] = {
            "group": group,
            "ttl": REMEMBERED,
            "records": budget.records,
            "size": budget.bytes,
            "journal": journal,
            "known": known,
            "counts": list(counts),
            "moves": moves,
            "most": lanes[0],
            "forget": math.ceil(lanes[1]),
            "marks": marks,
            "remember": remembered[0],
            "keep": _keep(remembered),
            "replay": REPLAY,
            "unsettled": SETTLING if journal else 0,
            "chunks": chunks,
        }
        if wait_fsync:
            command = ("WAITAOF", 1, 0, FSYNC_WAIT_MS)
            (kind, *answer), synced = scripts.INGEST_ADD.followed(self._access.redis, command, keys, **args)
            if int(synced[0]) < 1:
                raise BrokerUnavailable(f"Redis did not write its append-only file to disk within {FSYNC_WAIT_MS} ms")
            answer = answer if kind == "ok" else [kind]
        else:
            answer = self._access.run(scripts.INGEST_ADD, keys, **args)
        if answer == ["lost"]:
            raise JournalLost(f"Redis does not know the journal of {self._access.pipeline}/{self.source}")
        number, size = int(answer[1]), int(answer[2])
        ids: list[str | None] = []
        for said, count, chunk in zip(answer[0], counts, chunks):
            if said == "1":
                number, size = number + count, size + len(chunk)
            ids.append({"1": f"{number}-{size}", **_SAID}.get(said))
        return ids

    def settle(self, marks: Sequence[Mark], remembered: tuple[int, float]) -> None:
        """Remembers requests whose events are in the journal. Raises BrokerUnavailable."""
        keys = {"seen": self.keys.ingest_seen(self.source)}
        self._access.run(scripts.INGEST_SETTLE, keys, keep=_keep(remembered), marks=marks)

    def lanes(self, names: Sequence[str]) -> list[str]:
        """Returns the state of each lane's receiver; "" if there is none yet."""
        with reaching(self._access.redis):
            found: Any = self._access.redis.hmget(self.keys.ingest_index(self.source), list(names))
        return [state or "" for state in found]

    def restore(self, journal: str, chunks: Sequence[Chunk]) -> int:
        """Puts chunks of a journal back, in ascending order, and returns their number; chunks that are there stay. The
        last call gives the journal's name."""
        ids, counts = [c.id for c in chunks], [c.count for c in chunks]
        data = [c.data for c in chunks]
        args: dict[str, Any] = {"journal": journal, "ids": ids, "counts": counts, "chunks": data}
        return int(self._access.run(scripts.INGEST_RESTORE, self._streams(), **args)[0])

    def _streams(self) -> dict[str, str]:
        """Returns the keys that every script of a gateway source uses."""
        return {
            "stream": self.keys.ingest(self.source),
            "sizes": self.keys.ingest_sizes(self.source),
            "state": self.keys.ingested(self.source),
        }

    def state(self) -> dict[str, str]:
        """Returns the state of the source in Redis, as it is stored."""
        return self._access.hash(self.keys.ingested(self.source))

    def held(self) -> Held:
        """Returns the amount that is stored and not yet acked."""
        state = self.state()
        last, acked, size, removed = (int(state.get(name, 0)) for name in ("last", "acked", "bytes", "acked_bytes"))
        return Held(last - acked, size - removed)

    def plan(self, after: int | None, limit: Limit) -> list[Slice]:
        """Returns slices past number `after` within `limit`; one event is planned even if it is larger than the
        limit."""
        holes, first, *pairs = self._access.run(
            scripts.INGEST_PLAN,
            self._streams(),
            after=-1 if after is None else after,
            records=limit.records or 0,
            size=limit.bytes or 0,
            slice_records=SLICE_RECORDS,
            slice_size=SLICE_BYTES,
        ) or [0, "0"]
        start, slices = int(first), []
        for last, size in zip(map(int, pairs[::2]), map(int, pairs[1::2])):
            slices.append(Slice("", "", start, last, records=None if holes else last - start, bytes=size))
            start = last
        return slices

    def entries(self, slice: Slice) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yields exactly the events of the slice, (position, event) in order, in pages.

        Raises SourceError if one is missing.
        """
        stream = self.keys.ingest(self.source)
        at, end, before, wide = int(slice.start) + 1, int(slice.end), -1, 16
        while at <= end:
            # Redis copies everything that one command reads: so it reads what is known to fit a page, else one entry.
            until = self._within_a_page(at, min(end, at + wide - 1), before)
            with reaching(self._access.redis):
                count = PAGE_ENTRIES if until else 1
                found: Any = self._access.redis.xrange(stream, str(at), until or "+", count=count)
            page: list[tuple[bytes, bytes]] = []
            begin = at
            for id, fields in found:
                last, before = map(int, id.split(b"-"))
                first = last - int(fields[b"n"]) + 1
                if first > at:
                    break
                events = split(fields[b"e"])[at - first : end - first + 1]
                page += zip((b"%d-%d" % (n, before) for n in range(at, end + 1)), events)
                at = last + 1
                if at > end:
                    break
            if at == begin:
                raise SourceError(
                    f"gateway source {self.source} of pipeline {self._access.pipeline}: event {at} of those up to "
                    f"{end} is not in {stream}: Redis lost it, or somebody removed it. See docs/operations.md, Redis"
                )
            if page:
                yield page
            wide = 2 * (at - begin)

    def _within_a_page(self, at: int, to: int, before: int) -> bytes | None:
        """Returns the id of the entry, at event `to` or earlier, with which a page that begins at event `at` ends: one
        entry, or several of at most PAGE_BYTES. `before`: bytes of all entries before the page; -1: not known. None if
        the sizes in Redis do not say it."""
        while (holding := self._holding(at if before < 0 else to)) is not None:
            id, first, size, own = holding
            if before < 0:
                before = size - own
            elif size - before <= PAGE_BYTES or first <= at:
                return id
            else:
                to = (at + to) // 2
        return None

    def _holding(self, event: int) -> tuple[bytes, int, int, int] | None:
        """Returns the id of the entry that holds an event, its first event, the bytes of all entries up to it
        inclusive, and its own bytes."""
        with reaching(self._access.redis):
            found: Any = self._access.redis.xrange(self.keys.ingest_sizes(self.source), str(event), "+", count=1)
        for id, fields in found:
            last, size = map(int, id.split(b"-"))
            first = last - int(fields[b"n"]) + 1
            if first <= event:
                return id, first, size, int(fields[b"b"])
        return None

    def ack(self, to: int) -> None:
        """Removes the events up to number `to`; does nothing if they are gone already."""
        while self._access.run(scripts.INGEST_ACK, self._streams(), to=to)[0]:
            pass


def _keep(remembered: tuple[int, float]) -> int:
    """Returns the seconds after which the marks of a source that gets no more are gone; see `IngestStore.add`."""
    return 2 * math.ceil(remembered[1]) + 2 * LEEWAY
