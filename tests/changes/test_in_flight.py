"""A file that changes in the middle of a run: a micro-batch is made by one version, from its slices to its seal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conduit_tasks.errors import Outdated
from conduit_tasks.micro_batch.collection import collect
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.process import process
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.micro_batch.source_ack import ack
from conduit_tasks.pipeline.load import get_pipeline
from tests.changes.parts import TRIGGER, deliver, destination, file_of, read, write
from tests.faults.parts import account
from tests.micro_batch.harness import here, payloads, run_until_quiet, state

ONE, TWO = (
    f'{{id: {id}, type: source, plugin: file, settings: {{path: "{id}/*.jsonl", format: jsonl, settle: 0s, '
    'cloudevents.subject: "{{ .Payload.After.k }}"}}'
    for id in ("one", "two")
)
FILTERED = destination("b", more=f"trigger: {{filters: [{TRIGGER}]}}")


def fill(home: Path, name: str, count: int) -> list[dict[str, object]]:
    rows = [{"from": name, "n": n, "k": str(n % 7)} for n in range(count)]
    (home / name).mkdir()
    (home / name / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


@pytest.mark.proves("I3", "C10", "T3")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [FILTERED]),
        ([], [destination("b")]),
        ([FILTERED], [destination("b")]),
        ([destination("b")], [FILTERED]),
    ],
    ids=["filtered destination added", "destination added", "trigger removed", "trigger added"],
)
def test_sources_of_one_micro_batch_are_read_by_one_version(home: Path, before: list[str], after: list[str]) -> None:
    # Given a run whose first source is read
    rows = []
    write(home, file_of(ONE, TWO, destination("a"), *before))
    rows = fill(home, "one", 70) + fill(home, "two", 70)
    plan_run("p", "run")
    with opened("p", "run") as context:
        read_source(context, "one", here, 5.0)
    # When the file changes before the second one is
    write(home, file_of(ONE, TWO, destination("a"), *after))
    with opened("p", "run") as context, pytest.raises(Outdated, match="was planned by version"):
        read_source(context, "two", here, 5.0)
    run_until_quiet("p")
    # Then everybody got what one version of the file says, of all sources
    assert payloads(home / "out/a.jsonl") == rows
    wanted = [row for row in rows if row["k"] == "3"] if FILTERED in after else rows
    assert payloads(home / "out/b.jsonl") == wanted
    account()
    # And the micro-batch names the version that made it
    broker = state("p")
    now = broker.versions.in_force()
    assert now is not None
    assert broker.micro_batches.get(1).config == now.digest


@pytest.mark.proves("I3", "C2")
def test_processors_that_come_or_go_before_the_seal_see_a_whole_micro_batch(home: Path) -> None:
    # Given a micro-batch that was read for pipeline processors
    processors = "processors: [{id: x, plugin: field.set, settings: {field: .Payload.After.seen, value: 'yes'}}]"
    write(home, file_of(ONE, destination("a"), more=processors))
    fill(home, "one", 10)
    plan_run("p", "run")
    with opened("p", "run") as context:
        read_source(context, "one", here, 5.0)
    # When they change before they have run
    write(home, file_of(ONE, destination("a"), more=processors.replace("seen", "looked")))
    with opened("p", "run") as context, pytest.raises(Outdated):
        process(context, here, 5.0)
    run_until_quiet("p")
    # Then the new ones saw all of it
    assert all("looked" in row and "seen" not in row for row in payloads(home / "out/a.jsonl"))
    assert len(payloads(home / "out/a.jsonl")) == 10
    broker = state("p")
    now = broker.versions.in_force()
    assert now is not None
    assert broker.micro_batches.get(1).config == now.digest


@pytest.mark.proves("I1", "I6", "C10")
def test_a_task_with_the_old_file_neither_acks_nor_collects_what_a_new_destination_needs(home: Path) -> None:
    # Given a task that loaded the file before a destination was added, and nothing kept past its need
    more = "spool: {retention: 0s}"
    write(home, file_of(ONE, destination("a"), more=more))
    before = fill(home, "one", 5)
    run_until_quiet("p")
    old = get_pipeline("p")
    write(home, file_of(ONE, destination("a"), destination("b"), more=more))
    rows = [{"from": "one", "n": n, "k": "0"} for n in range(5, 10)]
    with (home / "one/a.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    read()
    deliver("a")
    # When it comes to ack and to collect
    with opened(old, "old") as context:
        assert ack(context, "one") is None
        assert collect(context) == []
    # Then the new one gets what it has to get, and the source is acked by those who know
    run_until_quiet("p")
    assert payloads(home / "out/b.jsonl") == rows
    assert payloads(home / "out/a.jsonl") == before + rows
    account()
