"""The life of micro-batches from file to files, accounted for to the last record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.micro_batch.harness import deliver_again, lines, payloads, run_once, run_until_quiet, state, write_pipeline

TWO = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 40}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: all, type: destination, plugin: file, settings: {path: out/all.jsonl, format: payload}}
      - id: red
        type: destination
        plugin: file
        settings: {path: out/red.jsonl, format: payload}
        trigger: {filters: [{exact: {subject: red}}]}
"""


def events(folder: Path, name: str, start: int, count: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {"n": n, "colour": ("red", "blue", "green")[n % 3]} for n in range(start, start + count)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("a") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    return rows


@pytest.mark.proves("C1", "C9", "T3", "T4", "I2", "I10")
def test_every_record_reaches_each_destination_whose_trigger_matches_once_and_in_order(home: Path) -> None:
    # Given 100 records in two files and a destination that wants only the red ones
    rows = events(home / "data", "a.jsonl", 0, 70) + events(home / "data", "b.jsonl", 70, 30)
    text = TWO.replace("settle: 0s", "settle: 0s, cloudevents.subject: '{{ .Payload.After.colour }}'")
    write_pipeline(home, "p", text)
    # When the pipeline runs until nothing is new
    runs = run_until_quiet("p")
    # Then both files hold exactly what they should, in order
    assert payloads(home / "out/all.jsonl") == rows
    assert payloads(home / "out/red.jsonl") == [r for r in rows if r["colour"] == "red"]
    # And micro-batches were bounded, and everything is acked
    broker = state("p")
    assert broker.micro_batches.latest_sealed() == 3
    assert len(runs) == 4
    position = broker.positions.acked("in")
    assert position == broker.positions.planned("in")
    assert {Path(k).name: v for k, v in position.items()}.keys() == {"a.jsonl", "b.jsonl"}
    counters = broker.deliveries.get("red").counters
    assert counters["matched"] == counters["delivered"] == 34
    broker.close()


@pytest.mark.proves("C9", "I3")
def test_what_is_appended_later_follows_and_nothing_is_read_twice(home: Path) -> None:
    write_pipeline(home, "p", TWO)
    rows = events(home / "data", "a.jsonl", 0, 10)
    run_until_quiet("p")
    rows += events(home / "data", "a.jsonl", 10, 5)
    run_until_quiet("p")
    assert payloads(home / "out/all.jsonl") == rows


def test_a_run_with_nothing_to_do_says_so_and_ends_at_plan(home: Path) -> None:
    write_pipeline(home, "p", TWO)
    (home / "data").mkdir()
    assert run_once("p") == {"plan": "nothing new"}


def test_a_destination_that_no_record_matches_is_confirmed_without_a_jvm(home: Path) -> None:
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 10)
    said = run_once("p")
    assert "nothing for it" in said["destinations.red"]
    assert not (home / "out/red.jsonl").exists()
    broker = state("p")
    assert broker.deliveries.get("red").cursor == 1
    broker.close()


PROCESSED = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 1000}
    dead-letter-queue: {window-size: 0}
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}
        processors:
          - {id: mark, plugin: field.set, settings: {field: .Metadata.colour, value: "{{ .Payload.After.colour }}"}}
      - id: all
        type: destination
        plugin: file
        settings: {path: out/all.jsonl, format: payload}
        processors:
          - {id: slim, plugin: field.exclude, settings: {fields: .Payload.After.colour}}
      - id: red
        type: destination
        plugin: file
        settings: {path: out/red.jsonl, format: payload}
        trigger: {filters: [{exact: {colour: red}}]}
    processors:
      - {id: drop, plugin: filter, condition: '{{ eq .Payload.After.colour "green" }}'}
      - {id: bad, plugin: error, settings: {message: "no sevens"}, condition: '{{ eq .Payload.After.n 7 }}'}
