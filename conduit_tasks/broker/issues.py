"""Issues (`operate.issues`) as far as they are kept here: tasks that failed, what people decided, and who was told."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access, seconds
from conduit_tasks.broker.alerts import TELLING
from conduit_tasks.errors import ConfigError
from conduit_tasks.redis_client.portions import portions

DecisionState = Literal["acknowledged", "muted", "resolved"]
MARK = "mark"
"""Field of `announced` that belongs to no issue."""


@dataclass(frozen=True)
class Decision:
    """A decision. `at`: time by the server's clock; `until`: end of a mute, None: until it is decided otherwise."""

    state: DecisionState
    by: str
    at: float
    until: float | None = None


@dataclass(frozen=True)
class FailedTasks:
    """Failed attempts at a task, of one cause. Times in seconds since the epoch, by the server's clock. `node`: that at
    fault; `by`: that of the task. `since`: the first one after the task had last succeeded; `succeeded`: when it has
    succeeded since, 0: never; `days`: days since the epoch → how many; `log`: where the log of the last one is: dag,
    run, task, map_index, try."""

    node: str
    by: str
    error_class: str
    shape: str
    error: str
    log: Mapping[str, Any]
    first: float
    last: float
    since: float
    count: int
    days: Mapping[int, int]
    succeeded: float


class Issues:
    """Issues of one pipeline."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def decisions(self) -> dict[str, Decision]:
        """Returns issue → decision."""
        return {id: decision_of(text) for id, text in self._access.scanned(self._keys.issues).items()}

    def decide(self, issue: str, state: DecisionState | Literal["open"], by: str, until: float | None = None) -> None:
        """Stores a decision; "open" takes the last one back. Raises ConfigError if there are too many."""
        said = {"state": state, "by": by, "until": until}
        (answer, *_) = self._access.run(scripts.DECIDE, {"issues": self._keys.issues}, id=issue, said=said)
        if answer == "full":
            raise ConfigError(
                f"pipeline {self._access.pipeline} keeps decisions about 10,000 issues already: open some again"
            )

    def failed(self, issue: str, attempt: str, said: Mapping[str, Any]) -> int:
        """Counts a failed attempt (`attempt` names it: repeated, it counts once); returns how many there are. `said`:
        node, by, error_class, shape, error, log."""
        keys = {"failing": self._keys.failing}
        return int(self._access.run(scripts.FAILED, keys, issue=issue, attempt=attempt, said=dict(said))[0])

    def succeeded(self, node: str) -> None:
        """Notes that the task of a node went well."""
        self._access.run(scripts.SUCCEEDED, {"failing": self._keys.failing}, node=node)

    def failing(self) -> dict[str, FailedTasks]:
        """Returns issue → the failed tasks of one cause."""
        return failing_of(self._access.scanned(self._keys.failing))

    def announced(self) -> dict[str, int]:
        """Returns `<issue>|<who>` → the opening that was told last, in microseconds since the epoch."""
        found = self._access.scanned(self._keys.announced)
        return {name: int(at) for name, at in found.items() if name != MARK and not name.startswith("claim:")}

    def mark(self) -> str:
        """Returns the mark of the last look at all issues; "" if there is none."""
        return self._access.field(self._keys.announced, MARK) or ""

    def announce(self, subject: str, opening: float) -> str:
        """Claims the telling of an issue to somebody (`subject`: `<issue>|<who>`). `opening`: when it was opened last,
        in seconds since the epoch; 0: it was never closed. Returns a nonce for `settle` if the caller is to tell it
        now, else ""."""
        nonce, ttl = secrets.token_hex(8), int(TELLING * 1e6)
        keys, opened = {"announced": self._keys.announced}, round(opening * 1e6)
        (yours,) = self._access.run(scripts.ANNOUNCE, keys, subject=subject, opening=opened, nonce=nonce, ttl=ttl)
        return nonce if yours else ""

    def settle(self, subject: str, opening: float, nonce: str, *, told: bool) -> None:
        """Notes that a claimed opening was told (it is not told again), or could not be (the next look tells it)."""
        keys, opened = {"announced": self._keys.announced}, round(opening * 1e6)
        self._access.run(scripts.ANNOUNCED, keys, subject=subject, opening=opened, nonce=nonce, told=int(told))

    def looked(self, mark: str, gone: Sequence[str]) -> None:
        """Notes a look at all issues: its mark, and the subjects whose issues are gone."""
        for some in [*portions(gone)] or [()]:
            self._access.run(scripts.LOOKED, {"announced": self._keys.announced}, mark=mark, gone=list(some))


def decision_of(text: str) -> Decision:
    """Returns a decision as it is stored."""
    found = orjson.loads(text)
    until = found.get("until")
    return Decision(cast(DecisionState, found["state"]), found["by"], int(found["at"]) / 1e6, until and float(until))


def failing_of(found: Mapping[str, str]) -> dict[str, FailedTasks]:
    """Returns issue → the failed tasks of one cause, by the hash that has them."""
    well = {name.removeprefix("ok:"): seconds(at) or 0.0 for name, at in found.items() if name.startswith("ok:")}
    out = {}
    for issue, text in found.items():
        if issue.startswith("ok:"):
            continue
        of = orjson.loads(text.split("|", 2)[2])
        out[issue] = FailedTasks(
            **of["said"],
            first=int(of["first"]) / 1e6,
            last=int(of["last"]) / 1e6,
            since=int(of["since"]) / 1e6,
            count=of["count"],
            days={int(day): n for day, n in of["days"].items()},
            succeeded=well.get(of["said"]["by"], 0.0),
        )
    return out
