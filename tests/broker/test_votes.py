"""The nack window (SEMANTICS C6) against a list of the last outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_tasks.broker.broker import Broker
from conduit_tasks.errors import InvariantBroken, PipelineStopped
from tests.broker.conftest import Feed

_pipelines = count()


def vote(feed: Feed, votes: str, first: int = 0, m: int = 1, **more: Any) -> int | None:
    """`votes` like "aan"; window of 1, no nack tolerated, unless said otherwise."""
    options = {"size": 1, "threshold": 0, "error": "refused", "error_class": "http 400", **more}
    return feed.broker.deliveries.vote("x", m, feed.lease("x").token, first, runs(votes), **options)


def voted(broker: Broker, destination: str) -> int:
    """Matched records of micro-batch `cursor + 1` that have voted."""
    window = broker.access.hash(broker.keys.window(destination))
    of_this = int(window.get("m", 0)) == broker.deliveries.get(destination).cursor + 1
    return int(window["next"]) if of_this else 0


def runs(votes: Sequence[str]) -> list[tuple[str, int]]:
    out: list[tuple[str, int]] = []
    for v in votes:
        out[-1:] = [(v, out[-1][1] + 1)] if out and out[-1][0] == v else [*out[-1:], (v, 1)]
    return out


@pytest.mark.proves("C6", "C5", "I9")
def test_by_default_the_first_nack_stops_the_pipeline_with_its_error(feed: Feed) -> None:
    assert vote(feed, "aaan") == 3
    status = feed.broker.lifecycle.status()
    assert status.status == "degraded"
    assert status.error is not None
    assert (status.error.node, status.error.error, status.error.error_class) == (
        "destinations.x",
        "refused",
        "http 400",
    )
    assert status.error.micro_batch == 1
    with pytest.raises(PipelineStopped, match="refused"):
        vote(feed, "a", 4)


@pytest.mark.proves("C6")
def test_of_the_last_outcomes_so_many_may_be_nacks_and_one_more_trips(feed: Feed) -> None:
    window = {"size": 5, "threshold": 2}
    assert vote(feed, "nnaaa", 0, **window) is None
    # the two oldest have left the window by now
    assert vote(feed, "nn", 5, **window) is None
    assert vote(feed, "aaan", 7, **window) is None
    assert vote(feed, "nn", 11, **window) == 1


@pytest.mark.proves("C6")
def test_size_zero_is_no_limit(feed: Feed) -> None:
    assert vote(feed, "n" * 500, size=0) is None
    assert voted(feed.broker, "x") == 500
    assert feed.broker.lifecycle.status().status == "running"


@pytest.mark.proves("C6", "I5")
def test_a_retry_never_votes_twice(feed: Feed) -> None:
    window = {"size": 10, "threshold": 2}
    for _ in range(3):
        assert vote(feed, "nan", **window) is None
    assert vote(feed, "nana", **window) is None
    assert vote(feed, "n", 4, **window) == 0


@pytest.mark.proves("C6", "I5")
def test_the_call_that_tripped_gets_its_answer_again(feed: Feed) -> None:
    assert vote(feed, "aanaa") == 2
    assert vote(feed, "aanaa") == 2
    assert vote(feed, "na", 2) == 0
    assert voted(feed.broker, "x") == 2, "what lies behind the nack has not voted"


@pytest.mark.proves("C6")
def test_the_window_goes_on_over_micro_batches_and_survives_a_restart_of_the_client(feed: Feed) -> None:
    window = {"size": 4, "threshold": 1}
    assert vote(feed, "aan", m=1, **window) is None
    other = Broker("p", feed.broker.redis)
    again = Feed(other, leases=feed.leases)
    assert voted(other, "x") == 3
    assert vote(again, "aan", m=2, **window) == 2


@pytest.mark.proves("C6")
def test_starting_clears_a_tripped_window_and_leaves_others_alone(feed: Feed) -> None:
    vote(feed, "n", size=3, threshold=1)
    with feed.broker.leases.acquire("seal", "t") as lease:
        assert (
            feed.broker.deliveries.vote("", 1, lease.token, 0, [("n", 2)], size=3, threshold=1, node="sources.a") == 1
        )
    feed.broker.lifecycle.start()
    # cleared: one nack is tolerated again, by the record that tripped it
    with feed.broker.leases.acquire("seal", "t") as lease:
        assert feed.broker.deliveries.vote("", 1, lease.token, 0, [("n", 2)], size=3, threshold=1) is None
    # not tripped, so not cleared: the next nack is one too many
    assert vote(feed, "n", 1, size=3, threshold=1) == 0


@pytest.mark.proves("C6", "X1")
def test_an_isolated_destination_stops_alone(feed: Feed) -> None:
    assert vote(feed, "n", stop="destination") == 0
    assert feed.broker.lifecycle.status().status == "running"
    state = feed.broker.deliveries.get("x")
    assert state.status == "stopped"
    assert state.error is not None
    feed.broker.lifecycle.start_destination("x")
    assert vote(feed, "an", 0, size=2, threshold=0) == 1


@pytest.mark.proves("I10")
def test_votes_with_a_gap_before_them_are_refused(feed: Feed) -> None:
    vote(feed, "aa")
    with pytest.raises(InvariantBroken, match="2 is next"):
        vote(feed, "a", 3)
    with pytest.raises(InvariantBroken, match="0 is next"):
        vote(feed, "a", 2, m=2)


class Window:
    """What C6 says, one outcome at a time."""

    def __init__(self, size: int, threshold: int) -> None:
        self.size, self.threshold = size, threshold
        self.last: list[str] = []
        self.next = 0

    def vote(self, first: int, votes: str) -> int | None:
        for ordinal, v in enumerate(votes, first):
            if ordinal < self.next:
                continue
            if self.size:
                last = [*self.last, v][-self.size :]
                if v == "n" and last.count("n") > self.threshold:
                    return ordinal - first
                self.last = last
            self.next = ordinal + 1
        return None


@pytest.mark.proves("C6")
@given(
    size=st.integers(0, 6),
    threshold=st.integers(0, 6),
    calls=st.lists(st.tuples(st.integers(0, 3), st.text("aan", max_size=8)), max_size=8),
)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_the_script_decides_as_the_definition_does(
    broker: Broker, size: int, threshold: int, calls: list[tuple[int, str]]
) -> None:
    own = Broker(f"votes-{next(_pipelines)}", broker.redis)
    own.lifecycle.initialise()
    own.lifecycle.register(["a"], ["x"])
    feed, model = Feed(own), Window(size, threshold)
    for back, votes in calls:
        first = max(0, model.next - back)
        expected = model.vote(first, votes)
        assert vote(feed, votes, first, size=size, threshold=threshold) == expected
        if expected is not None:
            assert own.lifecycle.status().status == "degraded"
            break
        assert voted(own, "x") == model.next


@pytest.mark.proves("C6", "C16", "I9")
def test_a_window_that_trips_in_a_stopped_pipeline_changes_neither_its_status_nor_its_error(feed: Feed) -> None:
    # Given a pipeline that somebody stopped while a refusal was on its way
    feed.broker.lifecycle.force_stop()
    # When it is voted on
    assert vote(feed, "aan") == 2
    # Then the pipeline is stopped as before, and nobody's first error is taken
    assert (feed.broker.lifecycle.status().status, feed.broker.lifecycle.status().error) == ("stopped", None)
    with pytest.raises(PipelineStopped):
        vote(feed, "a", 3)
    # And the start forgets the outcomes
    feed.broker.lifecycle.start()
    assert vote(feed, "a", 2) is None
