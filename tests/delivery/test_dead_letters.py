from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import DELIVERED, Described, Outcome
from conduit_tasks.delivery.dead_letter_store import DeadLetterStore
from conduit_tasks.delivery.dead_letters import Drop, FileHandler, dead_letter_handler
from conduit_tasks.delivery.port import DeadLetter
from conduit_tasks.errors import ConduitError, ConfigError, Unavailable
from conduit_tasks.pipeline.topology import DeadLetterQueue, Processor
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.settings import settings
from tests.delivery.fakes import Tape, Target


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
    handler = dead_letter_handler(
        DeadLetterQueue("builtin:file", {"path": "out/dead.jsonl"}), root="", pipeline="p", destination="d"
    )
    assert isinstance(handler, FileHandler)
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
def test_any_record_wise_destination_takes_dead_letters_with_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a destination that fails at first
    got: list[Record] = []

    class Letters(Target):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__()

        async def send(self, record: Record) -> Outcome:
            got.append(record)
            return DELIVERED if len(got) > 1 else Outcome("failed", "503")

    offer(monkeypatch, Letters)
    handler = dead_letter_handler(DeadLetterQueue("http"), root="", pipeline="p", destination="d")
    # When a letter is stored
    handler.store([letter()])
    # Then it is sent again under the same id, with the record inside
    assert [record.id for record in got] == [letter().record.id] * 2
    assert isinstance(got[1].after, dict)
    assert got[1].after["record"] == letter().record.to_opencdc()
    assert got[1].metadata["conduit.dlq.nack.error"] == "no such carrier"


@pytest.mark.proves("T7")
def test_a_destination_that_refuses_a_dead_letter_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Target):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(lambda *_: Outcome("refused", "401", 401))

        async def send(self, record: Record) -> Outcome:
            return Outcome("refused", "401", 401)

    offer(monkeypatch, Refusing)
    handler = dead_letter_handler(DeadLetterQueue("http"), root="", pipeline="p", destination="d")
    with pytest.raises(Unavailable, match="401"):
        handler.store([letter()])


def test_a_batch_wise_destination_cannot_take_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, Tape)
    with pytest.raises(ConfigError, match="dead-letter-queue"):
        dead_letter_handler(DeadLetterQueue("sql"), root="", pipeline="p", destination="d")


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
