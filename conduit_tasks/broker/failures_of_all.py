"""Failures of many pipelines: failed tasks, decisions, and which pipelines may have dead letters, by plain reads in a
few round trips for some hundred of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from conduit_tasks.broker.issues import Decision, FailedTasks, decision_of, failing_of
from conduit_tasks.broker.keys import Keys
from conduit_tasks.redis_client.connection import Client, reaching
from conduit_tasks.redis_client.portions import portions

if TYPE_CHECKING:
    from conduit_tasks.topology import Pipeline


@dataclass(frozen=True)
class Failures:
    """Failures of a pipeline. `letters`: whether some of its dead letters may be open; `failing`: issue → failed tasks
    of one cause."""

    letters: bool
    failing: Mapping[str, FailedTasks]

    def __bool__(self) -> bool:
        return self.letters or bool(self.failing)


def failures(redis: Client, pipelines: Sequence[Pipeline]) -> tuple[list[Failures], float]:
    """Returns the failures of each pipeline, and the time by the server's clock. Raises BrokerUnavailable."""
    wanted: list[tuple[str, str]] = []
    for pipeline in pipelines:
        keys = Keys(pipeline.id)
        # Letters of a destination that has left the file are counted nowhere else.
        wanted += [("HLEN", keys.failing), ("HLEN", keys.left), ("HLEN", keys.dead(""))]
        wanted += [("HLEN", keys.dead(d.id)) for d in pipeline.destinations]
    with reaching(redis):
        batch: Any = redis.pipeline(transaction=False)
        for command in wanted:
            batch.execute_command(*command)
        counts, (second, micros) = batch.execute(), cast(Any, redis.time())
        batch = redis.pipeline(transaction=False)
        at, failing, letters = 0, [], []
        for pipeline in pipelines:
            end = at + 3 + len(pipeline.destinations)
            failing.append(counts[at] > 0)
            letters.append(any(counts[at + 1 : end]))
            if counts[at]:
                # As a whole: `failed` keeps 200 issues of a bounded size.
                batch.hgetall(Keys(pipeline.id).failing)
            at = end
        found = iter(batch.execute() if any(failing) else ())
    seen = [Failures(has, failing_of(next(found)) if fails else {}) for has, fails in zip(letters, failing)]
    return seen, float(second) + float(micros) / 1e6


def decisions(redis: Client, wanted: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Decision]:
    """Returns what somebody decided about these issues. `wanted`: pipeline → ids. Raises BrokerUnavailable."""
    some = [(pipeline, part) for pipeline, ids in wanted.items() for part in portions(ids)]
    if not some:
        return {}
    with reaching(redis):
        batch: Any = redis.pipeline(transaction=False)
        for pipeline, ids in some:
            batch.hmget(Keys(pipeline).issues, ids)
        answers = batch.execute()
    return {
        (pipeline, id): decision_of(text)
        for (pipeline, ids), texts in zip(some, answers)
        for id, text in zip(ids, texts)
        if text is not None
    }
