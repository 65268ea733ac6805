"""Records from one byte to tens of megabytes, from a source to destinations, with little memory at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.record import batches
from conduit_tasks.settings import forget
from conduit_tasks.spark.session import run_all
from tests.faults.parts import dead_letters
from tests.micro_batch.harness import run_until_quiet, write_pipeline

SIZES = (0, 100, 5_000, 60_000, 300_000)
FILE = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {{window-size: 0}}
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}}}}
      - {{id: whole, type: destination, plugin: file, settings: {{path: out/whole.jsonl}}}}
      - {{id: all, type: destination, plugin: file, settings: {{path: out/all.jsonl, format: payload}},
         processors: [{{id: mark, plugin: field.set, settings: {{field: .Payload.After.m, value: x}}}}]}}
    processors: [{processor}]
"""
TWICE = "{id: twice, plugin: clone, settings: {count: '1'}}"
SQL = "{id: sql, plugin: sql, settings: {query: 'SELECT * FROM records'}}"


def written(home: Path, sizes: list[int]) -> None:
    (home / "data").mkdir()
    with (home / "data/a.jsonl").open("w") as file:
        for n, size in enumerate(sizes):
            file.write(json.dumps({"n": n, "p": "x" * size}) + "\n")


def numbers(path: Path) -> list[int]:
    with path.open() as file:
        found = [json.loads(line) for line in file]
    return [row["payload"]["after"]["n"] if "payload" in row else row["n"] for row in found]


@pytest.mark.proves("C13", "C10", "I10")
@pytest.mark.parametrize("processor", ["", TWICE])
def test_records_of_any_size_arrive_whole_and_in_order(
    processor: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDUIT_BATCH_BYTES", str(64 << 10))
    forget()
    write_pipeline(home, "p", FILE.format(processor=processor))
    sizes = [SIZES[n * 7 % len(SIZES)] for n in range(60)]
    written(home, sizes)
    run_until_quiet("p")
    expected = [n for n in range(len(sizes)) for _ in range(2 if processor else 1)]
    assert numbers(home / "out/whole.jsonl") == numbers(home / "out/all.jsonl") == expected


@pytest.mark.proves("C13", "C4", "C14")
def test_a_record_of_fifty_megabytes_passes_and_one_beyond_the_limit_is_a_dead_letter(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a record of 50 MB, and one that is larger than a record may be here
    monkeypatch.setattr(batches, "RECORD_BYTES", 51_000_000)
    write_pipeline(home, "p", FILE.format(processor=""))
    written(home, [10, 50_000_000, 51_000_000, 10])
    # When they are delivered
    run_until_quiet("p")
    # Then the one passes, and of the other the whole record is kept, with its place
    assert numbers(home / "out/whole.jsonl") == numbers(home / "out/all.jsonl") == [0, 1, 3]
    (letter,) = dead_letters()
    assert (letter["seq"], letter["error_class"]) == (2, "unwritable")
    assert "is the most that one may have" in letter["error"]
    assert "data/a.jsonl:" in letter["error"]


@pytest.mark.proves("C13", "C2", "I10")
def test_spark_is_handed_as_many_rows_as_fit(home: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_BATCH_BYTES", str(1 << 20))
    forget()
    write_pipeline(home, "p", FILE.format(processor=SQL))
    sizes = [SIZES[n * 7 % len(SIZES)] for n in range(120)]
    written(home, sizes)
    run_until_quiet("p", run_all=run_all)
    assert numbers(home / "out/whole.jsonl") == numbers(home / "out/all.jsonl") == list(range(120))
    from conduit_tasks.spark.session import session

    assert int(session().conf.get("spark.sql.parquet.columnarReaderBatchSize")) <= 20
