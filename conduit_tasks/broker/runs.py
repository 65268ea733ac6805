"""The run under way: its nodes at work, its limit of records, its hand-over to the next run, and the bell that wakes
nodes that wait for each other.

The nodes of a run work side by side. They hand over work through the micro-batches; the state here only says whether it
is worth waiting for more. Its loss costs time and nothing else: a run without a node to wait for ends, and the next run
goes on from the cursors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access, as_hash
from conduit_tasks.redis_client.connection import reaching

NODE, FOR, READY, LEFT_OUT = "node:", "for:", "ready:", "left_out:"
NO_LIMIT = -1
MOST_BLOCKED = 2.0
"""Seconds that one command waits for the bell: well below the client's timeout for an answer."""


class Heard(IntEnum):
    """Answer to a node's report: the part of the run that heard it."""

    NOBODY = 0
    ALL = 1
    WITHOUT_ACKS = 2
    """All but the acks, which had ended before."""


@dataclass(frozen=True)
class UnderWay:
    """Snapshot of one run; times in seconds. `nodes`: node → time until which it is at work; 0: it has ended; below 0:
    it has ended, and its remaining work waits for something that another run does not bring about."""

    run: str
    began: float
    """Identifies the run: later than that of every run before."""
    since: float
    """Time at which it began, by the clock as it goes now."""
    counted: float
    """Time from which its limit counts: that at which it began, or at which it was last found that nothing has come."""
    now: float
    records: int | None
    """Limit of new records that it may read; None: no limit."""
    base: int
    """Records that the sources had read before it."""
    moved: int
    """Progress of the pipeline before it: sum of the last sealed number and the cursors."""
    nodes: Mapping[str, float]
    again: str = ""
    """Reason for which a run is to follow at once; empty if there is no need."""
    lasts: bool = False
    """Whether it waits for more when nothing is left, until its limit, instead of ending."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Source → reason for which the run's last request to it failed; empty: it did not fail."""
    ready: frozenset[str] = frozenset()
    """Nodes that can do their work at once."""
    ended: float = 0.0
    """Time at which one of its nodes ended last."""
    over: bool = False
    """Whether its nodes are to end with what they are at: the scheduler that runs them stops."""
    before: UnderWay | None = None
    """The run that this one takes over from; its nodes go on until those of this one are ready."""
    after: UnderWay | None = None
    """The run that takes over from this one."""

    def began_at(self, node: str) -> bool:
        """Returns whether the node's task has begun, even if it has ended since."""
        return node in self.nodes

    def at_work(self, node: str) -> bool:
        """Returns whether the node's task is running."""
        return self.nodes.get(node, 0.0) > self.now

    def takes_over(self, node: str) -> bool:
        """Returns whether the node is ready to do its work and its task is running."""
        return node in self.ready and self.at_work(node)

    def waits(self, node: str) -> bool:
        """Returns whether the node's task has ended and its remaining work waits: the node is down, stopped, failing,
        or was not chosen. Another run at once would find the same."""
        return self.nodes.get(node, 0.0) < 0

    def silent(self, node: str) -> bool:
        """Returns whether the node's task has begun and has stopped reporting without saying that it ended: it was
        killed or hangs."""
        return 0 < self.nodes.get(node, 0.0) <= self.now


