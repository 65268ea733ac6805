"""Rules of alerts: whether a destination's oldest unconfirmed record is older than its `deadline`, or an alert's rule
of lag, dead letters or silence is broken, and what is said of that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conduit_tasks.record.units import format_duration
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.series import Bucket
    from conduit_tasks.micro_batch.context import Context


@dataclass(frozen=True)
class Finding:
    """A rule's present finding. `subject` names rule and destination; `about`: what templates see."""

    subject: str
    late: bool
    about: Mapping[str, Any]


def findings(context: Context, alert: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields what the deadlines of the destinations and the rules of one alert say now."""
    for destination in context.pipeline.destinations:
        if destination.deadline is not None:
            yield _lag(context, destination.id, destination.deadline, destination.id, "its deadline")
        if alert.get("lag") is not None:
            yield _lag(context, destination.id, alert["lag"], f"{destination.id}|lag", "the alert's lag")
    if alert.get("dead_letters") is not None:
        yield _dead(context, *alert["dead_letters"])
    if alert.get("no_data") is not None:
        yield _silent(context, alert["no_data"])


def _lag(context: Context, id: str, most: float, subject: str, what: str) -> Finding:
    age = context.broker.deliveries.waiting_for(id)
    late = age > most
    said = f"is {age:,.0f} s behind, more than {what} of {most:,.0f} s" if late else "has caught up"
    message = f"{id} of pipeline {context.pipeline.id} {said}"
    return _finding(context, subject, late, message, destination=id, age=round(age, 3), deadline=most)


def _dead(context: Context, most: int, seconds: float) -> Finding:
    nodes = ["", *(Node.destination(d.id) for d in context.pipeline.destinations)]
    found = sum(bucket.get("nacked", 0) for bucket in _buckets(context, seconds, nodes))
    late = found >= most
    said = f"has {found:,} dead letters in {format_duration(seconds)}, {most:,} or more"
    message = f"pipeline {context.pipeline.id} " + (said if late else "has few new dead letters again")
    return _finding(context, "_dead-letters", late, message, count=found)


def _silent(context: Context, seconds: float) -> Finding:
    # A pipeline that is younger than that is not silent yet.
    (created,) = context.broker.access.numbers("created")
    young = context.broker.access.now() - created / 1e6 < seconds
    found = sum(bucket.get("read", 0) for bucket in _buckets(context, seconds, [""]))
    late = not found and not young
    said = f"has read nothing for {format_duration(seconds)}" if late else "reads again"
    return _finding(context, "_no-data", late, f"pipeline {context.pipeline.id} {said}", count=found)


def _buckets(context: Context, seconds: float, nodes: list[str]) -> Iterator[Bucket]:
    """Yields the buckets of these nodes in the last seconds, by whole buckets."""
    from conduit_tasks.broker.series import COARSE, FINE

    width = FINE if seconds <= FINE.span else COARSE
    since = math.floor((context.broker.access.now() - seconds) / width.seconds) * width.seconds
    before = [node for node in nodes if not node.startswith("destinations.")]
    ids = [Node(node).id for node in nodes if node.startswith("destinations.")]
    for of in context.broker.series.read(width, before, ids).values():
        yield from (bucket for at, bucket in of.items() if at >= since)


def _finding(context: Context, subject: str, late: bool, message: str, **more: Any) -> Finding:
    about = {"pipeline": context.pipeline.id, "destination": "", "age": 0.0, "deadline": 0.0, "count": 0, **more}
    return Finding(subject, late, {**about, "state": "late" if late else "recovered", "message": message})
