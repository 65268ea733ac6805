"""Records are found by id, key or a field's value: by indexes beside the data, and without them row by row (X5)."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import ConfigError, SpoolError
from conduit_tasks.ledger import values
from conduit_tasks.ledger.find import Place, Search
from conduit_tasks.ledger.ids import ById
from conduit_tasks.ledger.values import ByValue
from conduit_tasks.micro_batch.context import open_spool
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.record.searchable import index_of
from conduit_tasks.spool import index as spool_index
from conduit_tasks.spool.spool import Spool
from tests.micro_batch.harness import run_once, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 50}
    mask: [.Payload.After.card]
    INDEX
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
"""
FIELDS = "index: [.Key, .Payload.After.n, .Payload.After.who, .Payload.After.deep.er]"


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts have an index as well, unless a test says otherwise."""
    monkeypatch.setattr(spool_index, "LEAST", 1)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the part files whose rows were gone through."""
    found: list[str] = []
    whole = Spool.read
    monkeypatch.setattr(Spool, "read", lambda self, file, **how: [found.append(file.path), whole(self, file, **how)][1])
    return found


def row(n: int) -> dict[str, Any]:
    return {"n": n, "k": f"k-{n % 40}", "who": f"who {n % 7}", "card": f"4111-{n}", "deep": {"er": n * 1.5}, "ok": True}


def deliver(home: Path, count: int = 100, index: str = FIELDS) -> None:
    write_pipeline(home, "p", PIPELINE.replace("INDEX", index))
    (home / "data").mkdir(exist_ok=True)
    (home / "data" / "a.jsonl").write_text("".join(f"{json.dumps(row(n))}\n" for n in range(count)))
    while run_once("p")["plan"] and len(parts(home)) < count // 50:
        pass


def parts(home: Path) -> list[Path]:
    return sorted((home / ".conduit/spool/p").glob("0*/*/part-*.parquet"))


def look(field: str, value: str, most: int = values.MOST) -> tuple[list[tuple[int, int]], Search]:
    pipeline = get_pipeline("p")
    search = Search(open_spool(pipeline), "p", ByValue(pipeline, field, value, most))
    return [(place.micro_batch, place.seq) for place in search.look()], search


def test_a_record_is_found_by_key_and_by_a_field_without_going_through_the_data(home: Path, read: list[str]) -> None:
    # Given two micro-batches of 50 records
    deliver(home)
    read.clear()
    # Then the newest comes first, whatever the kind of the value is
    assert look(".Key", "k-7")[0] == [(2, 37), (1, 47), (1, 7)]
    assert look(".Payload.After.who", "who 6")[0][:3] == [(2, 47), (2, 40), (2, 33)]
    assert look(".Payload.After.n", "93")[0] == [(2, 43)]
    assert look('.Payload.After["deep"].er', "93.0")[0] == [(2, 12)]
    nothing, search = look(".Key", "k-99")
    assert (nothing, search.searched, search.left, search.more) == ([], (0, 0), 0, False)
    # And no part was gone through
    assert read == []


def test_small_parts_have_no_index_and_what_they_hold_is_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given parts of 50 records, where 51 are needed for an index
    monkeypatch.setattr(spool_index, "LEAST", 51)
    deliver(home)
    found, search = look(".Key", "k-7")
    assert (found, search.searched) == ([(2, 37), (1, 47), (1, 7)], (2, 100))
    spool = open_spool(get_pipeline("p"))
    path = spool.sealed("p", 1)
    assert path is not None
    id = ByValue(get_pipeline("p"), ".Key", "k-7").within(spool, path, spool.read_sealed(path)).places[0].id
    assert [place.seq for place in Search(spool, "p", ById("p", id)).look()] == [47]
    assert [*(home / ".conduit/spool/p").rglob("*.index"), *(home / ".conduit/spool/p").rglob("*.ids")] == []
    # And those that have as many do, in however many batches the rows came
    monkeypatch.setattr(spool_index, "LEAST", 50)
    (home / "data" / "b.jsonl").write_text("".join(f"{json.dumps(row(n))}\n" for n in range(100, 150)))
    run_once("p")
    assert [p.parent.parent.name for p in (home / ".conduit/spool/p").rglob("*.index")] == ["0000000003"]
    assert look(".Key", "k-7")[0] == [(3, 7 + 20), (2, 37), (1, 47), (1, 7)]


