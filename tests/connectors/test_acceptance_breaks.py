"""The acceptance suite sees every way to break the contract."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import DELIVERED, Limit, Outcome, Position, Slice
from conduit_tasks.connectors.capabilities import Watchable
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import AcceptanceFailed, ConfigError
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import READ_SCHEMA
from tests.connectors.memory import (  # noqa: F401 - a fixture
    ACKED,
    DELETED,
    KEPT,
    SETTINGS,
    STORE,
    MemoryBatches,
    MemoryDestination,
    MemoryQueue,
    MemorySource,
    accepted,
    empty,
)


class LosesTheLast(MemorySource):
    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        for batch in super().read(slice):
            yield batch.slice(0, batch.num_rows - 1)


class SkipsAfterAnAck(MemorySource):
    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        past = 1 if any(ACKED) else 0
        return super().plan({"": position.get("", 0) + past}, limit)


class ResumesFromItsAcks(MemorySource):
    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        return super().plan(ACKED[-1] if ACKED else position, limit)


class NumbersAnew(MemorySource):
    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        for batch in super().read(slice):
            yield batch.set_column(0, READ_SCHEMA.field(0), pa.array([b"0"] * batch.num_rows, pa.binary()))


class GivesOthersTheSecondTime(MemorySource):
    times: ClassVar[Counter[int]] = Counter()

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        self.times[slice.start] += 1
        for batch in super().read(slice):
            yield (
                batch
                if self.times[slice.start] % 2
                else batch.set_column(5, READ_SCHEMA.field(5), pa.nulls(batch.num_rows, pa.binary()))
            )


class NeverEnds(MemorySource):
    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        return super().plan(position, limit) or [Slice("", "", position[""], position[""], 0)]


class RepeatsTheLast(MemorySource):
    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        end = position.get("", 0)
        return super().plan(position, limit) or [Slice("", "", 0, end + 1, len(STORE))]


class TakesTooMuch(MemorySource):
    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        return super().plan(position, Limit())


class SleepsOn(Watchable, MemorySource):
    def news(self, position: Position) -> bool:
        return False


class TokensOfItsOwn(MemorySource):
    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        return [replace(each, hint=(1, 2)) for each in super().plan(position, limit)]


class LeavesASocket(MemorySource):
    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        KEPT.append(socket.socket())
        yield from super().read(slice)


class LeavesAFile(MemorySource):
    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        KEPT.append(open(os.devnull, "rb"))  # noqa: SIM115 - left open on purpose
        yield from super().read(slice)


class LeavesAThread(MemorySource):
    done: ClassVar[threading.Event] = threading.Event()

    def ack(self, position: Position) -> None:
        super().ack(position)
        threading.Thread(target=self.done.wait, daemon=True).start()


class TakesAnything(MemorySource):
    def __init__(self, settings: Any) -> None:
        self.settings = dict(settings)


class TellsSecrets(MemorySource):
    def __init__(self, settings: Any) -> None:
        try:
            super().__init__(settings)
        except ConfigError as error:
            raise ConfigError(f"{error}, in {settings}") from None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "check", "why"),
    [
        (LosesTheLast, "everything that is there is read", "plan counted 10 records, read gave 9"),
        (SkipsAfterAnAck, "resumed at a position, nothing is missed and nothing comes twice", "in small steps"),
        (ResumesFromItsAcks, "a slice that is read again gives the same", "a slice that leads nowhere"),
        (NumbersAnew, "no two records of a partition have the same position", "have the position b'0'"),
        (GivesOthersTheSecondTime, "a slice that is read again gives the same", "the second read differs"),
        (NeverEnds, "everything that is there is read", "a slice that leads nowhere"),
        (RepeatsTheLast, "everything that is there is read", "more than 20000 records came"),
        (TakesTooMuch, "a slice that is read again gives the same", "where 2 were allowed"),
        (SleepsOn, "everything that is there is read", "nobody would be woken"),
        (TokensOfItsOwn, "everything that is there is read", "must be JSON values"),
        (LeavesASocket, "a slice that is read again gives the same", "more open than before: .* sockets"),
        (LeavesAFile, "a slice that is read again gives the same", rf"\d files \({os.devnull}, {os.devnull}"),
        (LeavesAThread, "a slice that is read again gives the same", "more open than before: .* threads"),
        (TakesAnything, "a required option that is missing is named", "'list' is no ConfigError"),
        (TakesAnything, "an unknown option is refused", "is no ConfigError"),
        (TakesAnything, "a value that an option cannot have is refused", "'case' is no ConfigError"),
        (TellsSecrets, "an unknown option is refused", "shows the value of the secret option 'token'"),
    ],
)
def test_a_source_that_breaks_its_contract_is_found_out(
    broken: Any, check: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conduit_tasks.connectors.acceptance.resources.PATIENCE", 0.1)
    LeavesAThread.done.clear()
    try:
        report = accepted(broken)
    finally:
        LeavesAThread.done.set()
    assert not report.passed
    with pytest.raises(AcceptanceFailed, match=f"source: {check}.*{why}"):
        report.require()


# --- a queue in memory


def test_a_sound_queue_passes() -> None:
    report = accept(SimpleNamespace(SOURCE=MemoryQueue, DESTINATION=MemoryDestination), SETTINGS, records=20, wait=60)
    report.require()
    assert len(DELETED) == 30


class DeletesWhatItReads(MemoryQueue):
    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        yield from super().read(slice)
        DELETED.update(self.taken)


class DeletesNothing(MemoryQueue):
    def ack(self, position: Position) -> None:
        time.sleep(0.06)


class LosesReceipts(MemoryQueue):
    def reached(self, slice: Slice) -> Any:
        return "nowhere"


@pytest.mark.parametrize(
    ("broken", "check", "why"),
    [
        (DeletesWhatItReads, "what that attempt read comes again", "20 records did not come again within 0.3 s"),
        (DeletesNothing, "what that attempt read comes again", "more than 200 records came"),
        (LosesReceipts, "what that attempt read comes again", "KeyError: 'nowhere'"),
    ],
)
def test_a_queue_that_breaks_its_contract_is_found_out(
    broken: Any, check: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conduit_tasks.connectors.acceptance.source.MOST", 200)
    # What does come again is waited for as long as that takes.
    wait = 0.3 if broken is DeletesWhatItReads else 60
    report = accept(SimpleNamespace(SOURCE=broken), SETTINGS, feed=STORE.extend, records=20, wait=wait)
    with pytest.raises(AcceptanceFailed, match=f"source: {check}.*{why}"):
        report.require()


class Forgets(MemoryDestination):
    async def send(self, record: Record) -> Outcome:
        return DELIVERED if b"00000007" in record.after["id"].encode() else await super().send(record)  # type: ignore[index,call-overload]


class SaysNothing(MemoryDestination):
    async def send(self, record: Record) -> Outcome:
        STORE.append(record)
        return None  # type: ignore[return-value]


class Refuses(MemoryDestination):
    async def send(self, record: Record) -> Outcome:
        return Outcome("refused", "not today")


class Raises(MemoryDestination):
    async def send(self, record: Record) -> Outcome:
        raise ValueError("a bug")


class DoesNotGoBack(MemoryBatches):
    def open(self, state: dict[str, Any] | None) -> None:
        """Keeps what was not confirmed."""


class KeepsAnObject(MemoryBatches):
    def write(self, rows: Rows) -> dict[str, Any] | None:
        return {"size": {1, 2}}


class DropsASocket(MemoryBatches):
    def write(self, rows: Rows) -> dict[str, Any] | None:
        if len(STORE) == 10:
            socket.socket()
        return super().write(rows)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (Forgets, "1 of 30 did not come back"),
        (SaysNothing, "send returned None, which is no Outcome"),
        (Refuses, "20 of 20 were not delivered, the first was refused: not today"),
        (Raises, "ValueError: a bug"),
        (DoesNotGoBack, "came back more than once"),
        (KeepsAnObject, "not JSON serializable"),
        (DropsASocket, "dropped without being closed: unclosed <socket"),
    ],
)
def test_a_destination_that_breaks_its_contract_is_found_out(
    broken: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conduit_tasks.connectors.acceptance.resources.PATIENCE", 0.1)
    report = accepted(destination=broken)
    with pytest.raises(AcceptanceFailed, match=why):
        report.require()
