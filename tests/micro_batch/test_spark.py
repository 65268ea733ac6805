"""The same life in real Spark executors, with `sql` and record-wise processors in one section."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.resend.redrive import redrive
from conduit_tasks.spark.session import run_all
from tests.faults.parts import dead_letters
from tests.micro_batch.harness import payloads, run_until_quiet, state, write_pipeline
from tests.micro_batch.test_whole import PROCESSED, events


@pytest.mark.proves("C2", "C9", "I10")
def test_rows_pass_through_executors_in_order(home: Path, anywhere: Any) -> None:
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
def test_a_sql_processor_stands_among_record_wise_ones(home: Path, anywhere: Any) -> None:
    write_pipeline(home, "p", FRAMES.replace("eq .Payload.After.n 7", "eq .Payload.After.n 15"))
    rows = events(home / "data", "a.jsonl", 0, 60)
    run_until_quiet("p", run_all=run_all)
    kept = [r for r in rows if r["colour"] != "green" and int(str(r["n"])) >= 10 and r["n"] != 15]
    assert payloads(home / "out/all.jsonl") == [{"n": r["n"]} for r in kept]
    broker = state("p")
    totals = broker.micro_batches.totals()
    broker.close()
    assert totals["processors/read"] == 60
    assert totals["processors/nacked"] == 1
    assert totals["processors/filtered"] == 60 - 1 - len(kept)


FAULTY = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {window-size: 0}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: all, type: destination, plugin: file, settings: {path: out/all.jsonl, format: payload}}
    processors:
      - id: digits
        plugin: sql
        condition: '{{ eq .Payload.After.colour "red" }}'
        settings:
          query: "SELECT _id, _row, map('tens', CAST(CAST(get_json_object(payload, '$.word') AS INT) AS STRING)) AS metadata FROM records"
"""  # noqa: E501 - one statement


@pytest.mark.proves("C4", "C5", "C9", "I10")
def test_the_record_that_a_statement_fails_on_is_nacked_alone_and_others_pass_a_condition_by(
    home: Path, connected: Any
) -> None:
    # Given a statement over the red records that fails on one of them, and blue ones that it would fail on too
    write_pipeline(home, "p", FAULTY)
    (home / "data").mkdir()
    rows = [
        {"n": n, "colour": "blue" if n % 3 == 1 else "red", "word": "ten" if n == 2 or n % 3 == 1 else "10"}
        for n in range(4)
    ]
    (home / "data/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # When they are processed
    run_until_quiet("p", run_all=run_all)
    # Then that one is a dead letter with what the statement says, and everything else goes on in order
    assert payloads(home / "out/all.jsonl") == [row for row in rows if row["n"] != 2]
    (letter,) = dead_letters()
    assert (letter["seq"], letter["node"]) == (2, "processors/digits")
    assert "CAST_INVALID_INPUT" in letter["error"]
    assert "'ten'" in letter["error"]
    totals = state("p").micro_batches.totals()
    assert (totals["processors/read"], totals["processors/nacked"], totals["processors/filtered"]) == (4, 1, 0)


@pytest.mark.proves("X2", "C2")
def test_a_redrive_passes_a_corrected_statement_and_what_follows_it(home: Path, spark: Any) -> None:
    # Given the records that a statement failed on
    write_pipeline(home, "p", FAULTY)
    (home / "data").mkdir()
    rows = [{"n": n, "colour": "red", "word": "ten" if n in {1, 2} else "10"} for n in range(4)]
    (home / "data/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_until_quiet("p", run_all=run_all)
    # When the statement is fixed and they are redriven
    write_pipeline(home, "p", FAULTY.replace("CAST(get_json_object", "TRY_CAST(get_json_object"))
    with opened("p", "test") as context:
        outcomes = redrive(context, Selection(), "ada", wait=60.0)
    # Then they arrive
    assert [(o.destination, o.redriven, o.again) for o in outcomes] == [("_pipeline", 2, 0), ("all", 2, 0)]
    assert [row["n"] for row in payloads(home / "out/all.jsonl")] == [0, 3, 1, 2]


TWO_FRAMES = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, slice-bytes: 1KiB}
      - {id: all, type: destination, plugin: file, settings: {path: out/all.jsonl, format: payload}}
    processors:
      - id: big
        plugin: sql
        settings: {schema: "n INT", query: "SELECT * FROM records WHERE after.n >= 10"}
      - id: small
        plugin: sql
        settings: {schema: "n INT", query: "SELECT * FROM records WHERE after.n < 50"}
"""


@pytest.mark.proves("C2", "I10")
def test_a_statement_gets_what_the_one_before_it_made(home: Path, spark: Any) -> None:
    # Given two statements, one directly after the other, over the rows of several files
    write_pipeline(home, "p", TWO_FRAMES)
    rows = events(home / "data", "a.jsonl", 0, 60)
    # When they are processed
    run_until_quiet("p", run_all=run_all)
    # Then both have filtered what they say
    assert [r["n"] for r in payloads(home / "out/all.jsonl")] == [r["n"] for r in rows if 10 <= int(str(r["n"])) < 50]
    assert state("p").micro_batches.totals()["processors/filtered"] == 20
