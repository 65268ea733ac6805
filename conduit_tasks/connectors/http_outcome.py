"""What an HTTP answer, or the lack of one, means for a record (SEMANTICS T6)."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.connectors.http_client import Answer
from conduit_tasks.delivery.outcome import clip, status_kind


def outcome_of_answer(answer: Answer) -> Outcome:
    """What a whole answer says."""
    kind = status_kind(answer.status)
    if kind == "delivered":
        return DELIVERED
    quoted = answer.body.decode(errors="replace")
    message = f"{answer.status} {answer.reason}".strip()
    if 300 <= answer.status < 400:
        message += f" (redirects are not followed; set `url` to {answer.location or 'its target'})"
    retry_after = seconds_of(answer.retry_after) if kind == "failed" else None
    return Outcome(kind, clip(f"{message}: {quoted}" if quoted.strip() else message), answer.status, retry_after)


def outcome_of_error(error: OSError) -> Outcome:
    """No answer: connections refused or lost, names that do not resolve, TLS that fails. All may recover."""
    return Outcome("failed", clip(f"{type(error).__name__}: {error}"))


def seconds_of(retry_after: str | None) -> float | None:
    """Seconds that a `Retry-After` header asks for: a number, or an HTTP date (RFC 9110, 10.2.3); None if neither."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
