"""Issues of many pipelines together, the newest ones or those with the most failures: which are kept, which are
withheld, and what is left for a later look.

Redis says in a few round trips which pipelines have any. Only their dead letters are looked at, and of those only what
was not looked at before (`dead_letters.columns`). The first look of a process at a pipeline takes some milliseconds, of
letters that an earlier version wrote seconds: a look may be given a time, after which it says how many pipelines are
left, or of how many files are. The next one goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from conduit_tasks.dead_letters.columns import is_known, look
from conduit_tasks.dead_letters.issues import Issue, State, as_json, decided
from conduit_tasks.errors import ConduitError
from conduit_tasks.operate.issues import task_issue
from conduit_tasks.redis_client.portions import portions
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.broker.failures_of_all import Failures
    from conduit_tasks.broker.issues import Decision
    from conduit_tasks.redis_client.connection import Client
    from conduit_tasks.topology import Pipeline

Order = Literal["newest", "most"]
Kind = Literal["dead letters", "task"]
MOST = 2_000
"""Issues that are kept of all; the others are counted."""
PORTION = 200
"""Pipelines whose failed tasks are held at a time."""
LEAST = 10
"""Pipelines that are looked at for the first time even if the time is over: there is an end."""
UNREAD = 20
"""Pipelines that are named at most as such whose dead letters cannot be read."""


@dataclass(frozen=True)
class Of:
    """An issue, and the pipeline that has it."""

    pipeline: str
    issue: Issue

    def as_json(self) -> dict[str, Any]:
        """Returns it as JSON types, without the sample's record."""
        return {"pipeline": self.pipeline, **as_json(self.issue)}


@dataclass(frozen=True)
class Wanted:
    """Conditions of a search; None: any. `text`: part of the pipeline's id, or of the class of error."""

    state: State | None = "open"
    kind: Kind | None = None
    text: str = ""
    order: Order = "newest"

    def takes(self, of: Of) -> bool:
        issue, part = of.issue, self.text.lower()
        said = self.state in (None, issue.state) and self.kind in (None, issue.kind)
        return said and (part in of.pipeline.lower() or part in issue.error_class.lower())

    def rank(self, of: Of) -> tuple[Any, ...]:
        """Returns what to sort by: those that need somebody first."""
        last = -of.issue.sample["at"].timestamp()
        by = (-of.issue.count, last) if self.order == "most" else (last,)
        return (of.issue.state != "open", *by, of.pipeline, of.issue.id)


@dataclass
class Everywhere:
    """Issues of many pipelines. `issues`: the first ones, at most `MOST`; `total`: how many there are; `open`: how many
    of any kind and name are open; `pipelines`: how many pipelines have open ones; `withheld`: pipelines with failures
    that are not for whoever asks; `unread`: pipeline → why its dead letters could not be read; `pending`: pipelines
    whose dead letters are left for a later look, all of them or some: `files` of them."""

    issues: list[Of] = field(default_factory=list)
    total: int = 0
    open: int = 0
    pipelines: int = 0
    withheld: int = 0
    unread: dict[str, str] = field(default_factory=dict)
    pending: int = 0
    files: int = 0


class _Time:
    """Time for pipelines that are looked at for the first time. `seconds`: None: there is no end."""

    def __init__(self, seconds: float | None) -> None:
        self._until = inf if seconds is None else time.monotonic() + seconds
        self._least = LEAST

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._until - time.monotonic())

    def takes(self) -> bool:
        """Returns whether one more is looked at."""
        if time.monotonic() < self._until:
            return True
        self._least -= 1
        return self._least >= 0


def everywhere(
    redis: Client,
    pipelines: Sequence[Pipeline],
    wanted: Wanted,
    may: Callable[[str], bool] = lambda _: True,
    *,
    within: float | None = None,
    looking: Callable[[str], None] = lambda _: None,
) -> Everywhere:
    """Returns the issues of these pipelines. `may`: whether those of a pipeline are for whoever asks; it is asked only
    about pipelines that have some. `within`: seconds after which only a few more pipelines are looked at whose dead
    letters this process does not hold; the others are `pending`. `looking`: is told of each pipeline before its dead
    letters are looked at. Raises BrokerUnavailable."""
    out, root, left = Everywhere(), settings().path(settings().dead_letters), _Time(within)

    def letters(pipeline: str, has: Failures) -> list[Issue]:
        if not has.letters:
            return []
        if not is_known(root, pipeline) and not left.takes():
            out.pending += 1
            return []
        looking(pipeline)
        return _letters(root, pipeline, out, left.left)

    for some in portions(pipelines, PORTION):
        found: list[Of] = []
        for pipeline, issues in _portion(redis, some, letters, may, out):
            count = sum(issue.state == "open" for issue in issues)
            out.open += count
            out.pipelines += count > 0
            found += (each for each in (Of(pipeline, issue) for issue in issues) if wanted.takes(each))
        out.total += len(found)
        out.issues = nsmallest(MOST, [*out.issues, *found], key=wanted.rank)
    return out


def _portion(
    redis: Client,
    pipelines: Sequence[Pipeline],
    letters_of: Callable[[str, Failures], list[Issue]],
    may: Callable[[str], bool],
    out: Everywhere,
) -> Iterator[tuple[str, list[Issue]]]:
    """Yields the issues of each pipeline that has some; what is not shown is noted in `out`."""
    from conduit_tasks.broker.failures_of_all import decisions, failures

    seen, now = failures(redis, pipelines)
    has = {pipeline.id: each for pipeline, each in zip(pipelines, seen) if each}
    allowed = {id: each for id, each in has.items() if may(id)}
    out.withheld += len(has) - len(allowed)
    letters = {id: letters_of(id, each) for id, each in allowed.items()}
    ids = {id: [*each.failing, *(issue.id for issue in letters[id])] for id, each in allowed.items()}
    said = decisions(redis, ids)
    for id, each in allowed.items():
        yield id, _decided(id, letters[id], each, said, now)


def _letters(root: str, pipeline: str, out: Everywhere, within: float) -> list[Issue]:
    try:
        found = look(root, pipeline, within)
        out.pending += bool(found.left)
        out.files += found.left
        return found.causes
    except ConduitError as error:
        # The others are shown all the same.
        if len(out.unread) < UNREAD:
            out.unread[pipeline] = str(error)
        return []


def _decided(
    pipeline: str,
    letters: Sequence[Issue],
    has: Failures,
    said: Mapping[tuple[str, str], Decision],
    now: float,
) -> list[Issue]:
    of_letters = [decided(issue, said.get((pipeline, issue.id)), now) for issue in letters]
    return of_letters + [task_issue(id, of, said.get((pipeline, id)), now) for id, of in has.failing.items()]
