"""Outcome of one HTTP answer, or of none: `retry-on`, redirects, what the message quotes, and the seconds of
`Retry-After` (SEMANTICS T6)."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from email.utils import parsedate_to_datetime

from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.connectors.http.client import Answer
from conduit_tasks.connectors.outcome import RETRIABLE, clip, status_kind
from conduit_tasks.errors import ConfigError


def statuses(said: Sequence[str]) -> frozenset[int]:
    """Returns the statuses that a list such as `404, 5xx` names. Raises ConfigError."""
    out: set[int] = set()
    for word in said:
        first, rest = word[:1], word[1:]
        if len(word) != 3 or first not in ("3", "4", "5") or not (rest.isdecimal() or rest == "xx"):
            raise ConfigError(
                f"http: option 'retry-on' takes statuses (404) and classes (5xx) from 300 to 599, not '{word}'"
            )
        out.update(range(int(first) * 100, int(first) * 100 + 100) if rest == "xx" else [int(word)])
    # A status beyond the known classes is a server's own fault, like 5xx.
    return frozenset(out | set(range(600, 1000)) if 599 in out else out)


def outcome_of_answer(answer: Answer, retriable: Collection[int] = RETRIABLE) -> Outcome:
    """Returns the outcome of a complete answer; `retriable`: the statuses that may recover."""
    kind = status_kind(answer.status, retriable)
    if kind == "delivered":
        return DELIVERED
    quoted = answer.body.decode(errors="replace")
    message = f"{answer.status} {answer.reason}".strip()
    if 300 <= answer.status < 400:
        message += f" (redirects are not followed; set `url` to {answer.location or 'its target'})"
    retry_after = seconds_of(answer.retry_after) if kind == "failed" else None
    return Outcome(kind, clip(f"{message}: {quoted}" if quoted.strip() else message), answer.status, retry_after)


def outcome_of_error(error: OSError) -> Outcome:
    """Returns the outcome without an answer: connections refused or lost, names that do not resolve, TLS that fails.
    All may recover."""
    return Outcome("failed", clip(f"{type(error).__name__}: {error}"))


def seconds_of(retry_after: str | None) -> float | None:
    """Returns the seconds of a `Retry-After` header: a number, or an HTTP date (RFC 9110, 10.2.3); None if neither."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
