"""Refusals of the gateway: problem documents (RFC 9457) that say what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conduit_tasks.gateway.attributes import BadEvent
from conduit_tasks.gateway.commit import Bucket
from conduit_tasks.gateway.verify import Unverified

RETRY_BACKLOG, RETRY_AWAY = 10, 2
"""`Retry-After` in seconds: until a run has made room; until Redis is back."""


class Refusal(Exception):
    """An answer other than 2xx. `more`: further members of the problem document."""

    def __init__(
        self, status: int, title: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.headers = status, dict(headers or {})
        self.problem = {"title": title, "status": status, "detail": detail, **more}


def bad_event(bad: BadEvent) -> Refusal:
    """Returns what is wrong with an event, and of which one."""
    more: dict[str, Any] = {}
    if bad.attribute is not None:
        more["attribute"] = bad.attribute
    if bad.event is not None:
        more["event"] = bad.event
    return Refusal(bad.status, "Not an event" if bad.status == 415 else "Bad event", bad.detail, **more)


def unverified(error: Unverified) -> Refusal:
    """Returns what is missing or wrong about a request's signature, and in which header."""
    more: dict[str, Any] = {"header": error.header} if error.header else {}
    return Refusal(401, "Not verified", error.detail, headers={"WWW-Authenticate": "Signature"}, **more)


def too_large(most: int) -> Refusal:
    """Returns that a request is larger than `most` bytes."""
    # The connection is closed: the rest that the producer sends is not read.
    return Refusal(
        413, "Too large", f"a request may have {most} bytes (max-request-size)", headers={"Connection": "close"}
    )


def too_fast(bucket: Bucket, wait: float) -> Refusal:
    """Returns when the source takes events again."""
    return Refusal(
        429,
        "Too fast",
        f"this source takes {bucket.rate:g} events per second",
        headers={"Retry-After": str(max(1, round(wait + 0.5)))},
    )


def away() -> Refusal:
    """Returns that the broker does not serve."""
    return Refusal(
        503,
        "Not stored",
        "the broker does not serve, so the event may not be stored; send it again",
        headers={"Retry-After": str(RETRY_AWAY)},
    )


def busy() -> Refusal:
    """Returns that there is no room for another request."""
    # The connection is closed: the rest that the producer sends is not kept.
    headers = {"Retry-After": "1", "Connection": "close"}
    return Refusal(503, "Busy", "too many requests are on their way; send it again", headers=headers)
