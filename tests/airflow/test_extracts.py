"""A first look at dead letters reads an extract of each file, and where there is none its columns, a bounded time at
once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conduit_tasks.dead_letters import columns, extract, kept
from conduit_tasks.dead_letters.columns import Columns
from conduit_tasks.dead_letters.store import SCHEMA, DeadLetterStore
from conduit_tasks.operate.all_issues import Wanted, everywhere
from conduit_tasks.pipeline.load import get_pipeline
from tests.airflow.api_client import airflow, api, broker_of
from tests.airflow.test_many_letters import BASE, LETTERS, letter, ok, pipeline, put, root

__all__ = ["airflow", "api", "pipeline"]
PER = 10


@pytest.fixture(autouse=True)
def _no_look_before() -> Iterator[None]:
    columns._kept.clear()
    yield
    columns._kept.clear()


def files() -> list[Path]:
    return sorted(Path(root(), "p", "destination=web").glob("*.parquet"))


def plain(file: Path) -> None:
    """Makes of it the file that an earlier version wrote."""
    pq.write_table(pq.read_table(file, schema=SCHEMA, partitioning=None), file, compression="zstd")


def stored(number: int) -> None:
    """Stores letters in so many files, of micro-batches from 1 on."""
    for batch in range(1, number + 1):
        put(*(letter(batch * PER + n, batch) for n in range(PER)))


def seqs(look: columns.Look) -> list[int]:
    found: list[int] = look.open["seq"].to_pylist()
    return found


@pytest.fixture
def by_columns(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The files of which columns were read."""
    out: list[object] = []
    parquet = pq.ParquetFile

    def noted(file: Any) -> Any:
        out.append(file)
        return parquet(file)

    monkeypatch.setattr(pq, "ParquetFile", noted)
    return out


def test_a_first_look_reads_no_columns_and_sees_what_they_say(pipeline: None, by_columns: list[object]) -> None:
    # Given letters with keys of every kind, and a file whose extract is larger than what is read at once
    stored(3)
    put(*(letter(n, 7) for n in range(1_000, 3_000)))
    assert files()[-1].stat().st_size > extract._TAIL
    look = Columns(root(), "p").look()
    assert by_columns == []
    # And to other readers they are Parquet files as ever
    told = [pq.read_table(file, partitioning=None) for file in files()]
    assert all(table.schema.equals(SCHEMA) for table in told)
    for file in files():
        plain(file)
    assert columns.newest(Columns(root(), "p").look().letters, look.paths).equals(look.letters)
    assert len(by_columns) == 4


def test_a_file_that_is_written_anew_without_some_letters_has_its_extract(
    pipeline: None, by_columns: list[object]
) -> None:
    stored(2)
    DeadLetterStore(root(), "p").remove("web", {(0, 1, PER + 3, 0)})
    by_columns.clear()
    assert seqs(Columns(root(), "p").look()) == [n for n in range(PER, 3 * PER) if n != PER + 3]
    assert by_columns == []


