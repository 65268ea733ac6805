"""A redrive whose lease has lapsed takes nothing away that the next holder has parked (SEMANTICS X4)."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.errors import Fenced
from conduit_tasks.micro_batch import every
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.resend.waiting import Waiting
from tests.delivery.shelf import Place, shelves  # noqa: F401 - a fixture
from tests.delivery.test_parking import copies, parked
from tests.delivery.test_redrive import send
from tests.fork import Fork
from tests.micro_batch.endings import lapse
from tests.micro_batch.harness import run_until_quiet
from tests.waiting import until


@pytest.mark.proves("X4", "I4")
@pytest.mark.parametrize("moment", ["before it looks", "before the mark", "after the mark"])
def test_a_redrive_that_stands_still_removes_nothing_that_its_successor_has_parked(
    home: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    # Given a redrive that has sent a letter and the record behind it, and stands still before it unparks the key
    place = Place(home, park=True)
    place.feed([(0, "a"), (1, "a")])
    place.refuse(0)
    run_until_quiet("p")
    place.refuse()
    mark, unpark, confirm = Marker.mark, Waiting.unpark, Deliveries.confirm
    go_on = home / "go-on"
    at: list[str] = []
    successors: list[Fork] = []

    def confirming(*args: Any, **named: Any) -> Any:
        if 2 in copies():
            until(go_on.exists, "the redrive")
        return confirm(*args, **named)

    def stands_still(now: str) -> None:
        if at and now == moment:
            at.clear()
            lapse()
            place.feed([(2, "a")])
            successors.append(Fork(run_until_quiet, "p"))
            until(lambda: 2 in copies(), "a record that is parked")
            if moment != "before it looks":
                go_on.touch()
                successors[0].answer()

    def marking(marker: Marker) -> None:
        stands_still("before the mark")
        mark(marker)
        stands_still("after the mark")

    def unparking(waiting: Waiting, *lease: Any) -> int:
        at[:] = ["the second"] if place.got() == [0, 1] else []
        stands_still("before it looks")
        return unpark(waiting, *lease)

    with monkeypatch.context() as patched:
        patched.setattr(Marker, "mark", marking)
        patched.setattr(Waiting, "unpark", unparking)
        patched.setattr(Deliveries, "confirm", confirming)
        # The threads that renew its lease stand still, too
        patched.setattr(every, "every", lambda *_: nullcontext())
        # When its lease lapses, and a live delivery parks a record of the key, which may not be confirmed yet
        with pytest.raises(Fenced):
            send()
    go_on.touch()
    assert successors[0].end() == 0
    # Then that record waits, and comes with the next redrive
    assert (place.got(), copies()[-1:], len(parked())) == ([0, 1], [2], 1)
    assert send().released == 1
    assert place.got() == [0, 1, 2]
    assert (parked(), copies()) == ({}, [])
