"""HTTP for processors: requests with a retry policy, redirects and a bound on answers, as many records under way at a
time as `workers` says.

The client runs in a thread of its own, because a chain may be called from anywhere, also from inside an event loop.
Link-local and cloud metadata addresses are refused, also behind a name or a redirect, unless the settings allow them.
"""

from __future__ import annotations

import asyncio
import base64
import os
import threading
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from yarl import URL

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option
from conduit_tasks.connectors.http import client
from conduit_tasks.connectors.http.head import FRAMING, head
from conduit_tasks.connectors.http.link_local import check_host
from conduit_tasks.connectors.http.origins import Origins
from conduit_tasks.errors import ConduitError, ConfigError, RecordError
from conduit_tasks.processors.derived import record_bytes
from conduit_tasks.processors.many import Made, ManyProcessor
from conduit_tasks.record.record import Record
from conduit_tasks.settings import settings as installation

T = TypeVar("T")

MOST = 32 * 1024 * 1024
"""Limit of the bytes of an answer; a longer one fails the record."""

ENDING = 10.0
"""Seconds that connections have to end."""
REDIRECTS = 10
"""Limit of redirects that are followed one after the other."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods whose requests need no length if they have no body."""
_HARMLESS = frozenset({"accept", "content-type"})
"""Headers that are also sent to another origin."""

COMMON = (
    Option("timeout", "of one request", default="30s"),
    Option("allow-link-local", "allow link-local and cloud metadata addresses", default="false"),
)
BACKOFF = (
    Option("backoffRetry.count", "how often a failed request is repeated", default="0"),
    Option("backoffRetry.factor", "by what the waiting time grows", default="2"),
    Option("backoffRetry.min", "the first waiting time", default="100ms"),
    Option("backoffRetry.max", "the longest", default="5s"),
)


@dataclass(frozen=True)
class Retry:
    """Retry policy of a request. `first` and `longest`: waiting times in seconds."""

    count: int
    factor: float
    first: float
    longest: float


def backoff(settings: Mapping[str, str]) -> Retry:
    """Returns the policy of the options `BACKOFF`."""
    return Retry(
        int(options.number(settings, "backoffRetry.count")),
        options.number(settings, "backoffRetry.factor", least=1e-9),
        options.duration(settings, "backoffRetry.min"),
        options.duration(settings, "backoffRetry.max"),
    )


