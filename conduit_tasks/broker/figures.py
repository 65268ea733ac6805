"""Figures of many pipelines for monitoring: everything of all of them in a few round trips, nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.broker import backlogs
from conduit_tasks.broker.access import Access, as_hash
from conduit_tasks.broker.deliveries import delivery_state
from conduit_tasks.broker.failures import FIELDS, read_troubles
from conduit_tasks.broker.keys import Keys
from conduit_tasks.broker.lifecycle import nodes_of, pipeline_status
from conduit_tasks.broker.state import Backlog, DeliveryState, Status
from conduit_tasks.metrics.histogram import Histogram, histograms
from conduit_tasks.redis_client.connection import Client, reaching
from conduit_tasks.redis_client.portions import portions

if TYPE_CHECKING:
    from conduit_tasks.topology import Pipeline

AT_A_TIME = 100
"""Pipelines whose figures are held at a time."""

Command = tuple[Any, ...]


@dataclass(frozen=True)
class DestinationFigures:
    """Figures of one destination. `waiting`: seconds since the oldest micro-batch that it has not confirmed was
    planned; `parked`: keys that wait behind a dead letter."""

    state: DeliveryState
    backlog: Backlog
    waiting: float
    open: bool
    """Whether its breaker is open, if it has one."""
    dead: int
    parked: int


@dataclass(frozen=True)
class Figures:
    """Figures of one pipeline. `held`: its micro-batches in the spool, `held_bytes`: their size; `attempts`: node →
    attempts without progress; `dead`: letters before the fan-out; `at`: the time by the server's clock."""

    status: Status
    sealed: int
    held: int
    held_bytes: int
    totals: dict[str, int]
    histograms: dict[tuple[str, str], Histogram]
    attempts: dict[str, int]
    dead: int
    destinations: dict[str, DestinationFigures]
    """Those of the file that are registered."""
    at: float


def figures(redis: Client, pipelines: Sequence[Pipeline]) -> Iterator[Figures]:
    """Yields the figures of each pipeline. Raises BrokerUnavailable."""
    for some in portions(pipelines, AT_A_TIME):
        reads = [_Read(redis, pipeline) for pipeline in some]
        for read, answers in zip(reads, _asked(redis, [read.first() for read in reads])):
            read.take(answers)
        rest = _asked(redis, [read.rest() for read in reads])
        for read, answers in zip(reads, rest):
            yield read.figures(answers)


def _asked(redis: Client, of_each: Sequence[Sequence[Command]]) -> Iterator[list[Any]]:
    """Yields the answers to each one's commands, which are sent together."""
    answers: list[Any] = []
    for some in portions([command for commands in of_each for command in commands]):
        with reaching(redis):
            batch: Any = redis.pipeline(transaction=False)
            for command in some:
                batch.execute_command(*command)
            answers += batch.execute()
    at = 0
    for commands in of_each:
        yield answers[at : at + len(commands)]
        at += len(commands)


class _Read:
    """Reading of one pipeline, in two steps: the second asks for what the first one names."""

    def __init__(self, redis: Client, pipeline: Pipeline) -> None:
        self._redis, self._id = redis, pipeline.id
        self._ids, self._keys = [d.id for d in pipeline.destinations], Keys(pipeline.id)

    def first(self) -> list[Command]:
        """Returns the commands that need no other."""
        keys = self._keys
        of = [("HGETALL", keys.pipeline), ("HGETALL", keys.totals), ("HGETALL", keys.figures), ("HLEN", keys.dead(""))]
        of += [("SMEMBERS", keys.sources), ("SMEMBERS", keys.destinations)]
        for id in self._ids:
            of += [("HGETALL", keys.destination(id)), ("HLEN", keys.dead(id)), ("HLEN", keys.parked(id))]
        return of

    def take(self, answers: Sequence[Any]) -> None:
        """Takes the answers to `first`."""
        state, totals, durations, self._dead, sources, destinations, *each = answers
        self._state = as_hash(state)
        self._totals = {name: int(n) for name, n in as_hash(totals).items()}
        self._histograms = histograms(as_hash(durations))
        self._nodes = nodes_of(sorted(sources), sorted(destinations))
        self._sealed, self._collected = (int(self._state.get(name, 0)) for name in ("sealed", "collected"))
        found = {id: each[3 * n : 3 * n + 3] for n, id in enumerate(self._ids)}
        self._hashes = {id: as_hash(of[0]) for id, of in found.items()}
        self._counts = {id: of[1:] for id, of in found.items()}
        self._registered = {id: delivery_state(data) for id, data in self._hashes.items() if "cursor" in data}

    def rest(self) -> list[Command]:
        """Returns the commands for the nodes, for the micro-batches that tell what a destination has not confirmed, and
        for those that an earlier version sealed."""
        cursors = [state.cursor for state in self._registered.values()]
        # The one behind the last sealed one may be planned, which destinations that have all wait for.
        self._fronts = sorted({*backlogs.fronts(cursors, self._sealed), *(cursor + 1 for cursor in cursors)})
        # Those sealed since are in `held`.
        counted = int(self._state.get("held_from", self._sealed + 1))
        self._uncounted = range(self._collected + 1, min(counted, self._sealed + 1))
        return [
            ("TIME",),
            *(("HMGET", self._keys.lease(node), *FIELDS) for node in self._nodes),
            *(("HMGET", self._keys.micro_batch(m), *backlogs.FIELDS, "opened_at") for m in self._fronts),
            *(("HGET", self._keys.micro_batch(m), "bytes") for m in self._uncounted),
        ]

    def figures(self, answers: Sequence[Any]) -> Figures:
        """Returns the figures, by the answers to `rest`."""
        (secs, micros), *found = answers
        at = int(secs) + int(micros) / 1e6
        leases, found = found[: len(self._nodes)], found[len(self._nodes) :]
        fronts = dict(zip(self._fronts, found))
        uncounted = found[len(self._fronts) :]
        failing, attempts = read_troubles(self._nodes, leases, at)
        return Figures(
            status=pipeline_status(self._state, failing, attempts).status,
            sealed=self._sealed,
            held=max(0, self._sealed - self._collected),
            held_bytes=int(self._state.get("held", 0)) + sum(int(size or 0) for size in uncounted),
            totals=self._totals,
            histograms=self._histograms,
            attempts=attempts,
            dead=int(self._dead),
            destinations={id: self._destination(id, fronts, at) for id in self._registered},
            at=at,
        )

    def _destination(self, id: str, fronts: Mapping[int, Sequence[str | None]], at: float) -> DestinationFigures:
        state, breaker = self._registered[id], self._hashes[id].get("breaker")
        backlog = backlogs.pending(fronts, state.cursor, self._sealed) or self._one_by_one(state.cursor)
        opened = fronts[state.cursor + 1][-1]
        dead, parked = self._counts[id]
        oldest = backlog.oldest_sealed_at
        return DestinationFigures(
            state=state,
            # A server whose clock went back would have none wait for as long.
            backlog=replace(backlog, oldest_sealed_at=None if oldest is None else min(oldest, at)),
            waiting=max(0.0, at - int(opened) / 1e6) if opened else 0.0,
            open=breaker is not None and int(orjson.loads(breaker).get("opened", 0)) > 0,
            dead=int(dead),
            parked=int(parked),
        )

    def _one_by_one(self, cursor: int) -> Backlog:
        """Returns what an earlier version sealed beyond a cursor, which has no sums."""
        return backlogs.summed(Access(self._id, self._redis), cursor, self._sealed)
