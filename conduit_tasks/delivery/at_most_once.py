"""`guarantee: at-most-once` (SEMANTICS B8): the broker stores that a record may have been sent before it is sent, and
after a crash such a record is given up.

The mark stored in the broker runs some hundred records ahead of the sends. After a crash, records up to the mark that
were not confirmed are never sent again: whether they arrived is unknown, and they count as complete. At most `AHEAD`
records and the records on their way are lost; a delivery that ends by itself takes the mark back to the last record
that it really sent.
"""

from __future__ import annotations

import asyncio
import logging

from conduit_tasks.delivery.port import DeliveryPort
from conduit_tasks.errors import ConduitError

log = logging.getLogger(__name__)

AHEAD = 500
"""Records that one mark covers beyond the one that asked for it."""


class Gate:
    """Gate that every send passes. `begun`: the mark of an earlier attempt, -1 if there was none."""

    def __init__(self, port: DeliveryPort, begun: int) -> None:
        self._port, self._begun = port, begun
        self._mark, self._highest = begun, begun
        self._lock = asyncio.Lock()
        self.given_up = 0
        """Records of an earlier attempt that are not sent again."""

    def stale(self, seq: int) -> bool:
        """Returns whether an earlier attempt may have sent this record, so that it must not be sent."""
        if seq > self._begun:
            return False
        self.given_up += 1
        return True

    async def passed(self, seq: int) -> None:
        """Returns once the broker knows that this record may have been sent. Raises Fenced, BrokerUnavailable."""
        while seq > self._mark:
            async with self._lock:
                if seq > self._mark:
                    mark = seq + AHEAD
                    await asyncio.get_running_loop().run_in_executor(None, self._port.begin_send, mark)
                    self._mark = mark
        self._highest = max(self._highest, seq)

    def close(self, node: str) -> None:
        """Takes the mark back to the last record that was let through."""
        if self.given_up:
            log.warning(
                "%s: %d record(s) may have been sent before a crash and are not sent again (guarantee: at-most-once)",
                node,
                self.given_up,
            )
        if self._mark > self._highest:
            try:
                self._port.begin_send(self._highest)
            except ConduitError as error:
                # As after a crash: a few more records are given up.
                log.warning("%s: the mark of at-most-once stays %d records ahead: %s", node, AHEAD, error)
