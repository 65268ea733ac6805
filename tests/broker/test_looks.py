"""A look at a pipeline: what the parts of the broker return one by one, in round trips that do not grow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis.client import Pipeline as Batch

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.looks import Look, look
from conduit_tasks.topology import Breaker, Delivery, Destination, Pipeline, Recovery, Source
from tests.broker.conftest import DESTINATIONS, Feed, letter, piece
from tests.broker.test_acks import acked

BREAKER = Breaker(failures=1, pause=60.0)


def pipeline(*more: str) -> Pipeline:
    delivery = Delivery(breaker=BREAKER)
    destinations = tuple(Destination(id, "file", delivery=delivery) for id in [*DESTINATIONS, *more])
    return Pipeline("p", (Source("a", "file"),), destinations)


def of(broker: Broker, *more: str, parts: int = 20) -> Look:
    return look(broker.access, pipeline(*more), parts)


def test_it_is_what_the_parts_return(feed: Feed) -> None:
    # Given a pipeline of which x is behind, with dead letters and an open breaker, and whose source fails
    broker = feed.broker
    for _ in range(3):
        feed.sealed()
    feed.delivered(1)
    acked(feed, 1)
    feed.delivered(2, destinations=["y"])
    feed.confirm("x", 2, [(0, 3)], dead=[letter(2, 1), letter(2, 3)])
    options: dict[str, Any] = {"fresh": False, "probe": False, "tried": 0, "retry_after": 0.0, "error": "503"}
    broker.breakers.trip("x", feed.lease("x").token, "1", BREAKER, failures=1, **options)
    broker.failures.note("sources.a", "1", "no such host", "OSError", Recovery())
    broker.runs.begin("run", None, 0)
    broker.runs.tell_at_work("run", "destinations.x", 60.0)
    open_ = feed.open()
    # When
    found = of(broker)
    # Then
    assert found.status == broker.lifecycle.status()
    assert (found.status.status, found.sealed, found.known, found.dead) == ("recovering", 3, True, 0)
    assert found.attempts == broker.lifecycle.attempts()
    assert found.totals == broker.micro_batches.totals()
    assert [each.node for each in found.failing] == ["sources.a"]
    for id, each in found.destinations.items():
        assert each.state == broker.deliveries.get(id)
        assert each.backlog == broker.deliveries.backlog([id])
        assert (each.dead, each.parked) == (broker.dead_letters.count(id), 0)
        want = broker.breakers.get(id, BREAKER)
        assert (each.breaker and each.breaker.failures) == (want and want.failures)
    assert (found.destinations["x"].behind, found.destinations["y"].behind) == (16, 10)
    assert found.run is not None
    assert found.run.at_work("destinations.x")
    holder = found.holders["destinations.x"]
    assert (holder.owner, holder.left) == ("t", pytest.approx(broker.leases.held_for("destinations.x"), abs=1))
    assert set(found.holders) == {"destinations.x", "destinations.y"}
    assert found.first is not None
    assert found.first[:2] == (2, 10)
    assert found.sources["a"].acked_to == 1
    assert found.sources["a"].planned == broker.positions.planned("a")
    assert found.open is not None
    assert (found.open.number, found.open.missing, found.open.read) == (open_, ("sources.a",), {"a": (10, 0)})
    # And once the source has read it
    feed.stage(open_)
    again = of(broker).open
    assert again is not None
    assert (again.missing, again.read) == ((), {"a": (10, 10)})
    feed.seal(open_)
    assert of(broker).open is None


def test_a_destination_that_was_never_registered_begins_behind_what_is_sealed(feed: Feed) -> None:
    feed.sealed()
    new = of(feed.broker, "new").destinations["new"]
    assert (new.state.cursor, new.state.status, new.behind) == (1, "running", 0)


def test_a_pipeline_that_never_ran_is_looked_at_as_well(broker: Broker) -> None:
    broker.redis.flushdb()
    found = of(broker)
    assert (found.known, found.sealed, found.open, found.first, found.holders) == (False, 0, None, None, {})


def test_its_round_trips_do_not_follow_micro_batches_or_slices(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[int] = []
    execute = Batch.execute

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        trips.append(len(self.command_stack))
        return execute(self, *args, **kwargs)

    feed.sealed()
    monkeypatch.setattr(Batch, "execute", counted)
    of(feed.broker)
    few = trips.copy()
    trips.clear()
    monkeypatch.setattr(Batch, "execute", execute)
    for _ in range(60):
        feed.sealed()
    feed.broker.micro_batches.open({"a": [piece(n, n + 1) for n in range(feed.at, feed.at + 500)]}, "config", 62)
    of(feed.broker)
    monkeypatch.setattr(Batch, "execute", counted)
    found = of(feed.broker)
    assert found.destinations["x"].behind == 610
    assert found.open is not None
    assert found.open.read == {"a": (500, 0)}
    assert len(trips) == len(few) == 2
    assert sum(trips) <= sum(few) + 1


def test_what_was_planned_of_another_micro_batch_of_the_same_number_is_not_shown(feed: Feed) -> None:
    """A Redis that forgot its last second gives a number again."""
    feed.broker.micro_batches.open({"a": [piece(0, 5)]}, "config", 1)
    opened = of(feed.broker).open
    assert opened is not None
    assert opened.read == {"a": (5, 0)}
    name = feed.broker.keys.micro_batch(1)
    other = json.dumps([vars(piece(0, 3))])
    feed.broker.redis.hset(name, mapping={"opened_at": int(opened.opened_at * 1e6) + 7, "slices:a": other})
    seen = [found.read for _ in range(2) if (found := of(feed.broker).open)]
    assert seen == [{"a": (None, 0)}, {"a": (3, 0)}]


def test_positions_of_many_parts_are_left_out(feed: Feed) -> None:
    slices = [piece(0, 1, part=f"file {n}") for n in range(30)]
    feed.broker.micro_batches.open({"a": slices}, "config", 1)
    source = of(feed.broker).sources["a"]
    assert (source.parts, source.planned, source.acked) == (30, None, None)
    assert of(feed.broker, parts=30).sources["a"].planned == feed.broker.positions.planned("a")
