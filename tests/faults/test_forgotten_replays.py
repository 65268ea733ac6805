"""Redis forgets a replay: what was sent stands, and the replay is told by its marks (SEMANTICS X7, X3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.redrive import Redrives
from conduit_tasks.broker.replay import Replays
from conduit_tasks.connectors.base import Limit
from conduit_tasks.errors import SpoolError, StateLost
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.resend import prepare
from tests.faults.forgetful import Forgetful, broker
from tests.faults.parts import drive
from tests.faults.test_forgotten_again import IN, failing, joined, redrive, waiting
from tests.faults.test_forgotten_letters import letters
from tests.replay.test_replay import Place, again

__all__ = ["broker"]


@pytest.mark.proves("X7", "X3")
def test_a_replay_in_the_second_that_redis_forgot_stands(quick: Path, broker: Forgetful) -> None:
    # Given a destination that joined late and got what it missed by a replay, which Redis has forgotten
    place = joined(quick)
    early = broker.log()
    assert again(*IN)[0].delivered == 30
    broker.put_back(early)
    # When more comes
    place.feed(2)
    drive()
    # Then what was replayed is still there
    assert place.got("late") == [*range(30, 40), *range(30), 40, 41]


@pytest.mark.proves("X7", "X3")
def test_a_replay_that_redis_forgot_is_known_to_the_next_one(quick: Path, broker: Forgetful) -> None:
    # Given a replay that Redis has forgotten
    place = joined(quick)
    early = broker.log()
    assert again(*IN)[0].delivered == 30
    broker.put_back(early)
    # When the same is replayed before any run, then nothing is missing, and nothing is cut away
    assert again(*IN)[0].chosen == 0
    assert place.got("late") == [*range(30, 40), *range(30)]


@pytest.mark.proves("X7", "X3", "C9")
def test_a_portion_that_redis_forgets_while_its_replay_goes_on_is_sent_again_before_the_next_one(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a destination that joined late, and a replay to it in portions of ten
    place = joined(quick)
    monkeypatch.setattr(prepare, "LIMIT", Limit(records=10, bytes=1 << 20))
    confirm, confirmed = Replays.confirm, list[int]()

    def forgets(self: Replays, destination: str, run: str, token: int, number: int, *args: Any, **more: Any) -> None:
        early = broker.log()
        confirm(self, destination, run, token, number, *args, **more)
        if not confirmed:
            broker.put_back(early)
        confirmed.append(number)

    # When Redis forgets the first one right after it was confirmed, and the replay goes on
    monkeypatch.setattr(Replays, "confirm", forgets)
    again(*IN)
    # Then it does not end before all is there, in order
    assert confirmed == [0, 0, 1, 2, 3]
    assert place.got("late") == [*range(30, 40), *range(30)]


@pytest.mark.proves("X7", "X3")
def test_a_replay_of_which_redis_forgets_something_every_time_ends_and_goes_on_when_it_is_called_again(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a destination that joined late, and a Redis that forgets the first portion whenever it was confirmed
    place = joined(quick)
    monkeypatch.setattr(prepare, "LIMIT", Limit(records=10, bytes=1 << 20))
    confirm, forgotten = Replays.confirm, list[int]()

    def forgets(self: Replays, destination: str, run: str, token: int, number: int, *args: Any, **more: Any) -> None:
        early = broker.log()
        confirm(self, destination, run, token, number, *args, **more)
        if number == 0:
            broker.put_back(early)
            forgotten.append(number)

    # When a replay goes on, then it ends, and says what to do
    with monkeypatch.context() as patch:
        patch.setattr(Replays, "confirm", forgets)
        with pytest.raises(StateLost, match=r"10 times .* call it again"):
            again(*IN)
    assert len(forgotten) == 10
    # And called again it goes on
    again(*IN)
    assert place.got("late") == [*range(30, 40), *range(30)]


@pytest.mark.proves("X7", "X3")
def test_a_replay_has_not_ended_before_a_mark_says_so(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a spool that takes no marks
    place = joined(quick)
    with monkeypatch.context() as patch:
        patch.setattr(Marker, "mark", failing(Marker.mark, after=0))
        # When something is replayed, then it ends with the error
        with pytest.raises(SpoolError):
            again(*IN)
    early = broker.log()
    # And called again, it ends, sends nothing twice, and stands if Redis forgets that
    again(*IN)
    broker.put_back(early)
    place.feed(2)
    drive()
    assert place.got("late") == [*range(30, 40), *range(30), 40, 41]


@pytest.mark.proves("X2", "X3", "C14")
def test_records_that_fail_in_two_replays_are_told_apart_by_a_redrive(quick: Path) -> None:
    # Given two records that fail, and replays of an interval each, in which both are the first
    bad = "or (eq .Payload.After.n 0) (eq .Payload.After.n 5)"
    place = Place(quick, "file", f"processors: [{{id: bad, plugin: error, condition: '{{{{ {bad} }}}}'}}]")
    place.feed(10)
    drive()
    again("2013-03-01T00:00", "2013-03-01T05:00", "a", what="all", run="one")
    again("2013-03-01T05:00", "2013-03-01T10:00", "a", what="failed", run="two")
    assert len(letters("a")) == 2
    # When they are redriven, and fail again, and are redriven after their cause is fixed
    redrive()
    assert len(letters("a")) == 2
    place.more = ""
    place.write(place.names)
    assert redrive().exit_code == 0
    # Then both have arrived
    assert letters("a") == []
    assert {0, 5} <= set(place.got("a"))


@pytest.mark.proves("X7", "X3")
@pytest.mark.parametrize("ended", [False, True])
def test_a_replay_of_which_redis_forgets_that_it_began_is_sent_and_not_taken_for_the_one_that_ended_before(
    ended: bool, quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a destination that joined late; the same replay has ended before, or never began
    place = joined(quick)
    if ended:
        assert again(*IN, what="all")[0].delivered == 40
    had = len(place.got("late"))
    run, forgotten = Access.run, list[str]()

    def forgets(self: Access, script: Any, *args: Any, **more: Any) -> Any:
        early = broker.log()
        said = run(self, script, *args, **more)
        if script is scripts.REPLAY_BEGIN and not forgotten:
            forgotten.append(script.name)
            broker.put_back(early)
        return said

    # When it is called, and Redis forgets its beginning, but not the lease from before it
    monkeypatch.setattr(Access, "run", forgets)
    assert again(*IN, what="all")[0].delivered == 40
    # Then all of it is sent
    assert forgotten
    assert len(place.got("late")) == had + 40


@pytest.mark.proves("X7", "X3")
@pytest.mark.parametrize("kind", ["replay", "redrive"])
def test_a_claim_that_redis_forgets_is_no_fault_of_the_program(
    kind: str, quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given what a destination has missed, or its dead letters
    place = joined(quick) if kind == "replay" else waiting(quick)
    claim, forgotten = Redrives.claim, list[Any]()

    def forgets(self: Redrives, *args: Any, **more: Any) -> Any:
        early = broker.log()
        claimed = claim(self, *args, **more)
        if not forgotten:
            forgotten.append(claimed)
            broker.put_back(early)
        return claimed

    # When Redis forgets the claim of a resend, but not its lease
    monkeypatch.setattr(Redrives, "claim", forgets)
    if isinstance(place, Place):
        # Then a replay goes on by itself
        assert again(*IN)[0].delivered >= 30
        assert place.got("late") == [*range(30, 40), *range(30)]
    else:
        # Then a redrive says so, and goes on if it is called again
        assert isinstance(redrive().exception, StateLost)
        assert redrive().exit_code == 0
    assert forgotten
