"""Many small files cost as many looks, and not as many of everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.micro_batch import row_batches
from conduit_tasks.micro_batch.row_batches import numbered
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.record.batches import gathered
from conduit_tasks.record.schema import SPOOL_SCHEMA, read_batch
from tests.micro_batch.harness import lines, run_until_quiet, write_pipeline
from tests.micro_batch.test_missing import PIPELINE

FILES = 400


@pytest.fixture
def many(home: Path) -> Path:
    (home / "data").mkdir()
    for n in range(FILES):
        (home / f"data/f{n:05d}.jsonl").write_text(f'{{"n": {n}}}\n' * 3)
    return home


def test_a_look_at_a_folder_asks_the_disk_a_few_times_for_each_file(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = dict.fromkeys(("lstat", "stat", "open", "fstat", "pread"), 0)
    for name in calls:
        own = getattr(os, name)

        def counted(*args: Any, name: str = name, own: Any = own, **more: Any) -> Any:
            calls[name] += 1
            return own(*args, **more)

        monkeypatch.setattr(os, name, counted)
    source = FileSource({"path": "data/*.jsonl", "format": "jsonl", "settle": "0s"})
    assert len(source.plan({}, Limit(records=10**6))) == FILES
    assert sum(calls.values()) < 8 * FILES, calls
    assert calls["lstat"] < 100, "the folder is resolved once, not for every file"


def test_what_small_files_hold_is_worked_on_together(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    own = RowPass._take

    def take(self: RowPass, batch: pa.RecordBatch) -> None:
        taken.append(batch.num_rows)
        own(self, batch)

    monkeypatch.setattr(RowPass, "_take", take)
    write_pipeline(many, "p", PIPELINE.replace("MORE", "missing: fail").replace("max-records: 6", "max-records: 5000"))
    run_until_quiet("p")
    assert taken == [3 * FILES]
    assert len(lines(many / "out/d.jsonl")) == 3 * FILES


def test_gathered_batches_hold_the_same_rows_in_order_and_stay_within_their_limits() -> None:
    batches = [pa.record_batch({"n": list(range(at, at + 3))}) for at in range(0, 30, 3)]

    def joint(batches: list[pa.RecordBatch], rows: int, limit: int) -> list[int]:
        return [sum(b.num_rows for b in some) for some in gathered(batches, rows, limit)]

    assert joint(batches, 7, 1 << 20) == [6, 6, 6, 6, 6]
    assert [b for some in gathered(batches, 7, 1 << 20) for b in some] == batches
    assert joint(batches, 100, 2 * batches[0].nbytes) == [6] * 5
    large = pa.record_batch({"n": list(range(50))})
    assert joint([large, large], 7, 1) == [50, 50]
    other = pa.record_batch({"m": ["x"]})
    assert joint([batches[0], other, batches[1]], 100, 1 << 20) == [3, 1, 3]
    assert joint([], 7, 1) == []


@pytest.mark.parametrize("most", [1, 5, 8, 1000])
def test_records_are_numbered_within_their_slice_however_they_are_joined(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(row_batches, "GATHERED_ROWS", most)
    lengths = {4: [3], 5: [], 6: [2, 4, 0, 1], 7: [0], 9: [300]}
    counts: dict[int, int] = {}

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        n = 0
        for length in lengths[number]:
            texts = [f"{number}/{n + i}".encode() for i in range(length)]
            yield read_batch(pa.array(texts, pa.binary()), shape=number)
            n += length

    out = list(numbered(((number, batches(number)) for number in lengths), counts))
    assert counts == {4: 3, 5: 0, 6: 7, 7: 0, 9: 300}
    found = [row for batch in out for row in batch.to_pylist()]
    assert [f"{row['slice']}/{row['n']}".encode() for row in found] == [row["position"] for row in found]
    assert [(row["slice"], row["n"]) for row in found] == [(s, n) for s, count in counts.items() for n in range(count)]
    assert all(row["shape"] == row["slice"] and row["ord"] == 0 and row["after"] is None for row in found)
    assert all(batch.schema == SPOOL_SCHEMA for batch in out)
