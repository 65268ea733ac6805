"""A look at one pipeline: all that its page, API and `conduit status` tell, in a few round trips.

Their number follows the file's connectors. It does not follow micro-batches, records or parts of sources. Nothing is
changed. What is read in one look is not one moment: a micro-batch may be sealed meanwhile, and the next look shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.broker import backlogs
from conduit_tasks.broker.access import Access, as_hash, seconds
from conduit_tasks.broker.breakers import BreakerState, breaker_state
from conduit_tasks.broker.deliveries import delivery_state
from conduit_tasks.broker.failures import FIELDS, Failing, read_troubles
from conduit_tasks.broker.leases import HELD, free_in
from conduit_tasks.broker.lifecycle import nodes_of, pipeline_status
from conduit_tasks.broker.outages import Outage, outage_of
from conduit_tasks.broker.runs import UnderWay, course_of
from conduit_tasks.broker.state import Backlog, DeliveryState, PipelineStatus
from conduit_tasks.redis_client.portions import portions
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.topology import Pipeline

KEPT = 256
"""Micro-batches whose planned records are kept: their slices are read once, as there may be thousands."""
_planned: dict[tuple[str, ...], tuple[str | None, dict[str, int | None]]] = {}
"""Micro-batch → when it was opened, and source → records planned."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, and for how many seconds at least it is not free."""

    owner: str
    left: float


@dataclass(frozen=True)
class SourceLook:
    """A source. `planned`, `acked`: part → token; None if it has more `parts` than were asked for. `acked_to`: the
    last micro-batch that it was told of."""

    parts: int
    planned: dict[str, Any] | None
    acked: dict[str, Any] | None
    acked_to: int


@dataclass(frozen=True)
class DestinationLook:
    """A destination; one that was not registered yet looks as if it were. `parked`: keys that wait; `outage`: why it
    does not take what is left."""

    state: DeliveryState
    backlog: Backlog
    dead: int
    parked: int
    breaker: BreakerState | None
    outage: Outage | None = None

    @property
    def behind(self) -> int:
        """Sealed records that it has not confirmed."""
        return max(0, self.backlog.records - self.state.confirmed_beyond)


@dataclass(frozen=True)
class Open:
    """The unsealed micro-batch. `read`: per source records planned (None: only reading says) and staged; `processed`:
    records that the processors have staged."""

    number: int
    opened_at: float
    nodes: tuple[str, ...]
    missing: tuple[str, ...]
    read: dict[str, tuple[int | None, int]]
    processed: int


@dataclass(frozen=True)
class Look:
    """A pipeline as it is; times by the server's clock. `holders`: node → who holds its lease, if somebody does;
    `first`: sealed micro-batches that not all have confirmed or acked: the first one's number, total, and the time it
    was sealed."""

    at: float
    status: PipelineStatus
    known: bool
    """Whether a micro-batch was ever opened."""
    sealed: int
    totals: dict[str, int]
    failing: list[Failing]
    attempts: dict[str, int]
    dead: int
    open: Open | None
    sources: dict[str, SourceLook]
    destinations: dict[str, DestinationLook]
    holders: dict[str, Holder]
    run: UnderWay | None
    first: tuple[int, int, float | None] | None = field(default=None)


def look(access: Access, pipeline: Pipeline, parts: int) -> Look:
    """Looks at a pipeline. `parts`: positions are read of sources that have no more of them. Raises
    BrokerUnavailable."""
    reading = _Reading(access, pipeline, parts)
    reading.take(_asked(access, reading.first()))
    return reading.look(_asked(access, reading.rest()))


