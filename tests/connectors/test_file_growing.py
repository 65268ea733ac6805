"""Whatever files grow by, wherever plans are cut and attempts die: every record once, in order."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conduit_tasks.connectors.base import Limit, Position
from conduit_tasks.connectors.file import plan as file_plan
from conduit_tasks.connectors.file import read as file_read
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import to_records
from conduit_tasks.settings import forget

VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


def text_of(format: str, value: str) -> bytes:
    """One record's bytes, its line end included."""
    if format == "text":
        return value.replace("\n", " ").rstrip("\r").encode() + b"\n"
    if format == "jsonl":
        return json.dumps({"v": value}, ensure_ascii=False).encode() + b"\r\n"
    return b'"' + value.replace('"', '""').encode() + b'",x\n'


def record_of(format: str, value: str) -> object:
    if format == "text":
        return value.replace("\n", " ").rstrip("\r").encode()
    return {"v": value} if format == "jsonl" else {"v": value, "w": "x"}


class GrowingFiles(RuleBasedStateMachine):
    """The model: per file, the values written; the source must give back exactly these."""

    format = "text"

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.folder = tempfile.TemporaryDirectory()
        self.home = Path(self.folder.name).resolve()
        self.patch.setenv("CONDUIT_HOME", str(self.home))
        self.patch.setattr(file_plan, "CHUNK", 11)
        self.patch.setattr(file_read, "CHUNK", 13)
        forget()
        self.written: dict[str, list[str]] = defaultdict(list)
        self.pending: dict[str, bytes] = {}
        self.read: dict[str, list[object]] = defaultdict(list)
        self.positions: set[bytes] = set()
        self.position: Position = {}

    def teardown(self) -> None:
        self.patch.undo()
        self.folder.cleanup()
        forget()

    @property
    def source(self) -> FileSource:
        return FileSource({"path": "*.data", "format": self.format, "slice-bytes": "50B", "settle": "1h"})

    @rule(name=st.sampled_from("abc"), values=st.lists(VALUES, max_size=8), cut=st.integers(0, 30))
    def grow(self, name: str, values: list[str], cut: int) -> None:
        """Appends records, the last bytes of which may come only later."""
        part = f"{name}.data"
        data = self.pending.pop(part, b"")
        if self.format == "csv" and not (self.home / part).exists() and not data:
            data = b"v,w\n"
        data += b"".join(text_of(self.format, v) for v in values)
        keep = max(0, len(data) - cut)
        with (self.home / part).open("ab") as file:
            file.write(data[:keep])
        if data[keep:]:
            self.pending[part] = data[keep:]
        self.written[part] += values

    @rule(
        records=st.none() | st.integers(1, 10),
        size=st.none() | st.integers(1, 60),
        dies=st.sampled_from(["no", "before it is durable", "while reading", "after reading"]),
    )
    def plan(self, records: int | None, size: int | None, dies: str) -> None:
        """One micro-batch. Planned boundaries are durable before reading; what dies later is read again from them."""
        slices = self.source.plan(self.position, Limit(records, size))
        assert self.source.news(self.position) == bool(slices)
        if dies == "before it is durable":
            return
        assert records is None or sum(s.records or 0 for s in slices) <= records
        assert size is None or len(slices) <= 1 or sum(s.bytes or 0 for s in slices) <= size
        self.position = self.position | {s.part: s.end for s in slices}
        assert self.position == json.loads(json.dumps(self.position))
        for piece in slices:
            batches = self.source.read(piece)
            if dies == "while reading":
                next(batches)
            rows = [r for b in self.source.read(piece) for r in to_records(b, Origin("p", "in", ""))]
            if dies == "after reading":
                again = [r for b in self.source.read(piece) for r in to_records(b, Origin("p", "in", ""))]
                assert [(r.position, r.after) for r in again] == [(r.position, r.after) for r in rows]
            self.read[piece.part] += [r.after for r in rows]
            assert not self.positions & {r.position for r in rows}
            self.positions |= {r.position for r in rows}

    @invariant()
    def what_was_read_is_what_was_written_first(self) -> None:
        for part, records in self.read.items():
            assert records == [record_of(self.format, v) for v in self.written[part][: len(records)]]

    @precondition(lambda self: self.written)
    @rule()
    def finish(self) -> None:
        """All bytes arrive, and plans run until nothing is new: then nothing is missing."""
        for name in list(self.written):
            self.grow(name[0], [], 0)
        while self.source.plan(self.position, Limit(3, 40)):
            self.plan(3, 40, "no")
        for part, values in self.written.items():
            assert len(self.read[part]) == len(values)


class GrowingJsonLines(GrowingFiles):
    format = "jsonl"


class GrowingCsv(GrowingFiles):
    format = "csv"


@pytest.mark.proves("C9", "C10", "C13", "I3", "I7")
@pytest.mark.parametrize("machine", [GrowingFiles, GrowingJsonLines, GrowingCsv])
def test_every_record_of_growing_files_is_read_once_and_in_order(machine: type[RuleBasedStateMachine]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine, settings=hypothesis_settings(max_examples=60, stateful_step_count=20, deadline=None)
    )
