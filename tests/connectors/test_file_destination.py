"""The file destination: whole lines, and after any fault exactly what was confirmed."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit_tasks.connectors.file import lines as file_lines
from conduit_tasks.connectors.file.connector import FileDestination
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.record.record import Data, Origin, Record
from conduit_tasks.record.schema import spool_batch
from tests.spool.disks import small_disk

ORIGIN = Origin("p", "in", "", {"file.path": "a"})


def rows(*payloads: Data) -> Rows:
    records = [Record(b"%d" % n, after=p, origin=ORIGIN) for n, p in enumerate(payloads)]
    return Rows(spool_batch([0] * len(records), list(range(len(records))), records), [ORIGIN])


def destination(path: Path | str = "out/a.jsonl", format: str = "payload") -> FileDestination:
    return FileDestination({"path": str(path), "format": format})


def test_payloads_are_lines_structured_ones_as_json(home: Path) -> None:
    out = destination()
    out.open(None)
    state = out.write(rows({"a": "x\ny"}, b"raw \xff", None, b""))
    out.close()
    assert (home / "out/a.jsonl").read_bytes() == b'{"a":"x\\ny"}\nraw \xff\n\n\n'
    assert state["size"] == os.path.getsize(home / "out/a.jsonl")


def test_opencdc_is_the_default_and_holds_whole_records(home: Path) -> None:
    out = FileDestination({"path": "a.jsonl", "sdk.record.format": "opencdc/json"})
    out.open(None)
    given = rows({"a": 1}, b"two\nlines")
    out.write(given)
    out.close()
    lines = (home / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [r.to_opencdc() for r in given.records()]
    assert json.loads(lines[0])["metadata"] == {"file.path": "a"}


def test_rows_cut_from_a_larger_batch_are_written_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lines, "BYTES", 50)
    given = rows(*[b"line %d" % n for n in range(100)])
    out = destination()
    out.open(None)
    out.write(Rows(given.batch.slice(10, 80), given.origins))
    out.write(Rows(given.batch.filter(pa.array(np.arange(100) % 50 == 0)), given.origins))
    out.close()
    expected = [*range(10, 90), 0, 50]
    assert (home / "out/a.jsonl").read_text().splitlines() == [f"line {n}" for n in expected]


VARIED = [
    Record(b"\xff\x00", "update", {"own": "m", "file.path": "b"}, b"key", {"n": 1}, {"n": 2, "u": "ü", "e": [1, {}]}),
    Record(b"2", "delete", before={"n": 1}),
    Record(b"3", "snapshot", {}, {"id": 7}, after=b"two\nlines"),
    Record(b"4", after=b"\xff\xfe"),
    Record(b"5", after={}),
    Record(b"6"),
]


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("chosen", [VARIED, *[[each] for each in VARIED], VARIED[1:3], [VARIED[0], VARIED[4]]])
def test_an_opencdc_line_says_what_its_record_says(
    home: Path, chosen: list[Record], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In one piece, and in a piece per record
    monkeypatch.setattr(file_lines, "BYTES", size)
    origins = [Origin("p", "in", "", {"file.path": "a"}), Origin("p", "in", "", {})]
    batch = spool_batch([n % 2 for n in range(len(chosen))], list(range(len(chosen))), chosen)
    given = Rows(batch, origins)

    written = b"".join(file_lines.lines(given, "opencdc"))

    assert [json.loads(line) for line in written.splitlines()] == [r.to_opencdc() for r in given.records()]


def test_json_printed_over_several_lines_becomes_one(home: Path) -> None:
    given = rows({"a": 1}, {"b": 2})
    column = given.batch.schema.get_field_index("after")
    texts = pa.array([b'{\n  "a": 1\n}', b'{"b":2}'], pa.binary())

    written = b"".join(file_lines.lines(Rows(given.batch.set_column(column, "after", texts), [ORIGIN]), "opencdc"))

    assert [json.loads(line)["payload"]["after"] for line in written.splitlines()] == [{"a": 1}, {"b": 2}]


def test_a_row_that_cannot_be_a_line_is_refused_and_leaves_nothing(home: Path) -> None:
    out = destination()
    out.open(None)
    with pytest.raises(Refused):
        out.write(rows({"a": 1}, b"two\nlines"))
    out.write(rows({"a": 2}))
    out.close()
    assert (home / "out/a.jsonl").read_text().count("\n") == 1


@pytest.mark.proves("C10")
def test_reopening_cuts_back_to_what_was_confirmed(home: Path) -> None:
    # Given a confirmed write and one that was not, with a torn line behind it
    out = destination()
    out.open(None)
    confirmed = out.write(rows(b"one"))
    out.write(rows(b"two"))
    out.close()
    with (home / "out/a.jsonl").open("ab") as file:
        file.write(b"tor")
    # When it is opened with the confirmed state, here or by another process
    other: FileDestination = pickle.loads(pickle.dumps(destination()))
    other.open(json.loads(json.dumps(confirmed)))
    # Then only the confirmed line is there, and the next follows it
    assert (home / "out/a.jsonl").read_bytes() == b"one\n"
    other.write(rows(b"three"))
    other.close()
    assert (home / "out/a.jsonl").read_bytes() == b"one\nthree\n"


@pytest.mark.proves("C10")
@pytest.mark.parametrize("before", [b"", b"kept\n"])
def test_before_the_first_confirmation_only_what_was_there_before_is_kept(home: Path, before: bytes) -> None:
    (home / "out").mkdir()
    (home / "out/a.jsonl").write_bytes(before)
    for _ in range(2):
        out = destination()
        out.open(None)
        state = out.write(rows(b"unconfirmed"))
        out.close()
    out.open(None)
    assert (home / "out/a.jsonl").read_bytes() == before
    state = out.write(rows(b"one"))
    out.open(state)
    out.close()
    assert (home / "out/a.jsonl").read_bytes() == before + b"one\n"


def test_a_lost_state_keeps_what_was_confirmed(home: Path) -> None:
    out = destination()
    out.open(None)
    out.open(out.write(rows(b"one")))
    out.open(None)
    out.write(rows(b"two"))
    out.close()
    assert (home / "out/a.jsonl").read_bytes() == b"one\ntwo\n"


@pytest.mark.proves("C10")
@pytest.mark.parametrize("state", [{"n": 3, "owner": "a"}, {"batch": "1-1", "last": 3}, {"config": {"salt": "a"}}])
def test_a_state_that_another_plugin_left_cuts_off_nothing_but_what_is_written_behind_it(
    home: Path, state: dict[str, Any]
) -> None:
    """Given a file that this destination wrote and never saw confirmed, and the state of what the destination was
    since, then all of it is kept, and a write that is not confirmed is cut off."""
    out = destination()
    out.open(None)
    out.write(rows(b"one"))
    out.open(state)
    out.write(rows(b"unconfirmed"))
    out.open(state)
    assert (home / "out/a.jsonl").read_bytes() == b"one\n"
    confirmed = out.write(rows(b"two"))
    out.open(confirmed)
    out.write(rows(b"unconfirmed"))
    out.open(confirmed)
    out.close()
    assert (home / "out/a.jsonl").read_bytes() == b"one\ntwo\n"


def test_a_file_that_was_moved_away_is_begun_anew_and_a_shortened_one_is_left_alone(home: Path) -> None:
    path = home / "out/a.jsonl"
    out = destination()
    out.open(None)
    state = out.write(rows(b"one", b"two"))
    out.close()
    path.rename(home / "out/a.1")
    # Twice, because nothing is confirmed in the new file at first
    for _ in range(2):
        out.open(state)
        newer = out.write(rows(b"three"))
        out.close()
    assert path.read_bytes() == b"three\n"
    out.open(newer)
    assert path.read_bytes() == b"three\n"
    out.close()
    path.write_bytes(b"th")
    with pytest.raises(ConfigError, match=r"a\.jsonl has 2 bytes, but 6 were written and confirmed"):
        out.open(newer)
    assert path.read_bytes() == b"th"


def test_two_destinations_never_cut_each_others_lines(home: Path) -> None:
    # Given one that confirmed, and another that was given the same path
    first, second = destination(), destination()
    first.open(None)
    state = first.write(rows(b"first"))
    first.open(state)
    with pytest.raises(Unavailable, match="being written by another process"):
        second.open(None)
    first.close()
    # When the other writes in between
    second.open(None)
    theirs = second.write(rows(b"second"))
    second.open(theirs)
    second.close()
    # Then the first stops instead of cutting
    with pytest.raises(ConfigError, match="another destination"):
        first.open(state)
    assert (home / "out/a.jsonl").read_bytes() == b"first\nsecond\n"


def named(connector: str, path: Path | str = "out/a.jsonl") -> FileDestination:
    out = destination(path)
    out.pipeline, out.connector = "p", connector
    return out


@pytest.mark.proves("C10")
@pytest.mark.parametrize("link", [False, True])
def test_a_second_destination_cuts_nothing_the_first_one_wrote_before_it_ever_came_back(home: Path, link: bool) -> None:
    # Given a destination that wrote once, and has not been opened since
    first = named("first")
    first.open(None)
    state = first.write(rows(b"first"))
    first.close()
    # When another one, which never wrote, is given the same file, by its name or by a link
    path = home / "out/a.jsonl"
    if link:
        (home / "out/b.jsonl").symlink_to("a.jsonl")
    for _ in range(2):
        second = named("second", "out/b.jsonl" if link else path)
        second.open(None)
        theirs = second.write(rows(b"second"))
        second.close()
    # Then every line is there, and the first one says who writes into its file, and what leads out
    assert path.read_bytes() == b"first\nsecond\n"
    with pytest.raises(ConfigError, match=r"another destination \(p/second\) since; .* then move the file away"):
        first.open(state)
    moved = path.rename(home / "out/moved.jsonl")
    first.open(state)
    again = first.write(rows(b"third"))
    first.open(again)
    first.close()
    assert (path.read_bytes(), moved.read_bytes()) == (b"third\n", b"first\nsecond\n")
    with pytest.raises(ConfigError, match="another destination"):
        second.open(theirs)


@pytest.mark.proves("C10")
@pytest.mark.parametrize("length", [10, 10_000])
def test_another_file_in_its_place_is_not_cut(home: Path, length: int) -> None:
    path = home / "out/a.jsonl"
    out = destination()
    out.open(None)
    state = out.write(rows(b"x" * 5_000))
    out.open(state)
    out.close()
    theirs = b"somebody else's\n" * length
    path.write_bytes(theirs)
    with pytest.raises(ConfigError, match=r"a\.jsonl .* it was shortened or replaced\. Put it back, or move it away"):
        out.open(state)
    assert path.read_bytes() == theirs


def test_a_state_of_an_older_version_is_believed(home: Path) -> None:
    out = destination()
    out.open(None)
    state = {name: value for name, value in out.write(rows(b"one")).items() if name != "crc"}
    ledger = home / "out/.a.jsonl.conduit"
    ledger.write_text(json.dumps({k: v for k, v in json.loads(ledger.read_text()).items() if k != "by"}))
    out.open(state)
    out.write(rows(b"two"))
    out.close()
    assert (home / "out/a.jsonl").read_bytes() == b"one\ntwo\n"


@pytest.mark.proves("C10", "T6")
def test_a_full_disk_leaves_whole_lines_and_goes_on_when_there_is_room(home: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        path = disk.path / "a.jsonl"
        out = destination(path)
        out.open(None)
        state = out.write(rows(*[b"x" * 999] * 500))
        # When the disk fills up in the middle of a write
        with pytest.raises(Unavailable, match=r"a\.jsonl cannot be written: .*free space"):
            out.write(rows(*[b"y" * 999] * 800))
        # Then no torn line is there, even before the next open
        assert path.read_bytes() == (b"x" * 999 + b"\n") * 500
        disk.grow()
        out.open(state)
        out.write(rows(*[b"y" * 999] * 800))
        out.close()
        assert path.read_bytes() == (b"x" * 999 + b"\n") * 500 + (b"y" * 999 + b"\n") * 800


KILLED = """
import os, signal, sys
from conduit_tasks.connectors.file import destination as file_destination
from tests.connectors.test_file_destination import destination, rows

