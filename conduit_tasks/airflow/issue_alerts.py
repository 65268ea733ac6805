"""Alerts about issues: each that is new, or open again, is told once to every alert that asks for issues.

Which opening was told is kept in the broker, whose script gives the telling to one of those that look at the same time.
Issues that are acknowledged or muted are not told.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.logs import masked

if TYPE_CHECKING:
    from conduit_tasks.dead_letters.issues import Issue
    from conduit_tasks.micro_batch.context import Context


def tell_issues(context: Context, who: Collection[str], tell: Callable[[str, Mapping[str, Any]], bool]) -> None:
    """Tells everybody of the issues that are open and that they do not know of. `who`: names of those that are told;
    `tell`: tells one of them, and returns whether that succeeded."""
    from conduit_tasks.operate.issues import stored, together

    if not who:
        return
    store = context.broker.issues
    # Read before the issues: what is told meanwhile is not forgotten.
    told, mark = store.announced(), _mark(context, who)
    whole = not _holds(store.mark(), mark, context.broker.access.now())
    found = together(stored(context) if whole else None, context.broker)
    known = [_tell(context, issue, name, told, tell) for issue in found if issue.state == "open" for name in who]
    if whole:
        there = {f"{issue.id}|{name}" for issue in found for name in who}
        store.looked(
            f"{mark}|{_until(context)}" if all(known) else "", [subject for subject in told if subject not in there]
        )


def _tell(
    context: Context, issue: Issue, name: str, told: Mapping[str, int], tell: Callable[[str, Mapping[str, Any]], bool]
) -> bool:
    """Tells one of an issue, unless it knows. Returns whether it knows now."""
    store, subject = context.broker.issues, f"{issue.id}|{name}"
    if told.get(subject, -1) >= round(issue.opening * 1e6):
        return True
    if not (nonce := store.announce(subject, issue.opening)):
        return False
    done = tell(name, about(context.pipeline.id, issue, again=subject in told or came_back(issue)))
    store.settle(subject, issue.opening, nonce, told=done)
    return done


def came_back(issue: Issue) -> bool:
    """Returns whether the issue was closed before, by somebody or by a success."""
    from datetime import datetime

    return issue.opening > (datetime.fromisoformat(issue.first).timestamp() if issue.kind == "task" else 0.0)


def about(pipeline: str, issue: Issue, *, again: bool) -> dict[str, Any]:
    """Returns what templates see of an issue."""
    failures = "failed attempt" if issue.kind == "task" else "dead letter"
    said = f"{issue.count:,} {failures}{'' if issue.count == 1 else 's'}"
    return {
        "id": f"{pipeline}/{issue.id}/{issue.opening:.6f}",
        "message": f"pipeline {pipeline} has {'an issue again' if again else 'a new issue'}, {issue.id}: {said} at "
        f"{issue.node}, {issue.error_class}: {issue.shape}",
        "state": "returned" if again else "new",
        "pipeline": pipeline,
        "destination": issue.destination,
        "issue": issue.id,
        "kind": issue.kind,
        "node": issue.node,
        "error_class": issue.error_class,
        "error": masked(str(issue.sample["error"])),
        "count": issue.count,
        "first": issue.first,
        "last": issue.last,
        "log": dict(issue.log) if issue.log else None,
        "advice": issue.advice,
        "age": 0.0,
        "deadline": 0.0,
    }


def _mark(context: Context, who: Collection[str]) -> str:
    """Returns a text that changes with the dead letters, the decisions, and those who are told: reading 100,000 letters
    takes seconds, and this is asked every few."""
    broker, ids = context.broker, [d.id for d in context.pipeline.destinations]
    places = [(broker.keys.dead(""), broker.keys.totals)]
    places += [(broker.keys.dead(id), broker.keys.destination(id)) for id in ids]
    found = broker.access.read(
        *(("HLEN", dead) for dead, _ in places),
        *(("HMGET", of, "nacked", "redriven", "epoch") for _, of in places[1:]),
        *(("HGET", broker.keys.totals, f"{node}/nacked") for node in _before_the_fan_out(context)),
        ("HMGET", broker.keys.destination(""), "redriven", "epoch"),
    )
    decided = sorted((id, vars(decision)) for id, decision in broker.issues.decisions().items())
    return hashlib.sha256(repr((found, decided, sorted(who))).encode()).hexdigest()[:16]


def _before_the_fan_out(context: Context) -> list[str]:
    return [*(source.node for source in context.pipeline.sources), "processors"]


def _until(context: Context) -> str:
    """Returns when the first mute ends that has not ended yet; "": none does."""
    now = context.broker.access.now()
    ends = [d.until for d in context.broker.issues.decisions().values() if d.until is not None and d.until > now]
    return repr(min(ends)) if ends else ""


def _holds(stored: str, mark: str, now: float) -> bool:
    """Returns whether the last look still says what the dead letters' issues are."""
    last, _, until = stored.partition("|")
    return last == mark and now < (float(until) if until else math.inf)
