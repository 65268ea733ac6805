"""Records that a statement fails on, however large, are in memory one at a time while they are nacked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from conduit_tasks.micro_batch.frame_step import FrameStep, nacks
from conduit_tasks.micro_batch.pass_plan import Pass
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.spool.parts import PartWriter
from conduit_tasks.spool.spool import Spool
from tests.micro_batch.test_row_pass_bytes import rows_of

PLAN = Pass("p", 1, "processors", 1, (), (), final=True)
KEYS = [(0, n) for n in range(5)]


class Frame:
    """A frame of large records; `there` counts the rows that were taken from it and not yet written."""

    def __init__(self) -> None:
        self.there = self.most = 0

    def filter(self, condition: str) -> Any:
        n = int(condition.rpartition("=")[2])

        def arrow() -> pa.Table:
            self.there += 2
            self.most = max(self.most, self.there)
            records = [Record(b"%d" % n, after={"n": n, "p": "x" * 100_000}, ordinal=ord) for ord in range(2)]
            return pa.Table.from_batches([spool_batch([0, 0], [n, n], records)])

        return SimpleNamespace(toArrow=arrow)


def step_of(frame: Frame) -> FrameStep:
    return FrameStep(SimpleNamespace(id="sql", condition=None), None, frame, [])  # type: ignore[arg-type]  # as much as it needs


@pytest.mark.proves("C13", "C14")
def test_one_record_at_fault_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = Frame()
    write = PartWriter.write

    def written(self: PartWriter, batch: pa.RecordBatch) -> None:
        write(self, batch)
        frame.there -= batch.num_rows

    monkeypatch.setattr(PartWriter, "write", written)
    result = nacks(PLAN, Spool(str(tmp_path)), step_of(frame), dict.fromkeys(KEYS, "no"), 1)
    assert (frame.most, frame.there, result.nacked) == (2, 0, 5)
    found = rows_of(tmp_path, result.nacked_files)
    assert [(row["n"], row["ord"]) for row in found] == [(n, ord) for n in range(5) for ord in range(2)]
    assert all(b'"node":"processors/sql"' in row["error"] for row in found)


def test_records_at_fault_that_cannot_be_read_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Frame, "filter", lambda _, condition: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        nacks(PLAN, Spool(str(tmp_path)), step_of(Frame()), dict.fromkeys(KEYS, "no"), 1)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
