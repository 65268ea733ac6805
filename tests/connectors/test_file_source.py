"""The file source: text, JSON Lines and CSV, exactly the records that are there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_tasks.connectors.base import Limit, Position, Slice
from conduit_tasks.connectors.file import settle as file_settle
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.errors import ConfigError, SourceError
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import READ_SCHEMA, to_records
from tests.connectors.clock import Clock
from tests.fuzz.hostile import ending

ALL = Limit()


def source(path: str, **options: str) -> FileSource:
    return FileSource({"path": path, "settle": "0s", **{k.replace("_", "-"): v for k, v in options.items()}})


def read(connector: FileSource, slices: list[Slice]) -> list[Record]:
    records = []
    for piece in slices:
        batches = list(connector.read(piece))
        assert all(b.schema == READ_SCHEMA for b in batches)
        of_slice = [r for b in batches for r in to_records(b, Origin("p", "in", piece.partition))]
        assert len(of_slice) == piece.records
        records += of_slice
    return records


def after(position: Position, slices: list[Slice]) -> Position:
    return position | {s.part: s.end for s in slices}


def everything(connector: FileSource, limit: Limit = ALL) -> list[Record]:
    """All records, plan by plan."""
    position: Position = {}
    records: list[Record] = []
    while slices := connector.plan(position, limit):
        records += read(connector, slices)
        position = after(position, slices)
    return records


def payloads(connector: FileSource, limit: Limit = ALL) -> list[object]:
    return [r.after for r in everything(connector, limit)]


def test_each_line_of_text_is_a_record_with_its_own_position(home: Path) -> None:
    (home / "a.txt").write_bytes(b"one\n\ntwo \xff\r\nthree\rfour\n  \nlast")
    records = everything(source("a.txt"))
    assert [r.after for r in records] == [b"one", b"", b"two \xff", b"three\rfour", b"  ", b"last"]
    assert [r.position for r in records] == [b"a.txt:%d" % n for n in (0, 4, 5, 12, 23, 26)]
    assert {r.operation for r in records} == {"create"}


def test_json_lines_are_structured_and_blank_ones_are_none(home: Path) -> None:
    (home / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n\r\n  {"a": 2} \r\n{}\n\n')
    assert payloads(source("a.jsonl", format="jsonl")) == [{"a": 1}, {"a": 2}, {}]


def test_the_key_is_the_value_of_a_field(home: Path) -> None:
    (home / "a.jsonl").write_text('{"id": "x", "n": 1}\n{"id": 7}\n{"n": 3}\n{"id": {"b": null}}\n')
    keys = [r.key for r in everything(source("a.jsonl", format="jsonl", key="id"))]
    assert keys == [b"x", b"7", None, b'{"b":null}']
    (home / "a.csv").write_text("id,n\nx,1\n,2\n")
    assert [r.key for r in everything(source("a.csv", format="csv", key="id"))] == [b"x", None]


@pytest.mark.proves("C10")
@pytest.mark.parametrize("options", [{}, {"key": "a"}, {"validate": "edges"}])
def test_a_corrupt_json_line_is_marked_and_the_others_pass(home: Path, options: dict[str, str]) -> None:
    lines = [b'{"a":1}', b"oops", b"[1]", b'{"a":2}', b'"text"', b'{"a":']
    (home / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    records = everything(source("a.jsonl", format="jsonl", **options))
    marked = {i: r.metadata["conduit.error"] for i, r in enumerate(records) if r.metadata}
    assert [r.after for r in records] == [{"a": 1}, b"oops", b"[1]", {"a": 2}, b'"text"', b'{"a":']
    assert set(marked) == {1, 2, 4, 5}
    assert "a.jsonl at byte 13: not a JSON object" in marked[2]
    assert "not JSON" in marked[5]


@pytest.mark.parametrize("options", [{}, {"key": "a"}])
def test_damage_within_a_json_line_is_found_unless_only_its_edges_are_looked_at(
    home: Path, options: dict[str, str]
) -> None:
    (home / "a.jsonl").write_bytes(b'{"a": }\n{"a":1}\n')
    first, second = everything(source("a.jsonl", format="jsonl", **options))
    assert (first.after, "conduit.error" in first.metadata) == (b'{"a": }', True)
    assert (second.after, second.metadata) == ({"a": 1}, {})
    edges = source("a.jsonl", format="jsonl", validate="edges")
    (batch,) = edges.read(edges.plan({}, ALL)[0])
    assert batch.column("metadata").null_count == 2


CSV = (
    'name,"full ""title""",note\n'
    "a,plain,NA\n"
    '"b, c","two\nlines, and a ""quote""\r\nthree",""\n'
    "\n"
    'd,,"NA"\r\n'
    'ü,back\\slash,tab\there\n'
)  # fmt: skip
ROWS = [
    {"name": "a", 'full "title"': "plain", "note": None},
    {"name": "b, c", 'full "title"': 'two\nlines, and a "quote"\r\nthree', "note": ""},
    {"name": "d", 'full "title"': None, "note": "NA"},
    {"name": "ü", 'full "title"': "back\\slash", "note": "tab\there"},
]


