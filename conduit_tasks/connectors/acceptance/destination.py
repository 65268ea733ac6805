"""Checks of a destination: one outcome per record, writes of all or nothing, return to the confirmed state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conduit_tasks.connectors.acceptance.records import ORIGIN, Marked, in_parts, once
from conduit_tasks.connectors.acceptance.report import Checks, NotTried, Unmet
from conduit_tasks.connectors.acceptance.resources import leaving_nothing_open
from conduit_tasks.connectors.base import BatchDestination, Outcome, RecordDestination
from conduit_tasks.connectors.rows import ALL, RowNumbers, Rows
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import spool_batch

SENDS = 8
"""Records that are sent at the same time."""
TIMEOUT = 30.0
"""Seconds for one send."""

ReadBack = Callable[[], Iterable[Any]]


@dataclass
class Writer:
    """Writes to one destination as the engine does: an instance per task, the state carried from one to the next."""

    cls: type[RecordDestination] | type[BatchDestination]
    settings: Mapping[str, str]
    state: dict[str, Any] | None = None
    written: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    seal: int = field(default_factory=lambda: time.time_ns() // 1_000)

    def write(self, records: Sequence[Record], *, confirmed: bool = True) -> None:
        """Opens, writes in two pieces, closes. Not `confirmed`: as if the process had died before the confirmation."""
        destination = self.cls(self.settings)
        if isinstance(destination, RecordDestination):
            self.outcomes += asyncio.run(_send(destination, records))
            return
        state, written = self.state, self.written
        try:
            destination.open(state)
            for piece in in_parts(records, 2):
                state = _through_json(destination.write(self._rows(destination, piece, written)))
                written += len(piece)
        finally:
            destination.close()
        if confirmed:
            self.state, self.written = state, written

    def _rows(self, destination: BatchDestination, records: Sequence[Record], first: int) -> Rows:
        import numpy as np

        seqs = range(first, first + len(records))
        numbers = None
        if destination.keeps_index:
            numbers = RowNumbers(ORIGIN.pipeline, ORIGIN.connector, 1, np.arange(1, len(records) + 1) + first)
        batch = spool_batch([0] * len(records), seqs, records)
        pending = ((seqs[0], ALL),)
        return Rows(batch, [ORIGIN], 1, seqs[0], seqs[-1], numbers, self.seal, pending=pending)


async def _send(destination: RecordDestination, records: Sequence[Record]) -> list[Outcome]:
    room = asyncio.Semaphore(SENDS)

    async def one(record: Record) -> Outcome:
        async with room:
            return await asyncio.wait_for(destination.send(record), TIMEOUT)

    await destination.open(TIMEOUT)
    try:
        return await asyncio.gather(*(one(record) for record in records))
    finally:
        await destination.close()


def destination_checks(
    checks: Checks, writer: Writer, marked: Marked, records: int, read_back: ReadBack | None, *, source: bool
) -> None:
    """Writes at least `records` marked records; `read_back` returns all that is in the system afterwards. `source`:
    whether a source reads them, and finds records that are missing or duplicated."""
    first, second = in_parts(marked.records(max(4, records)), 2)
    with checks.check("it opens, writes and closes") as check:
        writer.write(first)
        check.why = f"{len(first)} records"
    if not checks.sound:
        return
    with checks.check("nothing stays open after it was closed"), leaving_nothing_open():
        writer.write(second[:1])
    if issubclass(writer.cls, RecordDestination):
        with checks.check("each record has an outcome, and it is delivered") as check:
            writer.write(second[1:])
            check.why = _judged(writer.outcomes, len(marked.made))
    else:
        once_only = writer.cls.effectively_once or writer.cls.idempotent(writer.settings)
        with checks.check("what is written again after a crash before its confirmation is there once"):
            if once_only:
                writer.write(second[1:], confirmed=False)
            writer.write(second[1:])
            if not once_only:
                raise NotTried("it promises neither effectively-once nor idempotent writes")
            _judge(marked, read_back, source)
    with checks.check("what was written is read back, each record once") as check:
        check.why = _judge(marked, read_back, source)


def _judge(marked: Marked, read_back: ReadBack | None, source: bool) -> str:
    if read_back is not None:
        return once(marked, marked.count(read_back()))
    raise NotTried("the source tells" if source else "give the source of the same system, or read_back")


def _judged(outcomes: Sequence[Any], sent: int) -> str:
    strange = [each for each in outcomes if not isinstance(each, Outcome)]
    if strange:
        raise Unmet(f"send returned {strange[0]!r}, which is no Outcome")
    if len(outcomes) != sent:
        raise Unmet(f"{len(outcomes)} outcomes for {sent} records")
    others = [each for each in outcomes if each.kind != "delivered"]
    if others:
        raise Unmet(f"{len(others)} of {sent} were not delivered, the first was {others[0].kind}: {others[0].message}")
    return f"{sent} records"


def _through_json(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns the state as the broker stores it, as JSON. Raises Unmet if that changes it."""
    import orjson

    kept = orjson.loads(orjson.dumps(state))
    if kept != state or not isinstance(kept, dict | None):
        raise Unmet(f"write returned a state that is no JSON object: {state!r}")
    return kept
