"""A folder of files of one task: a file for each write, and names that no two destinations share (ADR 49)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conduit_tasks.connectors.file.connector import FileDestination
from conduit_tasks.errors import Refused, Unavailable
from tests.connectors import test_parquet as parquet
from tests.connectors.test_file_destination import destination, rows


@pytest.mark.parametrize("format", ["payload", "opencdc"])
def test_many_files_hold_the_lines_of_a_write_each(home: Path, format: str) -> None:
    """Given `files: many`, then each write has a file of its own, whole or not at all, with the lines that one file
    would have, and those that were not confirmed are removed."""
    settings = {"path": "out", "format": format, "files": "many"}
    out, one = FileDestination(settings), destination("one.jsonl", format)
    out.open(None)
    one.open(None)
    for to in (out, one):
        to.write(rows({"a": "x\ny"}, {"b": 2}))
    kept = out.write(rows({"c": 3}))
    for n in range(2):
        out.write(replace(rows({"d": n}), seal=1_764_000_000_000_000, micro_batch=n))
    one.close()
    if format == "payload":
        with pytest.raises(Refused, match="two lines"):
            out.write(rows(b"one", b"two\nlines"))
    (home / "out/.part-0000000009.jsonl.tmp").write_text("torn")
    out.open(kept)
    out.close()
    found = sorted((home / "out").glob("*.jsonl"))
    assert [len(path.read_text().splitlines()) for path in found] == [2, 1]
    assert found[0].read_bytes() == (home / "one.jsonl").read_bytes()
    assert not list((home / "out").glob("*.tmp"))


def test_a_folder_in_place_of_a_file_and_a_file_in_place_of_a_folder_are_named(home: Path) -> None:
    (home / "out").mkdir()
    with pytest.raises(Unavailable, match=r"out is a folder, .*set 'files: many'"):
        destination("out").open(None)
    (home / "lines").write_text("mine")
    with pytest.raises(Unavailable, match=r"lines is a file, .*another 'path'"):
        FileDestination({"path": "lines", "files": "many"}).open(None)
    assert (home / "lines").read_text() == "mine"


@pytest.mark.proves("C10")
@pytest.mark.parametrize("other", [("a.b", "c"), ("a", "b:c"), ("a" * 128, "b" * 128)])
def test_destinations_whose_ids_look_alike_share_a_folder_and_take_nothing_away(
    home: Path, other: tuple[str, str]
) -> None:
    """Given destination `b.c` of `a`, and others whose names would be the same, or too long for a file's name."""
    states: list[Any] = [None, None]
    for n in range(3):
        for number, (pipeline, connector) in enumerate([("a", "b.c"), other]):
            one = parquet.destination()
            one.pipeline, one.connector = pipeline, connector
            one.open(states[number])
            states[number] = one.write(parquet.rows({"n": 10 * n + number}))
            one.write(parquet.rows({"n": -1}))
            one.close()
    for number, (pipeline, connector) in enumerate([("a", "b.c"), other]):
        one = parquet.destination()
        one.pipeline, one.connector = pipeline, connector
        one.open(states[number])
        one.close()
    assert sorted(row["n"] for row in parquet.written(home)) == [0, 1, 10, 11, 20, 21]


def test_a_name_of_an_older_version_stays(home: Path) -> None:
    """Given files of destination `b.c` of `a` under the name that an older version gave them."""
    (home / "out").mkdir()
    told = {"n": 2, "files": ["a.b.c-0000000002.parquet"], "owner": "o", "confirmed": True, "by": "a/b.c"}
    (home / "out/.a.b.c.conduit").write_bytes(orjson.dumps(told))
    for n in (1, 2):
        pq.write_table(pa.table({"n": [n]}), home / f"out/a.b.c-000000000{n}.parquet")
    one = parquet.destination()
    one.pipeline, one.connector = "a", "b.c"
    one.open({"n": 1, "owner": "o"})
    one.write(parquet.rows({"n": 3}))
    one.close()
    assert sorted(row["n"] for row in parquet.written(home)) == [1, 3]
