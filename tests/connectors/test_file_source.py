"""The file source: text, JSON Lines and CSV, exactly the records that are there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.errors import ConfigError, SourceError
from tests.connectors.file_reading import ALL, after, everything, payloads, read, source
from tests.fuzz.hostile import ending


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
