"""Checks of what comes in by an address or a body, before anything sees it: texts, numbers, times, size and depth.

A value that an answer, Redis or Airflow's database could not hold is refused here, as a problem that names its place.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Any

from fastapi import HTTPException
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conduit_tasks.record.jsons import DEPTH

BODY = 4 << 20
"""Most bytes of a body: the positions of 10,000 parts, of some 400 bytes each."""
MOST = 2**63 - 1


def _utc(at: datetime) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("time", "A time lies in the years 1 to 9999 of UTC") from None


Time = Annotated[datetime, AfterValidator(_utc)]
"""Time in UTC; one that names no zone is in UTC already."""
Number = Annotated[int, Field(ge=0, le=MOST)]
"""Number of a micro-batch, or of something in it."""


class Body(BaseModel):
    """Base of every body: no field that it does not name, no value that cannot be written."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _writable(cls, value: Any) -> Any:
        if why := fault(value):
            raise PydanticCustomError("writable", "{why}", {"why": why})
        return value


def fault(value: Any) -> str | None:
    """Returns why a parsed JSON value cannot be written; None if it can."""
    left = [(value, 0)]
    while left:
        each, depth = left.pop()
        if depth > DEPTH:
            return f"A body is nested {DEPTH} levels deep at most"
        if isinstance(each, dict):
            left += [(inner, depth + 1) for pair in each.items() for inner in pair]
        elif isinstance(each, list):
            left += [(inner, depth + 1) for inner in each]
        elif isinstance(each, float) and not isfinite(each):
            return "A number is finite"
        elif isinstance(each, str) and ("\0" in each or not _encodes(each)):
            return "A text has no NUL and no half of a surrogate pair"
    return None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Bounded:
    """Middleware that ends the reading of a body that is larger than `BODY`, with 413."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY:
                raise HTTPException(413, f"a body has {BODY >> 20} MiB at most; ask in several requests")
            return message

        await self._app(scope, bounded, send)
