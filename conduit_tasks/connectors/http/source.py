"""`http` as a source: polls pages of a URL from cursor to cursor; how the next one is found, what is new on the last
one, and that no link leads to another origin.

The end of a page is known only after it was read, so slices are open (docs/adr/0007-open-slices.md). A page that is
read again from the same cursor should hold the same records; if it holds more, those are read with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import orjson
from yarl import URL

from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec, Token
from conduit_tasks.connectors.capabilities import Replayable
from conduit_tasks.connectors.connection import HTTP
from conduit_tasks.connectors.http.page_client import PageClient
from conduit_tasks.connectors.http.peer import PEER
from conduit_tasks.errors import ConfigError, SourceError
from conduit_tasks.record import jsons

if TYPE_CHECKING:
    import httpx
    import pyarrow as pa

SKIPPED = 100
"""Consecutive empty pages after which `plan` has the cursor stored, so that they are not requested again."""
_KINDS = ("json", "record", "header")


class HttpSource(Replayable):
    """Token: {"cursor"} of the page, or its {"url"} without the parameters named in "with", which are those of our
    `url` (one may be a key), or the "etag" of the last answer; "seen": number of the page's records that were read, if
    it named no next page. A record's position: its `id`, or `<token>:<number within its page>`.
    """

    spec = Spec(
        "http",
        "Polls a URL for pages of JSON records.",
        (
            Option(
                "url",
                "what to ask; http or https, no user or password in it",
                required=True,
                example="http://localhost/",
            ),
            Option("headers.*", "a header of every request", secret=True),
            Option("records", "where the records stand in the answer, such as data.items; default: it is an array"),
            Option("cursor.param", "the query parameter that carries the cursor"),
            Option(
                "cursor.next",
                "where the next cursor is: json:PATH of the answer, record:FIELD of its last record, header:NAME, "
                "link (rel=next), or etag: an answer as a whole, asked for again when it changed",
                required=True,
                example="link",
            ),
            Option("cursor.first", "the cursor of the first request; default: none"),
            Option("id", "field that names a record; its position, so that it keeps its id wherever it comes"),
            Option("key", "field whose value is the record's key"),
            Option("timeout", "of one request, its answer included", default="30s"),
            Option("attempts", "how often a request is made that gets no answer, 408, 425, 429 or 5xx", default="4"),
            *PEER,
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
        connection=HTTP,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        self._client = PageClient(s)
        self._next, _, self._where = s["cursor.next"].partition(":")
        if self._next not in (*_KINDS, "link", "etag") or (self._next in _KINDS) != bool(self._where):
            raise ConfigError(
                "http: option 'cursor.next' is one of json:PATH, record:FIELD, header:NAME, link and etag, not "
                f"'{s['cursor.next']}'"
            )
        if self._next in _KINDS and "cursor.param" not in s:
            raise ConfigError("http: option 'cursor.param' is missing: the query parameter that carries the cursor")
        self._path = [part for part in s.get("records", "").split(".") if part]
        self._ended: Token = None

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        """Plans one open slice if a page has records: the request costs no JVM, a slice without records would."""
        start = position.get("")
        for skipped, page in enumerate(self._pages(start)):
            if page.records or skipped == SKIPPED:
                return [Slice("", "", start, None, hint=[limit.records, limit.bytes], open=True)]
        return []

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        # A slice planned by an older version has only the limit of records.
        records, size = slice.hint if isinstance(slice.hint, list) else (slice.hint, None)
        self._ended, count, used, skipped = slice.start, 0, 0, 0
        for page in self._pages(slice.start):
            if page.records:
                yield self._batch(page)
            self._ended = page.next
            count += len(page.records)
            used += page.size
            skipped = 0 if page.records else skipped + 1
            full = (records is not None and count >= records) or (size is not None and used >= size)
            if full or skipped > SKIPPED:
                break

    def _pages(self, token: Token) -> Iterator[_Page]:
        """Yields the pages from `token` on, empty ones included, to the last for now. With `etag` the first without
        records is the last."""
        while True:
            page = self._page(token)
            yield page
            if page.next == token or (self._next == "etag" and not page.records):
                return
            token = page.next

    def reached(self, slice: Slice) -> Token:
        return self._ended

    def _page(self, token: Token) -> _Page:
        seen = (token or {}).get("seen", 0)
        at = {name: value for name, value in (token or {}).items() if name != "seen"}
        answer = self._client.ask(at)
        if answer.status_code == 304:
            return _Page(at, seen, [], token, 0)
        try:
            found: Any = jsons.exact(answer.content) if answer.content.strip() else []
            whole = found
            for part in self._path:
                found = found[part]
        except (ValueError, KeyError, TypeError, IndexError):
            raise SourceError(
                f"http: the answer of {self._shown} has no records at '{self.settings.get('records', '')}'; correct "
                "'records', or the URL"
            ) from None
        if found is None:
            found = []
        if not isinstance(found, list):
            raise SourceError(
                f"http: {self._shown} answers with {type(found).__name__} where an array of records is meant; set "
                "'records' to where it stands"
            )
        if len(found) < seen:
            raise SourceError(
                f"http: the last page of {self._shown} held {seen} records and now holds {len(found)}: which of them "
                "are new cannot be told. Ask for pages that only grow (cursor.next: record:FIELD asks for what follows "
                "a record), or set the position (`conduit positions`)"
            )
        following = self._following(whole, found, answer)
        if following is None:
            # The last page for now: records added to it, or a next page that it names, come later.
            following = {**at, "seen": len(found)} if found else token
        # If the server does not answer 304, the same tag shows that nothing changed.
        same = self._next == "etag" and following == at
        if self._next == "etag":
            # Requested by the same tag again, the answer may be another one: positions name both.
            at = {**following, "behind": at.get("etag")}
        return _Page(at, seen, [] if same else found[seen:], following, len(answer.content))

    def _following(self, whole: Any, records: list[Any], answer: httpx.Response) -> Token:
        """Returns the token behind this page; None if the page says that there is none yet."""
        cursor: Any = None
        if self._next == "json":
            cursor = whole
            for part in self._where.split("."):
                cursor = cursor.get(part) if isinstance(cursor, dict) else None
        elif self._next == "record":
            last = records[-1] if records else None
            cursor = last.get(self._where) if isinstance(last, dict) else None
            if records and cursor is None:
                raise SourceError(f"http: the last record of {self._shown} has no '{self._where}' (cursor.next)")
        elif self._next == "header":
            cursor = answer.headers.get(self._where)
        elif self._next == "link":
            following = answer.links.get("next", {}).get("url")
            if following is not None:
                return self._linked(str(answer.url), following)
        else:
            # Byte for byte, as it must be sent back.
            sent = {name.lower(): value.decode("latin-1") for name, value in answer.headers.raw}
            tag = sent.get(b"etag") or sent.get(b"last-modified")
            if tag is None:
                raise SourceError(f"http: {self._shown} sends neither ETag nor Last-Modified, which 'etag' needs")
            return {"etag": tag, "since": not sent.get(b"etag")}
        if cursor is None or cursor is False or cursor == "":
            return None
        if isinstance(cursor, bool | dict | list):
            raise SourceError(
                f"http: the next cursor of {self._shown} is {type(cursor).__name__}, no text or number; correct "
                "'cursor.next'"
            )
        return {"cursor": str(cursor)}

    def _linked(self, page: str, following: str) -> Token:
        """Returns the token of the page that a page's link leads to. Raises SourceError if it is at another origin, to
        which our credentials would go, or at no URL."""
        try:
            text = urljoin(page, following)
            origin = URL(text).origin()
            if origin == self._client.url.origin():
                return self._without_ours(text)
        except ValueError as error:
            raise SourceError(f"http: the next page of {self._shown} is at no URL: {error}") from None
        raise SourceError(f"http: the next page of {self._shown} is at another origin, {origin}")

    def _without_ours(self, text: str) -> Token:
        """Returns the next page's URL for the state: without the parameters of our own query, which the request adds
        again."""
        url, ours = URL(text), set(self._client.url.query.items())
        same = {name for name, value in url.query.items() if (name, value) in ours and len(url.query.getall(name)) == 1}
        if not same:
            return {"url": text}
        return {"url": str(url.without_query_params(*same)), "with": sorted(same)}

    def _batch(self, page: _Page) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        from conduit_tasks.record.schema import AFTER_STRUCTURED, read_batch

        records, at = page.records, orjson.dumps(page.at).decode()
        names = [self._field("id", r) for r in records]
        positions = [name or f"{at}:{n}".encode() for n, name in enumerate(names, page.seen)]
        keys = pa.array([self._field("key", r) for r in records], pa.binary())
        after = pa.array([jsons.raw(r) for r in records], pa.binary())
        batch = read_batch(pa.array(positions, pa.binary()), after=after, key=keys)
        shapes = np.array([AFTER_STRUCTURED if isinstance(r, dict) else 0 for r in records], np.int8)
        return batch.set_column(batch.schema.get_field_index("shape"), batch.schema.field("shape"), pa.array(shapes))

    def _field(self, option: str, record: Any) -> bytes | None:
        name = self.settings.get(option)
        value = record.get(name) if name and isinstance(record, dict) else None
        return None if value is None else value.encode() if isinstance(value, str) else jsons.raw(value)

    @property
    def _shown(self) -> str:
        return self._client.shown

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True)
class _Page:
    """A page. `records`: all after the first `seen`; `next`: the token behind them; `size`: bytes of the whole page."""

    at: Token
    seen: int
    records: list[Any]
    next: Token
    size: int = 0
