"""A guarantee broken on purpose is found, and the seed is named: `conduit verify` would notice."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.verify import result
from conduit_tasks.verify.themes import THEMES, seeds_of
from tests.verify.mutants import MUTANTS, Mutant
from tests.verify.test_seeds import LIVED

MOST = 24
"""Seeds in which a mutant is found at the latest, from its `first` on. Nearly all are found in that one:
`python -m tests.verify.mutants` says in how many of its seeds each is."""


BLUNDERS = ("NameError", "AttributeError", "UnboundLocalError", "SCRIPT LOAD", "Script attempted to access")
"""What is said of a patch that is no program: it would be found by every seed, whatever that looks at."""


@pytest.mark.proves("X6")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_what_is_broken_on_purpose_is_found_and_its_seed_named(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with mutant.applied(), monkeypatch.context() as patch:
        # One violation says it: the history need not go on.
        patch.setattr(result, "PLENTY", 1)
        for seed in islice(seeds_of(mutant.theme, mutant.first), MOST):
            said = CliRunner().invoke(app, ["verify", "--seed", str(seed), "--jobs", "1", "--json"])
            if said.exit_code:
                break
    assert said.exit_code == 1, f"{mutant.name} was not noticed in {MOST} seeds"
    found = json.loads(said.stdout)
    assert found["seeds"][0]["violations"]
    assert not [said for said in found["seeds"][0]["violations"] if any(word in said for word in BLUNDERS)]
    assert found["seeds"][0]["again"] == f"conduit verify --seed {seed} --events 16"
    # What is found is the mutant, not something that this seed finds anyway
    assert seed in LIVED or not CliRunner().invoke(app, ["verify", "--seed", str(seed), "--jobs", "1"]).exit_code


@pytest.mark.slow
def test_a_history_ends_once_plenty_is_found_and_no_loss_is_said_of_what_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lived(plenty: int) -> tuple[int, list[str]]:
        monkeypatch.setattr(result, "PLENTY", plenty)
        said = CliRunner().invoke(app, ["verify", "--seed", str(mutant.first), "--jobs", "1", "--json"])
        (seed,) = json.loads(said.stdout)["seeds"]
        return seed["counts"]["points"], seed["violations"]

    mutant = next(each for each in MUTANTS if each.name == "confirm without fencing")
    with mutant.applied():
        points, violations = lived(1)
        assert 2 * points < lived(1000)[0]
    assert not [said for said in violations if "loss" in said]


def test_every_theme_has_a_fault_that_it_finds() -> None:
    assert {mutant.theme for mutant in MUTANTS} - {""} == set(THEMES)
