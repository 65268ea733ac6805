"""Refusals of the gateway: the status, problem document (RFC 9457) and `Retry-After` for each reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors.signatures import TAKEN
from conduit_tasks.errors import BrokerFull, BrokerUnavailable, ConduitError
from conduit_tasks.gateway.attributes import BadEvent
from conduit_tasks.gateway.commit import Bucket, NotNext, Replayed, TooManyLanes, TooManyRemembered, Unsettled
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


def backlog_full() -> Refusal:
    """Returns that as many events wait for the pipeline as may."""
    detail = "the pipeline is behind: as much as may wait is waiting. Nothing of this request was stored; send it again"
    return _later(429, "Backlog full", detail, RETRY_BACKLOG)


def not_stored(error: ConduitError) -> Refusal:
    """Returns why a committer did not store a request. Raises the error itself if it is none of a committer's."""
    if isinstance(error, Replayed):
        return Refusal(
            409,
            "Replayed",
            "the same signed request came before and was taken, so this one is not. Do not send it again; a message "
            "that is to be sent again is signed again, or the source has verify.replays: take",
            headers={TAKEN: "true"},
        )
    for kind, (status, title, detail, seconds) in _LATER.items():
        if isinstance(error, kind):
            return _later(status, title, detail, seconds)
    if isinstance(error, BrokerUnavailable):
        return away()
    raise error


_LATER: dict[type[ConduitError], tuple[int, str, str, int]] = {
    BrokerFull: (
        429,
        "Broker full",
        "the broker has no memory left for new events. Nothing of this request was stored; send it again",
        RETRY_BACKLOG,
    ),
    TooManyLanes: (
        429,
        "Too many lanes",
        "this source knows as many lanes (CloudEvents source and pipe.key) as it may (pipe.lanes); one is forgotten "
        "once it was silent for pipe.forget. Nothing of this request was stored; send it again",
        RETRY_BACKLOG,
    ),
    TooManyRemembered: (
        429,
        "Too many to remember",
        "this source remembers as many signed requests as it may (verify.remember); one is forgotten once its time is "
        "over (verify.tolerance). Nothing of this request was stored; send it again",
        RETRY_BACKLOG,
    ),
    Unsettled: (
        503,
        "Being stored",
        "the same signed request came before and is not in the journal yet: it is on its way there, or the gateway "
        "that took it has ended; send it again",
        RETRY_AWAY,
    ),
    NotNext: (
        409,
        "Not the next",
        "an event with a lower sequence of the same source and key has not come; send that one, then this again",
        1,
    ),
}
"""Errors of a committer after which a request may be sent again: status, title, detail, seconds until then."""


def _later(status: int, title: str, detail: str, seconds: int) -> Refusal:
    return Refusal(status, title, detail, headers={"Retry-After": str(seconds)})
