"""Delta tables on disk, written and read by delta-rs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, exceptions, write_deltalake

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.delta.connector import DeltaDestination, DeltaSource
from conduit_tasks.connectors.rows import RowNumbers, Rows
from conduit_tasks.errors import ConfigError, Fenced, Missing, Refused, SourceError, Unavailable
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch, to_records
from tests.micro_batch.harness import run_once, run_until_quiet, write_pipeline
from tests.micro_batch.test_missing import advice, follow

ORIGIN = Origin("p", "in", "")


PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - {id: in, type: source, plugin: delta, settings: {path: t}}
      - {id: out, type: destination, plugin: file, settings: {path: out.jsonl}}
"""


def append(home: Path, first: int, count: int, **more: Any) -> None:
    table = pa.table({"n": range(first, first + count), "day": [f"d{n % 2}" for n in range(first, first + count)]})
    write_deltalake(home / "t", table, mode="append", **more)


def read_all(
    source: DeltaSource, position: dict[str, Any], limit: int | None = None
) -> tuple[list[Record], dict[str, Any]]:
    records: list[Record] = []
    while slices := source.plan(position, Limit(records=limit)):
        if limit is not None:
            assert sum(s.records or 0 for s in slices) <= limit
        for slice in slices:
            for batch in source.read(Slice(**json.loads(json.dumps(slice.__dict__)))):
                records += to_records(batch, ORIGIN)
            position = {slice.part: slice.end}
    return records, position


def numbers_of(records: list[Record]) -> list[int]:
    return [r.after["n"] for r in records if isinstance(r.after, dict)]


@pytest.mark.parametrize("limit", [None, 7])
def test_the_table_is_read_as_it_is_and_then_what_versions_add(home: Path, limit: int | None) -> None:
    # Given a table of two versions, partitioned
    append(home, 0, 10, partition_by=["day"])
    append(home, 10, 10)
    source = DeltaSource({"path": "t", "key": "n"})
    records, position = read_all(source, {}, limit)
    assert sorted(numbers_of(records)) == list(range(20))
    assert {r.after["day"] for r in records} == {"d0", "d1"}  # type: ignore[index]  # structured
    assert (position, source.plan(position, Limit())) == ({"": {"version": 2, "file": 0, "row": 0}}, [])
    # When it is compacted, and appended to
    DeltaTable(home / "t").optimize.compact()
    append(home, 20, 5)
    # Then only what was added is read
    more, position = read_all(source, position, limit)
    assert sorted(numbers_of(more)) == [20, 21, 22, 23, 24]
    assert len({r.position for r in records + more}) == 25
    assert position[""]["version"] == 4


@pytest.mark.parametrize("start", ["table", "0"])
def test_partition_values_that_paths_encode_are_read(home: Path, start: str) -> None:
    odd = ["a b", "x%20y", "ü/z", "p=q"]
    write_deltalake(home / "t", pa.table({"n": range(4), "k": odd}), partition_by=["k"])
    records, _ = read_all(DeltaSource({"path": "t", "start": start}), {})
    assert sorted((r.after["n"], r.after["k"]) for r in records if isinstance(r.after, dict)) == list(enumerate(odd))


def test_a_range_of_versions_is_read_in_their_order(home: Path) -> None:
    for n in range(5):
        append(home, n, 1)
    records, _ = read_all(DeltaSource({"path": "t", "start": "1", "end": "3"}), {}, 2)
    assert numbers_of(records) == [1, 2, 3]


def test_a_version_that_takes_rows_away_is_an_error_unless_it_is_to_be_ignored(home: Path) -> None:
    append(home, 0, 4)
    source = DeltaSource({"path": "t"})
    _, position = read_all(source, {})
    DeltaTable(home / "t").delete("n = 2")
    append(home, 4, 1)
    with pytest.raises(SourceError, match="version 1 of t updates or deletes"):
        source.plan(position, Limit())
    records, _ = read_all(DeltaSource({"path": "t", "on-change": "ignore"}), position)
    # What a delete writes again of the file it took a row from comes again: it cannot be told from what is new
    assert numbers_of(records)[-1] == 4


