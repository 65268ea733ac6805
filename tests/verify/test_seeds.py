"""Seeded histories of crashes, and what must hold after each (SEMANTICS X6). The long run is in docs/verify.md."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import signal
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.cli.main import app
from conduit_tasks.cli.verify import COLUMNS
from conduit_tasks.verify.history import History
from conduit_tasks.verify.result import Found
from conduit_tasks.verify.result import Result as Outcome
from conduit_tasks.verify.themes import THEMES, theme_of
from conduit_tasks.verify.workers import verify as many
from tests.verify.mutants import MUTANTS

LIVED = sorted({2, 6, 10, 14, *(mutant.first for mutant in MUTANTS)})
"""Seeds in which mutants are found, of each theme one at least, and some without a theme: what is found in them is the
mutant, as nothing is without it."""


def verify(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", *arguments])


@pytest.mark.proves("X6", "C9", "C10", "C11", "C12", "T1", "T4", "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I10")
def test_seeds_of_crashes_power_cuts_zombies_and_doubled_tasks_break_no_promise() -> None:
    lived = list(many(LIVED, 16, 1))
    assert [result.seed for result in lived] == LIVED
    broken = {result.again: result.found.violations for result in lived if not result.ok}
    assert not broken, json.dumps(broken, indent=1)
    assert {theme_of(seed) for seed in LIVED} == {"", *THEMES}
    # And they were histories of trouble, in which something was repeated where that is allowed, and only there
    counts = {result.seed: result.to_json()["counts"] for result in lived}
    totals = {name: sum(count[name] for count in counts.values()) for name in COLUMNS}
    assert totals["faults"] > 5 * len(LIVED)
    assert totals["events"] > 10 * len(LIVED)
    # Runs that last were taken over from in every history that is about it, more often than where nothing breaks
    about = [counts[seed]["handovers"] for seed in LIVED if theme_of(seed) == "handover"]
    assert about
    assert all(handovers > 8 for handovers in about)
    assert totals["handovers"] == sum(about)
    assert totals["loss"] == totals["inversions"] == totals["unacked"] == 0
    assert 0 < totals["duplicates"] <= totals["bound"]


@pytest.mark.proves("X6")
def test_the_same_seed_gives_the_same_history_in_any_process_whatever_was_lived_before_it() -> None:
    def lived(*how: str) -> dict[int, str]:
        said = verify("--seed", "8", "--seeds", "2", "--json", *how)
        assert said.exit_code == 0
        found = json.loads(said.stdout)
        return {seed["seed"]: seed["digest"] for seed in found["seeds"]}

    # Given two seeds, one after the other, in a process that clears its garbage away all the time
    often = gc.get_threshold()
    gc.set_threshold(200, 2, 2)
    try:
        here = lived("--jobs", "1")
    finally:
        gc.set_threshold(*often)
    # Then every one of their operations is the same in new processes, with other hashes, for each of them
    assert here == lived("--jobs", "2")
    assert len(set(here.values())) == 2


@pytest.mark.slow
def test_a_seed_that_was_lived_before_in_the_same_folder_has_the_same_history() -> None:
    first, again = many([9, 9], 4, 1)
    assert first.digest == again.digest


@pytest.mark.slow
def test_all_operations_of_a_seed_are_told_if_somebody_asks_for_them() -> None:
    (seed,) = json.loads(verify("--seed", "2", "--json", "--trace").stdout)["seeds"]
    points = [line for line in seed["history"] if not re.match(r" *[\d.]+  (\*\*\*|!!!)", line)]
    assert len(points) == seed["counts"]["points"]
    assert seed["again"] == "conduit verify --seed 2 --events 16"


@pytest.mark.proves("X6")
def test_real_processes_killed_at_random_moments_lose_nothing() -> None:
    said = verify("--processes", "1", "--json")
    found = json.loads(said.stdout)
    assert said.exit_code == 0, found["seeds"][0]["violations"]
    (seed,) = found["seeds"]
    assert len([fault for fault in seed["faults"] if "is killed" in fault]) >= 4


def test_a_long_run_says_how_far_it_is_and_which_seeds_to_live_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a run of many seeds, two of which find something
    def lived(seeds: range, events: int, jobs: int, trace: bool) -> Iterator[Outcome]:
        for seed in seeds:
            found = Found(violations=["lost"] if seed in {300, 700} else [])
            yield Outcome(seed, 1, events, 1, 1, ["a fault"], found, 0.1)

    monkeypatch.setattr("conduit_tasks.verify.workers.verify", lived)
    said = verify("--seeds", "1000")
    # Then progress, the two with how to see them again, and the sum of everything; nothing of those that held is kept
    assert said.exit_code == 1
    assert "400 of 1,000 seeds, 1 violated; about 0 min left" in said.stderr
    assert "    again: conduit verify --seed 300 --events 16" in said.stdout.splitlines()
    assert said.stdout.splitlines()[-1].split()[:6] == ["1000", "seeds", "1,000", "1,000", "1,000", "1,000"]
    found = json.loads(verify("--seeds", "1000", "--json").stdout)
    assert [seed["seed"] for seed in found["seeds"] if seed["faults"]] == [300, 700]


def test_a_run_that_is_stopped_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given four seeds, of which the first two and the last have ended when somebody stops the run
    def lived(seeds: range, events: int, jobs: int, trace: bool) -> Iterator[Outcome]:
        for seed in (seeds[0], seeds[1], seeds[3]):
            yield Outcome(seed, 1, events, 1, 1, [], Found(violations=["lost"] if seed == 11 else []), 0.1)
        raise KeyboardInterrupt

    monkeypatch.setattr("conduit_tasks.verify.workers.verify", lived)
    said = verify("--seed", "10", "--seeds", "4")
    # Then it names what was found, and the seeds that are left
    assert said.exit_code == 130
    assert said.stderr.splitlines() == [
        "stopped after 3 of 4 seeds, 1 violated",
        "violated: 11; see it again with: conduit verify --seed 11 --events 16",
        "go on with: conduit verify --seed 12 --seeds 2 --events 16",
    ]


@pytest.mark.slow
def test_an_error_of_the_simulation_itself_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: History) -> None:
        raise ValueError("not to be explained")

    monkeypatch.setattr(History, "peace", fails)
    said = verify("--seed", "2", "--json")
    assert said.exit_code == 1
    (violation,) = json.loads(said.stdout)["seeds"][0]["violations"]
    assert violation.startswith("verify: ValueError: not to be explained (test_seeds.py:")


@pytest.mark.slow
def test_nobody_hears_what_is_left_of_dead_processes_complain(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left:
        def __del__(self) -> None:
            raise RuntimeError("Event loop is closed")

    def lived(seed: int, *_: object, **__: object) -> Outcome:
        # One of them is freed at once, one only by a collection.
        left: list[object] = [Left()]
        cycle: list[object] = [Left()]
        cycle.append(cycle)
        return Outcome(seed, len(left), 16, 1, 1, [], Found(), 0.1)

    monkeypatch.setattr("conduit_tasks.verify.workers.live", lived)
    heard: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", heard.append)
    assert [result.seed for result in many([1, 2], 16, 1)] == [1, 2]
    gc.collect()
    assert heard == []


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conduit_tasks.verify.workers.LOOK", 0.1)
    others = multiprocessing.active_children()
    results = many(range(1, 200), 16, 2)
    next(results)
    worker = next(child for child in multiprocessing.active_children() if child not in others)
    os.kill(worker.pid or 0, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="ended with -9, its seed unfinished"):
        list(results)


@pytest.mark.slow
def test_a_table_is_printed_and_wrong_input_is_refused() -> None:
    said = verify("--seed", "7")
    assert said.exit_code == 0
    assert said.stdout.splitlines()[0].split()[:3] == ["seed", "events", "runs"]
    assert said.stdout.splitlines()[-1].startswith("1 seeds")
    assert verify("--seeds", "-1").exit_code == 2
    assert verify("--seeds", "0").exit_code == 2
    assert verify("--seeds", "many").exit_code == 2
