"""The judge of a history on its own: what it says of calls that were right, and of calls that were not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conduit_tasks.verify.result import Found
from conduit_tasks.verify.watch import Watch


@pytest.fixture
def watch() -> Watch:
    scenario: Any = SimpleNamespace(sources=["a"], seed=1, window=True, forgetful=False)
    outside: Any = SimpleNamespace(queues=None)
    return Watch(SimpleNamespace(redis_full=False), scenario, outside, Found(), None, None)  # type: ignore[arg-type]


def stores(watch: Watch, *seqs: int) -> None:
    letters = [SimpleNamespace(epoch=0, error_class="e", node="destinations.web", micro_batch=1, seq=n) for n in seqs]
    watch._storing(SimpleNamespace(_folder="destination=web"), letters)


def test_a_letter_without_a_vote_is_found(watch: Watch) -> None:
    watch._voting(None, "web", 1, 7, 0, [("a", 2), ("n", 1)])
    stores(watch, 2)
    assert not watch.found.violations
    stores(watch, 5)
    assert watch.found.violations == ["C6: web stores a dead letter before the vote on it"]


def test_votes_of_one_task_that_took_over_are_others_than_those_of_a_shard(watch: Watch) -> None:
    """Seeds 216 and 502: the third record of a shard was nacked, then, by the one task, the third of all."""
    watch._voting(None, "web", 1, 7, 0, [("a", 2), ("n", 1)], shard=0)
    stores(watch, 23)
    watch._merging(None, "web", 1, 8, None, None)
    # Twice, as the first one died: that is one vote
    for token in (8, 9):
        watch._voting(None, "web", 1, token, 0, [("a", 2), ("n", 1)])
    stores(watch, 3)
    assert not watch.found.violations
    stores(watch, 4)
    assert watch.found.violations
