"""What a standalone connector is told of its life: once, however often it cannot be opened, and whatever crashes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.errors import SpoolError, Unavailable
from conduit_tasks.operate.control import start, stop
from conduit_tasks.operate.teardown import teardown
from conduit_tasks.spool.spool import Spool
from conduit_tasks.spool.told import Told
from tests.connectors.standalone.test_breaking import noted as noted_json
from tests.connectors.standalone.test_breaking import notes, rows  # noqa: F401 - a fixture
from tests.connectors.standalone.test_pipelines import counting, delivering, lines, noted, numbers
from tests.micro_batch.side_by_side import patient, play  # noqa: F401 - a fixture
from tests.waiting import until

AT_ONCE = "error-recovery: {min-delay: 1ms, max-delay: 1ms}"
"""Of a pipeline that is left alone for no while after a failure."""


def tried(said: Path, times: int) -> None:
    """Runs the pipeline until its connector was opened so often in all."""
    played(lambda: said.exists() and len(noted(said, "open")) >= times)


def played(what: Callable[[], Any]) -> None:
    """Runs the pipeline again and again until something holds."""

    def held() -> Any:
        if found := what():
            return found
        play("p", f"run-{time.monotonic_ns()}", retries=0)
        return None

    until(held, "what the runs come to", seconds=120)


@pytest.mark.slow
def test_a_destination_that_cannot_be_opened_is_told_once_that_it_is_new(home: Path, programs: Path) -> None:
    # Given a connector that takes its settings, and cannot be opened
    said = delivering(home, 30, more=AT_ONCE)
    shut = Path(f"{said}.shut")
    shut.touch()
    tried(said, 3)
    assert noted(said, "created") == [""]
    # When its settings change meanwhile, it is told so once
    delivering(home, 30, more=AT_ONCE, settings=', refuse: "none"')
    tried(said, 5)
    assert noted(said, "updated") == [""]
    # When it can be opened, it is told nothing any more
    shut.unlink()
    play("p", "open")
    assert lines(home) == list(range(1, 31))
    delivering(home, 40, settings=', refuse: "none"')
    play("p", "more")
    assert lines(home) == list(range(1, 41))
    assert (noted(said, "created"), noted(said, "updated")) == ([""], [""])


@pytest.mark.slow
def test_a_source_that_cannot_be_opened_is_told_once_that_it_is_new(home: Path, programs: Path) -> None:
    said = counting(home, 30, more=AT_ONCE)
    shut = Path(f"{said}.shut")
    shut.touch()
    tried(said, 3)
    assert noted(said, "created") == [""]
    counting(home, 50, more=AT_ONCE)
    tried(said, 5)
    shut.unlink()
    played(lambda: numbers(home))
    assert numbers(home) == list(range(1, 51))
    assert (noted(said, "created"), noted(said, "updated")) == ([""], ["30 50"])


@pytest.mark.slow
@pytest.mark.parametrize("side", ["in", "out"])
def test_one_that_was_deleted_is_new_again(home: Path, programs: Path, side: str) -> None:
    said = counting(home, 5) if side == "in" else delivering(home, 5)
    play("p", "first")
    stop("p")
    teardown("p", side)
    assert (noted(said, "created"), noted(said, "deleted")) == ([""], [""])
    start("p")
    if side == "in":
        counting(home, 9)
    else:
        delivering(home, 9)
    play("p", "second")
    play("p", "third")
    assert (numbers(home) if side == "in" else lines(home)) == list(range(1, 10))
    assert noted(said, "created") == ["", ""]
    assert noted(said, "updated") == []


def test_one_that_takes_dead_letters_is_told_nothing(home: Path, programs: Path) -> None:
    letters = home / "letters"
    queue = f"window-size: 0, plugin: standalone:counter, settings: {{path: {home}/l.txt, notes: {letters}}}"
    for count, run in ((10, "first"), (20, "second")):
        delivering(home, count, more=f"dead-letter-queue: {{{queue}}}", settings=', refuse: "7 line"')
        play("p", run)
    assert len(noted(letters, "open")) == 2
    assert len((home / "l.txt").read_text().splitlines()) == 2
    assert noted(letters, "created") == []


def odd(notes: Path, told: Told) -> Any:  # noqa: F811 - the fixture's value
    made = registry.destination_class("standalone:odd")({"mode": "good", "token": "s3cret", "notes": str(notes)})
    made.told = told
    return made


@pytest.mark.slow
def test_one_that_dies_while_it_is_told_is_told_again_until_it_has_answered(home: Path, notes: Path) -> None:  # noqa: F811
    told = Told(Spool(str(home / "spool")), "p", "destinations.out")
    dies = Path(f"{notes}.dies")
    dies.touch()
    for _ in range(2):
        with pytest.raises(Unavailable):
            odd(notes, told).open(None)
    assert told.all() == {}
    # When it answers, and what delivers is killed before anything is confirmed
    dies.unlink()
    for _ in range(3):
        made = odd(notes, told)
        made.open(None)
        made.close()
    assert [each["created"] for each in noted_json(notes) if "created" in each] == ["good"] * 3
    assert list(told.all()) == ["odd"]
    assert "s3cret" not in str(told.all())


def test_what_it_was_told_is_known_from_its_state_where_the_spool_knows_nothing(home: Path, notes: Path) -> None:  # noqa: F811
    made = odd(notes, Told(Spool(str(home / "spool")), "p", "destinations.out"))
    made.open(None)
    state = made.write(rows(1))
    made.close()
    elsewhere = Told(Spool(str(home / "another")), "p", "destinations.renamed")
    made = odd(notes, elsewhere)
    made.open(state)
    made.close()
    assert len([each for each in noted_json(notes) if "created" in each]) == 1
    assert list(elsewhere.all()) == ["odd"]


def test_a_spool_that_does_not_say_what_was_told_has_it_wait_and_one_that_takes_no_note_does_not(
    home: Path,
    notes: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spool = Spool(str(home / "spool"))
    told = Told(spool, "p", "destinations.out")
    spool.put("p/told/destinations.out.json", b"{")
    with pytest.raises(Unavailable, match="remove it to have the connector told again"):
        odd(notes, told).open(None)
    spool.remove("p/told/destinations.out.json")

    def full(*_: object) -> None:
        raise SpoolError("the disk is full")

    monkeypatch.setattr(spool, "put", full)
    made = odd(notes, told)
    made.open(None)
    made.close()
    assert "what it was told is kept with what it does next: the disk is full" in caplog.text
