"""Conclusions of a node from the run under way: whether another node may still bring work, or the next run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conduit_tasks.micro_batch.process import NODE as PROCESSORS

if TYPE_CHECKING:
    from conduit_tasks.broker.runs import UnderWay
    from conduit_tasks.topology import Pipeline

BEGINS_WITHIN = 5.0
"""Seconds after the run's plan in which a node's task has begun if there is a slot for it."""

TAKES_OVER = 60.0
"""Seconds for which a node waits for the same node of the run that takes over."""


@dataclass(frozen=True)
class Ended:
    """Reason why a node has nothing more to do in this run. `again`: there is more, for a run that follows at once;
    `recovering`: there is more, and it is too early to try it again."""

    reason: str
    again: bool = False
    recovering: bool = False


def handed_over(course: UnderWay, node: str) -> Ended | None:
    """Returns Ended if the same node of the run that takes over goes on: it is ready, or should have been."""
    after = course.after
    if after is not None and (after.takes_over(node) or course.now - after.since > TAKES_OVER):
        return Ended(f"run {after.run} takes over")
    return None


def past(course: UnderWay, limit: float) -> bool:
    """Returns whether the run has lasted as long as it may, longer while another is about to take over; or its
    scheduler stops."""
    young = course.after is not None and course.now - course.after.since < TAKES_OVER
    return course.over or (course.now - course.counted > limit and not young)


def any_at_work(course: UnderWay, nodes: Sequence[str]) -> bool:
    """Returns whether one of these nodes is at work, in this run or in one beside it, or may still begin."""
    # A slot that the run before had is free once its node has ended.
    free = max(course.since, course.before.ended if course.before else 0.0)
    young = course.now - free < BEGINS_WITHIN
    others = [run for run in (course.before, course.after) if run is not None]
    return any(
        course.at_work(node) or (young and not course.began_at(node)) or any(run.at_work(node) for run in others)
        for node in nodes
    )


def before_destinations(pipeline: Pipeline) -> list[str]:
    """Returns the nodes whose work a destination waits for."""
    return [*(s.node for s in pipeline.sources), *([PROCESSORS] if pipeline.processors else [])]


def destination_nodes(pipeline: Pipeline) -> list[str]:
    """Returns the nodes of the destinations."""
    return [d.node for d in pipeline.destinations]
