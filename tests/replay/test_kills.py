"""Replays that are killed, and replays at the same time: each record once, live positions where they were (X3)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import sqlalchemy as sa

from conduit_tasks.micro_batch.context import opened
from conduit_tasks.settings import forget
from tests.delivery.shelf import shelves, tell  # noqa: F401 - a fixture
from tests.fork import Fork
from tests.micro_batch.endings import lapse
from tests.micro_batch.harness import run_until_quiet
from tests.replay.attempt import attempt
from tests.replay.test_replay import Place

MARCH = ("2013-03-01", "2013-04-01")
POINTS = (
    ("late", ("before replay.json", "after replay.json", "before replay_confirm", "after replay_confirm")),
    ("rows", ("before replay_confirm", "before replay_end")),
)


@pytest.mark.proves("X3", "C10", "I4", "I5")
def test_killed_at_every_step_a_replay_goes_on_and_stateful_destinations_have_each_record_once(home: Path) -> None:
    # Given history that a file and a table miss, and one portion in hand of several
    place = Place(home, "binder", more="delivery: {timeout: 300ms}")
    place.feed(20)
    run_until_quiet("p")
    url = f"sqlite:///{home}/table.db"
    settings = f'url: "{url}", table: events, columns: "n:int=.Payload.After.n"'
    exactly = "delivery: {guarantee: effectively-once, timeout: 300ms}"
    place.names.append("late")
    place.write(
        place.names, f"      - {{id: rows, type: destination, plugin: sql, settings: {{{settings}}}, {exactly}}}\n"
    )
    with opened("p", "join"):
        pass
    before = place.live()
    # When every process but the last is killed, each a step further
    for name, points in POINTS:
        for point in points:
            killed = Fork(attempt, *MARCH, "missing", name, name, point=point)
            assert killed.end() == -signal.SIGKILL, (name, point)
            lapse()
        assert Fork(attempt, *MARCH, "missing", name, name).end() == 0
    # Then each record is there once, in order, and live positions never moved
    assert place.got("late") == list(range(20))
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        rows = [n for (n,) in connection.execute(sa.text("SELECT n FROM events"))]
    engine.dispose()
    assert rows == list(range(20))
    assert place.live() == before


@pytest.mark.proves("X3", "I4")
@pytest.mark.parametrize(("what", "same"), [("all", True), ("missing", False)])
def test_of_two_operators_at_once_one_sends_each_record(
    home: Path, monkeypatch: pytest.MonkeyPatch, what: str, *, same: bool
) -> None:
    # Given a destination that is slow, and 30 records it misses; nobody dies, and who stands still loses no lease
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "60")
    forget()
    place = Place(home, "shelf", more="delivery: {timeout: 20s}")
    place.feed(30)
    run_until_quiet("p")
    place.add("late")
    with opened("p", "join"):
        pass
    tell(home / "out" / "late.jsonl", "slow", 0.05)
    before = place.live()
    # When two replay it at once, under one name or two
    both = [Fork(attempt, *MARCH, what, "r" if same else f"r{n}", "late") for n in range(2)]
    # Then each record came once
    assert [each.end() for each in both] == [0, 0]
    assert place.got("late") == list(range(30))
    assert sum(each.answer() for each in both) == 30
    assert place.live() == before