"""


@pytest.mark.proves("C2", "C4", "C5", "I8", "I10")
def test_each_section_sees_its_own_records_filtered_ones_are_acked_and_failed_ones_dead_lettered(home: Path) -> None:
    # Given a source, a pipeline and a destination processor, one that filters and one that fails record 7
    write_pipeline(home, "p", PROCESSED)
    rows = events(home / "data", "a.jsonl", 0, 30)
    # When it runs
    run_until_quiet("p")
    # Then the destination processor changed only its own destination's records
    kept = [r for r in rows if r["colour"] != "green" and r["n"] != 7]
    assert payloads(home / "out/all.jsonl") == [{"n": r["n"]} for r in kept]
    assert payloads(home / "out/red.jsonl") == [r for r in kept if r["colour"] == "red"]
    # And the failed record is a dead letter, and everything is acked
    broker = state("p")
    assert broker.positions.acked("in") == broker.positions.planned("in")
    totals = broker.micro_batches.totals()
    broker.close()
    assert sum(v for k, v in totals.items() if k.endswith("/nacked")) == 1
    from conduit_tasks.micro_batch.context import opened

    with opened("p", "t") as context:
        letters = list(context.dead_letters(context.pipeline.dead_letters, None).list())
    assert [(x["seq"], "no sevens" in x["error"]) for x in letters] == [(7, True)]


@pytest.mark.proves("C5", "C6", "C16", "I9")
def test_by_default_the_first_nack_stops_the_pipeline_and_start_goes_on_from_there(home: Path) -> None:
    write_pipeline(home, "p", PROCESSED.replace("    dead-letter-queue: {window-size: 0}\n", ""))
    rows = events(home / "data", "a.jsonl", 0, 30)
    # When the first record fails
    first = run_once("p")
    # Then the pipeline is degraded with that error, and nothing is acked or delivered
    assert "no sevens" in str(first["processors"])
    assert "no sevens" in str(run_once("p")["plan"])
    broker = state("p")
    assert broker.lifecycle.status().status == "degraded"
    assert broker.positions.acked("in") == {}
    # When the cause is fixed and the pipeline started
    write_pipeline(home, "p", PROCESSED.replace(" 7 }}", " 700 }}"))
    broker.lifecycle.start()
    broker.close()
    run_until_quiet("p")
    # Then nothing is missing
    assert payloads(home / "out/all.jsonl") == [{"n": r["n"]} for r in rows if r["colour"] != "green"]


def test_an_undecodable_line_is_nacked_alone(home: Path) -> None:
    write_pipeline(home, "p", PROCESSED)
    events(home / "data", "a.jsonl", 0, 5)
    with (home / "data/a.jsonl").open("a") as file:
        file.write("not json\n")
    events(home / "data", "a.jsonl", 5, 2)
    run_until_quiet("p")
    assert [r["n"] for r in payloads(home / "out/all.jsonl")] == [0, 1, 3, 4, 6]
    assert len(lines(home / "out/red.jsonl")) == 3


@pytest.mark.proves("T8")
def test_a_cleared_task_that_had_succeeded_sends_again_exactly_what_its_run_confirmed(home: Path) -> None:
    # Given two runs that delivered 10 records each
    write_pipeline(home, "p", TWO)
    first = events(home / "data", "a.jsonl", 0, 10)
    run_once("p", "one")
    second = events(home / "data", "a.jsonl", 10, 10)
    run_once("p", "two")
    # When the first one's task is cleared
    said = deliver_again("p", "all", "one")
    # Then its records follow in the file once more, and nothing live has moved
    assert payloads(home / "out/all.jsonl") == [*first, *second, *first], said
    broker = state("p")
    counters = broker.deliveries.get("all").counters
    assert (counters["delivered"], counters["redelivered"], broker.deliveries.get("all").cursor) == (20, 10, 2)
    broker.close()
    # And a task that had not succeeded merely resumes
    deliver_again("p", "all", "never")
    assert len(payloads(home / "out/all.jsonl")) == 30
