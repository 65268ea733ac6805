"""Is it the record or the target? Tells a target that is down from a record that stays failed (SEMANTICS T7).

A target is **down** when nothing succeeded through a whole retry cycle of the records tried. So a record whose
retries are used up is only *suspected* while nothing has succeeded since its first attempt, and waits: the next
success of any other record makes it the record's own fault; when every record on its way is suspected, and no
other can be tried, the target is down. An answer that refuses a record is a success here: somebody answered.
"""

from __future__ import annotations

import asyncio


class Suspects:
    """Records that used up their retries while nothing succeeded."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._last_success = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def succeeded(self, now: float) -> None:
        """Something was answered: those who wait failed by themselves."""
        self._last_success = now
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def own_fault(self, began: float) -> bool:
        """Whether something succeeded since `began`, the time of a record's first attempt."""
        return self._last_success >= began

    def wait(self) -> asyncio.Future[None]:
        """Done when another record succeeded; never, if the target is down."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future