@pytest.mark.parametrize("limit", [ALL, Limit(records=1), Limit(bytes=10)])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_csv_rows_are_objects_of_strings_and_nulls(home: Path, limit: Limit, bom: bytes) -> None:
    (home / "a.csv").write_bytes(bom + CSV.encode())
    assert payloads(source("a.csv", format="csv"), limit) == ROWS


def test_damaged_csv_rows_are_marked_and_the_others_pass(home: Path) -> None:
    (home / "a.csv").write_bytes(b'a,b\n1,2\n1,2,3\n1\n\xff,4\n5\' 3",x\n"6",7\n8,"9"z\nlone\rreturn,10\n')
    records = everything(source("a.csv", format="csv"))
    assert [r.after for r in records] == [
        {"a": "1", "b": "2"}, b"1,2,3", b"1", b"\xff,4", {"a": "5' 3\"", "b": "x"}, {"a": "6", "b": "7"},
        {"a": "8", "b": "9z"}, {"a": "lone\rreturn", "b": "10"},
    ]  # fmt: skip
    errors = {i: r.metadata["conduit.error"] for i, r in enumerate(records) if r.metadata}
    assert set(errors) == {1, 2, 3}
    assert "a.csv at byte 8: the row has 3 cells, the header 2" in errors[1]


def test_the_slow_and_the_fast_way_through_csv_say_the_same(home: Path) -> None:
    # Given sound rows, and the same in a file whose last row is damaged, so that all are decoded one by one
    (home / "fast.csv").write_text(CSV)
    (home / "slow.csv").write_text(CSV + "x\n")
    assert payloads(source("slow.csv", format="csv"))[:-1] == payloads(source("fast.csv", format="csv")) == ROWS


def test_a_lone_return_in_a_csv_row_does_not_make_it_two(home: Path) -> None:
    # Given sound rows only, where Arrow would take the return for the end of a row
    (home / "a.csv").write_bytes(b"a\none\rtwo\nthree\n")
    assert payloads(source("a.csv", format="csv")) == [{"a": "one\rtwo"}, {"a": "three"}]


def test_other_delimiters_quotes_and_nulls(home: Path) -> None:
    (home / "a.tsv").write_text("a\tb\n'x\ty'\t-\n\"\t?\n")
    rows = payloads(source("a.tsv", format="csv", delimiter="\\t", quote="'", null_values="-,?"))
    assert rows == [{"a": "x\ty", "b": None}, {"a": '"', "b": None}]
    (home / "b.csv").write_text('a;b\n"1;NA\n')
    assert payloads(source("b.csv", format="csv", delimiter=";", quote="", null_values="")) == [{"a": '"1', "b": "NA"}]