out = destination()
out.open(None)
print(__import__("json").dumps(out.write(rows(b"one"))), flush=True)
kill = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "fsync":
    file_destination.os.fsync = kill
else:
    write = os.pwrite
    file_destination.os.pwrite = lambda fd, data, at: (write(fd, data[:3], at), kill())
out.write(rows(b"two", b"three"))
"""


@pytest.mark.proves("C10")
@pytest.mark.parametrize("moment", ["pwrite", "fsync"])
def test_a_writer_killed_in_mid_write_leaves_no_trace_after_the_next_open(home: Path, moment: str) -> None:
    died = subprocess.run([sys.executable, "-c", KILLED, moment], capture_output=True, check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert (home / "out/a.jsonl").read_bytes() != b"one\n", "the kill came in mid-write"
    out = destination()
    out.open(json.loads(died.stdout))
    out.write(rows(b"two"))
    out.close()
    assert (home / "out/a.jsonl").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: {"path": "a", "format": "xml"}, "format"),
        (lambda: {"format": "payload"}, "path"),
        (lambda: {"path": "a", "sdk.record.format": "template"}, r"sdk\.record\.format.*write format: payload"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: Callable[[], dict[str, str]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FileDestination(settings())


def test_a_path_that_cannot_be_written_may_recover(home: Path) -> None:
    (home / "out").write_text("in the way")
    with pytest.raises(Unavailable, match=r"a\.jsonl cannot be written"):
        destination().open(None)


def test_a_damaged_ledger_is_named(home: Path) -> None:
    (home / "out").mkdir()
    (home / "out/.a.jsonl.conduit").write_text("{")
    with pytest.raises(ConfigError, match=r"\.a\.jsonl\.conduit is damaged"):
        destination().open(None)
