"""The acceptance suite: our own connectors pass it, and every way to break the contract is seen."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pytest
import sqlalchemy as sa

from conduit_tasks.connectors.acceptance import Report, accept
from conduit_tasks.connectors.base import (
    DELIVERED,
    BatchDestination,
    Limit,
    Option,
    Outcome,
    Position,
    RecordDestination,
    Rows,
    Slice,
    Source,
    Spec,
)
from conduit_tasks.connectors.log import LOGGER
from conduit_tasks.errors import AcceptanceFailed, ConfigError, Unavailable
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import READ_SCHEMA, record_columns

# --- our own connectors


@pytest.mark.parametrize("format", ["opencdc", "payload"])
def test_files_keep_the_contract(home: Path, format: str) -> None:
    both = {"path": "out/events.jsonl"}
    report = accept("file", source={**both, "format": "jsonl"}, destination={**both, "format": format}).require()
    untried = {check.name for check in report.checks if check.passed is None}
    assert untried == {
        "what is written again after a crash before its confirmation is there once",
        "what was written is read back, each record once",
    }, "where there is a source, it is the one that tells"


@pytest.mark.parametrize("format", ["text", "csv"])
def test_files_that_others_write_keep_the_contract(home: Path, format: str) -> None:
    def append(records: Sequence[Record]) -> None:
        with (home / "in.txt").open("ab") as file:
            file.writelines(b"%s,%d\n" % (r.after["id"].encode(), r.after["n"]) for r in records)  # type: ignore[call-overload,index]

    (home / "in.txt").write_text("id,n\n" if format == "csv" else "")
    accept("file", source={"path": "in.txt", "format": format, "slice-bytes": "200"}, feed=append).require()


def test_the_generator_keeps_the_contract() -> None:
    settings = {"recordCount": "500", "format.type": "raw", "format.options.id": "int", "operations": "create,delete"}
    report = accept("generator", settings).require()
    assert {c.name: c.passed for c in report.checks}["what comes later is read from there, and only that"] is None


def test_the_log_keeps_the_contract(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        accept("log", read_back=lambda: [each.getMessage() for each in caplog.records]).require()


def test_http_keeps_the_contract_on_both_sides() -> None:
    # Given a service that keeps what it is sent, and hands it out in pages
    bodies: list[bytes] = []

    class Taking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            after = int(self.path.partition("after=")[2] or 0)
            page = [{"seq": n, "event": json.loads(body)} for n, body in enumerate(bodies, 1) if n > after][:20]
            answer = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        try:
            url = {"url": f"http://127.0.0.1:{server.server_port}/"}
            paged = {"cursor.param": "after", "cursor.next": "record:seq"}
            accept("http", source={**url, **paged}, destination=url).require()
            # And the destination alone
            accept("http", destination=url, read_back=lambda: bodies, records=10).require()
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_tables_keep_the_contract(home: Path, mode: str) -> None:
    url = f"sqlite:///{home}/t.db"

    def rows() -> list[Any]:
        engine = sa.create_engine(url)
        try:
            with engine.connect() as connection:
                return [tuple(row) for row in connection.execute(sa.text("SELECT payload FROM events"))]
        finally:
            engine.dispose()

    accept("sql", destination={"url": url, "table": "events", "mode": mode}, read_back=rows).require()


# --- a system in memory, and everything that a connector of it can do wrong

_STORE: list[Record] = []
_ACKED: list[Position] = []
_KEPT: list[socket.socket] = []


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    _STORE.clear()
    _ACKED.clear()
    _HIDDEN.clear()
    _DELETED.clear()
    yield
    for each in _KEPT:
        each.close()
    _KEPT.clear()


SPEC = Spec(
    "memory",
    "Records in a list",
    (
        Option("list", "which list", required=True),
        Option("token", "a password", secret=True),
        Option("case", "of the letters", choices=("upper", "lower")),
    ),
)
SETTINGS = {"list": "a", "token": "hush-hush"}


class MemorySource(Source):
    spec = SPEC

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        start = position.get("", 0)
        end = min(len(_STORE), start + (limit.records or len(_STORE)))
        middle = (start + end) // 2
        return [Slice("", "", a, b, b - a) for a, b in ((start, middle), (middle, end)) if a < b]

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        records = [replace(r, position=b"%d" % n) for n, r in enumerate(_STORE)][slice.start : slice.end]
        yield pa.RecordBatch.from_arrays(record_columns(records), schema=READ_SCHEMA)

    def ack(self, position: Position) -> None:
        _ACKED.append(position)


class MemoryDestination(RecordDestination):
    spec = SPEC

    async def send(self, record: Record) -> Outcome:
        _STORE.append(record)
        return DELIVERED


class MemoryBatches(BatchDestination):
    spec = SPEC
    effectively_once = True

    def open(self, state: dict[str, Any] | None) -> None:
        del _STORE[(state or {"size": 0})["size"] :]

    def write(self, rows: Rows) -> dict[str, Any] | None:
        _STORE.extend(rows.records())
        return {"size": len(_STORE)}


def accepted(source: Any = MemorySource, destination: Any = MemoryDestination) -> Report:
    module = SimpleNamespace(SOURCE=source, DESTINATION=destination)
    return accept(module, SETTINGS, records=20, wait=0.1)


@pytest.mark.parametrize("destination", [MemoryDestination, MemoryBatches])
def test_a_sound_connector_passes(destination: Any) -> None:
    report = accepted(destination=destination).require()
    assert report.connector == "memory"
    assert {check.side for check in report.checks} == {"source", "destination"}
    # And acks never overtook what was read
    ends = [position.get("", 0) for position in _ACKED]
    assert ends == sorted(ends)
    assert max(ends) <= len(_STORE)


class Moving(MemorySource):
    failures: ClassVar[list[Unavailable]] = []

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        if self.failures:
            raise self.failures.pop()
        return super().plan(position, limit)


def test_a_source_that_is_away_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Unavailable("the coordinator is gone")
    monkeypatch.setattr(Moving, "failures", [gone] * 3)
    accept(SimpleNamespace(SOURCE=Moving), SETTINGS, feed=_STORE.extend, wait=5).require()
    assert not Moving.failures
    # And one that stays away is told
    monkeypatch.setattr(Moving, "failures", [gone] * 1_000)
    report = accept(SimpleNamespace(SOURCE=Moving), SETTINGS, feed=_STORE.extend, wait=0.2)
    assert "the coordinator is gone" in report.failures()[0].why


def test_a_side_without_the_other_is_tried_with_what_feeds_it_or_reads_it_back() -> None:
    accept(SimpleNamespace(SOURCE=MemorySource), SETTINGS, feed=_STORE.extend).require()
    _STORE.clear()
    accept(SimpleNamespace(DESTINATION=MemoryDestination), SETTINGS, read_back=lambda: _STORE).require()
    _STORE.clear()
    report = accept(SimpleNamespace(SOURCE=MemorySource), SETTINGS)
    assert "there is nothing to read" in report.failures()[0].why


def test_settings_that_belong_to_neither_side_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no option 'lits'"):
        accept(SimpleNamespace(SOURCE=MemorySource), {"lits": "a"})
    with pytest.raises(ConfigError, match="no such side"):
        accept("log", source={})
    with pytest.raises(ConfigError, match=r"SOURCE of .* is not a class"):
        accept(SimpleNamespace(SOURCE=MemoryDestination), {})


class LosesTheLast(MemorySource):
    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        for batch in super().read(slice):
            yield batch.slice(0, batch.num_rows - 1)


class SkipsAfterAnAck(MemorySource):
    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        past = 1 if any(_ACKED) else 0
        return super().plan({"": position.get("", 0) + past}, limit)


class ResumesFromItsAcks(MemorySource):
    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        return super().plan(_ACKED[-1] if _ACKED else position, limit)


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
        return super().plan(position, limit) or [Slice("", "", 0, end + 1, len(_STORE))]


class TakesTooMuch(MemorySource):
    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        return super().plan(position, Limit())


class TokensOfItsOwn(MemorySource):
    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        return [replace(each, hint=(1, 2)) for each in super().plan(position, limit)]


class LeavesASocket(MemorySource):
    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        _KEPT.append(socket.socket())
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
        (TokensOfItsOwn, "everything that is there is read", "must be JSON values"),
        (LeavesASocket, "a slice that is read again gives the same", "more open than before: .* sockets"),
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
    monkeypatch.setattr("conduit_tasks.connectors.acceptance_open.PATIENCE", 0.1)
    LeavesAThread.done.clear()
    try:
        report = accepted(broken)
    finally:
        LeavesAThread.done.set()
    assert not report.passed
    with pytest.raises(AcceptanceFailed, match=f"source: {check}.*{why}"):
        report.require()


# --- a queue in memory

_HIDDEN: dict[int, float] = {}
"""Number of a message that was handed out → when it is visible again."""
_DELETED: set[int] = set()


class MemoryQueue(MemorySource):
    ack_on: ClassVar[Literal["delivered", "stored"]] = "stored"
    settles = True

    def visible(self) -> list[int]:
        now = time.monotonic()
        return [n for n in range(len(_STORE)) if n not in _DELETED and _HIDDEN.get(n, 0.0) < now]

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        waiting = self.visible()
        return [Slice("", "", None, None, hint=limit.records, open=True)] if waiting else []

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        self.taken = self.visible()[: slice.hint]
        _HIDDEN.update(dict.fromkeys(self.taken, time.monotonic() + 0.05))
        records = [replace(_STORE[n], position=b"%d" % n) for n in self.taken]
        yield pa.RecordBatch.from_arrays(record_columns(records), schema=READ_SCHEMA)

    def reached(self, slice: Slice) -> Any:
        return self.receipts.put(json.dumps(self.taken).encode())

    def ack(self, position: Position) -> None:
        for name in position.values():
            _DELETED.update(json.loads(self.receipts.get(name)))


def test_a_sound_queue_passes() -> None:
    report = accept(SimpleNamespace(SOURCE=MemoryQueue, DESTINATION=MemoryDestination), SETTINGS, records=20, wait=1)
    report.require()
    assert len(_DELETED) == 30


class DeletesWhatItReads(MemoryQueue):
    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        yield from super().read(slice)
        _DELETED.update(self.taken)


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
    monkeypatch.setattr("conduit_tasks.connectors.acceptance_source.MOST", 200)
    report = accept(SimpleNamespace(SOURCE=broken), SETTINGS, feed=_STORE.extend, records=20, wait=0.3)
    with pytest.raises(AcceptanceFailed, match=f"source: {check}.*{why}"):
        report.require()


class Forgets(MemoryDestination):
    async def send(self, record: Record) -> Outcome:
        return DELIVERED if b"00000007" in record.after["id"].encode() else await super().send(record)  # type: ignore[index,call-overload]


class SaysNothing(MemoryDestination):
    async def send(self, record: Record) -> Outcome:
        _STORE.append(record)
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
        if len(_STORE) == 10:
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
    monkeypatch.setattr("conduit_tasks.connectors.acceptance_open.PATIENCE", 0.1)
    report = accepted(destination=broken)
    with pytest.raises(AcceptanceFailed, match=why):
        report.require()
