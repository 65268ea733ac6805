"""`/v1/pipelines/{id}/live`: a pipeline as it goes, as server-sent events: one connection for all that a page shows.

A stream holds no thread of Airflow's API server: between two looks it is a coroutine that sleeps, and a look takes one
of the few threads here for some milliseconds. Streams are bounded in number, and in time: the browser connects again,
and is asked again who it is (its cookie goes along) and what it may see.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import StreamingResponse

from conduit_tasks.airflow.api import overview
from conduit_tasks.airflow.api.access import Seen, Show
from conduit_tasks.airflow.api.series import drawn
from conduit_tasks.broker.series import COARSE
from conduit_tasks.errors import ConduitError
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from conduit_tasks.broker.access import Access
    from conduit_tasks.topology import Pipeline

router = APIRouter(prefix="/v1/pipelines/{pipeline_id}/live", tags=["pipelines"])

TICK = 1.0
"""Seconds between two looks."""
LASTS = 30.0
"""Seconds that a stream lasts. Whoever loses a permission, or signs out, sees no more after that; and a server that is
stopped waits for no longer, should it not be noticed (`_ending`)."""
AGAIN = 0.5
"""Seconds after which a browser connects again."""
MOST = 64
"""Streams of one process. The pages ask from time to time instead, if there are more."""
CURVES = 10.0
"""Least seconds between two sets of curves: a bucket of the series."""

_threads = ThreadPoolExecutor(4, thread_name_prefix="conduit-live")
_streams: set[Stream] = set()
_shared: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}


@router.get("", response_class=StreamingResponse)
def show_live(
    pipeline: Seen,
    show: Show,
    seconds: Annotated[int, Query(ge=60, le=COARSE.span, description="Curves too, so far back.")] | None = None,
    most: Annotated[int, Query(ge=0, le=1_000, description="Curves of the first so many destinations.")] = 1_000,
) -> StreamingResponse:
    """Streams server-sent events. `look`: the pipeline as `GET …/{id}` shows it, with its `graph`, then each second
    what has changed of that: of `sources` and `destinations` only those that did. Positions are left out of sources
    with more than 20 parts. `series`: as `GET …/{id}/series`, if `seconds` asks for it, every 10 s or more seldom.
    `problem`: why a look failed. The stream ends after 30 s; 503 if too many are open."""
    if len(_streams) >= MOST:
        said = f"{MOST} pages are looked at already: ask for the pipeline from time to time instead"
        raise HTTPException(503, said, headers={"Retry-After": f"{LASTS:.0f}"})
    curves = None if seconds is None else (seconds, most)
    stream = Stream(pipeline, lambda found: show(pipeline.id, found), overview.glimpse(pipeline), curves)
    # Proxies that buffer what they pass on would show nothing until the end.
    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store, no-transform"}
    return Streamed(_events(stream), media_type="text/event-stream", headers=headers)


class Streamed(StreamingResponse):
    """Ends its generator with itself. A page that goes while a chunk is handed over leaves the generator where it was:
    it would count as open until somebody collects garbage."""

    body_iterator: AsyncGenerator[bytes, None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await super().__call__(scope, receive, send)


async def _events(stream: Stream) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    until = loop.time() + LASTS
    _streams.add(stream)
    try:
        yield f"retry: {AGAIN * 1000:.0f}\n\n".encode()
        while True:
            yield await loop.run_in_executor(_threads, stream.look)
            if _ending() or loop.time() + TICK > until:
                return
            await asyncio.sleep(TICK)
    finally:
        _streams.discard(stream)
        loop.run_in_executor(_threads, stream.close)


def _ending() -> bool:
    """Returns whether the server that we run in is being stopped: uvicorn waits for streams, and tells them nothing."""
    return bool(getattr(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), "should_exit", False))


class Stream:
    """One stream's looks. `show`: what of a look its user may see; `first`: the first one; `curves`: how far back, and
    of how many destinations."""

    def __init__(
        self,
        pipeline: Pipeline,
        show: Callable[[Any], Any],
        first: dict[str, Any],
        curves: tuple[int, int] | None,
    ) -> None:
        self._pipeline, self._show, self._curves = pipeline, show, curves
        self._first: dict[str, Any] | None = first
        self._last: dict[str, Any] | None = None
        self._lost, self._due, self._lock = first["lost"], 0.0, Lock()
        self._access: Access | None = None
        self._closed = False

    def look(self) -> bytes:
        """Returns the events of a look; none once it is closed: a look may begin after its page has gone."""
        said = b""
        with self._lock:
            if self._closed:
                return said
            try:
                said = self._look()
                said += self._series()
            except ConduitError as error:
                said += event("problem", {"detail": str(error)})
        return said

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            self._closed = True
            if self._access is not None:
                self._access.close()

    def _look(self) -> bytes:
        graph = {}
        if self._first is not None:
            found, self._first = self._first, None
            graph = {"graph": overview.topology(self._pipeline)}
        else:
            found = self._shared_look()
        # A micro-batch was opened since, or nothing was: the spool is not asked again.
        shown = self._show(found if found["sealed"] or found["unsealed"] else {**found, "lost": self._lost})
        said, self._last = {**changes(self._last, shown), **graph}, shown
        return event("look", said)

    def _shared_look(self) -> dict[str, Any]:
        """Returns a look that another stream has just had, or a new one."""
        name, now = (self._pipeline.id, self._pipeline.digest()), time.monotonic()
        at, found = _shared.get(name, (0.0, {}))
        if now - at > TICK / 2:
            found = overview.seen(self._pipeline, self._opened())
            while len(_shared) >= MOST:
                _shared.pop(next(iter(_shared)), None)
            _shared[name] = now, found
        return found

    def _series(self) -> bytes:
        if self._curves is None or time.monotonic() < self._due:
            return b""
        found = drawn(self._opened(), self._pipeline, *self._curves)
        self._due = time.monotonic() + max(CURVES, found["step"] / 10)
        return event("series", found)

    def _opened(self) -> Access:
        if self._access is None:
            from conduit_tasks.broker.access import Access
            from conduit_tasks.redis_client.connection import connect

            config = settings()
            self._access = Access(self._pipeline.id, connect(config, retries=1), lease_grace=config.lease_grace)
        return self._access


def changes(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a look differs in from the one before, and its time; all of it if there was none before."""
    if before is None:
        return dict(now)
    out = {"at": now["at"]}
    for name, value in now.items():
        if value == before[name]:
            continue
        if name in {"sources", "destinations"}:
            old = {each["id"]: each for each in before[name]}
            out[name] = [each for each in value if each != old.get(each["id"])]
        else:
            out[name] = value
    return out


def event(name: str, data: Any) -> bytes:
    """Returns a server-sent event; JSON holds no line break."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"
