"""Ends the process of a delivery that makes no progress, so that the next attempt goes on (SEMANTICS T5, C8).

Most waits have a timeout of their own. A call that hangs in a library without one, in the middle of a write or while it
closes, cannot be interrupted from within, and must not end later, beside its successor. So the process is ended, after
it has told the broker why: the driver then treats the destination as down, and does not suspect a record that kills its
worker (C10).
"""

from __future__ import annotations

import logging
import os
import threading
from types import TracebackType

from conduit_tasks.delivery.port import DeliveryPort
from conduit_tasks.delivery.retry import LONGEST_BACKOFF
from conduit_tasks.errors import ConduitError
from conduit_tasks.exit_codes import WAITING
from conduit_tasks.logs import carried
from conduit_tasks.topology import Delivery

log = logging.getLogger(__name__)

STALLED = 300.0
"""Seconds without a sign of progress, beyond what the delivery's own options allow for one record."""
LAST_WORD = 2.0
"""Seconds to tell the broker why."""


def longest(options: Delivery) -> float:
    """Returns the seconds within which a delivery that is not stuck makes progress: one record through all its
    attempts, and a margin."""
    rate = options.max_unconfirmed / options.rate_limit if options.rate_limit else 0.0
    pause = (
        options.backoff_delay * max(1, options.retry) if options.backoff_policy != "exponential" else LONGEST_BACKOFF
    )
    return STALLED + rate + (1 + options.retry) * options.timeout + options.retry * max(pause, options.retry_after_max)


class Watchdog:
    """Countdown beside a delivery; `expect` sets how long the next step may take. Use it as a context manager."""

    def __init__(self, port: DeliveryPort, node: str, options: Delivery) -> None:
        self._port, self._node = port, node
        self._usual = longest(options)
        self._left, self._what = self._usual, ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._carry = carried()

    def alive(self) -> None:
        """Notes progress: the countdown starts again."""
        self._left, self._what = self._usual, ""

    def expect(self, seconds: float, what: str) -> None:
        """Notes that `what` begins, and must have ended (`alive`) within so many seconds."""
        self._left, self._what = seconds, what

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(LAST_WORD)

    def _run(self) -> None:
        self._carry()
        while True:
            # Counted here and not read from a clock: if the whole process was suspended, its delivery does not hang.
            tick = min(1.0, max(0.01, self._left / 4))
            if self._stop.wait(tick):
                return
            self._left -= tick
            if self._left <= 0:
                self._give_up()
                return

    def _give_up(self) -> None:
        what = f"{self._what} has not ended in time" if self._what else f"no progress for {self._usual:g} s"
        said = f"{self._node}: {what}; its process was ended, and the next run goes on from what is confirmed"
        log.error(said)

        def tell() -> None:
            try:
                self._port.give_up(said)
            except ConduitError as error:
                log.warning("the broker does not know of it: %s", error)

        committer = threading.Thread(target=tell, daemon=True)
        committer.start()
        committer.join(LAST_WORD)
        os._exit(WAITING)
