"""Retry policies of a destination: whether a send is repeated, and after which wait (backoff, jitter, `Retry-After`),
composed from tenacity's parts (SEMANTICS T6, T9).

A send is tried `1 + retry` times; twice as often if an outage may have ended in between (see `down`). The wait before
the n-th repetition is, from `backoff-delay` d:

| policy | wait |
|---|---|
| constant | d |
| linear | n · d |
| exponential | d · 2^(n-1), at most `LONGEST_BACKOFF` |

plus a jitter of at most a tenth of d, so that lanes that failed together do not come back together. If the target said
`Retry-After`, that counts instead if it is longer, up to `retry-after-max`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenacity import (
    RetryCallState,
    retry_any,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    wait_combine,
    wait_exponential,
    wait_fixed,
    wait_incrementing,
    wait_random,
)
from tenacity.wait import wait_base

from conduit_tasks.connectors.base import Outcome
from conduit_tasks.errors import Unavailable
from conduit_tasks.retrying import Retrying
from conduit_tasks.topology import Delivery

LONGEST_BACKOFF = 300.0
"""Limit of an exponential back-off, in seconds."""
JITTER = 0.1
"""Upper bound of the jitter, as a part of `backoff-delay`."""


class wait_at_least_retry_after(wait_base):
    """The longer of `base` and what the target asked for; the latter counts up to `limit` seconds (SEMANTICS T6)."""

    def __init__(self, base: wait_base, limit: float) -> None:
        self.base, self.limit = base, limit

    def __call__(self, retry_state: RetryCallState) -> float:
        asked = retry_after(retry_state)
        return max(self.base(retry_state), min(asked, self.limit)) if asked else self.base(retry_state)


def retry_after(state: RetryCallState) -> float | None:
    """Returns the seconds that the last attempt's answer asked to wait, or None."""
    if state.outcome is None:
        return None
    if state.outcome.failed:
        return getattr(state.outcome.exception(), "retry_after", None)
    return getattr(state.outcome.result(), "retry_after", None)


def backoff(options: Delivery) -> wait_base:
    """Returns the waiting strategy of these options, jitter and `Retry-After` included."""
    d = options.backoff_delay
    shapes: dict[str, wait_base] = {
        "constant": wait_fixed(d),
        "linear": wait_incrementing(start=d, increment=d),
        "exponential": wait_exponential(multiplier=d, exp_base=2, max=LONGEST_BACKOFF),
    }
    jittered = wait_combine(shapes[options.backoff_policy], wait_random(0, d * JITTER))
    return wait_at_least_retry_after(jittered, options.retry_after_max)


def failed(outcome: Any) -> bool:
    """Returns whether this result of a send may recover."""
    return isinstance(outcome, Outcome) and outcome.kind == "failed"


class RetryPolicy:
    """Policy that decides whether a send is repeated: tenacity's retry, stop and wait, asked per record.

    Engines that keep thousands of sends on their way ask `delay` themselves; a blocking caller runs `calling()`.
    """

    def __init__(self, options: Delivery) -> None:
        self.attempts = 1 + max(0, options.retry)
        """Limit of sends of one record."""
        self._retrying = Retrying(
            retry=retry_any(retry_if_result(failed), retry_if_exception_type(Unavailable)),
            stop=stop_after_attempt(self.attempts),
            wait=backoff(options),
            reraise=True,
        )

    def delay(self, attempt: int, outcome: Outcome) -> float | None:
        """Returns the seconds to wait after the `attempt`-th attempt (from 1) ended with `outcome`; None: it is not
        sent again."""
        state = RetryCallState(self._retrying, None, (), {})
        state.attempt_number = attempt
        state.set_result(outcome)
        if not self._retrying.retry(state) or self._retrying.stop(state):
            return None
        return float(self._retrying.wait(state))

    def pause(self, outcome: Outcome) -> float:
        """Returns the seconds to wait before a record that ended with `outcome` is tried as if for the first time."""
        state = RetryCallState(self._retrying, None, (), {})
        state.set_result(outcome)
        return float(self._retrying.wait(state))

    def calling(
        self,
        before_sleep: Callable[[RetryCallState], None],
        sleep: Callable[[float], None],
    ) -> Retrying:
        """Returns the same policy for a blocking call that raises `Unavailable`; the last error is raised again."""
        return self._retrying.copy(before_sleep=before_sleep, sleep=sleep)
