"""The circuit breaker of a destination as one delivery sees it (`delivery.breaker`): how many sends in a row have
failed, when nothing more is sent, and the one record that is tried afterwards.

| state | when | what is sent |
|---|---|---|
| closed | at first | everything |
| open | `failures` sends in a row failed | nothing, until the pause is over |
| half-open | the pause is over | one record, once: if it fails, the breaker is open again, for twice as long |

Failures are counted over micro-batches and runs: the broker keeps those that ended a delivery. What answers, though it
refuses the record, does not fail. While it is open, nothing becomes a dead letter: with `on-unavailable: dead-letter`
only the record of the probe may, once it has failed as often as `retry` allows.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Protocol

from conduit_tasks.topology import Breaker as Options
from conduit_tasks.topology import Delivery

if TYPE_CHECKING:
    from conduit_tasks.broker.breakers import BreakerState


class Book(Protocol):
    """The broker's record of a destination's breaker, under the lease of this delivery."""

    def state(self) -> BreakerState | None:
        """Returns the failures since the last send that went well."""

    def trip(
        self, id: str, *, failures: int, fresh: bool, probe: bool, tried: int, retry_after: float, error: str
    ) -> None:
        """See `Breakers.trip`."""

    def untrip(self) -> None:
        """See `Breakers.untrip`."""


class Breaker:
    """Counts the failures of one delivery. `half_open`: one record is sent, and nothing beside it."""

    def __init__(self, options: Options, delivery: Delivery, book: Book) -> None:
        self._limit, self._book = options.failures, book
        before = book.state()
        self._before = 0 if before is None else before.failures
        self._kept = before is not None
        """Whether the broker has failures that a send that goes well ends."""
        self.half_open = self._probing = before is not None and before.opened > 0
        self._retry = delivery.retry if delivery.on_unavailable == "dead-letter" else None
        self._tried = 0 if before is None else before.tried
        self._failures, self._fresh, self._buried, self._said = 0, False, False, ""

    def success(self) -> None:
        """Notes that a send was answered, so that everything may be sent."""
        self._failures, self._tried, self._fresh, self.half_open = 0, 0, True, False

    def failure(self, said: str) -> bool:
        """Notes that a send failed, and what was said. Returns whether nothing more is to be sent."""
        self._failures += 1
        self._said = said
        self._tried += self.half_open
        return self.half_open or self._failures + (0 if self._fresh else self._before) >= self._limit

    def gives_up(self) -> bool:
        """Returns whether the record whose probe failed becomes a dead letter, as it was tried as often as it may be:
        one in a delivery at most, so that an outage costs few. The next record is the probe then."""
        if self._retry is None or self._buried or self._tried <= self._retry:
            return False
        self._buried, self._tried = True, 0
        return True

    def told(self) -> None:
        """Tells the broker that a send went well after those that it knows to have failed; at most one call."""
        if self._kept and self._fresh:
            self._kept = False
            self._book.untrip()

    def ended(self, retry_after: float | None = None) -> str:
        """Tells the broker of the failures at the end of this delivery. Returns what they mean, for people; "" if the
        breaker stays closed."""
        if not self._failures:
            return ""
        self._book.trip(
            uuid.uuid4().hex,
            failures=self._failures,
            fresh=self._fresh,
            probe=self._probing and not self._fresh,
            tried=self._tried,
            retry_after=retry_after or 0.0,
            error=self._said,
        )
        state = self._book.state()
        return str(state) if state is not None and state.opened else ""
