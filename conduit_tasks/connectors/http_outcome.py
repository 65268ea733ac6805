"""What an HTTP answer, or the lack of one, means for a record (SEMANTICS T6)."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

import aiohttp

from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.delivery.outcome import clip, status_kind

BODY_KEPT = 200
"""Bytes of an answer's body that a dead letter quotes."""


async def outcome_of_response(response: aiohttp.ClientResponse) -> Outcome:
    """The outcome of an answer whose body was not read yet."""
    kind = status_kind(response.status)
    if kind == "delivered":
        # The body is read so that the connection can be used again.
        await response.read()
        return DELIVERED
    quoted = (await response.content.read(BODY_KEPT)).decode(errors="replace")
    message = f"{response.status} {response.reason or ''}".strip()
    if 300 <= response.status < 400:
        message += f" (redirects are not followed; set `url` to {response.headers.get('Location', 'its target')})"
    retry_after = seconds_of(response.headers.get("Retry-After")) if kind == "failed" else None
    return Outcome(kind, clip(f"{message}: {quoted}" if quoted.strip() else message), response.status, retry_after)


def outcome_of_error(error: aiohttp.ClientError | OSError) -> Outcome:
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
