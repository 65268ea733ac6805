"""Opening, staging and sealing: at most one unsealed, the first stage is final."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conduit_tasks.broker.backlogs import beyond
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.state import Stage
from conduit_tasks.errors import ConduitError, Fenced, InvariantBroken, PipelineStopped
from tests.broker.conftest import DESTINATIONS, Feed, letter, piece


@pytest.mark.proves("I3")
def test_boundaries_and_positions_are_stored_at_once_before_anything_is_read(broker: Broker) -> None:
    slices = {"b": [piece(0, 5, "one"), piece(5, 9, "one"), piece(0, 4, "two")], "a": [piece(0, 3)], "c": []}
    m = broker.micro_batches.open(slices, "digest", 1)
    found = broker.micro_batches.get(m)
    assert (m, found.state, found.config) == (1, "open", "digest")
    assert list(found.slices) == ["b", "a"], "file order is kept, a source without slices has no part"
    assert found.slices["b"] == slices["b"]
    assert found.missing == ["sources.b", "sources.a"]
    assert broker.positions.planned("b") == {"one": 9, "two": 4}
    assert broker.positions.planned("c") == {}


@pytest.mark.proves("I3")
def test_positions_keep_every_digit_and_type_of_a_token(broker: Broker) -> None:
    token = {"lsn": 9_223_372_036_854_775_807, "at": "2013-01-01T00:00:00Z", "x": [1.5, None, True]}
    broker.micro_batches.open({"a": [piece(0, 1)]}, "c", 1)
    broker.micro_batches.restage(["a"], "c")
    broker.redis.hdel(broker.keys.pipeline, "unsealed")
    broker.micro_batches.open({"a": [type(piece(0, 1))("part", "", None, token)]}, "c", 2)
    assert broker.positions.planned("a")["part"] == token


@pytest.mark.proves("I3")
def test_at_most_one_is_unsealed(feed: Feed) -> None:
    m = feed.open()
    assert feed.broker.micro_batches.open({"a": [piece(10, 20)]}, "c", m + 1) == m
    assert feed.broker.positions.planned("a") == {"file": 10}
    found = feed.broker.micro_batches.unsealed()
    assert found is not None
    assert found.number == m


@pytest.mark.proves("I3")
def test_a_plan_made_before_another_run_opened_and_sealed_is_refused(feed: Feed) -> None:
    feed.sealed()
    with pytest.raises(Fenced, match="plan again"):
        feed.broker.micro_batches.open({"a": [piece(0, 10)]}, "c", 1)
    assert feed.broker.positions.planned("a") == {"file": 10}


@pytest.mark.proves("C15", "C16")
@pytest.mark.parametrize("status", ["stopping", "stopped", "degraded"])
def test_nothing_is_opened_unless_the_pipeline_runs(broker: Broker, status: str) -> None:
    match status:
        case "stopping":
            broker.lifecycle.stop(60)
        case "stopped":
            broker.lifecycle.force_stop()
        case "degraded":
            broker.lifecycle.fail("sources.a", "no such file", "SourceError")
    with pytest.raises(PipelineStopped, match=status):
        broker.micro_batches.open({"a": [piece(0, 1)]}, "c", 1)
    assert broker.positions.planned("a") == {}


@pytest.mark.proves("I3")
def test_the_first_stage_wins_and_a_later_one_is_told_which(feed: Feed) -> None:
    m = feed.open()
    assert feed.stage(m, manifest="first") == []
    assert feed.stage(m, manifest="second") == []
    stage = feed.broker.micro_batches.get(m).stages["sources.a"]
    assert stage.manifest == "first"
    assert stage.first_index == (0,)


@pytest.mark.proves("I3")
def test_indexes_are_consecutive_per_partition_over_micro_batches_and_handed_out_once(broker: Broker) -> None:
    def stage(m: int, counts: list[int]) -> None:
        with broker.leases.acquire("sources.a", "t") as lease:
            broker.micro_batches.stage("sources.a", m, lease.token, Stage("s", counts, sum(counts)))
            broker.micro_batches.stage("sources.a", m, lease.token, Stage("s", counts, sum(counts)))
        with broker.leases.acquire("seal", "t") as lease:
            broker.micro_batches.seal(m, lease.token, manifest="m", total=sum(counts), bytes=1, matched={})

    broker.micro_batches.open(
        {"a": [piece(0, 5, partition="0"), piece(0, 7, partition="1"), piece(5, 8, partition="0")]}, "c", 1
    )
    stage(1, [5, 7, 3])
    broker.micro_batches.open({"a": [piece(8, 9, partition="0"), piece(7, 9, partition="1")]}, "c", 2)
    stage(2, [1, 2])
    assert broker.micro_batches.get(1).stages["sources.a"].first_index == (0, 0, 5)
    assert broker.micro_batches.get(2).stages["sources.a"].first_index == (8, 7)


@pytest.mark.proves("I3")
def test_processors_stage_after_every_source_and_before_the_seal(broker: Broker) -> None:
    broker.micro_batches.open({"a": [piece(0, 5)], "b": [piece(0, 5)]}, "c", 1, processors=True)
    a, b, p = (broker.leases.acquire(n, "t") for n in ("sources.a", "sources.b", "processors"))
    assert broker.micro_batches.stage("sources.a", 1, a.token, Stage("s", [5], 5)) == ["sources.b", "processors"]
    with pytest.raises(InvariantBroken, match=r"staged before sources\.b"):
        broker.micro_batches.stage("processors", 1, p.token, Stage("s", None, 5))
    assert broker.micro_batches.stage("sources.b", 1, b.token, Stage("s", [5], 5)) == ["processors"]
    seal = broker.leases.acquire("seal", "t")
    with pytest.raises(InvariantBroken, match="before processors has staged"):
        broker.micro_batches.seal(1, seal.token, manifest="m", total=10, bytes=1, matched={})
    assert broker.micro_batches.stage("processors", 1, p.token, Stage("s", None, 10)) == []
    assert broker.micro_batches.seal(1, seal.token, manifest="m", total=10, bytes=1, matched={})


def test_a_stage_with_another_number_of_counts_than_slices_is_refused(feed: Feed) -> None:
    m = feed.open()
    with (
        pytest.raises(InvariantBroken, match="2 counts for 1 slices"),
        feed.broker.leases.acquire("sources.a", "t") as lease,
    ):
        feed.broker.micro_batches.stage("sources.a", m, lease.token, Stage("s", [5, 5], 10))


@pytest.mark.proves("I6")
def test_a_micro_batch_is_sealed_once(feed: Feed) -> None:
    m = feed.open()
    feed.stage(m)
    with feed.broker.leases.acquire("seal", "t") as lease:
        arguments: Any = {"total": 10, "bytes": 1_000, "matched": {"x": 10, "y": 0}}
        assert feed.broker.micro_batches.seal(
            m, lease.token, manifest="one", filtered=2, nacked=1, dead=[letter(m, 3)], **arguments
        )
        assert feed.broker.micro_batches.seal(
            m, lease.token, manifest="one", filtered=2, nacked=1, dead=[letter(m, 3)], **arguments
        )
        assert not feed.broker.micro_batches.seal(m, lease.token, manifest="two", **arguments)
    found = feed.broker.micro_batches.get(m)
    assert (found.state, found.manifest, found.total, found.matched) == ("sealed", "one", 10, {"x": 10, "y": 0})
    assert feed.broker.micro_batches.latest_sealed() == m
    assert feed.broker.micro_batches.unsealed() is None
    assert feed.broker.micro_batches.totals()["read"] == 10
    assert feed.broker.micro_batches.totals()["filtered"] == 2
    assert feed.broker.micro_batches.totals()["sources.a/read"] == 10
    assert [e.seq for e in feed.broker.dead_letters.entries()] == [3]


@pytest.mark.proves("I7", "C13")
def test_the_backlog_is_what_lies_beyond_the_lowest_cursor(feed: Feed) -> None:
    assert feed.broker.deliveries.backlog(["x", "y"]).micro_batches == 0
    first, second = feed.sealed(10), feed.sealed(7)
    feed.delivered(first, 10, ["x"])
    behind = feed.broker.deliveries.backlog(["x", "y"])
    assert (behind.records, behind.bytes, behind.micro_batches) == (17, 1_700, 2)
    assert behind.age(feed.broker.access.now() + 60) > 59
    feed.delivered(first, 10, ["y"])
    assert feed.broker.deliveries.backlog(["x", "y"]).records == 7
    feed.delivered(second, 7)
    assert feed.broker.deliveries.backlog(["x", "y"]).records == 0
    assert feed.broker.deliveries.backlog(["x", "y"]).age(feed.broker.access.now()) == 0


def test_the_backlog_of_many_micro_batches_is_read_in_as_many_commands_as_that_of_one(feed: Feed) -> None:
    feed.sealed(5)
    one = commands(feed, lambda: feed.broker.deliveries.backlog(["x", "y"]))
    for _ in range(40):
        feed.sealed(3)
    assert commands(feed, lambda: feed.broker.deliveries.backlog(["x", "y"])) <= one + 1
    assert feed.broker.deliveries.backlog(["x", "y"]).records == 5 + 40 * 3


def test_the_backlog_of_micro_batches_that_an_earlier_version_sealed_is_the_same(feed: Feed) -> None:
    first, *_ = [feed.sealed(n) for n in (10, 7, 5)]
    feed.delivered(first, 10, ["x"])
    access = feed.broker.access
    want = [beyond(access, 3, [0, 1, 2, 3])]
    assert [each.records for each in want[0]] == [22, 12, 5, 0]
    # Given that those before the last one, or all of them, have no sums
    for last in (2, 3):
        for m in range(1, last + 1):
            access.redis.hdel(feed.broker.keys.micro_batch(m), "upto", "upto_bytes")
        want.append(beyond(access, 3, [0, 1, 2, 3]))
    assert want[0] == want[1] == want[2]


def test_a_micro_batch_that_ends_empty_adds_nothing_to_the_backlog(feed: Feed) -> None:
    feed.sealed(10)
    feed.open(4)
    feed.broker.micro_batches.restage([], "new")
    assert feed.broker.micro_batches.latest_sealed() == 2
    access = feed.broker.access
    assert access.field(feed.broker.keys.micro_batch(2), "upto") == "10"
    assert [each.records for each in beyond(access, 2, [0, 1, 2])] == [10, 0, 0]


def commands(feed: Feed, call: Callable[[], Any]) -> int:
    """How many commands a call sends."""
    info: Any = feed.broker.redis.info("stats")
    call()
    after: Any = feed.broker.redis.info("stats")
    return int(after["total_commands_processed"]) - int(info["total_commands_processed"])


@pytest.mark.proves("C16", "I3")
def test_after_a_forceful_stop_what_is_unsealed_is_asked_for_again_with_the_same_indexes(feed: Feed) -> None:
    # Given a staged, unsealed micro-batch and its holder
    feed.sealed(10)
    m = feed.open(5)
    broker = feed.broker
    old = broker.leases.acquire("sources.a", "old")
    broker.micro_batches.stage("sources.a", m, old.token, Stage("before", [5], 5))
    slices = broker.micro_batches.get(m).slices
    # When it is stopped by force and started
    broker.lifecycle.force_stop()
    broker.lifecycle.start()
    # Then the stage is gone, the slices are not, the old holder is fenced
    found = broker.micro_batches.get(m)
    assert found.stages == {}
    assert found.slices == slices
    with pytest.raises(Fenced):
        broker.micro_batches.stage("sources.a", m, old.token, Stage("late", [5], 5))
    # And the records get the indexes they had
    feed.stage(m, 5, "after")
    stage = broker.micro_batches.get(m).stages["sources.a"]
    assert (stage.manifest, stage.first_index) == ("after", (10,))


@pytest.mark.proves("C16")
def test_a_sealed_micro_batch_survives_a_forceful_stop(feed: Feed) -> None:
    m = feed.sealed()
    feed.confirm("x", m, [(0, 3)])
    feed.broker.lifecycle.force_stop()
    feed.broker.lifecycle.start()
    assert feed.broker.micro_batches.get(m).state == "sealed"
    assert str(feed.broker.deliveries.get("x").confirmed) == "0-3"
    feed.confirm("x", m, [(4, 9)])
    assert feed.broker.deliveries.get("x").cursor == m


def test_a_source_that_left_the_file_leaves_the_unsealed_micro_batch_and_its_position_goes_back(broker: Broker) -> None:
    broker.micro_batches.open({"a": [piece(0, 5)], "gone": [piece(3, 9, "one"), piece(9, 12, "one")]}, "old", 1)
    broker.micro_batches.restage(["a"], "new", processors=True)
    found = broker.micro_batches.get(1)
    assert list(found.slices) == ["a"]
    assert (found.config, found.missing) == ("new", ["sources.a", "processors"])
    assert broker.positions.planned("gone") == {"one": 3}
    assert broker.positions.planned("a") == {"file": 5}


def test_an_unsealed_micro_batch_that_nobody_is_left_to_stage_ends_empty(broker: Broker) -> None:
    broker.micro_batches.open({"gone": [piece(0, 5)]}, "old", 1)
    broker.micro_batches.restage([], "new")
    assert broker.micro_batches.unsealed() is None
    assert broker.micro_batches.get(1).total == 0
    # There is nothing to deliver of it, and nothing to ack: whoever had everything before it has it
    assert broker.deliveries.get("x").cursor == 1
    assert not broker.acks.due("a", DESTINATIONS, "delivered")
    assert broker.deliveries.complete_unmatched("x") == 0


def test_a_micro_batch_that_is_gone_is_a_clear_error(broker: Broker) -> None:
    with pytest.raises(ConduitError, match="no micro-batch 7"):
        broker.micro_batches.get(7)
    with pytest.raises(ValueError, match="nothing to read"):
        broker.micro_batches.open({"a": []}, "c", 1)
