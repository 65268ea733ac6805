"""Times at which a run asks its sources again: soon after something new, ever later after nothing, in full every ten
seconds."""

from __future__ import annotations

import time

from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.wake import Watch

PLANS_AGAIN = 1.0
"""Seconds between two looks at sources that had nothing new, at most."""
WHOLE = 10.0
"""Seconds between two full queries of the sources in a run that lasts; in between it looks at them as `wake` does."""
BUSY = 0.1
"""Seconds until the next look at sources that had something new, in a run that lasts; then ever longer."""


class Pace:
    """Times of the looks at the sources: the last ones, and the next."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._planned, self._pause, self._asked = -PLANS_AGAIN, BUSY, -WHOLE
        self._watch: Watch | None = None

    def close(self) -> None:
        """Closes the watch of the sources."""
        if self._watch is not None:
            self._watch.close()

    def looked(self) -> None:
        """Notes a look that does not say whether something is new."""
        self._planned = time.monotonic()

    def found(self) -> None:
        """Makes the next look soon, as something was new."""
        self._planned, self._pause = time.monotonic(), BUSY

    def rest(self) -> None:
        """Makes the next look a little later than this one was, as nothing was new."""
        self._planned, self._pause = time.monotonic(), min(1.5 * self._pause, PLANS_AGAIN)

    def until_planned(self) -> float:
        """Returns the seconds until sources may be asked again in a run that ends; below zero if they may be now."""
        return self._planned + PLANS_AGAIN - time.monotonic()

    def early(self) -> float:
        """Returns the seconds until the next look in a run that lasts; below zero if it is due."""
        return self._planned + self._pause - time.monotonic()

    def due(self) -> bool:
        """Returns whether the sources are to be asked in full, under a lease: something is new or left, or they were
        not asked for a while."""
        now = time.monotonic()
        if now - self._asked < WHOLE:
            self._watch = self._watch or Watch.within(self._context)
            look = self._watch.look() if self._watch is not None else None
            if look is not None and not look.news and not look.left:
                self.rest()
                return False
        self._asked = now
        return True
