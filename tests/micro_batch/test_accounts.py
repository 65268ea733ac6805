"""A row that gets lost between reading and writing stops its node before it is sealed, confirmed or acked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from conduit_tasks.delivery import reading
from conduit_tasks.errors import InvariantBroken
from conduit_tasks.micro_batch import row_pass
from conduit_tasks.micro_batch.acks import ack_source
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.processors import columns
from conduit_tasks.record.record import Record
from tests.micro_batch.harness import payloads, run_once, run_until_quiet, state, write_pipeline
from tests.verify.mutant import Mutant

COUNT = 100
COLUMNS = '{plugin: field.set, settings: {field: .Payload.After.seen, value: "yes"}, id: '
RECORDS = '{plugin: python, settings: {call: "tests.micro_batch.test_accounts:passed_on"}, id: '
PIPELINE = """version: "2.2"
pipelines:
  - id: p
    status: running
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {{path: "in.jsonl", format: jsonl, settle: 0s}}
        processors: [{source}]
      - id: out
        type: destination
        plugin: file
        settings: {{path: out.jsonl, format: payload}}
        processors: [{destination}]
    processors: [{pipeline}]
"""

Fault = Callable[[pytest.MonkeyPatch], Any]
"""Breaks the package; may return a context manager in which it is broken."""


def passed_on(record: Record) -> list[Record] | Record | None:
    """n % 10: 1 filtered, 2 two records, else as it is."""
    assert isinstance(record.after, dict)
    kind = record.after["n"] % 10
    return None if kind == 1 else [record, record.copy()] if kind == 2 else record


def instead(where: Any, name: str, of: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Fault:
    """Puts what `of` makes of a function in its place."""
    return lambda monkeypatch: monkeypatch.setattr(where, name, of(getattr(where, name)))


def text(file: str, old: str, new: str) -> Fault:
    return lambda _: Mutant(f"{file}: {new}", file, {old: new}).applied()


@contextmanager
def broken(fault: Fault) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        within = fault(monkeypatch)
        if within is None:
            yield
        else:
            with within:
                yield


def without_the_last(entries: reading.First) -> reading.First:
    entries.pop()
    return entries


ROW = instead(columns, "_filled", lambda whole: lambda *of: (row for row in whole(*of) if row != 70))
TAKEN = instead(RowPass, "_take", lambda take: lambda self, batch: take(self, batch.slice(1)))
WRITTEN = instead(RowPass, "_write", lambda write: lambda self, batch: write(self, batch.slice(1)))
PROCESSED = instead(
    RowPass, "_process", lambda whole: lambda self, *of: (part.slice(0, part.num_rows - 1) for part in whole(self, *of))
)
OF_BLOCK = instead(
    RowPass,
    "_process_block",
    lambda whole: lambda self, batch, *of: whole(self, batch.slice(0, batch.num_rows - 1), *of),
)
OF_BLOCKS = instead(row_pass, "in_blocks", lambda whole: lambda *of: (each.slice(1) for each in whole(*of)))
FILES = text("micro_batch/process.py", "enumerate(f for m in manifests for f in m.files)]", "enumerate(())]")

BEFORE = {
    "a row of a block of columns": ("source", COLUMNS, ROW),
    "a row of a block of columns, of the pipeline": ("pipeline", COLUMNS, ROW),
    "the last row of a block": ("source", RECORDS, OF_BLOCK),
    "the last row of a block, of the pipeline": ("pipeline", RECORDS, OF_BLOCK),
    "the first row of each block": ("source", RECORDS, OF_BLOCKS),
    "the first row of each block, of the pipeline": ("pipeline", RECORDS, OF_BLOCKS),
    "the last of what columns became": ("pipeline", COLUMNS, PROCESSED),
    "the last of what records became": ("pipeline", RECORDS, PROCESSED),
    "a row as it is written": ("source", "", WRITTEN),
    "a row as it is taken": ("source", RECORDS, TAKEN),
    "all files that the sources wrote": ("pipeline", COLUMNS, FILES),
}

ENTRY = instead(reading, "_entries", lambda whole: lambda *of: without_the_last(whole(*of)))
CUT = text("delivery/segments.py", "yield out.part(start, end) if", "yield out.part(start, end - 1) if")
KEPT = text(
    "delivery/segments.py",
    "kept = [e for e in some if not e.filtered]",
    "kept = [e for e in some[:-1] if not e.filtered]",
)
HALF = text("delivery/batch_wise.py", "        todo = [(chunk,", "        todo = [(chunk.part(1, chunk.rows),")

AT_THE_DESTINATION = {
    "a row of a block of columns": (COLUMNS, ROW),
    "the last row of columns that is written": (COLUMNS, CUT),
    "an entry": (RECORDS, ENTRY),
    "the last record that is written": (RECORDS, KEPT),
    "a row that no processor sees": ("", HALF),
}


def place(home: Path, section: str, processor: str) -> None:
    sections = dict.fromkeys(("source", "pipeline", "destination"), "")
    if processor:
        sections[section] = f"{processor}it}}"
    write_pipeline(home, "p", PIPELINE.format(**sections))
    (home / "in.jsonl").write_bytes(b"".join(orjson.dumps({"n": n}) + b"\n" for n in range(COUNT)))


def numbers(processor: str) -> list[int]:
    """The records that come out, in order: see `passed_on`."""
    if processor != RECORDS:
        return list(range(COUNT))
    return [n for n in range(COUNT) if n % 10 != 1 for _ in range(2 if n % 10 == 2 else 1)]


def stopped(node: str, fault: Fault) -> None:
    """A run ends with an error that names node, micro-batch and figures; nothing is confirmed or acked."""
    said = rf"invariant 10: \d+ (records|rows|rows to write) of micro-batch 1 came to {node}, but of these are \d+ "
    with broken(fault), pytest.raises(InvariantBroken, match=said):
        run_once("p")
    ack_source("p", "in", "run")
    broker = state("p")
    assert broker.positions.acked("in") == {}
    assert broker.deliveries.get("out").cursor == 0
    broker.close()


@pytest.mark.proves("I10")
@pytest.mark.parametrize("lost", BEFORE)
def test_a_row_lost_before_the_fan_out_is_not_taken_for_filtered(home: Path, lost: str) -> None:
    # Given a processor, and a fault that loses a row beside it
    section, processor, fault = BEFORE[lost]
    place(home, section, processor)
    # When there is a run, it stops before anything is sealed or acked
    stopped("sources.in" if section == "source" else "processors", fault)
    broker = state("p")
    assert broker.micro_batches.latest_sealed() == 0
    # When the fault is fixed, everything comes, and what the processor filtered is counted
    run_until_quiet("p")
    assert [row["n"] for row in payloads(home / "out.jsonl")] == numbers(processor)
    assert broker.micro_batches.totals()["filtered"] == COUNT - len(set(numbers(processor)))
    assert broker.positions.acked("in") == broker.positions.planned("in")
    broker.close()


@pytest.mark.proves("I10")
@pytest.mark.parametrize("lost", AT_THE_DESTINATION)
def test_a_row_lost_at_a_destination_is_not_confirmed(home: Path, lost: str) -> None:
    # Given a destination that loses a row at its processor, or where it writes
    processor, fault = AT_THE_DESTINATION[lost]
    place(home, "destination", processor)
    # When there is a run, it stops before the row is confirmed
    stopped(r"destinations\.out", fault)
    # When the fault is fixed, everything comes, once, and what the processor filtered is counted
    run_until_quiet("p")
    assert [row["n"] for row in payloads(home / "out.jsonl")] == numbers(processor)
    broker = state("p")
    assert broker.deliveries.get("out").counters["filtered"] == COUNT - len(set(numbers(processor)))
    assert broker.positions.acked("in") == broker.positions.planned("in")
    broker.close()
