"""Failures as issues: those that have the same cause, as far as node, class and the shape of the message say, and
whether an issue is open by what was decided.

An issue of dead letters is no state of its own: it is found in the dead letters that are open. What people decided
about it is kept in the broker, by the issue's id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Literal

from conduit_tasks.dead_letters.advice import advice

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.broker.issues import Decision

State = Literal["open", "acknowledged", "muted", "resolved"]
KEYS = 10
"""Most keys that an issue names."""
DAY = 86_400_000_000
"""Microseconds of a day."""
EPOCH = date(1970, 1, 1)
LONGEST = 300
"""Letters of a message that have a say in its shape."""

_VARIES = (
    (re.compile(r"https?://[^\s'\"]+"), "<url>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "<text>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "<id>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)
FORM = repr((LONGEST, [(pattern.pattern, instead) for pattern, instead in _VARIES]))
"""Facts besides the letter on which its issue depends."""


def shape(message: str) -> str:
    """Returns a message without what varies from record to record: numbers, ids, addresses, what stands in quotes."""
    text = message[:LONGEST]
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return " ".join(text.split())


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
        """The next step of whoever looks at it."""
        return advice(self.node, self.error_class, of_task=self.kind == "task")


def issue_ids(nodes: Iterable[str], classes: Iterable[str], errors: Iterable[str]) -> list[str]:
    """Returns the ids of the issues of many dead letters, by their columns; each message is looked at once."""
    shapes: dict[str, str] = {}
    ids: dict[tuple[str, str, str], str] = {}
    out = []
    for node, error_class, error in zip(nodes, classes, errors):
        start = error[:LONGEST]
        if (cause := shapes.get(start)) is None:
            cause = shapes[start] = shape(start)
        said = (node, error_class, cause)
        if (id := ids.get(said)) is None:
            id = ids[said] = issue_id(*said)
        out.append(id)
    return out


def issues(letters: pa.Table, decisions: Mapping[str, Decision], now: float) -> list[Issue]:
    """Groups open dead letters (`dead_letters.columns`): those that need somebody first, then the newest."""
    if not letters.num_rows:
        return []
    return ordered(decided(issue, decisions.get(issue.id), now) for issue in Groups(letters).issues())


def decided(issue: Issue, decision: Decision | None, now: float) -> Issue:
    """Returns an issue of dead letters with what somebody decided about it."""
    if decision is None:
        return issue
    seen = issue.sample["at"].timestamp()
    said, opening = state(decision, seen, now), over(decision, seen, now) or 0.0
    return replace(issue, state=said, decision=decision, opening=opening)


class Groups:
    """Dead letters of one issue each, by columns: rows in order of time, and the number of the issue of each."""

    def __init__(self, letters: pa.Table) -> None:
        import numpy as np

        at = letters["at"].cast("int64").to_numpy()
        order = np.argsort(at, kind="stable")
        self._letters, self._order = letters, order
        said = letters["issue"].combine_chunks().dictionary_encode()
        self._ids, self._of = said.dictionary.to_pylist(), said.indices.to_numpy()[order]
        self._days = at[order] // DAY

    def issues(self) -> Iterator[Issue]:
        """Yields the issues, in no order, as if nobody had decided about them."""
        import numpy as np

        count, rows = len(self._ids), np.arange(len(self._order))
        first, last = np.empty(count, np.int64), np.empty(count, np.int64)
        # Of several values for one place the last one stays.
        first[self._of[::-1]], last[self._of] = rows[::-1], rows
        columns = [name for name in self._letters.column_names if name != "file"]
        samples = self._letters.select(columns).take(self._order[last]).to_pylist()
        firsts = self._letters["at"].take(self._order[first]).to_pylist()
        counts, (keys, affected), days = np.bincount(self._of, minlength=count), self._keys(), self._by_day()
        for n, (id, sample, began) in enumerate(zip(self._ids, samples, firsts)):
            yield Issue(
                id=id,
                node=sample["node"],
                destination=sample["destination"],
                error_class=sample["error_class"],
                shape=shape(sample["error"]),
                count=int(counts[n]),
                first=began.isoformat(),
                last=sample["at"].isoformat(),
                sample=sample,
                keys=keys.get(n, []),
                affected=int(affected[n]),
                days=days[n],
            )

    def _keys(self) -> tuple[dict[int, list[str]], Any]:
        """Returns the first keys of each issue, and how many it has."""
        import numpy as np

        said = self._letters["key"].combine_chunks().dictionary_encode()
        codes = said.indices.fill_null(-1).to_numpy()[self._order]
        there = codes >= 0
        both, at = np.unique(
            self._of[there].astype(np.int64) * (len(said.dictionary) + 1) + codes[there], return_index=True
        )
        issue, key = both // (len(said.dictionary) + 1), both % (len(said.dictionary) + 1)
        found: dict[int, list[str]] = {}
        ordered = np.lexsort((at, issue))
        starts = np.flatnonzero(np.diff(issue[ordered], prepend=-1))
        for start in starts.tolist():
            some = ordered[start : start + KEYS]
            mine = some[issue[some] == issue[some[0]]]
            found[int(issue[some[0]])] = said.dictionary.take(key[mine]).to_pylist()
        return found, np.bincount(issue, minlength=len(self._ids))

    def _by_day(self) -> list[dict[str, int]]:
        """Returns day → how many, for each issue."""
        import numpy as np

        span = int(self._days[-1]) + 1
        both, counts = np.unique(self._of.astype(np.int64) * span + self._days, return_counts=True)
        found: list[dict[str, int]] = [{} for _ in self._ids]
        for each, n in zip(both.tolist(), counts.tolist()):
            found[each // span][(EPOCH + timedelta(days=each % span)).isoformat()] = n
        return found


def ordered(found: Iterable[Issue]) -> list[Issue]:
    """Returns issues in order: those that need somebody first, then the newest."""
    return sorted(found, key=lambda i: (i.state != "open", _reversed(i.last), i.id))


def _reversed(text: str) -> list[int]:
    return [-ord(letter) for letter in text]


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
