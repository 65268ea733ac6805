"""A record that kills its worker: after a few attempts it is found, dead-lettered, and the rest arrives (C10)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.errors import ConduitError
from tests.faults.parts import SMALL, Application, account, dead_letters, drive, events
from tests.micro_batch.harness import payloads, run_once, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {window-size: 0}
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}
        processors: []  # sources.in
      - id: file
        type: destination
        plugin: file
        settings: {path: out/file.jsonl, format: payload}
        delivery: {timeout: 1s, max-redeliveries: 3}
        processors: []  # destinations.file
    processors: []  # processors
"""
DEADLY = '[{id: deadly, plugin: python, settings: {call: "tests.faults.functions:deadly"}}]'


def given(home: Path, node: str, text: str = PIPELINE) -> list[dict[str, object]]:
    """400 events of which two are deadly in the processors of `node`; returns the others."""
    write_pipeline(home, "p", text.replace(f"[]  # {node}", DEADLY))
    rows = []
    for start in (0, 100, 200, 300):
        rows += events(home / "data", 99, start)
        if start in (100, 300):
            events(home / "data", 1, start + 99, deadly=True)
        else:
            rows += events(home / "data", 1, start + 99)
    return rows


def attempt(run: str) -> list[str]:
    """One run; returns the errors that its steps ended with."""
    return [f"{node}: {said!r}" for node, said in run_once("p", run).items() if isinstance(said, ConduitError)]


def check(home: Path, node: str, rows: list[dict[str, object]]) -> None:
    assert payloads(home / "out/file.jsonl") == rows
    letters = dead_letters()
    assert [letter["record"]["payload"]["after"]["n"] for letter in letters] == [199, 399]
    assert {letter["error_class"] for letter in letters} == {"killed its worker"}
    assert {letter["node"] for letter in letters} == {node}
    account()


@pytest.mark.proves("C10", "C14", "I8")
@pytest.mark.parametrize("node", ["sources.in", "processors", "destinations.file"])
def test_a_record_that_kills_its_worker_is_dead_lettered_after_three_attempts_and_the_rest_arrives(
    node: str, quick: Path
) -> None:
    # Given two deadly records among others
    rows = given(quick, node)
    # When runs die of them
    deaths, errors = [], []
    for n in range(12):
        try:
            failed = in_child(attempt, f"run-{n}")
        except ChildDied as died:
            deaths.append(died.how)
            continue
        if not failed:
            break
        # A lease of one second may be lost on a loaded machine
        errors += failed
    # Then three attempts died, and the fourth found the records by itself
    assert deaths == ["signal 9"] * 3, (deaths, errors)
    drive()
    # And everything else arrived, in order
    check(quick, node, rows)


@pytest.mark.proves("C10")
@pytest.mark.parametrize("how", [{}, SMALL], ids=["in Spark", "small"])
def test_a_worker_killed_by_a_record_fails_its_application_and_the_next_one_finds_it(
    how: dict[str, str], home: Path, applications: Callable[..., Application]
) -> None:
    # Given a sealed micro-batch with two deadly records, and one attempt allowed
    node = "destinations.file"
    rows = given(home, node, PIPELINE.replace("max-redeliveries: 3", "max-redeliveries: 1"))
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.plan import plan_run
    from conduit_tasks.micro_batch.read import read_source
    from tests.micro_batch.harness import here

    plan_run("p", "r")
    with opened("p", "r") as context:
        read_source(context, "in", here, 5.0)
    # When the real application runs twice
    codes = [applications("p", node, run, how).wait() for run in ("first", "second")]
    # Then the first failed, which Airflow retries, and the second delivered the rest
    assert codes == [1, 0]
    run_once("p")
    check(home, node, rows)