class Again(Exception):
    """Failure of a request that a retry may fix."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


@dataclass(frozen=True)
class _Asking:
    """One request."""

    method: str
    url: URL
    body: bytes
    headers: Mapping[str, str]

    def request(self) -> bytes:
        """Returns its bytes. Raises ValueError if a header would end it, or decide where it ends."""
        headers = {"Accept-Encoding": "gzip", **self.headers}
        if self.url.user is not None and "authorization" not in {name.lower() for name in headers}:
            pair = f"{self.url.user}:{self.url.password or ''}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        for name, value in headers.items():
            if name.lower() in FRAMING:
                raise ValueError(f"the header {name} is written by the client; leave it out")
            if any(c in value for c in "\r\n\0"):
                raise ValueError(f"the header {name} has a line break")
        length = "" if not self.body and self.method in _BODILESS else f"Content-Length: {len(self.body)}\r\n"
        return f"{head(self.method, self.url, headers, set())}{length}\r\n".encode() + self.body


class HttpProcessor(ManyProcessor):
    """A processor that makes requests; `handle` gets one record, and at most `workers` of its calls are under way."""

    retry: Retry

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._timeout = options.duration(self.settings, "timeout")
        self._guarded = not options.boolean(self.settings, "allow-link-local")
        self._loop: _Loop | None = None

    @classmethod
    def asks(cls, settings: Mapping[str, str]) -> str:
        return "makes HTTP requests"

    async def handle(self, record: Record) -> Record:
        """Returns the record with the answer. Raises RecordError."""
        raise NotImplementedError

    async def handle_many(self, records: Sequence[Record]) -> list[Made]:
        """Handles all of them, `workers` at a time, unless their answers become too many bytes; the results are in
        order."""
        return await self.each(records, self.handle, installation().batch_bytes)

    async def each(
        self, items: Sequence[T], handle: Callable[[T], Awaitable[Any]], enough: int | None = None
    ) -> list[Any]:
        """Returns the result or RecordError of `handle` for each item, in order: of all, or of the first ones whose
        records have more than `enough` bytes. Raises errors of ours that concern more than one item."""
        room = asyncio.Semaphore(self.workers)
        used, stopped = 0, False

        async def one(item: T) -> Any:
            nonlocal used, stopped
            try:
                made = await handle(item)
                used += record_bytes(made) if enough is not None else 0
                return made
            except RecordError as error:
                return error
            except ConduitError:
                stopped = True
                raise
            except Exception as error:  # noqa: BLE001 - a processor's own failure is the record's (C4)
                return RecordError(f"{self.spec.name}: {type(error).__name__}: {error}")
            finally:
                room.release()

        begun: list[asyncio.Task[Any]] = []
        for item in items:
            await room.acquire()
            if stopped or (begun and enough is not None and used > enough):
                break
            begun.append(asyncio.create_task(one(item)))
        return list(await asyncio.gather(*begun))

    def process_many(self, records: Sequence[Record]) -> list[Made]:
        if self._loop is None or self._loop.pid != os.getpid():
            # A forked child has neither the thread nor the right to its parent's connections.
            self._loop = _Loop(self._timeout, self._guarded)
        return self._loop.run(self.handle_many(records))

    async def request(
        self,
        method: str,
        url: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        again: Callable[[int], bool],
    ) -> Answer:
        """Returns the answer, after retries if there was none or if `again(status)`. Raises RecordError."""
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

        policy = AsyncRetrying(
            stop=stop_after_attempt(self.retry.count + 1),
            wait=wait_exponential(self.retry.first, self.retry.longest, self.retry.factor),
            retry=retry_if_exception_type(Again),
            reraise=True,
        )
        try:
            return await policy(self._once, method, url, body, headers or {}, again)
        except RecordError as error:
            error.__traceback__ = None  # else tenacity's frames hold it, and what it came from
            raise
        except Again as error:
            error.__traceback__ = None
            tries = "" if not self.retry.count else f", {self.retry.count + 1} times"
            raise RecordError(f"{self.spec.name}: {error}{tries}") from None

    async def _once(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], again: Callable[[int], bool]
    ) -> Answer:
        try:
            asking = _Asking(method, URL(url), body, headers)
            for _ in range(REDIRECTS + 1):
                answer, location = await self._sent(asking)
                if location is None:
                    break
                asking = _redirected(asking, answer.status, location)
            else:
                raise RecordError(f"{self.spec.name}: more than {REDIRECTS} redirects one after the other")
        except (ConfigError, ValueError) as error:
            raise RecordError(f"{self.spec.name}: {error}") from None
        except TimeoutError:
            raise Again(f"no answer from {asking.url.host} within {self._timeout:g} s") from None
        except OSError as error:
            raise Again(f"no answer from {asking.url.host}: {type(error).__name__}: {error}") from None
        if again(answer.status):
            raise Again(f"the answer is {answer.status}: {_shortened(answer.body)}")
        if len(answer.body) > MOST:
            raise RecordError(f"{self.spec.name}: the answer is longer than {MOST:,} bytes")
        return answer

    async def _sent(self, asking: _Asking) -> tuple[Answer, str | None]:
        """Returns the answer, and its location if it is a redirect."""
        assert self._loop is not None
        if self._guarded:
            check_host(asking.url.host or "", self.spec.name)
        request = asking.request()
        async with asyncio.timeout(self._timeout or None):
            got = await self._loop.origins.exchange(asking.url, request, bodiless=asking.method == "HEAD")
        if got.location is not None and got.status in _REDIRECTS:
            return Answer(got.status, b""), got.location
        return Answer(got.status, _unpacked(got)), None

    def close(self) -> None:
        if self._loop is not None and self._loop.pid == os.getpid():
            self._loop.close()
        self._loop = None


class _Loop:
    """An event loop in a thread, with its connections. They share no cookies: one record's answer must not change
    another's request."""

    def __init__(self, timeout: float, guarded: bool) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="processor-http", daemon=True)
        self._thread.start()
        self.origins = Origins(guarded=guarded, timeout=timeout or None, kept=MOST + 1)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self.run(self.origins.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ENDING)
        self._loop.close()


def _redirected(asking: _Asking, status: int, location: str) -> _Asking:
    """Returns the request that a redirect leads to (RFC 9110, 15.4). Another origin gets only `_HARMLESS` headers: any
    other may be a secret. Raises ValueError if the location is not http or https, or has no host."""
    url = asking.url.join(URL(location))
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"a redirect leads to {url.scheme or 'no scheme'}:, which is not followed")
    method, body, headers = asking.method, asking.body, dict(asking.headers)
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, body = "GET", b""
        headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
    if url.origin() != asking.url.origin():
        headers = {name: value for name, value in headers.items() if name.lower() in _HARMLESS}
    return _Asking(method, url, body, headers)


def _unpacked(answer: client.Answer) -> bytes:
    """Returns the body, `MOST` + 1 bytes at most. Raises OSError if it cannot be unpacked."""
    encoding = (answer.content_encoding or "").strip().lower()
    if encoding in ("", "identity") or not answer.body:
        return bytes(answer.body)
    if encoding not in ("gzip", "x-gzip"):
        raise OSError(f"the answer is encoded as {encoding[:60]!r}, for which it was not asked")
    whole, left = b"", bytes(answer.body)
    try:
        while left and len(whole) <= MOST:
            member = zlib.decompressobj(wbits=31)
            whole += member.decompress(left, MOST + 1 - len(whole))
            left = member.unused_data
            if not member.eof and len(whole) <= MOST:
                raise OSError("the answer is cut off: its gzip has no end")
    except zlib.error as error:
        raise OSError(f"the answer is no gzip: {error}") from None
    return whole


def _shortened(body: bytes) -> str:
    text = body[:200].decode(errors="replace")
    return f"{text}…" if len(body) > 200 else text
