"""Failures as issues: those that have the same cause, as far as node, class and the shape of the message say.

An issue of dead letters is no state of its own: it is found in the dead letters that are open. What people decided
about it is kept in the broker, by the issue's id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson

from conduit_tasks.dead_letters.advice import advice

if TYPE_CHECKING:
    from conduit_tasks.broker.issues import Decision

State = Literal["open", "acknowledged", "muted", "resolved"]
KEYS = 10
"""Most keys that an issue names."""
LONGEST = 300
"""Letters of a message that have a say in its shape."""

_VARIES = (
    (re.compile(r"https?://[^\s'\"]+"), "<url>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "<text>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "<id>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)


def shape(message: str) -> str:
    """Returns a message without what varies from record to record: numbers, ids, addresses, what stands in quotes."""
    text = message[:LONGEST]
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return " ".join(text.split())


def issue_of(row: Mapping[str, Any]) -> str:
    """Returns the id of the issue to which a dead letter, a row of the store, belongs."""
    return issue_id(str(row["node"]), str(row["error_class"]), shape(str(row["error"])))


def issue_id(*said: str) -> str:
    """Returns the id of an issue by what its failures have in common."""
    return hashlib.sha256("\0".join(said).encode(errors="replace")).hexdigest()[:12]


@dataclass(frozen=True)
class Issue:
    """Failures of one cause: dead letters, or attempts at a task. `first`, `last`: times (ISO 8601) of the first and
    the last of them; `sample`: the row of the last letter, or the last error; `keys`: some of the records' keys,
    `affected`: how many there are. `opening`: when it was last opened again, in seconds since the epoch; 0: it was
    never closed. Of tasks alone: `succeeded`, when the node has succeeded since; `log`, where the last one's log is."""

    id: str
    node: str
    destination: str
    error_class: str
    shape: str
    count: int
    first: str
    last: str
    sample: Mapping[str, Any]
    keys: Sequence[str]
    affected: int
    state: State = "open"
    decision: Decision | None = None
    days: Mapping[str, int] = field(default_factory=dict)
    """Day → how many."""
    kind: Literal["dead letters", "task"] = "dead letters"
    opening: float = 0.0
    succeeded: str | None = None
    log: Mapping[str, Any] | None = None

    @property
    def advice(self) -> str:
        """What to do about it."""
        return advice(self.node, self.error_class, of_task=self.kind == "task")


def issues(rows: Iterable[Mapping[str, Any]], decisions: Mapping[str, Decision], now: float) -> list[Issue]:
    """Groups open dead letters, rows of the store with their key as text: those that need somebody first, then
    the newest."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(issue_of(row), []).append(row)
    return ordered(_issue(id, of, decisions.get(id), now) for id, of in groups.items())


def ordered(found: Iterable[Issue]) -> list[Issue]:
    """Returns issues in order: those that need somebody first, then the newest."""
    return sorted(found, key=lambda i: (i.state != "open", _reversed(i.last), i.id))


def _reversed(text: str) -> list[int]:
    return [-ord(letter) for letter in text]


def _issue(id: str, rows: list[Mapping[str, Any]], decision: Decision | None, now: float) -> Issue:
    rows.sort(key=lambda row: row["at"])
    first, last = rows[0], rows[-1]
    keys = dict.fromkeys(str(row["key"]) for row in rows if row["key"] is not None)
    days: dict[str, int] = {}
    for row in rows:
        day = row["at"].date().isoformat()
        days[day] = days.get(day, 0) + 1
    return Issue(
        id=id,
        node=last["node"],
        destination=last["destination"],
        error_class=last["error_class"],
        shape=shape(last["error"]),
        count=len(rows),
        first=first["at"].isoformat(),
        last=last["at"].isoformat(),
        sample=last,
        keys=list(keys)[:KEYS],
        affected=len(keys),
        state=state(decision, last["at"].timestamp(), now),
        decision=decision,
        days=days,
        opening=over(decision, last["at"].timestamp(), now) or 0.0,
    )


def state(decision: Decision | None, last: float, now: float) -> State:
    """Returns the state of an issue that was seen last at `last`: one that was resolved is open again if it was seen
    since, one that was muted if its time is over."""
    return "open" if decision is None or over(decision, last, now) is not None else decision.state


def over(decision: Decision | None, last: float, now: float) -> float | None:
    """Returns since when a decision holds no more; None: it holds, or there is none."""
    if decision is None:
        return None
    if decision.state == "resolved" and last > decision.at:
        return decision.at
    if decision.state == "muted" and decision.until is not None and now >= decision.until:
        return decision.until
    return None


SAMPLE = ("destination", "epoch", "micro_batch", "seq", "ord", "id", "error", "attempts", "at", "key")


def as_json(issue: Issue) -> dict[str, Any]:
    """Returns an issue as JSON types, without the sample's record."""
    sample = {name: issue.sample.get(name) for name in SAMPLE} | {"at": issue.sample["at"].isoformat()}
    decision = issue.decision and dict(vars(issue.decision))
    found = {**vars(issue), "sample": sample, "decision": decision, "advice": issue.advice}
    del found["opening"]
    return found


def key_text(key: Any) -> str | None:
    """Returns a record's key as text: a structured one as JSON."""
    return key if key is None or isinstance(key, str) else orjson.dumps(key).decode()
