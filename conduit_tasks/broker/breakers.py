"""Circuit breakers of the destinations (`delivery.breaker`): failures in a row, and until when nothing is sent.

Kept in the destination's hash, a few hundred bytes; written when a delivery ends by failures, and when the first send
after them goes well, never per record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access, seconds
from conduit_tasks.topology import Breaker, Node

ERROR = 300
"""Characters at most of the error that is kept."""


@dataclass(frozen=True)
class BreakerState:
    """Failures of a destination in a row. `opened`: openings in a row, 0: it is closed; `tried`: failed probes of the
    record in front; `since`: time of the first opening, `until`: when the next record is tried, both by the server's
    clock; `left`: seconds until then."""

    failures: int
    error: str
    opened: int = 0
    tried: int = 0
    since: float | None = None
    until: float | None = None
    left: float = 0.0

    def __str__(self) -> str:
        return (
            f"its breaker is open: {self.failures} sends in a row failed, the last one: {self.error}; one record is "
            f"tried {f'in {self.left:.0f} s' if self.left else 'now'}"
        )


class Breakers:
    """Records of the breakers."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def get(self, destination: str, options: Breaker | None) -> BreakerState | None:
        """Returns the failures since the last send that went well; None if there are none, or no breaker."""
        if options is None:
            return None
        text, (secs, micros) = self._access.read(("HGET", self._keys.destination(destination), "breaker"), ("TIME",))
        return breaker_state(text, options, int(secs) + int(micros) / 1e6)

    def waits(self, destination: str, options: Breaker | None) -> BreakerState | None:
        """Returns the state of a breaker that is open, and whose pause is not over."""
        state = self.get(destination, options)
        return state if state is not None and state.left else None

    def trip(
        self,
        destination: str,
        token: int,
        id: str,
        options: Breaker,
        *,
        failures: int,
        fresh: bool,
        probe: bool,
        tried: int,
        retry_after: float,
        error: str,
    ) -> None:
        """Counts the failures that ended a delivery (`id` names it: repeated, it counts once), and opens the breaker at
        their limit. `fresh`: a send had gone well before them; `tried`: see `BreakerState`. Raises Fenced."""
        self._access.run(
            scripts.TRIP,
            self._places(destination),
            token=token,
            id=id,
            failures=failures,
            fresh=fresh,
            probe=probe,
            tried=tried,
            limit=options.failures,
            pause=int(options.pause * 1e6),
            most=int(options.pause_max * 1e6),
            least=int(min(retry_after, options.asked_max) * 1e6),
            error=error[:ERROR],
        )

    def untrip(self, destination: str, token: int) -> None:
        """Forgets the failures, as a send went well. Raises Fenced."""
        self._access.run(scripts.UNTRIP, self._places(destination), token=token)

    def book(self, destination: str, token: int, options: Breaker, hide: Callable[[str], str] = str) -> Book:
        """Returns the same operations on one destination, under a lease. `hide`: hides secrets in errors."""
        return Book(self, destination, token, options, hide)

    def _places(self, destination: str) -> dict[str, str]:
        return {
            "lease": self._keys.lease(Node.destination(destination)),
            "destination": self._keys.destination(destination),
        }


def breaker_state(text: str | None, options: Breaker | None, now: float) -> BreakerState | None:
    """Reads what is kept of a breaker; None if there is nothing, or no breaker. `now`: by the server's clock."""
    if not text or options is None:
        return None
    kept = orjson.loads(text)
    until = seconds(kept.get("until"))
    return BreakerState(
        failures=int(kept["failures"]),
        error=kept["error"],
        opened=int(kept.get("opened", 0)),
        tried=int(kept.get("tried", 0)),
        since=seconds(kept.get("since")),
        until=until,
        # A server whose clock went back would keep it open for as long.
        left=min(max(0.0, (until or 0.0) - now), max(options.pause_max, options.asked_max)),
    )


@dataclass(frozen=True)
class Book:
    """The breaker of one destination, under a lease (`delivery.breaker.Book`)."""

    breakers: Breakers
    destination: str
    token: int
    options: Breaker
    hide: Callable[[str], str]

    def state(self) -> BreakerState | None:
        """See `Breakers.get`."""
        return self.breakers.get(self.destination, self.options)

    def trip(
        self, id: str, *, failures: int, fresh: bool, probe: bool, tried: int, retry_after: float, error: str
    ) -> None:
        """See `Breakers.trip`."""
        self.breakers.trip(
            self.destination,
            self.token,
            id,
            self.options,
            failures=failures,
            fresh=fresh,
            probe=probe,
            tried=tried,
            retry_after=retry_after,
            error=self.hide(error),
        )

    def untrip(self) -> None:
        """See `Breakers.untrip`."""
        self.breakers.untrip(self.destination, self.token)
