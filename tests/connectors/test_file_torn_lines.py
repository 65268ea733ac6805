"""A last line that is still being written, and files that did not merely grow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_tasks.connectors.base import Position
from conduit_tasks.connectors.file import settle as file_settle
from conduit_tasks.errors import SourceError
from tests.connectors.clock import Clock
from tests.connectors.file_reading import ALL, after, read, source


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
