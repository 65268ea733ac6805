"""Decides whether a target is down, or a record fails for a reason of its own (SEMANTICS T7).

A target is **down** if nothing succeeded through a whole retry cycle of the records tried. So a record whose retries
are used up is first *suspected*, and waits. If a send that begins after that succeeds, the target is up, and the
failure is the record's own, with one exception: if another record failed beside it, and nothing succeeded meanwhile, an
outage may just have ended, and the record is tried through one more cycle, the last one. If every record on its way is
suspected and no other can be tried, earlier answers decide: if each of them saw another record succeed (during its last
attempt, or since its first one if the answer was about the record: 500, not 503), they failed by themselves; otherwise
the target is down. So the records that happen to be on their way when an outage begins or ends are not taken for its
cause. An answer that refuses a record counts as a success here: the target answered.

A record that always fails looks the same as an outage if no other can be tried beside it (one lane, the only record
left, or as many such records at the heads of their lanes as are tried at a time): the delivery waits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from conduit_tasks.connectors.base import Outcome

NOT_ABOUT_THE_RECORD = frozenset({None, 408, 425, 429, 502, 503, 504})
"""Statuses with which a target says that it cannot take anything now (None: it said nothing)."""


@dataclass(frozen=True, eq=False)
class _Suspect:
    who: object
    since: float
    """Time after which a success shows that the target is up."""
    failed: float
    """Time at which its last attempt failed."""
    success: float
    """Time of the target's last success before it joined; before `since`: nothing succeeded while it was tried."""
    freed: asyncio.Future[bool]


class Suspects:
    """Records that used up their retries, and how the target answered meanwhile. Times are of one clock."""

    def __init__(self) -> None:
        self._waiting: list[_Suspect] = []
        self._last_success = float("-inf")
        self._failures: list[tuple[object, float]] = []
        """The last failures of two different records, the newer one last."""

    def __len__(self) -> int:
        return len(self._waiting)

    def failed(self, who: object, now: float) -> None:
        """Notes that a send of the record `who` failed at `now`."""
        self._failures = [*[each for each in self._failures if each[0] is not who][-1:], (who, now)]

    def succeeded(self, began: float, now: float) -> None:
        """Notes that a send that began at `began` was answered at `now`; frees the records that had failed before it
        began."""
        self._last_success = now
        for suspect in [s for s in self._waiting if s.failed <= began]:
            self._free(suspect, again=suspect.success < suspect.since and self._beside(suspect))

    def wait(
        self, who: object, outcome: Outcome, first: float, last: float, now: float, *, again: bool = False
    ) -> asyncio.Future[bool]:
        """Adds a record. Returns a future that is done when the target turns out to be up, and never, if it is down:
        False if the failure is the record's own, True if the record may have failed by an outage that is over.

        `first`, `last`: times at which the first and last attempt of its cycle began; `outcome`: of the last; `again`:
        the cycle is its second one. The success that gave it that one then counts: it is judged as it would have been
        before.
        """
        since = last if outcome.status in NOT_ABOUT_THE_RECORD else first
        if again:
            since = min(since, self._last_success)
        suspect = _Suspect(who, since, now, self._last_success, asyncio.get_running_loop().create_future())
        self._waiting.append(suspect)
        return suspect.freed

    def judge(self) -> bool:
        """Returns whether the target is down, given that no other record can be tried. If it is up, frees all waiting
        records."""
        if any(self._last_success < s.since for s in self._waiting):
            return True
        for suspect in list(self._waiting):
            self._free(suspect, again=False)
        return False

    def _beside(self, suspect: _Suspect) -> bool:
        """Returns whether another record has failed since the last success before."""
        return any(who is not suspect.who and at > suspect.success for who, at in self._failures)

    def _free(self, suspect: _Suspect, *, again: bool) -> None:
        self._waiting.remove(suspect)
        if not suspect.freed.done():
            suspect.freed.set_result(again)
