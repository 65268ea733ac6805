"""Glances at many pipelines, for a list of a thousand: status, lag, outages and dead letters, by one call per pipeline,
all sent together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from conduit_tasks.broker import backlogs, scripts
from conduit_tasks.broker.access import seconds, stored_error
from conduit_tasks.broker.keys import Keys
from conduit_tasks.broker.lifecycle import nodes_of
from conduit_tasks.broker.outages import outage_of
from conduit_tasks.broker.series import COARSE, reads
from conduit_tasks.broker.state import Status, StoredError
from conduit_tasks.redis_client.connection import Client, reaching
from conduit_tasks.redis_client.portions import portions

if TYPE_CHECKING:
    from conduit_tasks.topology import Pipeline

BARS = 24
"""Buckets of five minutes that `Glance.recent` has."""


@dataclass(frozen=True)
class Seen:
    """A destination. `behind`: sealed micro-batches that it has not confirmed whole; `records`: in them, None if an
    earlier version has sealed them; `waits_since`: time at which the oldest was planned, None if there is none; `down`:
    it does not answer."""

    id: str
    behind: int
    records: int | None
    status: str
    confirmed_at: float | None
    dead: int
    waits_since: float | None = None
    down: bool = False


@dataclass(frozen=True)
class Glance:
    """A pipeline. `error`: the first one; `dead`: letters before the fan-out; `sealed`: micro-batches; `recent`:
    records read in each five minutes of the last two hours; `at`: the time by the server's clock."""

    status: Status
    error: StoredError | None
    sealed: int
    dead: int
    destinations: tuple[Seen, ...]
    recent: list[int]
    at: float


def glances(redis: Client, pipelines: Sequence[Pipeline]) -> list[Glance]:
    """Returns a glance at each pipeline. Raises BrokerUnavailable."""
    out: list[Glance] = []
    for some in portions(pipelines, 500):
        out += _glances(redis, some)
    return out


def _glances(redis: Client, pipelines: Sequence[Pipeline]) -> Iterator[Glance]:
    found = scripts.GLANCE.each(redis, map(_call, pipelines))
    wanted: dict[tuple[int, int], str] = {}
    for n, (pipeline, (_, *said)) in enumerate(zip(pipelines, found)):
        sealed = int(said[3])
        cursors = {int(said[5 + 5 * i]) for i in range(len(pipeline.destinations))}
        if min(cursors, default=sealed) < sealed:
            wanted |= {(n, m): Keys(pipeline.id).micro_batch(m) for m in backlogs.fronts(list(cursors), sealed)}
    batch: Any = redis.pipeline(transaction=False)
    for key in wanted.values():
        batch.execute_command("HMGET", key, *backlogs.FIELDS, "opened_at")
    with reaching(redis):
        now = cast(Any, redis.time())
        answers = batch.execute() if wanted else []
    fronts: list[dict[int, Sequence[str | None]]] = [{} for _ in pipelines]
    for (n, m), answer in zip(wanted, answers):
        fronts[n][m] = answer
    for pipeline, (_, *said), known in zip(pipelines, found, fronts):
        yield _glance(pipeline, said, known, now)


def _call(pipeline: Pipeline) -> tuple[int, list[str | bytes]]:
    keys, ids = Keys(pipeline.id), [d.id for d in pipeline.destinations]
    sources = [s.id for s in pipeline.sources]
    each = [key for id in ids for key in (keys.destination(id), keys.dead(id))]
    each += [keys.lease(node) for node in nodes_of(sources, ids)]
    names = {"pipeline": keys.pipeline, "series": keys.series(""), "dead": keys.dead(""), "each": each}
    return scripts.GLANCE.words(names, {"destinations": len(ids)})


def _glance(
    pipeline: Pipeline, said: Sequence[Any], known: dict[int, Sequence[str | None]], now: Sequence[Any]
) -> Glance:
    status, error, error_at, sealed, dead, *rest = said
    destinations = []
    for i, d in enumerate(pipeline.destinations):
        cursor, its_status, confirmed_at, its_dead, outage = rest[5 * i : 5 * i + 5]
        behind = int(sealed) - int(cursor)
        backlog = backlogs.pending(known, int(cursor), int(sealed))
        since = known[int(cursor) + 1][-1] if behind > 0 else None
        records = None if backlog is None else backlog.records
        destinations.append(
            Seen(
                d.id,
                behind,
                records,
                its_status,
                seconds(confirmed_at),
                int(its_dead),
                seconds(since),
                down=behind > 0 and outage_of({"outage": outage, "confirmed_at": confirmed_at}) is not None,
            )
        )
    at = float(now[0]) + float(now[1]) / 1e6
    step = COARSE.seconds
    last = int(at) // step * step
    return Glance(
        status=cast(Status, status),
        error=stored_error(error or None, error_at or None),
        sealed=int(sealed),
        dead=int(dead),
        destinations=tuple(destinations),
        recent=reads(rest[5 * len(destinations) :], range(last - (BARS - 1) * step, last + step, step)),
        at=at,
    )
