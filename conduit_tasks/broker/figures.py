"""Reads what is monitored of many pipelines (counters, lag, breakers, dead letters) in a few round trips; changes
nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import orjson

from conduit_tasks.broker import backlogs, scripts
from conduit_tasks.broker.access import Access, as_hash
from conduit_tasks.broker.deliveries import COUNTERS, delivery_state
from conduit_tasks.broker.keys import Keys
from conduit_tasks.broker.lifecycle import nodes_of, with_troubles
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.state import Backlog, Status
from conduit_tasks.metrics.histogram import Histogram, histograms
from conduit_tasks.redis_client.connection import Client, reaching
from conduit_tasks.redis_client.portions import portions

if TYPE_CHECKING:
    from conduit_tasks.topology import Pipeline

AT_A_TIME = 100
"""Pipelines whose figures are held at a time."""
_BESIDE = 4
"""Commands beside the script for each pipeline."""

Command = tuple[Any, ...]


@dataclass(frozen=True)
class DestinationFigures:
    """Figures of one destination. `counters`: as of `DeliveryState`; `confirmed`: records of micro-batches beyond its
    cursor that are confirmed; `waiting`: seconds since the oldest micro-batch that it has not confirmed was planned;
    `stopped`: it is stopped alone; `parked`: keys that wait behind a dead letter."""

    counters: Mapping[str, int]
    confirmed: int
    backlog: Backlog
    waiting: float
    stopped: bool
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
        beside = [command for read in reads for command in read.beside()]
        answers = scripts.FIGURES.each(redis, [read.call() for read in reads], beside)
        for n, read in enumerate(reads):
            at = len(reads) + n * _BESIDE
            read.take(answers[n], *answers[at : at + _BESIDE])
        for read, rest in zip(reads, _asked(redis, [read.rest() for read in reads])):
            yield read.figures(rest)


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


@dataclass
class _Delivery:
    """The script's answer for a registered destination. `ranges`, `divided`, `group`: as they are stored."""

    cursor: int
    status: str | None
    ranges: str | None
    divided: str | None
    group: str | None
    breaker: str | None
    counters: Mapping[str, int]
    dead: int
    parked: int

    @property
    def by_several(self) -> bool:
        """Whether a micro-batch beyond the cursor is, or was, divided."""
        return bool(self.divided or self.group)

    def confirmed(self, state: Mapping[str, str] | None) -> int:
        """Returns the records of micro-batches beyond the cursor that are confirmed. `state`: all that is stored of the
        destination, if one is divided."""
        if state is None:
            return RangeSet.parse(self.ranges).count if self.ranges else 0
        return delivery_state(state).confirmed_beyond


