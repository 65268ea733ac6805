"""Many small files cost as many looks, and not as many of everything else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.file import FileSource
from conduit_tasks.micro_batch.rows import RowPass
from conduit_tasks.record.batches import gathered
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
    out = list(gathered(batches, 7, 1 << 20))
    assert [b.num_rows for b in out] == [6, 6, 6, 6, 6]
    assert [n for b in out for n in b.column("n").to_pylist()] == list(range(30))
    assert [b.num_rows for b in gathered(batches, 100, 2 * batches[0].nbytes)] == [6] * 5
    large = pa.record_batch({"n": list(range(50))})
    assert [b.num_rows for b in gathered([large, large], 7, 1)] == [50, 50]
    other = pa.record_batch({"m": ["x"]})
    assert [b.num_rows for b in gathered([batches[0], other, batches[1]], 100, 1 << 20)] == [3, 1, 3]
    assert list(gathered([], 7, 1)) == []
