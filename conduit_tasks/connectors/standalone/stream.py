"""The stream to an open connector that is a destination: one message after the other, an answer for each record."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.standalone.inbox import Inbox, Outbox
from conduit_tasks.errors import Unavailable
from conduit_tasks.settings import settings as installation

if TYPE_CHECKING:
    from conduit_tasks.connectors.standalone.client import Client

SIDE = "Destination"


class Stream:
    """An open connector with its stream. `over`: it was stopped, and takes no more."""

    def __init__(self, client: Client) -> None:
        self.over = False
        self._client = client
        self._requests = Outbox()
        self._inbox = Inbox(client.stream(SIDE, self._requests), self._broken)
        self._last = b""
        self._waits: dict[bytes, deque[int]] = {}
        """Position → numbers of the records of the last message that have it and are not answered."""
        self.written: list[int] = []
        """Numbers of the records of the last message that were written."""

    def _broken(self, error: Any) -> Unavailable:
        return Unavailable(f"{self._client.name}: it broke off while it was written to: {self._client.said(error)}")

    def send(self, request: bytes, positions: Sequence[bytes]) -> None:
        """Sends a message, whose records have these positions, once the one before is answered."""
        self._waits, self.written = defaultdict(deque), []
        for n, position in enumerate(positions):
            self._waits[position].append(n)
        self._last = positions[-1]
        self._requests.put(request)

    def answers(self, flush_after: float | None, give_up: float) -> dict[int, str]:
        """Waits for all answers to the message that was sent. Returns the errors, by number of the record.
        `flush_after`: seconds without an answer after which it is stopped, which makes it write what it has. Raises
        Unavailable."""
        waits, errors = self._waits, dict[int, str]()
        count = left = sum(map(len, waits.values()))
        while left:
            now = time.monotonic()
            wait = give_up - now if flush_after is None or self.over else min(flush_after, give_up - now)
            found = self._inbox.take(max(0.0, wait))
            if found is None:
                if not self._inbox.ended and flush_after is not None and not self.over and time.monotonic() < give_up:
                    self._stop()
                    continue
                said = "it ended its stream" if self._inbox.ended else "it did not answer in time (delivery.timeout)"
                raise Unavailable(f"{self._client.name}: {left} of {count} records not acked: {said}")
            for ack in found[0].acks:
                numbers = waits.get(ack.position)
                if not numbers:
                    raise Unavailable(
                        f"{self._client.name}: it acked the position {ack.position[:80]!r}, which it was not sent, or "
                        "has acked already; this is a fault of the connector"
                    )
                n = numbers.popleft()
                left -= 1
                if ack.error:
                    errors[n] = self._client.hide(ack.error)
                else:
                    self.written.append(n)
        return errors

    def _stop(self) -> None:
        self.over = True
        self._client.optional(SIDE, "Stop", last_position=self._last)

    def close(self, *, at_once: bool) -> None:
        """Ends the connector: in good order, unless `at_once`."""
        if at_once or self._inbox.error is not None:
            self._client.kill()
            return
        try:
            if not self.over and not self._inbox.ended:
                self._stop()
            self._requests.close()
            self._inbox.drain(installation().connectors_timeout)
            self._client.call(SIDE, "Teardown")
        except (Unavailable, NotImplementedError):
            self._client.kill()
            return
        self._client.finish()