def test_enough_is_enough_and_said(home: Path) -> None:
    deliver(home)
    found, search = look(".Payload.After.who", "who 1", 3)
    assert (found, search.more) == ([(2, 49), (2, 42), (2, 35)], True)
    assert len(look(".Payload.After.who", "who 1", 15)[0]) == 15
    assert look(".Payload.After.who", "who 1", 16)[1].more is False


def test_hashes_that_are_equal_by_chance_find_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(home)
    other = values.hash_of(b"k-7")
    monkeypatch.setattr(values, "hash_of", lambda _: other)
    assert look(".Key", "something else")[0] == []
    assert look(".Key", "k-7")[0] == [(2, 37), (1, 47), (1, 7)]


@pytest.mark.parametrize("harm", ["gone", "cut", "footer", "block", "head"])
def test_a_part_whose_index_is_missing_or_damaged_is_gone_through(home: Path, read: list[str], harm: str) -> None:
    deliver(home)
    first = Path(spool_index.path_of(str(parts(home)[0])))
    data = bytearray(first.read_bytes())
    if harm == "gone":
        first.unlink()
    else:
        at = {"cut": len(data) // 2, "footer": len(data) - 20, "block": 100, "head": 3}[harm]
        first.write_bytes(data[:at] if harm == "cut" else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    read.clear()
    found, search = look(".Key", "k-7")
    assert found == [(2, 37), (1, 47), (1, 7)]
    assert search.searched == (1, 50)
    assert len(read) == 1


def test_micro_batches_of_before_a_field_was_listed_are_gone_through(home: Path, read: list[str]) -> None:
    deliver(home, index="index: [.Key]")
    write_pipeline(home, "p", PIPELINE.replace("INDEX", FIELDS))
    read.clear()
    found, search = look(".Payload.After.n", "43")
    assert (found, search.searched, len(read)) == ([(1, 43)], (2, 100), 2)
    # And without any index nothing is written beside the parts
    write_pipeline(home, "p", PIPELINE.replace("INDEX", "index: []"))
    (home / "data" / "b.jsonl").write_text(f"{json.dumps(row(200))}\n")
    run_once("p")
    assert len(parts(home)) == 3
    assert len(list((home / ".conduit/spool/p").rglob("*.index"))) == 2


def test_what_is_masked_is_not_found_by_guessing(home: Path) -> None:
    deliver(home, index="index: [.Payload.After.n, .Payload.After.who, .Key]")
    pipeline = get_pipeline("p")
    # When a field is masked, or lies in one that is, or has one in it, however it is written
    for mask in (".Payload.After.who", ".Payload.After", '.Payload.After["who"]', ".Payload.After.who.first"):
        with pytest.raises(ConfigError, match="is masked"):
            ByValue(replace(pipeline, mask=(mask,)), ".Payload.After.who", "who 1")
        ByValue(replace(pipeline, mask=(mask,)), ".Key", "k-1")
    # Or named secret, or nothing is kept of it
    for field, why in (
        (".Payload.After.password", "its name says that it is secret"),
        ('.Metadata["api-key"]', "its name says that it is secret"),
        (".Payload.After.ok", "add .Payload.After.ok to `index`"),
        (".Metadata", "by a field in .Metadata"),
        ("who", "column 1"),
    ):
        with pytest.raises(ConfigError, match=why):
            ByValue(pipeline, field, "true")
    # By default there is one of keys, unless something in them is masked
    assert (index_of([".Key"], [".Payload.After"]), index_of([".Key"], [".Key.id"])) == ((".Key",), ())


def test_a_value_that_repeats_a_masked_one_is_not_found(home: Path) -> None:
    write_pipeline(home, "p", PIPELINE.replace("INDEX", "index: [.Key, .Payload.After.copy]"))
    (home / "data").mkdir()
    (home / "data" / "a.jsonl").write_text(json.dumps({"k": "4111-1", "card": "4111-1", "copy": "4111-1"}) + "\n")
    run_once("p")
    assert look(".Key", "4111-1")[0] == []
    assert look(".Payload.After.copy", "4111-1")[0] == []


def test_whether_there_are_more_does_not_tell_that_a_guess_at_a_masked_value_is_right(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given more records that repeat a masked value than are compared
    monkeypatch.setattr(values, "COMPARED", 3)
    write_pipeline(home, "p", PIPELINE.replace("INDEX", "index: [.Payload.After.copy]"))
    (home / "data").mkdir()
    line = json.dumps({"k": "k", "card": "4111-1", "copy": "4111-1"}) + "\n"
    (home / "data" / "a.jsonl").write_text(5 * line)
    run_once("p")
    found = {guess: look(".Payload.After.copy", guess) for guess in ("4111-1", "4111-2")}
    assert [(places, search.more) for places, search in found.values()] == 2 * [([], False)]


def test_places_of_a_value_within_one_record_do_not_hide_another_record(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given records that have the value several times, elsewhere, and one before them that has it in the field
    monkeypatch.setattr(values, "COMPARED", 4)
    write_pipeline(home, "p", PIPELINE.replace("INDEX", "index: [.Payload.After.n]"))
    (home / "data").mkdir()
    lines = [{"k": "k", "n": "A"}, *3 * [{"k": "k", "n": "x", "lines": [{"n": "A"}, {"n": "A"}]}]]
    (home / "data" / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run_once("p")
    found, search = look(".Payload.After.n", "A")
    assert (found, search.more) == ([(1, 0)], False)


@pytest.mark.parametrize("index", [1, 10_000])
def test_a_record_behind_many_that_only_may_have_the_value_is_found(
    home: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    # Given records that have the value elsewhere, more than are compared in one look, and older ones that have it
    monkeypatch.setattr(values, "COMPARED", 3)
    monkeypatch.setattr(spool_index, "LEAST", index)
    write_pipeline(home, "p", PIPELINE.replace("INDEX", "index: [.Payload.After.n]"))
    (home / "data").mkdir()
    lines = [{"n": "A"}, *5 * [{"n": "x", "in": {"n": "A"}}], {"n": "A"}, *8 * [{"n": "x", "in": {"n": "A"}}]]
    (home / "data" / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run_once("p")
    found, search = look(".Payload.After.n", "A")
    assert (found, search.more, search.left) == ([(1, 6), (1, 0)], False, 0)
    # And a look that stops in between says so, and goes on
    search = Search(search._spool, "p", ByValue(get_pipeline("p"), ".Payload.After.n", "A"))
    said = [([place.seq for place in search.look(1)], search.left) for _ in range(5)]
    assert said == [([], 1), ([], 1), ([6], 1), ([6], 1), ([6, 0], 0)]
    assert look(".Payload.After.n", "A", 1)[0] == [(1, 6)]


def test_values_are_found_however_they_are_written(home: Path) -> None:
    write_pipeline(home, "p", PIPELINE.replace("INDEX", "index: [.Key, .Payload.After.n, .Position]"))
    (home / "data").mkdir()
    lines = ['{"k": {"a": "é", "b": [1]}, "n": -0}', '{"k": "x", "n": 0}', '{"k": "y", "n": 1.50}']
    (home / "data" / "a.jsonl").write_text("\n".join(lines) + "\n")
    run_once("p")
    for field, value, seqs in (
        (".Payload.After.n", "-0", [1, 0]),
        (".Payload.After.n", "0", [1, 0]),
        (".Payload.After.n", "1.50", [2]),
        (".Payload.After.n", "1.5", [2]),
        (".Key", '{"a": "é", "b": [1]}', [0]),
        (".Key", '{"a":"\\u00e9","b":[1]}', [0]),
        (".Key", '{"b": [1], "a": "é"}', []),
    ):
        assert [seq for _, seq in look(field, value)[0]] == seqs, (field, value)
    for seq, position in enumerate(_positions(open_spool(get_pipeline("p")))):
        # As it is, and as OpenCDC's JSON shows it
        for text in (position.decode(), base64.b64encode(position).decode()):
            assert look(".Position", text)[0] == [(1, seq)]


def _positions(spool: Spool) -> list[bytes]:
    path = spool.sealed("p", 1)
    assert path is not None
    files = spool.read_sealed(path).files
    return [
        p for file in files for batch in spool.read(file, columns=["position"]) for p in batch.column(0).to_pylist()
    ]


def test_a_text_that_is_no_id_is_the_id_of_no_record(home: Path) -> None:
    deliver(home, 50)
    spool = open_spool(get_pipeline("p"))
    assert Search(spool, "p", ById("p", "order-zzzz-0000000017")).look() == []


def test_an_index_that_cannot_be_removed_stops_no_collection(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given an index that a look of another user has left, and what a killed look has
    deliver(home, 50)
    spool = open_spool(get_pipeline("p"))
    Search(spool, "p", ById("p", "0" * 32)).look()
    folder = home / ".conduit/spool/p/index"
    (folder / ".0000000001-9.ids.aaaa.tmp").write_bytes(b"x")
    remove = spool.remove

    def refused(path: str) -> None:
        if "/index/" in path:
            raise SpoolError(f"{path} cannot be removed: Permission denied")
        remove(path)

    with monkeypatch.context() as other:
        other.setattr(spool, "remove", refused)
        spool.collect("p", 1)
    assert "Permission denied" in caplog.text
    assert parts(home) == []
    spool.collect("p", 1)
    assert list(folder.iterdir()) == []


def test_a_structured_key_is_found_as_it_was_written_or_as_json(home: Path) -> None:
    decode = "processors: [{id: k, plugin: json.decode, settings: {field: .Key}}]"
    write_pipeline(home, "p", PIPELINE.replace("INDEX", decode))
    (home / "data").mkdir()
    lines = [{"k": json.dumps({"id": n, "of": "é"})} for n in range(3)]
    (home / "data" / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run_once("p")
    for text in ('{"id":1,"of":"é"}', '{"id": 1, "of": "é"}', '{"id": 1, "of": "\\u00e9"}'):
        assert look(".Key", text)[0] == [(1, 1)], text
    assert look(".Key", '{"id":1,')[0] == look(".Key", '{"id":1}')[0] == []


def test_the_first_look_by_id_makes_an_index_which_goes_with_the_micro_batch(home: Path, read: list[str]) -> None:
    # Given a record's id
    deliver(home)
    pipeline = get_pipeline("p")
    spool = open_spool(pipeline)
    [place] = Search(spool, "p", ByValue(pipeline, ".Payload.After.n", "43")).look()
    read.clear()

    def by_id(id: str) -> list[Place]:
        return Search(spool, "p", ById("p", id)).look()

    # When it is looked for twice, the second look goes through no part
    assert by_id(place.id.upper()) == [place]
    assert len(read) == 2
    read.clear()
    assert by_id(place.id) == [place]
    assert by_id("0" * 32) == by_id("abcdef0123") == by_id("nonsense") == []
    assert read == []
    # And another one, which shares what the index has of it, is not found
    assert by_id(place.id[:16] + "0" * 16) == []
    # A damaged index is made again
    kept = sorted((home / ".conduit/spool/p/index").iterdir())
    assert [path.name[:10] for path in kept] == ["0000000001", "0000000002"]
    kept[0].write_bytes(b"nothing")
    assert by_id(place.id) == [place]
    assert len(read) == 1
    # And it is gone when its micro-batch is
    spool.collect("p", 1)
    assert [path.name[:10] for path in sorted((home / ".conduit/spool/p/index").iterdir())] == ["0000000002"]
    assert by_id(place.id) == []


def test_an_index_of_ids_that_is_made_while_its_micro_batch_is_collected_is_not_left(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(home, 50)
    spool = open_spool(get_pipeline("p"))
    close = spool_index.IndexWriter.close

    def late(self: Any) -> None:
        spool.collect("p", 1)
        close(self)

    monkeypatch.setattr(spool_index.IndexWriter, "close", late)
    Search(spool, "p", ById("p", "0" * 32)).look()
    assert list((home / ".conduit/spool/p/index").iterdir()) == []


def test_a_spool_that_cannot_be_written_is_searched_all_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(home, 50)
    spool = open_spool(get_pipeline("p"))
    path = spool.sealed("p", 1)
    assert path is not None
    id = ByValue(get_pipeline("p"), ".Payload.After.n", "4").within(spool, path, spool.read_sealed(path)).places[0].id
    monkeypatch.setattr(spool_index.IndexWriter, "close", lambda _: (_ for _ in ()).throw(OSError("read-only")))
    assert [place.seq for place in Search(spool, "p", ById("p", id)).look()] == [4]


def test_an_index_that_cannot_be_written_stops_no_micro_batch(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool_index.IndexWriter, "close", lambda _: (_ for _ in ()).throw(OSError("no room")))
    deliver(home, 50)
    assert "no room" in caplog.text
    assert [path.name for path in parts(home)[0].parent.iterdir()] == [parts(home)[0].name]
    assert look(".Key", "k-7")[0] == [(1, 47), (1, 7)]