@pytest.mark.parametrize("how", ["damaged", "of other columns", "of other issues"])
def test_an_extract_that_is_not_as_it_should_be_is_not_believed(
    pipeline: None, by_columns: list[object], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(1)
    expected = Columns(root(), "p").look()
    [file] = files()
    if how == "damaged":
        data = bytearray(file.read_bytes())
        at = data.rindex(extract._MAGIC) - 200
        data[at] ^= 1
        file.write_bytes(data)
    elif how == "of other columns":
        monkeypatch.setattr(extract, "_COLUMNS", b"another.")
    else:
        # Then only the issues are found out once more
        monkeypatch.setattr(extract, "_ISSUES", b"another.")
        monkeypatch.setattr(extract, "issue_ids", lambda *said: ["other"] * len([*said[0]]))
    by_columns.clear()
    look = Columns(root(), "p").look()
    if how == "of other issues":
        assert (look.letters["issue"].unique().to_pylist(), by_columns) == (["other"], [])
    else:
        assert len(by_columns) == 1
        assert look.letters.equals(expected.letters)


def test_files_of_an_earlier_version_are_read_a_bounded_time_at_once(
    pipeline: None, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(12)
    for file in files():
        plain(file)
    monkeypatch.setattr(columns, "LEAST", 5)
    monkeypatch.setattr(kept, "FILES", 5)
    for door in ("dead_letters", "issues"):
        monkeypatch.setattr(f"conduit_tasks.airflow.api.{door}.WITHIN", 0.0)
    # What is not read is not counted, which the answer says
    said = [ok(api.get(LETTERS)) for _ in range(4)]
    assert [(each["pending"], each["total"]) for each in said] == [(7, 50), (2, 100), (0, 120), (0, 120)]
    # And so do issues, of one pipeline and of all
    columns._kept.clear()
    for file in Path(root(), "p", "_columns").iterdir():
        file.unlink()
    issues = ok(api.get(f"{BASE}/issues"))
    assert (issues["pending"], sum(each["count"] for each in issues["items"])) == (7, 50)
    of_all = [everywhere(broker_of("").redis, [get_pipeline("p")], Wanted(), within=0.0) for _ in range(2)]
    assert [(each.pending, each.files) for each in of_all] == [(1, 2), (0, 0)]
    assert sum(of.issue.count for of in of_all[1].issues) == 120
    # One letter is found all the same
    columns._kept.clear()
    for file in Path(root(), "p", "_columns").iterdir():
        file.unlink()
    assert ok(api.get(f"{LETTERS}/web/0/12/{12 * PER}/0"))["seq"] == 12 * PER


def test_a_look_that_has_not_read_all_keeps_nothing_and_goes_on_with_what_another_kept(
    pipeline: None, monkeypatch: pytest.MonkeyPatch, by_columns: list[object]
) -> None:
    stored(12)
    for file in files():
        plain(file)
    monkeypatch.setattr(columns, "LEAST", 2)
    monkeypatch.setattr(kept, "FILES", 5)
    slow = Columns(root(), "p")
    assert (slow.look(0.0).left, slow.look(0.0).left) == (10, 8)
    assert not Path(root(), "p", "_columns").exists()
    whole = Columns(root(), "p").look()
    by_columns.clear()
    found = slow.look(0.0)
    assert (found.left, found.letters.equals(whole.letters)) == (0, True)
    assert len(by_columns) == 1, "what is kept"
    # And what is stored meanwhile is read, what is removed is gone
    put(letter(500, 50))
    DeadLetterStore(root(), "p").remove("web", {(0, 1, PER + n, 0) for n in range(PER)})
    assert seqs(slow.look(0.0)) == [*range(2 * PER, 13 * PER), 500]


@pytest.mark.slow
def test_a_first_look_takes_a_small_part_of_the_time_that_columns_take(pipeline: None) -> None:
    stored(200)

    def cost() -> float:
        began = time.process_time()
        assert Columns(root(), "p", "web").look().letters.num_rows == 200 * PER
        return time.process_time() - began

    pa.array([1])  # what Arrow imports at its first array
    quick = min(cost() for _ in range(3))
    for file in files():
        plain(file)
    slow = min(cost() for _ in range(3))
    print(f"\n200 files: {quick:.3f} s of CPU by extracts, {slow:.3f} s by columns")
    assert quick * 4 < slow


def test_letters_that_come_in_several_pieces_are_all_in_the_extract() -> None:
    from conduit_tasks.dead_letters.store import letters_table

    one = letters_table([letter(n, 1) for n in range(3)])
    whole = pa.concat_tables([one, letters_table([letter(n, 1) for n in range(3, 5)])])
    assert extract.derived(whole)["seq"].to_pylist() == whole["seq"].to_pylist()
    assert extract.derived(whole.slice(0, 0)).num_rows == 0
