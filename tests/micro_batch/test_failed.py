"""What failed before the fan-out, in any number: in order, whole, and never in memory at once."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.micro_batch import failed, read
from conduit_tasks.record.dead_letter import DeadLetter
from tests.micro_batch.harness import payloads, run_until_quiet, state, write_pipeline

PIPELINE = """version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {window-size: 0}
    handlers: [{on: nacked, call: "told:note"}]
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, slice-bytes: 200}
        processors:
          - {id: number, plugin: field.convert, settings: {field: .Payload.After.n, type: int}}
      - {id: out, type: destination, plugin: file, settings: {path: out.jsonl, format: payload}}
    processors:
      - {id: small, plugin: field.convert, settings: {field: .Payload.After.m, type: int}}
"""
COUNT = 300


def counted() -> int:
    """Dead letters in memory. By their type alone: to ask another object for its class may have it import something."""
    return sum(type(each) is DeadLetter for each in gc.get_objects())


@pytest.fixture
def letters(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[DeadLetter]]:
    """Those of `COUNT` records that fail in each of three ways, as they were stored: lines that are no JSON, a source
    processor's, a pipeline processor's."""
    (home / "data").mkdir()
    (home / "told.py").write_text(
        "import pathlib\n\ndef note(changes):\n"
        f"    with pathlib.Path({str(home / 'told.txt')!r}).open('a') as file:\n"
        "        file.writelines(f'{c.seq}\\n' for c in changes)\n"
    )
    monkeypatch.syspath_prepend(str(home))
    for name in "ab":
        rows: list[str] = []
        for n in range(COUNT // 2):
            good = {"n": "x" if n % 5 == 1 else "1", "m": "x" if n % 5 == 3 else "1", "k": n}
            rows.append("no JSON" if n % 5 == 0 else json.dumps(good))
        (home / f"data/{name}.jsonl").write_text("\n".join(rows) + "\n")
    write_pipeline(home, "p", PIPELINE)
    # Slices of both files are read by tasks of their own, so that what fails lies in several files of the spool.
    monkeypatch.setattr(read, "PIECE_BYTES", 2_000)
    monkeypatch.setattr(failed, "ROWS", 7)
    monkeypatch.setattr(failed, "PART", 20)
    stored: list[list[DeadLetter]] = []
    own = DeadLetterStore.store

    def store(self: DeadLetterStore, part: Any) -> None:
        own(self, part)
        stored.append([(each.key, each.node, each.error_class, each.index) for each in part])  # type: ignore[misc]
        alive.append(counted() - before)

    # Those that other tests left, in what nobody has collected yet.
    gc.collect()
    before, alive = counted(), list[int]()
    monkeypatch.setattr(DeadLetterStore, "store", store)
    run_until_quiet("p")
    assert max(alive) <= 2 * 20 + 2 * 7, "letters that are not stored yet, and those of one piece of a file"
    return stored


@pytest.mark.proves("C14")
def test_letters_are_stored_in_pieces_in_order_and_whole(home: Path, letters: list[list[Any]]) -> None:
    bad = [n for n in range(COUNT) if n % 5 in (0, 1, 3)]
    assert [len(part) for part in letters] == [20] * (len(bad) // 20)
    flat = [each for part in letters for each in part]
    assert [key for key, *_ in flat] == [(0, 1, seq, 0) for seq in bad]
    assert [index for *_, index in flat] == bad
    assert {(key[2] % 5, node) for key, node, *_ in flat} == {
        (0, "sources.in"),
        (1, "sources.in/number"),
        (3, "processors/small"),
    }
    # Then the index, the handlers and the micro-batch say the same
    broker = state("p")
    assert [entry.seq for entry in broker.dead_letters.entries()] == bad
    broker.close()
    assert [int(line) for line in (home / "told.txt").read_text().splitlines()] == bad
    store = DeadLetterStore(str(home / ".conduit/dead-letters"), "p")
    assert [letter.seq for letter in store.letters()] == bad
    # And all others arrived
    assert [row["k"] for row in payloads(home / "out.jsonl")] == [n % 150 for n in range(COUNT) if n not in set(bad)]