class _Read:
    """Reading of one pipeline, in two steps: the second asks for what the first one names, mostly for nothing."""

    def __init__(self, redis: Client, pipeline: Pipeline) -> None:
        self._redis, self._id = redis, pipeline.id
        self._ids, self._keys = [d.id for d in pipeline.destinations], Keys(pipeline.id)
        self._asked = nodes_of([s.id for s in pipeline.sources], self._ids)

    def call(self) -> tuple[int, list[str | bytes]]:
        """Returns the call of the script."""
        keys = self._keys
        each = [key for id in self._ids for key in (keys.destination(id), keys.dead(id), keys.parked(id))]
        each += [keys.lease(node) for node in self._asked]
        names = {"pipeline": keys.pipeline, "dead": keys.dead(""), "each": each}
        return scripts.FIGURES.words(names, {"destinations": len(self._ids)})

    def beside(self) -> list[Command]:
        """Returns the commands beside it."""
        keys = self._keys
        return [
            ("HGETALL", keys.totals),
            ("HGETALL", keys.figures),
            ("SMEMBERS", keys.sources),
            ("SMEMBERS", keys.destinations),
        ]

    def take(self, said: Sequence[Any], totals: Any, durations: Any, sources: Any, destinations: Any) -> None:
        """Takes the answers to both."""
        _, at, state, self._dead, *each = said
        self._at = int(at) / 1e6
        self._status, *numbers = state
        self._sealed, self._collected, self._held = (int(n or 0) for n in numbers[:3])
        # Those sealed since are in `held`.
        counted = self._sealed + 1 if numbers[3] is None else int(numbers[3])
        self._uncounted = range(self._collected + 1, min(counted, self._sealed + 1))
        self._last = int(numbers[4] or 0)
        self._totals = {name: int(n) for name, n in as_hash(totals).items()}
        self._histograms = histograms(as_hash(durations))
        count = len(self._ids)
        self._registered = {id: _delivery(of) for id, of in zip(self._ids, each) if of[0][0] is not None}
        troubles = dict(zip(self._asked, each[count:]))
        self._nodes = nodes_of(sorted(sources), sorted(destinations))
        self._others = [node for node in self._nodes if node not in troubles]
        self._troubles = {node: troubles[node] for node in self._nodes if node in troubles}

    def rest(self) -> list[Command]:
        """Returns the commands for what tells what a destination has not confirmed, for micro-batches that an earlier
        version sealed, and for nodes that have left the file."""
        cursors = [of.cursor for of in self._registered.values()]
        # The one behind the last sealed one may be planned, which destinations that have all wait for.
        planned = {cursor + 1 for cursor in cursors if self._sealed <= cursor < self._last}
        behind = [cursor for cursor in cursors if cursor < self._sealed]
        self._fronts = sorted(planned.union(backlogs.fronts(behind, self._sealed) if behind else ()))
        self._divided = [id for id, of in self._registered.items() if of.by_several]
        return [
            *(("HMGET", self._keys.micro_batch(m), *backlogs.FIELDS, "opened_at") for m in self._fronts),
            *(("HGET", self._keys.micro_batch(m), "bytes") for m in self._uncounted),
            *(("HMGET", self._keys.lease(node), "failures", "error", "attempts") for node in self._others),
            *(("HGETALL", self._keys.destination(id)) for id in self._divided),
        ]

    def figures(self, answers: Sequence[Any]) -> Figures:
        """Returns the figures, by the answers to `rest`."""
        found = iter(answers)
        fronts = {m: next(found) for m in self._fronts}
        held = self._held + sum(int(next(found) or 0) for _ in self._uncounted)
        for node in self._others:
            failures, error, attempts = next(found)
            self._troubles[node] = f"{'-' if failures and error else ''}{attempts or 0}"
        states = {id: as_hash(next(found)) for id in self._divided}
        attempts = {node: abs(int(self._troubles[node])) for node in self._nodes}
        failing = any(text[0] == "-" for text in self._troubles.values())
        return Figures(
            status=with_troubles(cast(Status, self._status or "running"), failing, attempts),
            sealed=self._sealed,
            held=max(0, self._sealed - self._collected),
            held_bytes=held,
            totals=self._totals,
            histograms=self._histograms,
            attempts=attempts,
            dead=int(self._dead),
            destinations={id: self._destination(of, fronts, states.get(id)) for id, of in self._registered.items()},
            at=self._at,
        )

    def _destination(
        self, of: _Delivery, fronts: Mapping[int, Sequence[str | None]], state: Mapping[str, str] | None
    ) -> DestinationFigures:
        backlog = backlogs.pending(fronts, of.cursor, self._sealed) or self._one_by_one(of.cursor)
        opened = fronts[of.cursor + 1][-1] if of.cursor + 1 in fronts else None
        oldest = backlog.oldest_sealed_at
        return DestinationFigures(
            counters=of.counters,
            confirmed=of.confirmed(state),
            # A server whose clock went back would have none wait for as long.
            backlog=backlog if oldest is None else replace(backlog, oldest_sealed_at=min(oldest, self._at)),
            waiting=max(0.0, self._at - int(opened) / 1e6) if opened else 0.0,
            stopped=of.status == "stopped",
            open=of.breaker is not None and int(orjson.loads(of.breaker).get("opened", 0)) > 0,
            dead=of.dead,
            parked=of.parked,
        )

    def _one_by_one(self, cursor: int) -> Backlog:
        """Returns what an earlier version sealed beyond a cursor, which has no sums."""
        return backlogs.summed(Access(self._id, self._redis), cursor, self._sealed)


def _delivery(said: Sequence[Any]) -> _Delivery:
    (cursor, status, ranges, divided, group, breaker, *counters), dead, parked = said
    counted = {name: int(n or 0) for name, n in zip(COUNTERS, counters)}
    return _Delivery(int(cursor), status, ranges, divided, group, breaker, counted, int(dead), int(parked))