def _asked(access: Access, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [answer for some in portions(commands) for answer in access.read(*some)]


class _Reading:
    """Reading in two steps: the second asks for what the first one names."""

    def __init__(self, access: Access, pipeline: Pipeline, parts: int) -> None:
        self._access, self._keys, self._parts = access, access.keys, parts
        self._sources = [s.id for s in pipeline.sources]
        self._destinations = {d.id: d for d in pipeline.destinations}

    def first(self) -> list[tuple[Any, ...]]:
        keys = self._keys
        of = [("TIME",), ("HGETALL", keys.pipeline), ("HGETALL", keys.totals), ("HLEN", keys.dead(""))]
        of += [("SMEMBERS", keys.sources), ("SMEMBERS", keys.destinations)]
        of += [("HGETALL", keys.under_way), ("HGETALL", keys.before)]
        for id in self._destinations:
            of += [("HGETALL", keys.destination(id)), ("HLEN", keys.dead(id)), ("HLEN", keys.parked(id))]
        for id in self._sources:
            of += [("HLEN", keys.planned(id)), ("HLEN", keys.acked(id)), ("HGET", keys.ack(id), "m")]
        return of

    def take(self, answers: Sequence[Any]) -> None:
        (secs, micros), state, totals, self._dead, sources, destinations, run, before, *each = answers
        self._at = int(secs) + int(micros) / 1e6
        self._state = as_hash(state)
        self._totals = {name: int(n) for name, n in as_hash(totals).items()}
        self._run, self._before = (course_of(as_hash(of), self._at) for of in (run, before))
        self._nodes = nodes_of(sorted({*sources, *self._sources}), sorted({*destinations, *self._destinations}))
        self._sealed, self._unsealed = (int(self._state.get(name, 0)) for name in ("sealed", "unsealed"))
        self._hashes, self._counts = dict[str, dict[str, str]](), dict[str, tuple[int, int]]()
        for n, id in enumerate(self._destinations):
            found, dead, parked = each[3 * n : 3 * n + 3]
            self._hashes[id] = {"cursor": str(self._sealed), **as_hash(found)}
            self._counts[id] = int(dead), int(parked)
        self._deliveries = {id: delivery_state(data) for id, data in self._hashes.items()}
        rest = each[3 * len(self._destinations) :]
        self._positions = {
            id: (max(int(rest[3 * n]), int(rest[3 * n + 1])), int(rest[3 * n + 2] or self._sealed))
            for n, id in enumerate(self._sources)
        }
        self._short = [id for id, (parts, _) in self._positions.items() if parts <= self._parts]

    def rest(self) -> list[tuple[Any, ...]]:
        keys, m = self._keys, self._unsealed
        cursors = [state.cursor for state in self._deliveries.values()]
        self._reached = min([*cursors, *(acked for _, acked in self._positions.values())], default=self._sealed)
        self._fronts = backlogs.fronts([*cursors, self._reached], self._sealed)
        self._kept = (keys.pipeline, self._state.get("created", ""), self._state.get("rebuilt", ""), str(m))
        self._staging = [node for node in self._nodes if Node(node).kind in {"sources", "processors"}]
        unsealed = [f"stage:{node}" for node in self._staging]
        slices = [f"slices:{Node(node).id}" for node in self._staging if m and self._kept not in _planned]
        return [
            *(("HMGET", keys.lease(node), *FIELDS, *HELD) for node in self._nodes),
            *(("HMGET", keys.micro_batch(front), *backlogs.FIELDS) for front in self._fronts),
            ("HMGET", keys.micro_batch(m), "state", "opened_at", "sources", "nodes", *unsealed, *slices),
            *(("HGETALL", key(id)) for id in self._short for key in (keys.planned, keys.acked)),
        ]

    def look(self, answers: Sequence[Any]) -> Look:
        leases, answers = answers[: len(self._nodes)], answers[len(self._nodes) :]
        fronts, answers = dict(zip(self._fronts, answers)), answers[len(self._fronts) :]
        unsealed, *tokens = answers
        failing, attempts = read_troubles(self._nodes, [lease[: len(FIELDS)] for lease in leases], self._at)
        holders = {node: self._holder(lease[len(FIELDS) :]) for node, lease in zip(self._nodes, leases)}
        first = fronts[self._reached + 1] if self._reached < self._sealed else None
        return Look(
            at=self._at,
            status=pipeline_status(self._state, failing, attempts),
            known=int(self._state.get("last", 0)) > 0,
            sealed=self._sealed,
            totals=self._totals,
            failing=failing,
            attempts=attempts,
            dead=int(self._dead),
            open=self._open(unsealed) if self._unsealed else None,
            sources=self._of_sources(tokens),
            destinations={id: self._destination(id, fronts) for id in self._destinations},
            holders={node: holder for node, holder in holders.items() if holder is not None},
            run=None if self._run is None else replace(self._run, before=self._before),
            first=None if first is None else (self._reached + 1, int(first[0] or 0), seconds(first[2])),
        )

    def _holder(self, lease: Sequence[str | None]) -> Holder | None:
        left = free_in(lease, self._at, self._access.lease_grace)
        return Holder(str(lease[0]), left) if left else None

    def _of_sources(self, tokens: Sequence[Any]) -> dict[str, SourceLook]:
        known = dict(zip(self._short, zip(tokens[::2], tokens[1::2])))
        out = {}
        for id, (parts, acked_to) in self._positions.items():
            planned, acked = map(_tokens, known[id]) if id in known else (None, None)
            out[id] = SourceLook(parts, planned, acked, acked_to)
        return out

    def _destination(self, id: str, fronts: Mapping[int, Sequence[str | None]]) -> DestinationLook:
        state, (dead, parked) = self._deliveries[id], self._counts[id]
        backlog = backlogs.pending(fronts, state.cursor, self._sealed)
        if backlog is None:
            backlog = backlogs.summed(self._access, state.cursor, self._sealed)
        if backlog.oldest_sealed_at is not None:
            # A server whose clock went back would have none wait for as long.
            backlog = replace(backlog, oldest_sealed_at=min(backlog.oldest_sealed_at, self._at))
        options = self._destinations[id].delivery.breaker
        breaker = breaker_state(self._hashes[id].get("breaker"), options, self._at)
        outage = outage_of(self._hashes[id]) if backlog.micro_batches else None
        return DestinationLook(state, backlog, dead, parked, breaker, outage)

    def _open(self, found: Sequence[str | None]) -> Open | None:
        state, opened_at, sources, nodes, *rest = found
        if state != "open":
            return None  # it was sealed between the two steps
        stages = dict(zip(self._staging, rest))
        if slices := rest[len(self._staging) :]:
            counts = {Node(node).id: _records(text) for node, text in zip(self._staging, slices)}
            _keep(self._kept, (opened_at, counts))
        when, planned = _planned.get(self._kept, (None, {}))
        if when != opened_at:
            # Redis has forgotten that one: this one got its number. The next look reads its slices.
            _planned.pop(self._kept, None)
            planned = {}
        read = {id: (planned.get(id), _read(stages.get(Node.source(id)))) for id in orjson.loads(sources or "[]")}
        every = tuple(orjson.loads(nodes or "[]"))
        missing = tuple(node for node in every if stages.get(node) is None)
        processed = _read(stages.get("processors"))
        return Open(self._unsealed, seconds(opened_at) or 0.0, every, missing, read, processed)


def _keep(name: tuple[str, ...], planned: tuple[str | None, dict[str, int | None]]) -> None:
    while len(_planned) >= KEPT:
        _planned.pop(next(iter(_planned)), None)
    _planned[name] = planned


def _records(slices: str | None) -> int | None:
    """Returns the records of these slices; None if only reading says."""
    planned = [each.get("records") for each in orjson.loads(slices or "[]")]
    return None if None in planned else sum(planned)


def _read(stage: str | None) -> int:
    return int(orjson.loads(stage)["read"]) if stage else 0


def _tokens(found: Any) -> dict[str, Any]:
    return {part: orjson.loads(token) for part, token in as_hash(found).items()}
