"""Is it the record or the target? Tells a target that is down from a record that stays failed (SEMANTICS T7).

A target is **down** when nothing succeeded through a whole retry cycle of the records tried. A record whose retries
are used up is therefore *suspected* first, and waits. A send that begins after that and succeeds makes it the
record's own fault: the target is up. When every record on its way is suspected and no other can be tried, what was
seen before decides: if each of them saw another succeed, during its last attempt, or since its first one where the
answer was about the record (500, not 503), they failed by themselves; otherwise the target is down. So the records
that happen to be on their way when an outage begins are not taken for its cause. An answer that refuses a record
counts as a success here: somebody answered.

A record that always fails, and that nothing else can be tried beside (one lane, or the only one left), looks the same
as an outage, and is waited for.
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
    """A success after this speaks for the target."""
    failed: float
    """When its last attempt failed."""
    freed: asyncio.Future[None]


class Suspects:
    """Records that used up their retries, and what speaks for the target meanwhile. Times are of one clock."""

    def __init__(self) -> None:
        self._waiting: list[_Suspect] = []
        self._last_success = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def succeeded(self, began: float, now: float) -> None:
        """A send that began at `began` was answered now."""
        self._last_success = now
        if self._waiting:
            self._free([s for s in self._waiting if s.failed <= began])

    def wait(self, outcome: Outcome, first: float, last: float, now: float) -> asyncio.Future[None]:
        """Done when the failure turns out to be the record's own; never, if the target is down.

        `first`, `last`: when the record's first and last attempt began; `outcome`: of the last.
        """
        since = last if outcome.status in NOT_ABOUT_THE_RECORD else first
        suspect = _Suspect(since, now, asyncio.get_running_loop().create_future())
        self._waiting.append(suspect)
        return suspect.freed

    def judge(self) -> bool:
        """No other record can be tried: whether the target is down. Otherwise all who wait are freed."""
        if any(self._last_success < s.since for s in self._waiting):
            return True
        self._free(list(self._waiting))
        return False

    def _free(self, suspects: list[_Suspect]) -> None:
        for suspect in suspects:
            self._waiting.remove(suspect)
            if not suspect.freed.done():
                suspect.freed.set_result(None)
