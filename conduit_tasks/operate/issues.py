"""Issues of a pipeline: failures of one cause, of records (dead letters) and of tasks, whose issues are resolved once
the task has succeeded.

A task's failures are counted in the broker when its attempts end. Once the node has succeeded, their issue is open
again only if the node fails again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from conduit_tasks.dead_letters.issues import Issue, issue_id, issues, ordered, over, shape, state
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.broker.issues import Decision, FailedTasks
    from conduit_tasks.micro_batch.context import Context


def stored(context: Context) -> pa.Table:
    """Returns the open dead letters, as columns (`dead_letters.columns`)."""
    from conduit_tasks.dead_letters.columns import Columns
    from conduit_tasks.dead_letters.indexed import indexed_letters

    root = context.settings.path(context.settings.dead_letters)
    # The store is read first: what is stored and indexed meanwhile is missing from both.
    return indexed_letters(Columns(root, context.pipeline.id).look().letters, context.broker)


def together(letters: pa.Table | None, broker: Broker) -> list[Issue]:
    """Returns the issues of these dead letters and of tasks, those that need somebody first, then the newest."""
    decisions, now = broker.issues.decisions(), broker.access.now()
    tasks = (task_issue(id, of, decisions.get(id), now) for id, of in broker.issues.failing().items())
    return ordered([*([] if letters is None else issues(letters, decisions, now)), *tasks])


def is_one(id: str, letters: pa.Table, broker: Broker) -> bool:
    """Returns whether there is an issue with this id, of these dead letters or of tasks."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.equal(letters["issue"], id)).as_py()) or id in broker.issues.failing()


def task_issue(id: str, of: FailedTasks, decision: Decision | None, now: float) -> Issue:
    """Returns an issue of failed tasks. What somebody decided holds also if the node has succeeded since."""
    said = state(decision, of.last, now)
    well = of.succeeded > of.last
    destination = Node(of.node).id if Node(of.node).kind == "destinations" else ""
    return Issue(
        id=id,
        node=of.node,
        destination=destination,
        error_class=of.error_class,
        shape=of.shape,
        count=of.count,
        first=_moment(of.first).isoformat(),
        last=_moment(of.last).isoformat(),
        sample={"destination": destination, "error": of.error, "at": _moment(of.last)},
        keys=[],
        affected=0,
        state="resolved" if said == "open" and well else said,
        decision=decision,
        days={(date(1970, 1, 1) + timedelta(days=day)).isoformat(): n for day, n in sorted(of.days.items())},
        kind="task",
        opening=max(of.since, over(decision, of.last, now) or 0.0),
        succeeded=_moment(of.succeeded).isoformat() if well else None,
        log=of.log,
    )


def note_failure(  # noqa: PLR0917 - what there is to say
    broker: Broker, node: str, by: str, error_class: str, error: str, attempt: str, log: Mapping[str, Any]
) -> None:
    """Counts a failed attempt at a task in the issue of a node. `by`: the task's own node; `error`: bounded, without
    secrets; `attempt` names it: repeated, it counts once; `log`: where it is told in full."""
    cause = shape(error)
    said = {"node": node, "by": by, "error_class": error_class, "shape": cause, "error": error, "log": dict(log)}
    broker.issues.failed(issue_id("task", node, error_class, cause), attempt, said)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
