"""`rate-limit` holds for a destination, not for a micro-batch: whatever sends goes on where the last one ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.delivery.rate import TokenBucket
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.resend.redrive import redrive
from conduit_tasks.resend.replay import replay
from tests.delivery.shelf import Binder, Place, Shelf, shelves  # noqa: F401 - a fixture
from tests.micro_batch.harness import deliver_again, run_until_quiet

PAUSE = 0.4
"""Seconds between two records at the rate of this place."""


@settings(deadline=None)
@given(st.floats(0.5, 5000), st.lists(st.tuples(st.floats(0, 2), st.booleans()), min_size=1, max_size=200))
def test_a_rate_limit_is_never_passed_by_more_than_a_tenth_of_a_second(
    rate: float, pauses: list[tuple[float, bool]]
) -> None:
    # Given a clock that a sender waits on as it is told
    now = 0.0

    def clock() -> float:
        return now

    bucket = TokenBucket(rate, clock=clock)
    sent: Sent = []
    # When it sends one record after the other, with pauses of its own and some of them in a micro-batch of their own
    for pause, begins in pauses:
        now += pause
        if begins and sent:
            bucket = TokenBucket(rate, rested=now - sent[-1], clock=clock)
        now += bucket.reserve()
        sent.append(now)
    # Then every stretch of time holds at most its share, and the burst
    for at, start in enumerate(sent):
        for to, end in enumerate(sent[at:], at):
            assert to - at + 1 <= (end - start) * rate + max(1.0, rate / 10) + 1.001


@pytest.fixture(params=["shelf", "binder"])
def place(home: Path, request: pytest.FixtureRequest) -> Place:
    """One record per micro-batch, limited."""
    place = Place(home, request.param)
    file = home / "include/pipelines/p.yaml"
    text = file.read_text().replace("max-records: 1000", "max-records: 1")
    text = text.replace("micro-batch:", "event-time: .Payload.After.t\n    micro-batch:")
    file.write_text(text.replace("timeout: 1s", f"timeout: 1s, rate-limit: {60 / PAUSE:g}/m"))
    return place


@dataclass
class Sent:
    """The sends of a test: when each began, and from when on the limit allowed it, which is what the sender waits for:
    how long it then takes to begin is the machine's."""

    allowed: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.begun)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    about, reserve = Sent(), TokenBucket.reserve

    def reserved(bucket: TokenBucket, tokens: int = 1) -> float:
        pause = reserve(bucket, tokens)
        about.allowed.append(bucket._at + pause)
        return pause

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def send(*args: Any) -> Any:
            about.begun.append(time.monotonic())
            return call(*args)

        return send

    monkeypatch.setattr(TokenBucket, "reserve", reserved)
    monkeypatch.setattr(Shelf, "send", noted(Shelf.send))
    monkeypatch.setattr(Binder, "write", noted(Binder.write))
    return about


def kept(sent: Sent, count: int) -> None:
    """So many sends, none of them too early."""
    assert len(sent.begun) == len(sent.allowed) == count
    assert all(begun >= allowed - 0.02 for begun, allowed in zip(sent.begun, sent.allowed))
    assert all(after - before > PAUSE - 0.02 for before, after in pairwise(sent.allowed))


def test_a_rate_limit_holds_from_one_micro_batch_to_the_next_and_for_what_is_sent_again(
    place: Place, sent: Sent
) -> None:
    # When three records are delivered, each in a micro-batch of its own, the last of them refused
    place.feed([(n, "k") for n in range(3)])
    data = place.home / "data/a.jsonl"
    data.write_text(data.read_text().replace("}", ', "t": "2020-01-01T00:00:00Z"}'))
    place.refuse(2)
    run_until_quiet("p")
    kept(sent, 3)
    # And a cleared task sends what its run had confirmed again
    deliver_again("p", "d", "run-0")
    again = len(sent)
    kept(sent, again)
    # And the refused one is redriven
    place.refuse()
    with opened("p", "test") as context:
        redrive(context, Selection(), "ada", wait=60.0)
    assert len(sent) > again
    kept(sent, again := len(sent))
    # And all is replayed
    replay("p", "2000-01-01", "2100-01-01", ["d"], "all", run="replay", wait=60.0)
    assert len(sent) > again
    kept(sent, again := len(sent))
    # And one more comes live
    place.feed([(3, "k")])
    run_until_quiet("p")
    # Then no send came sooner than the limit allows
    kept(sent, again + 1)


def test_what_is_not_sent_costs_no_token(home: Path, sent: Sent) -> None:
    # Given a destination that was sent to
    place = Place(home, processors="[{id: f, plugin: filter, condition: '{{ ne .Payload.After.n 0.0 }}'}]")
    place.feed([(0, "go")])
    run_until_quiet("p")
    before = last_sent()
    # When its processor filters what comes next
    place.feed([(1, "stay")])
    run_until_quiet("p")
    # Then it was sent to then, not now
    assert len(sent) == 1
    assert last_sent() == before


def last_sent() -> float:
    with opened("p", "look") as context:
        at: float | None = context.broker.deliveries.get("d").sent_at
    assert at is not None
    return at