@pytest.mark.proves("C9")
def test_files_are_read_in_name_order_as_one_partition_unless_told_otherwise(home: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt"):
        (home / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "data" / name).write_text(name + "\n")
    connector = source("data/**/*.txt")
    slices = connector.plan({}, ALL)
    assert [(s.part, s.partition) for s in slices] == [(f"data/{n}", "") for n in ("a.txt", "b.txt", "sub/c.txt")]
    assert connector.metadata(slices[0]) == {"file.path": "data/a.txt"}
    by_file = source("data/*.txt", partition_by="file").plan({}, ALL)
    assert [s.partition for s in by_file] == ["data/a.txt", "data/b.txt"]


@pytest.mark.proves("C9")
def test_what_is_appended_to_an_earlier_file_follows_when_it_is_seen(home: Path) -> None:
    for name in ("a", "b"):
        (home / f"{name}.txt").write_text(f"{name}1\n")
    connector = source("*.txt")
    slices = connector.plan({}, ALL)
    assert [r.after for r in read(connector, slices)] == [b"a1", b"b1"]
    with (home / "a.txt").open("a") as file:
        file.write("a2\n")
    assert [r.after for r in read(connector, connector.plan(after({}, slices), ALL))] == [b"a2"]


@pytest.mark.proves("I7", "C13")
def test_limits_hold_to_the_record_and_the_byte(home: Path) -> None:
    (home / "a.txt").write_text("".join(f"{n:07d}\n" for n in range(100)))
    connector = source("a.txt", slice_bytes="80B")
    slices = connector.plan({}, Limit(records=25))
    assert [s.records for s in slices] == [10, 10, 5]
    slices = connector.plan({}, Limit(bytes=100))
    assert [(s.records, s.bytes) for s in slices] == [(10, 80), (2, 16)]
    # A record larger than the limit, or than a slice, passes alone: a limit must not stop the stream.
    assert [s.records for s in connector.plan({}, Limit(bytes=3))] == [1]
    assert [s.records for s in source("a.txt", slice_bytes="5B").plan({}, Limit(records=2))] == [1, 1]


@pytest.mark.parametrize("format", ["text", "jsonl", "csv"])
@pytest.mark.parametrize("clock", ["behind", "ahead"])
def test_a_torn_last_line_is_not_taken_while_it_is_written_whatever_the_clocks_say(
    home: Path, monkeypatch: pytest.MonkeyPatch, format: str, clock: str
) -> None:
    # Given a writer in mid-line, on a file server whose clock differs by far more than `settle`
    path = home / "a.txt"
    lines = {
        "text": (b"one\n", b"tw", b"o\n"),
        "jsonl": (b'{"a":1}\n', b'{"a":2', b"}\n"),
        "csv": (b"a,b\n", b"1,", b"2\n"),
    }
    whole, torn, rest = lines[format]
    skew = -3600 if clock == "behind" else 3600

    def write(data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)
        at = time.time() + skew
        os.utime(path, (at, at))

    write(whole + torn)
    # When it goes on writing while the source looks
    monkeypatch.setattr(file_settle, "time", Clock({0.15: lambda: write(rest)}))
    connector = source("a.txt", format=format, settle="2s")
    slices = connector.plan({}, ALL)
    slices += connector.plan(after({}, slices), ALL)
    # Then no half of a line is a record
    expected = {"text": [b"one", b"two"], "jsonl": [{"a": 1}, {"a": 2}], "csv": [{"a": "1", "b": "2"}]}[format]
    assert [r.after for r in read(connector, slices)] == expected


@pytest.mark.parametrize("settle", [5, 30, 3600])
def test_a_torn_last_line_waits_for_all_of_settle_by_the_clock_of_this_machine(
    home: Path, monkeypatch: pytest.MonkeyPatch, settle: int
) -> None:
    # Given a writer that pauses in mid-line for nearly as long as `settle`, on a server whose clock is a day behind
    path = home / "a.txt"

    def write(data: str) -> None:
        with path.open("a") as file:
            file.write(data)
        at = time.time() - 86_400
        os.utime(path, (at, at))

    write("one\ntw")
    monkeypatch.setattr(file_settle, "time", clock := Clock({settle - 0.5: lambda: write("o\nthr")}))
    position: Position = {}
    found = []

    def look() -> None:
        # In another task, so nothing is left of the one before
        connector = source("a.txt", settle=f"{settle}s")
        slices = connector.plan(position, ALL)
        found.extend(r.after for r in read(connector, slices))
        position.update(after(position, slices))

    # When one plan after the other looks at it
    look()
    while clock.now < 1_000 + 2 * settle - 1:
        assert b"tw" not in found
        assert b"thr" not in found
        clock.go(settle / 10)
        look()
    # Then the line is taken whole, and the next one, which nobody ends, after `settle`, without a plan that waits long
    clock.go(settle / 10)
    look()
    assert found == [b"one", b"two", b"thr"]
    assert clock.slept <= 3 * file_settle.LONGEST


def test_what_was_seen_of_torn_lines_counts_on_one_machine_and_is_forgotten_some_day(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a torn line that another machine, of the same home, has seen long ago
    (home / "a.txt").write_text("one\ntwo")
    monkeypatch.setattr(file_settle, "time", clock := Clock())
    connector = source("a.txt", settle="30s")
    with monkeypatch.context() as patch:
        patch.setattr(file_settle, "_machine", lambda: "another")
        position = after({}, connector.plan({}, ALL))
    clock.go(3600)
    # Then this one watches for itself
    assert connector.plan(position, ALL) == []
    clock.go(31)
    assert [r.after for r in read(connector, connector.plan(position, ALL))] == [b"two"]
    # and what is long past takes no room
    kept = list((home / file_settle.FOLDER).iterdir())
    assert len(kept) == 2
    for file in kept:
        os.utime(file, (1, 1))
    (home / "a.txt").write_text("one\ntwo and mo")
    assert connector.plan(position, ALL) == []
    assert len(list((home / file_settle.FOLDER).iterdir())) == 1


def test_a_torn_last_line_is_taken_once_it_was_watched_also_if_its_time_lies_ahead(home: Path) -> None:
    path = home / "a.txt"
    path.write_text("one\ntwo")
    ahead = time.time() + 3600
    os.utime(path, (ahead, ahead))
    connector = source("a.txt", settle="200ms")
    assert [r.after for r in read(connector, connector.plan({}, ALL))] == [b"one", b"two"]


def test_a_last_line_without_an_end_waits_until_the_file_has_settled(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(file_settle, "time", clock)
    path = home / "a.txt"
    path.write_text("one\ntw")
    patient = source("a.txt", settle="1h")
    slices = patient.plan({}, ALL)
    assert [r.after for r in read(patient, slices)] == [b"one"]
    # When the line is completed, it is one record
    path.write_text("one\ntwo\nthr")
    more = patient.plan(after({}, slices), ALL)
    assert [r.after for r in read(patient, more)] == [b"two"]
    # When nothing happens for so long, it is taken; the line end that comes later is no empty line
    clock.go(3700)
    position = after(after({}, slices), more)
    last = patient.plan(position, ALL)
    assert [r.after for r in read(patient, last)] == [b"thr"]
    path.write_text("one\ntwo\nthr\r\nfour\n")
    assert [r.after for r in read(patient, patient.plan(after(position, last), ALL))] == [b"four"]


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.write_text("on\n"),
        lambda p: p.write_text(""),
        lambda p: p.write_text("ONE\ntwo\nthree\n"),
        lambda p: p.write_text("ONE\ntwo\n"),
    ],
    ids=["shortened", "emptied", "replaced by more", "replaced by as much"],
)
def test_a_file_that_did_not_merely_grow_is_an_error_that_names_it(home: Path, change: Callable[[Path], int]) -> None:
    (home / "a.txt").write_text("one\ntwo\n")
    connector = source("a.txt")
    slices = connector.plan({}, ALL)
    change(home / "a.txt")
    with pytest.raises(SourceError, match=r"a\.txt was shortened or replaced after 8 bytes.*new name"):
        connector.plan(after({}, slices), ALL)
    with pytest.raises(SourceError, match=r"a\.txt was shortened or replaced"):
        list(connector.read(slices[0]))


@pytest.mark.proves("I3")
def test_a_slice_whose_records_changed_in_number_is_an_error(home: Path) -> None:
    # Given a planned file, when line ends disappear far before its end
    path = home / "a.txt"
    path.write_text("x\n" * 5000)
    connector = source("a.txt")
    slices = connector.plan({}, ALL)
    with path.open("r+") as file:
        file.write("xxxx")
    with pytest.raises(SourceError, match=r"a\.txt has 4998 records .* where 5000 were counted"):
        list(connector.read(slices[0]))


def test_a_path_that_is_not_there_is_an_error_and_a_file_that_went_is_not(home: Path) -> None:
    with pytest.raises(SourceError, match=r"no/such\.txt does not exist"):
        source("no/such.txt").plan({}, ALL)
    assert source("no/*.txt").plan({}, ALL) == []
    (home / "a.txt").write_text("one\n")
    connector = source("a.txt")
    position = after({}, connector.plan({}, ALL))
    (home / "a.txt").unlink()
    assert connector.plan(position, ALL) == []


def test_a_record_without_end_is_an_error_instead_of_memory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks.connectors.file import on_disk as file_open
    from conduit_tasks.connectors.file import plan as file_plan

    monkeypatch.setattr(file_open, "MAX_RECORD", 1 << 20)
    monkeypatch.setattr(file_plan, "CHUNK", 1 << 18)
    (home / "a.csv").write_bytes(b'a\n"' + b"x\n" * (1 << 20))
    with pytest.raises(SourceError, match=r"a\.csv has no end of a record within 1 MiB from byte 2"):
        source("a.csv", format="csv").plan({}, ALL)


def test_a_header_is_checked(home: Path) -> None:
    (home / "a.csv").write_text("a,a\n1,2\n")
    connector = source("a.csv", format="csv")
    with pytest.raises(SourceError, match="names the column 'a' twice"):
        everything(connector)
    (home / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SourceError, match="no column 'id'"):
        everything(source("a.csv", format="csv", key="id"))
    (home / "a.csv").write_text("a,b\n")
    assert connector.plan({}, ALL) == []


def test_settings_that_cannot_work_are_refused(home: Path) -> None:
    for settings, option in (
        ({"key": "id"}, "key"), ({"format": "csv", "delimiter": ";;"}, "delimiter"),
        ({"format": "csv", "quote": ","}, "quote"), ({"slice-bytes": "many"}, "slice-bytes"),
        ({"settle": "5"}, "settle"), ({"format": "xml"}, "format"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=option):
            FileSource({"path": "a", **settings})


def test_large_files_pass_in_batches_whatever_falls_on_their_borders(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.connectors.file import plan as file_plan
    from conduit_tasks.connectors.file import read as file_read

    # Given chunks of a few bytes, so that every border is tried
    rows = [{"n": str(n), "t": 'a "b"\n' * (n % 3)} for n in range(300)]
    text = "n,t\n" + "".join(f'{r["n"]},"{r["t"].replace(chr(34), chr(34) * 2)}"\n' for r in rows)
    (home / "a.csv").write_text(text)
    (home / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    for chunk in (1, 7, 64, 1000):
        monkeypatch.setattr(file_plan, "CHUNK", chunk)
        monkeypatch.setattr(file_read, "CHUNK", chunk)
        monkeypatch.setattr(file_read, "ROWS", 3)
        assert payloads(source("a.jsonl", format="jsonl")) == rows
        assert payloads(source("a.csv", format="csv")) == rows


@pytest.mark.proves("C9")
def test_a_file_that_has_several_names_by_links_is_read_once(home: Path) -> None:
    """Given a link to a file beside it, a folder that links to itself, a link into nowhere, and two files that are one
    on disk, then each file is read once, under the name that is no link; a second hard name is a file of its own."""
    (home / "d/e").mkdir(parents=True)
    for name in ("a", "e/b"):
        (home / f"d/{name}.txt").write_text(f"{name}\n")
    (home / "d/0latest.txt").symlink_to("a.txt")
    (home / "d/gone.txt").symlink_to("nowhere")
    (home / "d/loop").symlink_to(".")
    (home / "d/also").symlink_to("e")
    (home / "d/hard.txt").hardlink_to(home / "d/a.txt")
    assert [(r.position, r.after) for r in everything(source("d/**/*.txt"))] == [
        (b"d/a.txt:0", b"a"),
        (b"d/e/b.txt:0", b"e/b"),
        (b"d/hard.txt:0", b"a"),
    ]
    # A link alone is read as what it leads to
    assert payloads(source("d/0*.txt")) == [b"a"]


@pytest.mark.parametrize(
    ("kind", "said"), [("pipe", "no regular file"), ("folder", "for the files in it write a glob")]
)
def test_what_is_no_file_is_named_at_once(home: Path, kind: str, said: str) -> None:
    os.mkfifo(home / "x") if kind == "pipe" else (home / "x").mkdir()
    made = source("x")
    with ending(), pytest.raises(SourceError, match=said):
        made.plan({}, ALL)
