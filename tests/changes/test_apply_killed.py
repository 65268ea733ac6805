"""A change that is killed between any two steps, or refused: the same command finishes it, or nothing has changed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.changes.apply import Decisions, apply
from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.pipeline.load import load_file
from tests.changes.parts import (
    SOURCE,
    A,
    B,
    applied,
    changes,
    conduit,
    deliver,
    destination,
    file_of,
    planned,
    read,
    write,
)
from tests.faults.parts import dead_letters, events
from tests.micro_batch.harness import payloads, run_until_quiet, state


def killed_after(steps: int, work: Callable[[Callable[[str], None]], Any]) -> bool:
    """Runs `work` in a child that is killed with SIGKILL after so many steps; False where it ended before."""
    child = os.fork()
    if child == 0:
        left = steps

        def step(_: str) -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        try:
            work(step)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.proves("C10", "I5")
def test_killed_between_any_two_steps_the_same_command_finishes(home: Path, changed: Path) -> None:
    # Given a pipeline where one destination lacks something, of which some is a dead letter, and one leaves
    fails = "processors: [{id: x, plugin: error, condition: '{{ eq .Payload.After.n 3 }}'}], "
    more = "dead-letter-queue: {window-size: 0}"
    steps, ends = 0, False
    while not ends:
        number = steps
        id, folder = f"p{number}", f"out{number}"

        def text(*destinations: tuple[str, str, str], id: str = id, folder: str = folder) -> str:
            made = [destination(d, path, extra).replace("out/", f"{folder}/") for d, path, extra in destinations]
            return file_of(SOURCE.replace("data/", f"data{id}/"), *made, id=id)

        write(home, text(("a", "", ""), ("b", "", fails + more), ("c", "", "")), id)
        rows = events(home / f"data{id}", 10)
        run_until_quiet(id)
        rows += events(home / f"data{id}", 10, 10)
        read(id)
        deliver("a", pipeline=id)
        changed.write_text(text(("a", "", ""), ("z", "b", more)))

        def work(step: Callable[[str], None]) -> None:
            (pipeline,) = load_file(changed).pipelines
            apply(
                changed, pipeline, Decisions({"b": "z"}, frozenset({"c"}), yes=True), deadline=0, wake=None, step=step
            )

        # When it is killed after the next step, and done again
        ends = not killed_after(steps, work)
        applied(changed, "--rename", "b=z", "--drop", "c", "--yes")
        # Then it runs, everybody who stays has everything once, in order, and who left may come back
        assert state(id).lifecycle.status().status == "running", steps
        run_until_quiet(id)
        left = [row for row in rows if row["n"] != 3]
        assert payloads(home / folder / "a.jsonl") == rows, steps
        assert payloads(home / folder / "b.jsonl") == left, steps
        assert len(dead_letters(id, "z")) == 1, steps
        assert set(state(id).versions.left()) == {"c"}, steps
        assert planned(home / f"include/pipelines/{id}.yaml", 0)["changes"][0]["kind"] == "left"
        steps += 1
    assert steps > 6


@pytest.mark.proves("C10")
def test_a_renaming_that_is_refused_changes_nothing(home: Path, changed: Path) -> None:
    """Given two destinations that have got records, when a file without the one says that it is the other from now on,
    then that is refused before the file, the spool or the dead letters change."""
    more = "processors: [{id: x, plugin: error, condition: '{{ eq .Payload.After.n 3 }}'}], "
    write(home, file_of(SOURCE, A, destination("b", more=more + "dead-letter-queue: {window-size: 0}")))
    events(home / "data", 10)
    run_until_quiet("p")
    events(home / "data", 10, 10)
    read()
    deliver("a")
    before = (home / "include/pipelines/p.yaml").read_text()
    changed.write_text(file_of(SOURCE, A))
    # The id that is to go on has records of its own: another process applied it first, say
    conduit("stop", "p", "--force")
    (pipeline,) = load_file(changed).pipelines
    files = {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and "dead" in str(path)}
    with pytest.raises(ConfigError, match="destination a of pipeline p has got records of its own"):
        apply(changed, pipeline, Decisions({"b": "a"}), deadline=0, wake=None)
    assert (home / "include/pipelines/p.yaml").read_text() == before
    assert files
    assert {path: path.read_bytes() for path in files} == files
    assert len(dead_letters("p", "b")) == 1


def test_a_run_between_a_kill_and_the_second_try_does_no_harm(home: Path, changed: Path) -> None:
    # Given an apply that was killed once the file was in its place
    write(home, file_of(SOURCE, A, B))
    rows = events(home / "data", 10)
    read()
    deliver("a")
    changed.write_text(file_of(SOURCE, A, destination("z", "b")))

    def work(step: Callable[[str], None]) -> None:
        (pipeline,) = load_file(changed).pipelines
        apply(changed, pipeline, Decisions({"b": "z"}), deadline=0, wake=None, step=step)

    assert killed_after(1, work)
    # When a run comes by, which finds a stopped pipeline
    run_until_quiet("p")
    with opened("p", "look") as context:
        assert "z" in [d.id for d in context.pipeline.destinations]
    applied(changed, "--rename", "b=z")
    run_until_quiet("p")
    # Then nothing is lost
    assert payloads(home / "out/b.jsonl") == rows
    assert changes(planned(changed, 0)) == {}