def test_what_is_gone_is_named(home: Path) -> None:
    with pytest.raises(SourceError, match="no Delta table"):
        DeltaSource({"path": "nowhere"}).plan({}, Limit())
    append(home, 0, 4)
    source = DeltaSource({"path": "t"})
    [slice] = source.plan({}, Limit())
    next((home / "t").glob("*.parquet")).unlink()
    with pytest.raises(SourceError, match="vacuumed"):
        list(source.read(slice))
    append(home, 4, 1)
    append(home, 5, 1)
    DeltaTable(home / "t").create_checkpoint()
    (home / "t" / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(SourceError, match=r"version 1 of .* no longer in its log"):
        source.plan({"": slice.end}, Limit())


@pytest.mark.usefixtures("home")
def test_the_connector_keeps_its_contract() -> None:
    accept("delta", {"path": "t"}).require()


def rows(*payloads: Any, first: int = 1, epoch: int = 0, numbered: bool = True) -> Rows:
    records = [Record(b"%d" % (first + n), after=p, origin=ORIGIN) for n, p in enumerate(payloads)]
    span = np.arange(first, first + len(records))
    numbers = RowNumbers("p", "lake", epoch, span) if numbered else None
    batch = spool_batch([0] * len(records), span.tolist(), records)
    return Rows(batch, [ORIGIN], 1, first, first + len(records) - 1, numbers)


def destination(**settings: str) -> DeltaDestination:
    return DeltaDestination({"path": "t", **{name.replace("_", "-"): value for name, value in settings.items()}})


def held(home: Path) -> list[Any]:
    return sorted(DeltaTable(home / "t").to_pyarrow_table().column("n").to_pylist())


@pytest.mark.proves("B8", "O5")
def test_a_write_that_comes_again_is_left_out_also_by_another_process(home: Path) -> None:
    one = destination()
    one.open(None)
    one.write(rows({"n": 1}, {"n": 2}))
    one.write(rows({"n": 2}, {"n": 3}, first=2))
    other = destination()
    other.open(None)
    other.write(rows({"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}))
    assert held(home) == [1, 2, 3, 4]
    # A redrive is another epoch
    other.write(rows({"n": 1}, epoch=1))
    assert held(home) == [1, 1, 2, 3, 4]


@pytest.mark.proves("B8", "I4")
def test_of_two_writers_of_one_destination_one_commits(home: Path) -> None:
    append(home, 0, 1)
    one, other = destination(), destination()
    one.open(None)
    other.open(None)
    one.write(rows({"n": 1}))
    version = DeltaTable(home / "t").version()
    other.write(rows({"n": 1}))
    assert held(home) == [0, 1]
    assert DeltaTable(home / "t").version() == version

    def lost() -> None:
        raise Fenced("the lease is lost")

    other.still_ours = lost
    with pytest.raises(Fenced):
        other.write(rows({"n": 2}, first=2))
    assert held(home) == [0, 1]


@pytest.mark.proves("B8")
@pytest.mark.parametrize("numbered", [True, False])
def test_a_commit_that_another_program_came_before_is_made_again(home: Path, numbered: bool) -> None:
    out = destination()
    out.open(None)
    out.write(rows({"n": 1}, numbered=numbered))
    # Given a program that gives the table a column, which no commit that is under way may pass over
    write_deltalake(home / "t", pa.table({"n": [2], "day": ["a"]}), mode="append", schema_mode="merge")
    out.write(rows({"n": 3}, first=2, numbered=numbered))
    assert held(home) == [1, 2, 3]


def test_commits_that_others_come_before_for_ever_are_an_error_that_may_pass(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = destination()
    out.open(None)
    out.write(rows({"n": 1}))
    tries = 0

    def others(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        raise exceptions.CommitFailedError("others came first")

    monkeypatch.setattr(deltalake, "write_deltalake", others)
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(Unavailable, match="cannot be written: others came first"):
        out.write(rows({"n": 2}, first=2))
    assert tries == 11


@pytest.mark.proves("B8", "O5")
def test_two_writers_that_saw_no_table_write_its_first_rows_once(home: Path) -> None:
    one, other = destination(partition_by="day"), destination(partition_by="day")
    one.open(None)
    other.open(None)
    one.write(rows({"n": 1, "day": "a"}, {"n": 2, "day": "b"}))
    other.write(rows({"n": 1, "day": "a"}, {"n": 2, "day": "b"}, {"n": 3, "day": "b"}))
    assert held(home) == [1, 2, 3]
    assert DeltaTable(home / "t").metadata().partition_columns == ["day"]


def test_without_numbers_rows_are_appended(home: Path) -> None:
    out = destination(partition_by="day")
    out.open(None)
    out.write(rows({"n": 1, "day": "a", "none": None}, numbered=False))
    out.write(rows({"n": 1, "day": "b"}, numbered=False))
    assert held(home) == [1, 1]
    assert DeltaTable(home / "t").metadata().partition_columns == ["day"]


def test_new_fields_become_columns_or_are_refused_and_values_of_other_types_are(home: Path) -> None:
    out = destination()
    out.open(None)
    out.write(rows({"n": 1}, numbered=False))
    out.write(rows({"n": 2, "more": "x"}, numbered=False))
    fixed = destination(schema="fixed")
    fixed.open(None)
    with pytest.raises(Refused, match="no column 'other'"):
        fixed.write(rows({"n": 3, "other": 1}, numbered=False))
    for payload, said in (({"n": "text"}, "field 'n'"), (b"raw", "no row"), ({"x": None}, "no field")):
        with pytest.raises(Refused, match=said):
            out.write(rows(payload, numbered=False))
    assert held(home) == [1, 2]


def test_options_are_checked_and_secrets_stay_secret(home: Path) -> None:
    with pytest.raises(ConfigError, match="'path' is missing"):
        DeltaDestination({})
    with pytest.raises(ConfigError, match="start"):
        DeltaSource({"path": "t", "start": "yesterday"})
    (home / "t").mkdir()
    (home / "t" / "_delta_log").write_text("no folder")
    out = destination(**{"storage.AWS_SECRET_ACCESS_KEY": "s3cret"})

    def work() -> None:
        out.open(None)
        out.write(rows({"n": 1}))

    with pytest.raises(Unavailable) as raised:
        work()
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("way", ["advice", "skip"])
def test_a_file_that_was_vacuumed_after_its_plan_can_be_left_behind(home: Path, way: str) -> None:
    """Given a planned file of the table that is gone, when the operator follows the error's advice, then what comes
    after it arrives."""
    write_pipeline(home, "p", PIPELINE)
    append(home, 0, 3)
    append(home, 3, 3)
    plan_run("p", "first")
    with opened("p", "test") as context:
        unsealed = context.broker.micro_batches.unsealed()
        assert unsealed is not None
        first = unsealed.slices["in"][0]
    (home / "t" / first.hint["path"]).unlink()
    with pytest.raises(Missing, match=r"is gone \(vacuumed\?\)") as caught:
        run_once("p")
    skip, *once = advice(caught.value)
    if way == "skip":
        write_pipeline(home, "p", PIPELINE.replace("path: t}", "path: t, missing: skip}"))
        once = [skip]
    follow(once)
    run_until_quiet("p")
    assert len((home / "out.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_a_file_of_a_table_that_is_damaged_anywhere_in_its_description_is_an_error_that_names_it(home: Path) -> None:
    write_deltalake(home / "t", pa.table({"n": range(60), "t": ["s" * 600] * 60}))
    [path] = (home / "t").glob("*.parquet")
    source = DeltaSource({"path": "t"})
    [slice] = source.plan({}, Limit())
    sound = path.read_bytes()
    refused = []
    for at in range(len(sound) - 8 - int.from_bytes(sound[-8:-4], "little"), len(sound) - 8):
        damaged = bytearray(sound)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        try:
            list(source.read(slice))
        except SourceError as error:
            refused.append(str(error))
    assert len(refused) > 10
    assert all(path.name in said for said in refused)
