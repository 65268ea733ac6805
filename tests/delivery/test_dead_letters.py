from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import DELIVERED, BatchDestination, Described, Outcome, Spec
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.dead_letters import plugin as dead_letter_plugin
from conduit_tasks.dead_letters import portions as dead_letter_portions
from conduit_tasks.dead_letters.handler import Drop, FileHandler, Handler, dead_letter_handler
from conduit_tasks.dead_letters.letter_record import letter_id
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.errors import ConduitError, ConfigError, Refused, Unavailable
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.settings import settings
from conduit_tasks.topology import DeadLetterQueue, Delivery, Processor
from tests.delivery.fakes import Target


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CONDUIT_HOME", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def letter(
    seq: int = 5, *, at: float = 1_700_000_000.0, error: str = "no such carrier", ordinal: int = 0
) -> DeadLetter:
    origin = Origin("flights", "departures", "2013-01", {"opencdc.readAt": "1"})
    record = Record(
        b"\x00pos-%d" % seq,
        "update",
        {"late": "yes"},
        b"\xff\xfekey",
        {"n": seq - 1},
        {"n": seq, "s": "ü"},
        ordinal,
        origin,
    )
    return DeadLetter(3, seq, record, "destinations.delays", error, "http 400", 4, 0, at, 1000 + seq)


def store(root: Path, destination: str | None = "delays") -> DeadLetterStore:
    return DeadLetterStore(str(root), "flights", destination)


@pytest.mark.proves("C14")
def test_a_dead_letter_keeps_the_whole_record_and_everything_about_its_failure(tmp_path: Path) -> None:
    # Given a stored dead letter
    store(tmp_path).store([letter()])
    # When it is listed
    (row,) = store(tmp_path, None).list()
    # Then all of it is there, readable
    assert row["record"] == letter().record.to_opencdc()
    expected = {
        "id": letter().record.id,
        "destination": "delays",
        "micro_batch": 3,
        "seq": 5,
        "ord": 0,
        "epoch": 0,
        "index": 1005,
        "node": "destinations.delays",
        "error": "no such carrier",
        "error_class": "http 400",
        "attempts": 4,
        "connector": "departures",
        "partition": "2013-01",
        "position": b"\x00pos-5",
    }
    assert {name: row[name] for name in expected} == expected
    assert row["at"].timestamp() == 1_700_000_000.0
    # And it can be sent again exactly as it was
    assert list(store(tmp_path).letters("delays")) == [letter()]


@pytest.mark.proves("C14", "C6", "I8")
def test_a_letter_stored_again_counts_once_and_the_last_one_wins(tmp_path: Path) -> None:
    # Given letters stored twice, once together and once with another
    store(tmp_path).store([letter(5), letter(6)])
    store(tmp_path).store([letter(5), letter(6)])
    store(tmp_path).store([letter(6, at=1_700_000_100.0, error="still not"), letter(7), letter(7, ordinal=1)])
    # Then each is listed once, in order
    rows = store(tmp_path).list()
    assert [(row["seq"], row["ord"]) for row in rows] == [(5, 0), (6, 0), (7, 0), (7, 1)]
    assert rows[1]["error"] == "still not"
    # And the same letters are one file
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_letters_that_are_purged_while_they_are_read_are_no_broken_files(tmp_path: Path) -> None:
    letters = store(tmp_path)
    letters.store([letter()])
    found = letters.rows("delays")
    letters.remove("delays", {letter().key})
    for read in (letters.whole, letters.load):
        with pytest.raises(ConduitError, match=r"was removed .* purge`: call this again"):
            list(read(found))
    with pytest.raises(ConduitError, match="call this again"):
        letters.sizes(found)


def test_the_store_is_parquet_that_any_tool_reads_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    store(tmp_path).store([letter()])
    store(tmp_path, None).store([replace(letter(9), node="processors")])
    table = pq.read_table(tmp_path / "flights", partitioning="hive")
    assert sorted(table.column("destination").to_pylist()) == ["_pipeline", "delays"]
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".parquet"}


def test_listing_filters_by_destination_class_and_number(tmp_path: Path) -> None:
    store(tmp_path).store([letter(n) for n in range(10)])
    store(tmp_path, "archive").store([letter(1)])
    everything = store(tmp_path, None)
    assert len(everything.list()) == 11
    assert len(everything.list("archive")) == 1
    assert everything.list(error_class="http 404") == []
    assert [row["seq"] for row in everything.list("delays", limit=2)] == [0, 1]
    assert everything.list("nobody") == []


@pytest.mark.proves("T7")
def test_a_store_that_cannot_write_says_where_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "flights").write_text("in the way")
    with pytest.raises(ConduitError, match="CONDUIT_DEAD_LETTERS"):
        store(tmp_path).store([letter()])


