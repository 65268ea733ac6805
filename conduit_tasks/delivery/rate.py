"""`rate-limit` of a destination: how long a send waits, by a token bucket. It holds a tenth of a second's tokens, so
that no burst makes up for a pause."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Token bucket: `reserve` takes tokens now and returns how long to wait before using them. Not thread-safe.

    Each micro-batch has a bucket of its own. `rested`: seconds since the last send to the destination, which give the
    tokens that the bucket begins with; None: it begins full.
    """

    def __init__(self, rate: float, *, rested: float | None = None, clock: Callable[[], float] | None = None) -> None:
        self._rate, self._clock = rate, clock or time.monotonic
        self._burst = max(1.0, rate / 10)
        self._tokens = self._burst if rested is None else min(self._burst, rested * rate)
        self._at = self._clock()

    def reserve(self, tokens: int = 1) -> float:
        """Returns the seconds to wait; the tokens are taken whether or not the caller waits."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - tokens
        self._at = now
        return max(0.0, -self._tokens / self._rate)
