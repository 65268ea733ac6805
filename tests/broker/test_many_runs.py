"""Runs of a destination, and micro-batches of a run, are any number: renamed and redelivered in portions that may be
cut off anywhere."""

from __future__ import annotations

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.errors import ConfigError
from conduit_tasks.redis_client.portions import PORTION
from tests.broker.conftest import Feed, cut_off
from tests.broker.test_portions import MANY, everything


def ran(broker: Broker, count: int, id: str = "x") -> dict[str, str]:
    """So many runs that confirmed a record each, and ended with nobody noting it."""
    batch = broker.redis.pipeline(transaction=False)
    for n in range(count):
        batch.hset(broker.keys.run(id, f"r{n:05d}"), "1", f"{n}-{n}")
    batch.execute()
    return {f"r{n:05d}": f"{n}-{n}" for n in range(count)}


def runs_of(broker: Broker, id: str, runs: dict[str, str]) -> dict[str, str]:
    return {run: of["1"] for run, of in broker.redeliveries.confirmed_by(id, list(runs)).items() if of}


@pytest.mark.proves("C10", "I5")
@pytest.mark.usefixtures("twice")
def test_a_destination_with_any_number_of_runs_is_renamed(feed: Feed) -> None:
    broker = feed.broker
    feed.confirm("x", feed.sealed(), [(0, 9)])
    runs = ran(broker, 2 * MANY)
    broker.lifecycle.force_stop()
    assert broker.versions.rename("x", "z")
    assert runs_of(broker, "z", runs) == runs
    assert not list(broker.redis.scan_iter(f"{broker.keys.prefix}*:x*"))
    assert broker.deliveries.get("z").cursor == 1
    assert not broker.versions.rename("x", "z"), "it was done before"


@pytest.mark.proves("C10", "I5")
@pytest.mark.parametrize("calls", [0, 1, 3, 8])
def test_a_renaming_that_was_cut_off_anywhere_is_done_by_the_next(feed: Feed, calls: int) -> None:
    """Given a renaming that dies behind any of its portions, then the old id is there until the last step, and the
    same call again does what is left."""
    broker = feed.broker
    feed.confirm("x", feed.sealed(), [(0, 4)])
    runs = ran(broker, 2 * MANY)
    broker.lifecycle.force_stop()
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, calls)
        with pytest.raises(ConnectionResetError):
            broker.versions.rename("x", "z")
    assert broker.deliveries.get("x").confirmed.count == 5
    assert runs_of(broker, "x", runs) | runs_of(broker, "z", runs) == runs
    assert broker.versions.rename("x", "z")
    assert runs_of(broker, "z", runs) == runs
    assert broker.deliveries.get("z").confirmed.count == 5
    assert not list(broker.redis.scan_iter(f"{broker.keys.prefix}*:x*"))


@pytest.mark.proves("C10")
def test_a_renaming_that_is_refused_is_known_before_and_moves_nothing(feed: Feed) -> None:
    broker = feed.broker
    m = feed.sealed()
    for id in ("x", "y"):
        feed.confirm(id, m, [(0, 4)])
    runs = ran(broker, 5)
    for refused in (broker.versions.check_rename, broker.versions.rename):
        with pytest.raises(ConfigError, match="was started meanwhile"):
            refused("x", "z")
    broker.lifecycle.force_stop()
    before = everything(broker)
    for refused in (broker.versions.check_rename, broker.versions.rename):
        with pytest.raises(ConfigError, match="destination y of pipeline p has got records of its own"):
            refused("x", "y")
    broker.versions.check_rename("x", "z")
    assert everything(broker) == before
    assert runs_of(broker, "x", runs) == runs


@pytest.mark.proves("I5")
@pytest.mark.usefixtures("twice")
def test_a_run_with_any_number_of_micro_batches_is_redelivered(feed: Feed) -> None:
    broker, token = feed.broker, feed.lease("x").token
    wanted = long_run(broker)
    epoch = broker.redeliveries.begin("x", "r", token)
    assert broker.redeliveries.ranges("x", "r", epoch) == wanted
    assert broker.redis.hlen(broker.keys.redo("x")) == len(wanted) + 3


@pytest.mark.proves("I5", "I6")
@pytest.mark.parametrize("calls", [1, 2, 4])
def test_a_redelivery_that_was_cut_off_while_it_began_has_all_of_its_run(feed: Feed, calls: int) -> None:
    """Given a task that died when only some of its run's micro-batches were noted for redelivery, then the next one
    redelivers all of them, in the same epoch; and what is delivered meanwhile is not noted again."""
    broker = feed.broker
    wanted = long_run(broker)
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, calls)
        with pytest.raises(ConnectionResetError):
            broker.redeliveries.begin("x", "r", broker.leases.acquire("destinations.x", "t").token)
    broker.redis.hset(broker.keys.lease("destinations.x"), "owner", "")
    lease = broker.leases.acquire("destinations.x", "t")
    if calls > 1:
        assert broker.redeliveries.ranges("x", "r") == wanted, "not only those that are noted"
    epoch = broker.redeliveries.begin("x", "r", lease.token)
    assert epoch == 1
    assert broker.redeliveries.ranges("x", "r", epoch) == wanted
    broker.deliveries.confirm("x", 5, lease.token, [(0, 9)], {"matched": 10}, epoch=epoch)
    assert broker.redeliveries.begin("x", "r", lease.token) == epoch
    assert broker.redeliveries.ranges("x", "r", epoch) == [of for of in wanted if of[0] != 5]


@pytest.mark.proves("I5")
def test_a_portion_that_comes_late_puts_back_nothing_that_was_redelivered(feed: Feed) -> None:
    broker, lease = feed.broker, feed.lease("x")
    wanted = long_run(broker)
    epoch = broker.redeliveries.begin("x", "r", lease.token)
    broker.deliveries.confirm("x", 5, lease.token, [(0, 9)], {"matched": 10}, epoch=epoch)
    of = broker.keys
    keys = {"pipeline": of.pipeline, "destination": of.destination("x"), "lease": of.lease("destinations.x")}
    rest = ["4", "0-9", "5", "0-9"]
    assert broker.access.run(
        scripts.REOPEN, keys | {"redo": of.redo("x")}, token=lease.token, id="r", over=False, rest=rest
    )
    assert broker.redeliveries.ranges("x", "r", epoch) == [of for of in wanted if of[0] != 5]


@pytest.mark.proves("I6")
def test_a_redelivery_that_did_not_even_begin_is_given_up_like_others(feed: Feed) -> None:
    broker, lease = feed.broker, feed.lease("x")
    long_run(broker)
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, 2)
        with pytest.raises(ConnectionResetError):
            broker.redeliveries.begin("x", "r", lease.token)
    lease.release()
    assert broker.redeliveries.lapse("x", 0.0) == ("r", 2 * PORTION)
    assert broker.redeliveries.lapse("x", 0.0) is None


def long_run(broker: Broker) -> list[tuple[int, RangeSet]]:
    """A run that confirmed more micro-batches than one call takes."""
    batch = broker.redis.pipeline(transaction=False)
    for m in range(1, MANY + 1):
        batch.hset(broker.keys.micro_batch(m), mapping={"state": "sealed", "total": "10"})
        batch.hset(broker.keys.run("x", "r"), str(m), "0-9")
    batch.execute()
    return [(m, RangeSet.parse("0-9")) for m in range(1, MANY + 1)]