@pytest.mark.proves("C5")
def test_drop_warns_of_each_record(caplog: pytest.LogCaptureFixture) -> None:
    handler = dead_letter_handler(DeadLetterQueue("builtin:log"), root="", pipeline="p", destination="d")
    assert isinstance(handler, Drop)
    with caplog.at_level(logging.WARNING):
        handler.store([letter(5), letter(6)])
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "no such carrier" in caplog.text
    assert letter().record.id in caplog.text


@pytest.mark.proves("C5", "C14")
def test_a_file_gets_a_line_for_each_and_a_torn_line_is_cut_off(installation: Path) -> None:
    # Given a file whose last line a crash tore
    handler = FileHandler({"path": "out/dead.jsonl"})
    handler.store([letter(5)])
    path = installation / "out" / "dead.jsonl"
    with path.open("ab") as file:
        file.write(b'{"id": "torn' + b"x" * 100_000)
    # When more is stored
    handler.store([letter(6), letter(7)])
    # Then there are whole lines only
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["seq"] for line in lines] == [5, 6, 7]
    assert lines[0]["record"] == letter().record.to_opencdc()
    assert lines[0]["error_class"] == "http 400"


def offer(monkeypatch: pytest.MonkeyPatch, cls: type) -> None:
    """Makes `cls` the destination of every plugin."""
    monkeypatch.setattr(registry, "described", lambda name: Described(destination=cls))


@pytest.mark.proves("C5", "T7", "T8")
def test_any_record_wise_destination_takes_dead_letters_with_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a destination that fails at first
    got: list[Record] = []

    class Letters(Target):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__()

        async def send(self, record: Record) -> Outcome:
            got.append(record)
            return DELIVERED if len(got) > 1 else Outcome("failed", "503")

    offer(monkeypatch, Letters)
    # When a letter is stored
    plugged(tmp_path).store([letter()])
    # Then it is sent again under the same id, with the record inside
    assert [record.id for record in got] == [letter_id(letter())] * 2
    assert isinstance(got[1].after, dict)
    assert got[1].after["id"] == letter().record.id
    assert got[1].after["record"] == letter().record.to_opencdc()
    assert got[1].metadata["conduit.dlq.nack.error"] == "no such carrier"
    # And there is a copy that can be redriven
    assert list(DeadLetterStore(str(tmp_path), "flights").letters("delays")) == [letter()]


@pytest.mark.proves("T7")
def test_a_destination_that_refuses_a_dead_letter_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Target):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(lambda *_: Outcome("refused", "401", 401))

        async def send(self, record: Record) -> Outcome:
            return Outcome("refused", "401", 401)

    offer(monkeypatch, Refusing)
    with pytest.raises(Unavailable, match="401"):
        plugged(tmp_path).store([letter()])


class Shelf(BatchDestination):
    """A batch-wise target of letters: what is on it, and what each write is to meet first."""

    spec = Spec("shelf", "")
    chunk = 4
    there: ClassVar[list[tuple[str, str]]] = []
    meets: ClassVar[list[Any]] = []

    def open(self, state: dict[str, Any] | None) -> None:
        assert state is None or state["of"] == self.connector, "a destination never gets a state that it did not return"

    def write(self, rows: Rows) -> dict[str, Any] | None:
        met = self.meets.pop(0) if self.meets else None
        if isinstance(met, Exception):
            raise met
        if met is not None:
            met()
        assert rows.batch.num_rows <= self.chunk
        ids = [record.after["id"] for record in rows.records() if isinstance(record.after, dict)]
        if BAD in ids:
            raise Refused("no room for this one")
        self.there.extend((self.connector, id) for id in ids)
        return {"of": self.connector}


BAD = "a bad one's id"


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Shelf]]:
    offer(monkeypatch, Shelf)
    monkeypatch.setattr(Shelf, "there", [])
    monkeypatch.setattr(Shelf, "meets", [])
    monkeypatch.setattr(dead_letter_plugin, "SENDS", Delivery(retry=2, backoff_delay=0.001, timeout=5.0))
    yield Shelf
    # A write that hung until its test let it go on would write onto the next test's shelf.
    for thread in threading.enumerate():
        if thread.name == "dead letters to shelf":
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.proves("C5", "C17", "T7")
def test_a_batch_wise_destination_takes_letters_in_writes_with_retries(tmp_path: Path, shelf: type[Shelf]) -> None:
    # Given one that is away for a moment
    shelf.meets[:] = [None, Unavailable("busy"), Unavailable("busy")]
    # When more letters are stored than a write takes
    letters = [letter(n) for n in range(10)]
    plugged(tmp_path).store(letters)
    # Then each is there once, in order, and the connector has a name of the letters' own
    assert [id for _, id in shelf.there] == [each.record.id for each in letters]
    (name,) = {name for name, _ in shelf.there}
    assert name.startswith("delays.dead-letters/")
    # And the same letters have the same name, others another
    plugged(tmp_path).store(letters)
    plugged(tmp_path).store(letters[:1])
    assert [n == name for n, _ in shelf.there] == [True] * 20 + [False]


