"""A pass over rows gives the same whatever the blocks in which records become Python objects."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from conduit_tasks.micro_batch import row_pass
from conduit_tasks.micro_batch.pass_plan import Pass, PassResult
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.spool.spool import Spool
from conduit_tasks.topology import Processor

SHAPE = ("slice", "n", "ord", "after")
TWICE = Processor("twice", "python", {"call": "tests.micro_batch.test_row_pass:twice_and_odd"})


def twice_and_odd(record: Record) -> list[Record] | Record | None:
    """n % 5: 0 two records, 1 filtered, 2 fails, else as it is."""
    assert isinstance(record.after, dict)
    kind = record.after["n"] % 5
    if kind == 2:
        raise ValueError("two")
    if kind == 1:
        return None
    return [record, record.copy()] if kind == 0 else record


def derived_rows(count: int) -> pa.RecordBatch:
    """Every third record is there as three rows, as an earlier node may have derived them."""
    numbers = [n for n in range(count) for _ in range(3 if n % 3 == 0 else 1)]
    origin = Origin("p", "in", "")
    records = [Record(b"%d" % n, after={"n": n + i}, origin=origin) for i, n in enumerate(numbers)]
    for i, n in enumerate(numbers):
        records[i].ordinal = sum(m == n for m in numbers[:i])
    return spool_batch([0] * len(numbers), numbers, records)


def run(folder: Path, batch: pa.RecordBatch) -> tuple[PassResult, list[dict[str, object]], list[dict[str, object]]]:
    spool = Spool(str(folder))
    plan = Pass("p", 1, "sources.in", 1, (TWICE,), (), final=True)
    result = RowPass(plan, spool, 0, [Origin("p", "in", "")]).run([batch])
    out, nacked = (
        [row for file in files for b in spool.read(file) for row in b.to_pylist()]
        for files in (result.files, result.nacked_files)
    )
    return result, out, nacked


@pytest.mark.proves("C14", "I10")
def test_what_fails_over_columns_is_nacked_as_it_came_in_with_all_its_rows(tmp_path: Path) -> None:
    # Given rows of which some are derived, and a chain that changes a record before it fails
    batch = derived_rows(9)
    chain = (
        Processor("half", "field.set", {"field": ".Payload.After.half", "value": "done"}),
        Processor("fails", "error", {"message": "no"}, "{{ eq .Payload.After.n 4 }}"),
    )
    plan = Pass("p", 1, "sources.in", 1, chain, (), final=True)
    spool = Spool(str(tmp_path))
    # When they pass
    result = RowPass(plan, spool, 0, [Origin("p", "in", "")]).run([batch])
    out, nacked = (
        [row for file in files for b in spool.read(file) for row in b.to_pylist()]
        for files in (result.files, result.nacked_files)
    )
    # Then each record with such a row is nacked whole, unchanged; the others go on in order, their rows numbered again
    failed = sorted({row["n"] for row in batch.to_pylist() if orjson.loads(row["after"])["n"] == 4})
    assert sorted({row["n"] for row in nacked}) == failed
    assert [row["after"] for row in nacked] == [row["after"] for row in batch.to_pylist() if row["n"] in failed]
    assert result.nacked == len(failed)
    assert {orjson.loads(row["after"])["half"] for row in out} == {"done"}
    assert [(row["n"], row["ord"]) for row in out] == [
        (row["n"], row["ord"]) for row in batch.to_pylist() if row["n"] not in failed
    ]


@pytest.mark.proves("C9", "I10")
@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
def test_blocks_part_no_record_and_change_neither_order_nor_counts(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given rows of which some are derived, and a processor that derives, filters and fails
    batch = derived_rows(50)
    monkeypatch.setattr(row_pass, "BLOCK", batch.num_rows)
    whole, out, nacked = run(tmp_path / "whole", batch)
    # When they pass in small blocks
    monkeypatch.setattr(row_pass, "BLOCK", block)
    parted, parted_out, parted_nacked = run(tmp_path / "parted", batch)
    # Then everything is as in one block: rows, order, ordinals, counts and errors
    assert [{k: r[k] for k in SHAPE} for r in parted_out] == [{k: r[k] for k in SHAPE} for r in out]
    assert parted_nacked == nacked
    assert (parted.read, parted.written, parted.nacked) == (whole.read, whole.written, whole.nacked)
    # And derived rows of a position are numbered densely, and none of a failed one went on
    by_number: dict[object, list[object]] = {}
    for row in parted_out:
        by_number.setdefault(row["n"], []).append(row["ord"])
    assert all(ords == list(range(len(ords))) for ords in by_number.values())
    assert not by_number.keys() & {row["n"] for row in parted_nacked}
    assert {orjson.loads(row["error"])["message"] for row in parted_nacked} == {"ValueError: two"}  # type: ignore[arg-type]
