"""Rules of outcomes: which HTTP statuses and exceptions are delivered, refused or failed (SEMANTICS T6), and the error
class of a dead letter.

*Failed* may recover, and is retried: no connection, time-outs, 408, 425, 429 and 5xx. *Refused* is an answer that a
retry cannot improve (401, 400, a redirect that nobody follows): it completes the send, and is a nack unless `refused:
complete` says otherwise. Anything in the 2xx is *delivered*.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Literal

from conduit_tasks.connectors.base import Outcome
from conduit_tasks.errors import RecordError, Refused, Unavailable

RETRIABLE = frozenset({408, 425, 429, *range(500, 1000)})
"""Statuses that may recover, unless a destination says otherwise: request timeout, too early, too many requests, and
all of a server's own errors."""

LONGEST_MESSAGE = 500
"""Limit of characters kept of a destination's own message."""


def status_kind(status: int, retriable: Collection[int] = RETRIABLE) -> Literal["delivered", "refused", "failed"]:
    """Returns the kind of outcome of an HTTP status code (SEMANTICS T6). `retriable`: the statuses that may recover."""
    if 200 <= status < 300:
        return "delivered"
    return "failed" if status in retriable else "refused"


def outcome_of(error: BaseException) -> Outcome | None:
    """Returns the outcome that an exception of `send` stands for; None if it is a fault of the program, not of a
    record."""
    text = clip(str(error) or type(error).__name__)
    if isinstance(error, Unavailable):
        return Outcome("failed", text, error.status, error.retry_after)
    if isinstance(error, Refused):
        return Outcome("refused", text, error.status)
    if isinstance(error, RecordError):
        return Outcome("refused", text)
    if isinstance(error, (asyncio.TimeoutError, OSError)):
        return Outcome("failed", f"{type(error).__name__}: {text}")
    return None


def error_class(outcome: Outcome) -> str:
    """Returns a short class that dead letters can be grouped by: `http 400`, `refused`, `timeout`, `unavailable`."""
    if outcome.status is not None:
        return f"http {outcome.status}"
    if outcome.kind == "refused":
        return "refused"
    return "timeout" if "no answer within" in outcome.message else "unavailable"


def clip(text: str) -> str:
    """Returns `text` on one line, not longer than `LONGEST_MESSAGE`."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"
