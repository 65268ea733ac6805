"""A standalone connector as a source: held by its node from read to read (docs/adr/0028-a-source-that-is-held.md)."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from conduit_tasks.connectors import held, options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Token
from conduit_tasks.connectors.capabilities import Held
from conduit_tasks.connectors.standalone.connector import Standalone
from conduit_tasks.connectors.standalone.convert import batch_of
from conduit_tasks.connectors.standalone.session import Session
from conduit_tasks.errors import SourceError, SpoolError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 10_000
"""Most records of one Arrow batch."""
AGAIN = 10.0
"""Seconds after which a connector that ended its stream by itself is opened again."""
LOOK = 0.1
"""Seconds that a look at an open connector waits for something new."""


class StandaloneSource(Standalone, Held):
    """Token: {"at": position of the last record, base64; "batch": the receipts that hold the positions of the
    micro-batch, in order; "config": what the connector was told of its settings}."""

    side: ClassVar[str] = "source"
    ours: ClassVar[tuple[Option, ...]] = (
        Option("conduit.first", "how long the first record may take after the connector was opened", default="5s"),
        Option("conduit.idle", "how long nothing may come until what came is handed on", default="500ms"),
        Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._first = options.duration(self.settings, "conduit.first")
        self._idle = options.duration(self.settings, "conduit.idle")
        self._own: Session | None = None
        self._end: Token = None

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        """Returns an open slice if the connector has something new. Only the process that holds it can ask it: for any
        other it may have."""
        start = position.get("")
        piece = Slice("", "", start, None, hint=[limit.records, limit.bytes], open=True)
        if self._scope() is None:
            return [piece]
        session, fresh = self._session(start)
        told = session.kept != (start or {}).get("config")
        if told or session.waiting(self._first if fresh else LOOK):
            return [piece]
        return []

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        session, fresh = self._session(slice.start)
        records, size = slice.hint
        came = False
        for found in session.read(records, size, self._first if fresh else self._idle, self._idle):
            for start in range(0, len(found), ROWS):
                came = True
                yield batch_of(found[start : start + ROWS], session.client.schemas)
        token = {**(slice.start or {"at": "", "batch": ""}), "config": session.kept}
        if came:
            positions = session.taken
            batch = self.receipts.put(orjson.dumps([_text(position) for position in positions]))
            token |= {"at": _text(positions[-1]), "batch": batch}
            session.staged(batch)
        session.nothing_staged()
        self._end = token
        session.end = token

    def _scope(self) -> held.Scope | None:
        return held.scope(self.pipeline, self.connector)

    def reached(self, slice: Slice) -> Token:
        return self._end

    def ack(self, position: Position) -> None:
        """Does nothing here: the process that holds the connector gives it what is committed. If none does, the next
        one opens it at this position."""

    def _session(self, start: Token) -> tuple[Session, bool]:
        """Returns the open connector, or opens it: also if it stands elsewhere than at `start`, because what it sent
        was dropped. And whether it was opened now."""
        scope = self._scope()
        now = scope.connection if scope is not None else self._own
        if isinstance(now, Session):
            over = now.ended and time.monotonic() - now.began > AGAIN
            if now.end == start and not now.taking and not over:
                return now, False
            self._forget(scope)
            now.close()
        at, sent = self._from(start, scope)
        made = Session(
            self.program(),
            self.spec.name,
            self.id,
            self.config,
            at=at,
            sent=sent,
            kept=(start or {}).get("config"),
            told=self.told,
            own_name=self.own_name,
        )
        made.end = start
        if scope is not None:
            scope.connection = made
            made.keep_acking(scope)
        else:
            self._own = made
        return made, True

    def _forget(self, scope: held.Scope | None) -> None:
        if scope is not None:
            scope.connection = None
        self._own = None

    def _from(self, start: Token, scope: held.Scope | None) -> tuple[bytes, list[tuple[str, list[bytes]]]]:
        """Returns the position to open at, and what is staged behind it."""
        tokens = [token for token in (end.get("") for end in self.unsettled) if token and token["batch"]]
        sent: list[tuple[str, list[bytes]]] = []
        for token in tokens:
            if not sent or sent[-1][0] != token["batch"]:
                try:
                    sent.append(
                        (token["batch"], [_bytes(text) for text in orjson.loads(self.receipts.get(token["batch"]))])
                    )
                except SpoolError as error:
                    raise SourceError(
                        f"{self.spec.name}: what was read and is not acked cannot be told from what is new: {error}"
                    ) from None
        if scope is None or not sent:
            return _bytes((start or {}).get("at", "")), sent
        acked: Any = scope.told().get("")
        numbers = [batch for batch, _ in sent]
        if acked and acked["batch"] in numbers:
            # It was acked since these were listed.
            sent = sent[numbers.index(acked["batch"]) + 1 :]
        return _bytes(acked["at"]) if acked else b"", sent

    def close(self) -> None:
        if self._own is not None:
            own, self._own = self._own, None
            own.close()


def _text(position: bytes) -> str:
    return base64.b64encode(position).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
