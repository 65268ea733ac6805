"""Decides whether a target is down, or a record fails for a reason of its own (SEMANTICS T7).

A target is **down** if nothing succeeded through a whole retry cycle of the records tried. So a record whose retries
are used up is first *suspected*, and waits. If a send that begins after that succeeds, the failure is the record's own:
the target is up. If every record on its way is suspected and no other can be tried, earlier answers decide: if each of
them saw another record succeed (during its last attempt, or since its first one if the answer was about the record:
500, not 503), they failed by themselves; otherwise the target is down. So the records that happen to be on their way
when an outage begins are not taken for its cause. An answer that refuses a record counts as a success here: the target
answered.

A record that always fails, if no other can be tried beside it (one lane, or the only record left), looks the same as an
outage: the delivery waits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from conduit_tasks.connectors.base import Outcome

NOT_ABOUT_THE_RECORD = frozenset({None, 408, 425, 429, 502, 503, 504})
"""Statuses with which a target says that it cannot take anything now (None: it said nothing)."""


@dataclass(frozen=True, eq=False)
class _Suspect:
    since: float
    """Time after which a success shows that the target is up."""
    failed: float
    """Time at which its last attempt failed."""
    freed: asyncio.Future[None]


class Suspects:
    """Records that used up their retries, and the target's last success meanwhile. Times are of one clock."""

    def __init__(self) -> None:
        self._waiting: list[_Suspect] = []
        self._last_success = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def succeeded(self, began: float, now: float) -> None:
        """Notes that a send that began at `began` was answered at `now`; frees the records that had failed before it
        began."""
        self._last_success = now
        if self._waiting:
            self._free([s for s in self._waiting if s.failed <= began])

    def wait(self, outcome: Outcome, first: float, last: float, now: float) -> asyncio.Future[None]:
        """Adds a record. Returns a future that is done when the failure turns out to be the record's own; never, if the
        target is down.

        `first`, `last`: times at which the record's first and last attempt began; `outcome`: of the last.
        """
        since = last if outcome.status in NOT_ABOUT_THE_RECORD else first
        suspect = _Suspect(since, now, asyncio.get_running_loop().create_future())
        self._waiting.append(suspect)
        return suspect.freed

    def judge(self) -> bool:
        """Returns whether the target is down, given that no other record can be tried. If it is up, frees all waiting
        records."""
        if any(self._last_success < s.since for s in self._waiting):
            return True
        self._free(list(self._waiting))
        return False

    def _free(self, suspects: list[_Suspect]) -> None:
        for suspect in suspects:
            self._waiting.remove(suspect)
            if not suspect.freed.done():
                suspect.freed.set_result(None)