class Runs:
    """State that the nodes of a run share."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def begin(self, run: str, records: int | None, base: int, moved: int = 0, *, lasts: bool = False) -> None:
        """Begins a run that has work, or that waits for some (`lasts`).

        `records`: limit of new records to read, None: no limit; `base`: records read before it; `moved`: sum of the
        last sealed number and the cursors. If this run and the one before both last, the one before goes on until this
        one takes over.
        """
        records = NO_LIMIT if records is None else records
        self._access.run(
            scripts.BEGIN_RUN, self._of_runs(), run=run, records=records, base=base, moved=moved, lasts=int(lasts)
        )

    def _of_runs(self) -> dict[str, str]:
        return {"under_way": self._keys.under_way, "before": self._keys.before, "bell": self._keys.bell}

    def tell_at_work(self, run: str, node: str, seconds: float, again: str = "", *, begins: bool = False) -> Heard:
        """Reports that a node's task is at work for the next `seconds`; 0: it has ended; below 0: it has ended, and its
        remaining work waits.

        `again`: reason for which a run is to follow at once; `begins`: the task is not ready yet. Returns NOBODY if
        another run has begun since that does not take over from this one.
        """
        for_us = int(seconds * 1e6) if seconds >= 0 else -1
        (known,) = self._access.run(
            scripts.AT_WORK, self._of_runs(), run=run, node=node, for_us=for_us, again=again, begins=int(begins)
        )
        return Heard(known)

    def tell_ready(self, run: str, node: str) -> None:
        """Reports that a node is ready to do its work: the same node of the run before may end."""
        keys = {"under_way": self._keys.under_way, "bell": self._keys.bell}
        self._access.run(scripts.READY, keys, run=run, node=node)

    def tell_left_out(self, run: str, source: str, why: str) -> None:
        """Reports that this source could not be asked or, if `why` is empty, that it could be asked again."""
        keys = {"under_way": self._keys.under_way, "before": self._keys.before}
        self._access.run(scripts.LEFT_OUT, keys, run=run, source=source, why=why)

    def wind_up(self) -> str:
        """Has the run under way end with the micro-batches that its nodes are at; returns its id, empty if there is
        none."""
        answer = self._access.run(scripts.WIND_UP, self._of_runs())
        return str(answer[0]) if answer else ""

    def go_on(self, run: str) -> bool:
        """Has the limit of this run count from now on. Returns False if it is not under way any more, or is to end."""
        (done,) = self._access.run(scripts.GO_ON, {"under_way": self._keys.under_way}, run=run)
        return bool(done)

    def under_way(self, run: str) -> UnderWay | None:
        """Returns the state of this run if it is under way, or if the run under way takes over from it; else None."""
        now, before = self.latest()
        if now is not None and now.run == run:
            return replace(now, before=before)
        if before is not None and before.run == run:
            return replace(before, after=now)
        return None

    def latest(self) -> tuple[UnderWay | None, UnderWay | None]:
        """Returns the state of the run that began last, and of the run that it takes over from."""
        both, now = self._of_both()
        places = (self._keys.under_way, self._keys.before)
        if ahead := [(place, *time) for place, of in zip(places, both) for time in _ahead(of, now)]:
            # The server's clock went back: a killed node would count as at work until it has caught up.
            self._access.not_ahead(*ahead)
            both, now = self._of_both()
        of, before = (course_of(of, now / 1e6) for of in both)
        return of, before

    def _of_both(self) -> tuple[list[dict[str, str]], int]:
        """Returns the stored fields of both runs, and the server's time in microseconds."""
        of, before, (secs, micros) = self._access.read(
            ("HGETALL", self._keys.under_way), ("HGETALL", self._keys.before), ("TIME",)
        )
        return [as_hash(of), as_hash(before)], int(secs) * 1_000_000 + int(micros)

    def has_forgotten(self, course: UnderWay) -> bool:
        """Returns whether Redis has forgotten a run that it knew, and knows none that began later."""
        run, began = self._access.read(("HMGET", self._keys.under_way, "run", "began"))[0]
        return run != course.run and int(began or 0) / 1e6 < course.began

    def ring(self, what: str) -> None:
        """Wakes the nodes that wait."""
        self._access.run(scripts.RING, {"bell": self._keys.bell}, what=what)

    def bell(self) -> str:
        """Returns the id of the last ring. Call it before a check that may be followed by `await_bell`."""
        with reaching(self._access.redis):
            found: Any = self._access.redis.xrevrange(self._keys.bell, count=1)
        return str(found[0][0]) if found else "0-0"

    def await_bell(self, since: str, seconds: float) -> None:
        """Waits until the bell has rung after `since`, for at most `seconds`."""
        give_up = time.monotonic() + seconds
        while (left := give_up - time.monotonic()) > 0:
            with reaching(self._access.redis):
                block = max(1, int(min(left, MOST_BLOCKED) * 1000))
                if self._access.redis.xread({self._keys.bell: since}, count=1, block=block):
                    return


def _ahead(found: Mapping[str, str], now: int) -> list[tuple[str, str]]:
    """Returns, for `not_ahead`, the fields of times that lie further ahead than they can, and the fields of their
    limits."""
    nodes = [(name, FOR + name.removeprefix(NODE)) for name in found if name.startswith(NODE)]
    times = [(name, most) for name, most in nodes if most in found]
    times += [(name, "") for name in ("since", "counted", "ended") if name in found]
    return [(name, most) for name, most in times if int(found[name]) > now + int(found.get(most, 0))]


def course_of(found: Mapping[str, str], now: float) -> UnderWay | None:
    """Reads the stored fields of a run; None if there is none. `now`: by the server's clock."""
    if "run" not in found:
        return None
    since = int(found.get("since", found["began"])) / 1e6
    return UnderWay(
        run=found["run"],
        began=int(found["began"]) / 1e6,
        since=since,
        counted=int(found["counted"]) / 1e6 if "counted" in found else since,
        now=now,
        records=None if int(found["records"]) == NO_LIMIT else int(found["records"]),
        base=int(found["base"]),
        moved=int(found["moved"]),
        nodes={k.removeprefix(NODE): int(v) / 1e6 for k, v in found.items() if k.startswith(NODE)},
        again=found.get("again", ""),
        lasts=found.get("lasts") == "1",
        left_out={k.removeprefix(LEFT_OUT): v for k, v in found.items() if k.startswith(LEFT_OUT)},
        ready=frozenset(k.removeprefix(READY) for k in found if k.startswith(READY)),
        ended=int(found.get("ended", 0)) / 1e6,
        over=found.get("over") == "1",
    )
