"""The same life in real Spark executors, with `sql` and record-wise processors in one section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.spark.session import run_all
from tests.micro_batch.harness import payloads, run_until_quiet, state, write_pipeline
from tests.micro_batch.test_whole import PROCESSED, events


@pytest.mark.proves("C2", "C9", "I10")
def test_rows_pass_through_executors_in_order(home: Path, spark: Any) -> None:
    # Given several files, so that several executor tasks write several spool files
    write_pipeline(home, "p", PROCESSED.replace("settle: 0s", "settle: 0s, slice-bytes: 2KiB"))
    rows = [row for n in range(5) for row in events(home / "data", f"{n}.jsonl", n * 100, 100)]
    # When it runs in Spark
    run_until_quiet("p", run_all=run_all)
    # Then nothing is missing and order is kept
    kept = [r for r in rows if r["colour"] != "green" and r["n"] != 7]
    assert payloads(home / "out/all.jsonl") == [{"n": r["n"]} for r in kept]
    assert payloads(home / "out/red.jsonl") == [r for r in kept if r["colour"] == "red"]


FRAMES = PROCESSED.replace(
    "    processors:\n      - {id: drop",
    """    processors:
      - id: big
        plugin: sql
        settings: {schema: "n INT, colour STRING", query: "SELECT * FROM records WHERE after.n >= 10"}
      - {id: drop""",
)


@pytest.mark.proves("C2", "C4", "I10")
def test_a_sql_processor_stands_among_record_wise_ones(home: Path, spark: Any) -> None:
    write_pipeline(home, "p", FRAMES.replace("eq .Payload.After.n 7", "eq .Payload.After.n 15"))
    rows = events(home / "data", "a.jsonl", 0, 60)
    run_until_quiet("p", run_all=run_all)
    kept = [r for r in rows if r["colour"] != "green" and int(str(r["n"])) >= 10 and r["n"] != 15]
    assert payloads(home / "out/all.jsonl") == [{"n": r["n"]} for r in kept]
    broker = state("p")
    totals = broker.totals()
    broker.close()
    assert totals["processors/read"] == 60
    assert totals["processors/nacked"] == 1
    assert totals["processors/filtered"] == 60 - 1 - len(kept)
