"""Status, stops, the first error, schema and registration."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from conduit_tasks.broker import lifecycle
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.broker import Broker
from conduit_tasks.errors import ConfigError, PipelineStopped
from tests.broker.conftest import DESTINATIONS, SOURCES, Feed


@pytest.mark.proves("C8", "C16", "I9")
def test_the_first_error_of_a_stop_is_kept(broker: Broker) -> None:
    assert broker.lifecycle.fail("destinations.x", "disk full", "OSError", 3)
    assert not broker.lifecycle.fail("destinations.y", "no route", "Unavailable", 3)
    assert broker.lifecycle.fail("destinations.x", "disk full", "OSError", 3), "the same one, told again"
    status = broker.lifecycle.status()
    assert status.status == "degraded"
    assert status.error is not None
    assert (status.error.node, status.error.error, status.error.micro_batch) == ("destinations.x", "disk full", 3)
    assert abs(status.error.at - time.time()) < 60


@pytest.mark.proves("C8", "C16")
def test_an_error_stops_every_node_at_its_next_word(feed: Feed) -> None:
    m = feed.sealed()
    feed.lease("x")
    feed.broker.lifecycle.fail("acks.a", "the source does not take the ack", "SourceError")
    with pytest.raises(PipelineStopped, match="the source does not take the ack"):
        feed.confirm("x", m, [(0, 0)])


@pytest.mark.proves("C3", "C15")
def test_a_graceful_stop_ends_only_when_nothing_is_in_flight(feed: Feed) -> None:
    broker = feed.broker
    first, unsealed = feed.sealed(), feed.open()
    assert broker.lifecycle.stop(60) == "stopping"
    assert not broker.lifecycle.stopped(), "a micro-batch is unsealed"
    feed.stage(unsealed)
    feed.seal(unsealed)
    assert not broker.lifecycle.stopped(), "nothing is delivered"
    feed.delivered(first)
    feed.delivered(unsealed, destinations=["x"])
    assert not broker.lifecycle.stopped(), "y is behind"
    feed.delivered(unsealed, destinations=["y"])
    assert not broker.lifecycle.stopped(), "the source is not acked"
    ack = broker.acks.begin("a", DESTINATIONS, "delivered")
    assert ack is not None
    broker.acks.commit("a", ack)
    assert broker.lifecycle.stopped()
    assert broker.lifecycle.stopped()
    assert broker.lifecycle.status().status == "stopped"


@pytest.mark.proves("C15")
def test_the_deadline_of_a_stop_is_kept_and_reported_when_missed(feed: Feed) -> None:
    feed.sealed()
    feed.broker.lifecycle.stop(60)
    deadline = feed.broker.lifecycle.status().deadline
    assert deadline is not None
    assert 0 < deadline - feed.broker.access.now() <= 60
    feed.broker.lifecycle.stop(600)
    assert feed.broker.lifecycle.status().deadline == deadline, "stopping twice is stopping once"
    assert not feed.broker.lifecycle.status().overdue
    feed.broker.lifecycle.start()
    feed.broker.lifecycle.stop(-1)
    assert feed.broker.lifecycle.status().overdue


@pytest.mark.proves("C3", "C15")
def test_an_unsealed_micro_batch_alone_keeps_a_graceful_stop_from_ending(feed: Feed) -> None:
    m = feed.open()
    feed.broker.lifecycle.stop(60)
    assert not feed.broker.lifecycle.stopped()
    feed.stage(m)
    assert not feed.broker.lifecycle.stopped()


def test_a_stopped_pipeline_without_a_stop_is_not_ended_by_draining(broker: Broker) -> None:
    assert not broker.lifecycle.stopped()
    assert broker.lifecycle.status().status == "running"


@pytest.mark.proves("C16")
def test_starting_clears_the_error_and_counts_attempts_again(feed: Feed) -> None:
    broker = feed.broker
    broker.leases.acquire("sources.a", "t").release(failed=True)
    broker.leases.acquire("sources.a", "t").release(failed=True)
    broker.lifecycle.fail("sources.a", "x", "X")
    broker.lifecycle.stop_destination("y", "z", "Z")
    broker.lifecycle.start()
    assert broker.lifecycle.status().status == "running"
    assert broker.lifecycle.status().error is None
    assert broker.deliveries.get("y").status == "running"
    assert set(broker.lifecycle.attempts().values()) == {0}


@pytest.mark.proves("C16", "I9")
def test_errors_of_nodes_that_a_forceful_stop_tore_down_are_not_its_reason(broker: Broker) -> None:
    broker.lifecycle.force_stop()
    assert not broker.lifecycle.fail("destinations.x", "interrupted", "PipelineStopped")
    assert broker.lifecycle.status().status == "stopped"
    assert broker.lifecycle.status().error is None


def test_stopping_a_degraded_pipeline_keeps_its_error_readable(broker: Broker) -> None:
    broker.lifecycle.fail("sources.a", "first", "X")
    assert broker.lifecycle.stop(10) == "stopped"
    error = broker.lifecycle.status().error
    assert error is not None
    assert error.error == "first"


def test_starting_takes_back_a_graceful_stop_and_leaves_what_is_staged(feed: Feed) -> None:
    m = feed.open()
    feed.stage(m)
    feed.broker.lifecycle.stop(60)
    feed.broker.lifecycle.start()
    assert feed.broker.lifecycle.status().status == "running"
    assert list(feed.broker.micro_batches.get(m).stages) == ["sources.a"]


def test_a_new_destination_starts_behind_what_is_sealed(feed: Feed) -> None:
    feed.sealed()
    feed.broker.lifecycle.register(SOURCES, [*DESTINATIONS, "late"])
    feed.broker.lifecycle.register(SOURCES, [*DESTINATIONS, "late"])
    assert feed.broker.deliveries.get("late").cursor == 1
    assert feed.broker.deliveries.get("x").cursor == 0
    assert feed.broker.lifecycle.registered() == (["a"], ["late", "x", "y"])


@pytest.mark.parametrize("ended", [True, False])
def test_a_destination_that_comes_back_goes_on_or_behind_what_was_collected(feed: Feed, ended: bool) -> None:
    broker = feed.broker
    first = feed.sealed()
    feed.confirm("y", first, [(0, 3)])
    # Given y out of the file for a while: it holds nothing back
    broker.lifecycle.register(SOURCES, ["x"])
    feed.delivered(first, destinations=["x"])
    # When it comes back before anything was collected, it goes on
    broker.lifecycle.register(SOURCES, DESTINATIONS)
    assert str(broker.deliveries.get("y").confirmed) == "0-3"
    # and behind what was collected otherwise
    broker.lifecycle.register(SOURCES, ["x"])
    ack = broker.acks.begin("a", ["x"], "delivered")
    assert ack is not None
    broker.acks.commit("a", ack)
    broker.collection.begin(first)
    if ended:
        broker.collection.end(first)
    broker.lifecycle.register(SOURCES, DESTINATIONS)
    assert (broker.deliveries.get("y").cursor, str(broker.deliveries.get("y").confirmed)) == (first, "")
    broker.collection.end(first)
    assert broker.access.numbers("collected", "collecting") == [first, 0]


def test_state_of_a_newer_schema_is_refused(broker: Broker) -> None:
    broker.redis.set(broker.keys.schema, "99")
    with pytest.raises(ConfigError, match="upgrade conduit-tasks"):
        broker.lifecycle.initialise()


def test_state_of_an_older_schema_is_migrated_step_by_step(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def step(n: int) -> Callable[[Access], None]:
        return lambda b: done.append(n)

    monkeypatch.setattr(lifecycle, "SCHEMA", 3)
    monkeypatch.setattr(lifecycle, "MIGRATIONS", {1: step(1), 2: step(2)})
    broker.lifecycle.initialise()
    broker.lifecycle.initialise()
    assert done == [1, 2]
    assert broker.redis.get(broker.keys.schema) == "3"


def test_initialising_again_changes_no_status(broker: Broker) -> None:
    broker.lifecycle.force_stop()
    broker.lifecycle.initialise()
    assert broker.lifecycle.status().status == "stopped"


@pytest.mark.proves("X1", "I9")
def test_a_destination_stopped_alone_ends_at_its_next_word_and_goes_on_at_its_cursor(feed: Feed) -> None:
    broker = feed.broker
    m = feed.sealed()
    feed.confirm("x", m, [(0, 3)])
    broker.lifecycle.halt_destination("x")
    broker.lifecycle.halt_destination("x")
    with pytest.raises(PipelineStopped, match=r"destination x of pipeline p .* `conduit start p --destination x`"):
        feed.confirm("x", m, [(4, 6)])
    # An error of what is torn down is not its reason
    assert not broker.lifecycle.stop_destination("x", "torn down", "OSError", m)
    feed.delivered(m, destinations=["y"])
    assert (broker.deliveries.get("x").status, broker.deliveries.get("x").error) == ("stopped", None)
    assert (broker.deliveries.get("y").cursor, broker.lifecycle.status().status) == (m, "running")
    # A restart of the stack leaves it stopped
    broker.lifecycle.stop(60)
    broker.lifecycle.start(destinations=False)
    assert (broker.deliveries.get("x").status, broker.lifecycle.status().status) == ("stopped", "running")
    # Started, it has what it had confirmed, its last word too, and errors stop it again
    broker.lifecycle.start_destination("x")
    assert str(broker.deliveries.get("x").confirmed) == "0-6"
    feed.confirm("x", m, [(7, 9)])
    assert broker.deliveries.get("x").cursor == m
    assert broker.lifecycle.stop_destination("x", "disk full", "OSError", m)