@pytest.mark.proves("C13")
def test_letters_are_written_in_bounded_portions_whatever_their_size(
    tmp_path: Path, shelf: type[Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_portions, "settings", lambda: SimpleNamespace(batch_bytes=1))
    sizes: list[int] = []
    whole = Shelf.write
    monkeypatch.setattr(Shelf, "write", lambda self, rows: [sizes.append(rows.batch.num_rows), whole(self, rows)][1])
    plugged(tmp_path).store([letter(n) for n in range(3)])
    assert sizes == [1, 1, 1]


@pytest.mark.proves("T7", "I8")
def test_a_letter_that_is_refused_is_named_and_those_before_it_are_written(
    tmp_path: Path, shelf: type[Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = letter(2)
    monkeypatch.setattr("tests.delivery.test_dead_letters.BAD", bad.record.id)
    with pytest.raises(ConduitError, match=f"refuses the letter of record {bad.record.id}: no room"):
        plugged(tmp_path).store([letter(n) for n in range(4)])
    assert [id for _, id in shelf.there] == [letter(n).record.id for n in range(2)]


@pytest.mark.proves("T7")
def test_a_destination_of_letters_that_stays_away_or_hangs_raises_in_time(
    tmp_path: Path, shelf: type[Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.meets[:] = [Unavailable("away")] * 3
    with pytest.raises(Unavailable, match="away"):
        plugged(tmp_path).store([letter()])
    assert not shelf.meets, "three attempts"
    # Given a write that never ends
    over = threading.Event()
    shelf.meets[:] = [over.wait]
    monkeypatch.setattr(dead_letter_plugin, "WRITE", 0.05)
    try:
        with pytest.raises(ConduitError, match=r"did not answer within 0\.05 s"):
            plugged(tmp_path).store([letter()])
    finally:
        over.set()


def test_a_destination_in_the_drivers_session_cannot_take_letters(
    tmp_path: Path, shelf: type[Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "in_driver", True)
    with pytest.raises(ConfigError, match="the driver's Spark session"):
        plugged(tmp_path)


@pytest.mark.proves("T8")
def test_letters_of_one_record_at_two_destinations_and_in_two_epochs_have_ids_of_their_own() -> None:
    elsewhere = replace(letter(), node="destinations.archive")
    before = replace(letter(), node="processors/route")
    again = replace(letter(), epoch=7)
    processor = replace(letter(), node="destinations.delays/tidy", micro_batch=9, seq=1, attempts=2, error="other")
    ids = [letter_id(each) for each in (letter(), elsewhere, before, again, letter(6), letter(ordinal=1))]
    assert len(set(ids)) == len(ids)
    assert letter_id(processor) == letter_id(letter()), "one letter for each record, destination and epoch"


def plugged(root: Path) -> Handler:
    """What takes the letters of `delays` with a plugin of `offer`."""
    return dead_letter_handler(DeadLetterQueue("offered"), root=str(root), pipeline="flights", destination="delays")


def processed(tmp_path: Path, *processors: Processor) -> list[DeadLetter]:
    """What the store has of one letter that passed these."""
    queue = DeadLetterQueue(processors=processors)
    handler = dead_letter_handler(queue, root=str(tmp_path), pipeline="flights", destination="delays")
    handler.store([letter()])
    return list(store(tmp_path).letters("delays"))


@pytest.mark.proves("C14", "T8")
def test_processors_on_the_way_change_what_is_stored_but_not_whose_it_is(tmp_path: Path) -> None:
    # Given a processor that acts on the error class, and one that moves the record's identity about
    mask = {"field": ".Payload.After.s", "value": "***"}
    chosen = '{{ eq (index .Metadata "conduit.dlq.nack.error.class") "http 400" }}'
    (kept,) = processed(tmp_path, Processor("mask", "field.set", mask, chosen))
    # Then the record is as they left it, with the id that it had, and nothing of ours in its metadata
    assert kept.record.after == {"n": 5, "s": "***"}
    assert kept.record.id == letter().record.id
    assert kept.record.metadata == letter().record.metadata
    assert (kept.key, kept.error, kept.attempts) == (letter().key, letter().error, letter().attempts)


@pytest.mark.proves("C14")
@pytest.mark.parametrize("plugin", ["error", "clone"])
def test_a_processor_that_fails_on_the_way_loses_no_letter(tmp_path: Path, plugin: str) -> None:
    settings = {"error": {"message": "no"}, "clone": {"count": "2"}}[plugin]
    (kept,) = processed(tmp_path, Processor("bad", plugin, settings))
    assert kept.record == letter().record
    assert kept.error.startswith("no such carrier (")
    assert "the record is as it was" in kept.error


def test_a_processor_that_filters_drops_the_letter_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert processed(tmp_path, Processor("drop", "filter")) == []
    assert "dropped record" in caplog.text
