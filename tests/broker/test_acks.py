"""Acks: an in-order prefix, each once, never ahead of the destinations; collection behind them."""

from __future__ import annotations

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.state import Ack, Stage
from conduit_tasks.errors import Fenced, InvariantBroken
from tests.broker.conftest import DESTINATIONS, SOURCES, Feed, piece


def begin(broker: Broker, ack_on: str = "delivered") -> Ack | None:
    return broker.acks.begin("a", DESTINATIONS, ack_on)


@pytest.mark.proves("C11", "I1", "I2", "T2")
def test_a_source_is_acked_up_to_the_lowest_cursor_in_one_prefix(feed: Feed) -> None:
    broker = feed.broker
    first, second, third = feed.sealed(), feed.sealed(), feed.sealed()
    # Given x ahead of y
    for m in (first, second, third):
        feed.delivered(m, destinations=["x"])
    assert not broker.acks.due("a", DESTINATIONS, "delivered")
    assert begin(broker) is None
    # When y follows by two
    feed.delivered(first, destinations=["y"])
    feed.delivered(second, destinations=["y"])
    assert broker.acks.due("a", DESTINATIONS, "delivered")
    # Then both are acked at once, the third is not
    ack = begin(broker)
    assert ack == Ack(first, second, {"file": 20})
    broker.acks.commit("a", ack)
    assert broker.positions.acked("a") == {"file": 20}
    assert begin(broker) is None


@pytest.mark.proves("I1", "C5")
def test_a_partly_confirmed_micro_batch_withholds_the_ack(feed: Feed) -> None:
    m = feed.sealed()
    feed.confirm("x", m, [(0, 9)])
    feed.confirm("y", m, [(0, 3), (5, 9)])
    assert begin(feed.broker) is None
    feed.confirm("y", m, [(4, 4)])
    assert begin(feed.broker) is not None


@pytest.mark.proves("C10")
def test_the_ends_of_a_queue_are_known_for_their_time_whatever_lies_between_them(feed: Feed) -> None:
    # Given sixty acked micro-batches, every third one without anything of the queue
    broker = feed.broker
    ends = []
    for n in range(60):
        source = "queue" if n % 3 else "file"
        m = broker.micro_batches.open({source: [piece(n, n + 1)]}, "config", broker.micro_batches.latest_sealed() + 1)
        with broker.leases.acquire(f"sources.{source}", "t") as lease:
            broker.micro_batches.stage(f"sources.{source}", m, lease.token, Stage("stage", [1], 1))
        feed.seal(m)
        feed.delivered(m)
        if source == "queue":
            ends.append({"file": n + 1})
    while (ack := broker.acks.begin("queue", DESTINATIONS, "delivered", apart=True)) is not None:
        broker.acks.commit("queue", ack)
    assert broker.positions.unacked_ends("queue") == []
    # Then all of them are known, and none that is older
    now = broker.access.now()
    assert broker.positions.ends_since("queue", now - 3600) == ends
    assert broker.positions.ends_since("queue", now + 1) == []


@pytest.mark.proves("C11", "T2")
def test_a_queue_is_acked_for_each_micro_batch_apart_whatever_lies_between_them(feed: Feed) -> None:
    # Given micro-batches of a queue, with others between and behind them
    for source in ("file", "file", "queue", "file", "queue", "file"):
        m = feed.broker.micro_batches.open(
            {source: [piece(0, 10)]}, "config", feed.broker.micro_batches.latest_sealed() + 1
        )
        with feed.broker.leases.acquire(f"sources.{source}", "t") as lease:
            feed.broker.micro_batches.stage(f"sources.{source}", m, lease.token, Stage("stage", [10], 10))
        feed.seal(m)
        feed.delivered(m)
    # When it is acked as long as there is something to tell
    given = []
    while ack := feed.broker.acks.begin("queue", DESTINATIONS, "delivered", apart=True):
        given.append((ack.m_from, ack.m_to))
        feed.broker.acks.commit("queue", ack)
    # Then all is told, each for itself, and nothing is left to collect for its sake
    assert given == [(1, 3), (4, 5)]
    assert not feed.broker.acks.due("queue", DESTINATIONS, "delivered")


@pytest.mark.proves("C12", "I2")
def test_after_a_crash_between_intent_and_commit_the_same_ack_is_given_again(feed: Feed) -> None:
    broker = feed.broker
    first = feed.sealed()
    feed.delivered(first)
    ack = begin(broker)
    # more is confirmed meanwhile; what was intended stays as it was
    feed.delivered(feed.sealed())
    assert broker.acks.due("a", DESTINATIONS, "delivered")
    assert begin(broker) == ack
    assert ack is not None
    broker.acks.commit("a", ack)
    broker.acks.commit("a", ack)
    assert broker.positions.acked("a") == {"file": 10}
    following = begin(broker)
    assert following == Ack(first + 1, first + 1, {"file": 20})


@pytest.mark.proves("I2")
def test_an_ack_that_was_never_begun_is_refused(feed: Feed) -> None:
    with pytest.raises(InvariantBroken, match="never begun"):
        feed.broker.acks.commit("a", Ack(1, 1, {"file": 10}))


@pytest.mark.proves("I1")
def test_an_ack_ahead_of_a_destination_is_refused_by_redis_itself(feed: Feed) -> None:
    # Given a caller that computed wrongly how far everything is confirmed
    m = feed.sealed()
    feed.delivered(m, destinations=["x"])
    keys = feed.broker.keys
    with pytest.raises(InvariantBroken, match="Invariant 1"):
        feed.broker.access.run(
            scripts.BEGIN_ACK,
            {
                "pipeline": keys.pipeline,
                "ack": keys.ack("a"),
                "lease": keys.lease("acks.a"),
                "intent": keys.intent("a"),
                "cursors": [keys.destination(d) for d in DESTINATIONS],
            },
            **{"from": m},
            to=m,
            token=0,
            position=["file", "10"],
        )


@pytest.mark.proves("T2", "I1")
def test_with_ack_on_stored_the_seal_is_enough(feed: Feed) -> None:
    m = feed.sealed()
    assert begin(feed.broker) is None
    assert begin(feed.broker, "stored") == Ack(m, m, {"file": 10})


def test_micro_batches_without_this_source_are_passed_without_telling_it(feed: Feed) -> None:
    broker = feed.broker
    broker.lifecycle.register(["a", "b"], DESTINATIONS)
    broker.micro_batches.open({"b": [piece(0, 5)]}, "c", 1)
    with broker.leases.acquire("sources.b", "t") as lease:
        broker.micro_batches.stage("sources.b", 1, lease.token, Stage("s", [5], 5))
    feed.seal(1, 5)
    feed.delivered(1, 5)
    assert broker.acks.due("a", DESTINATIONS, "delivered")
    assert begin(broker) is None
    assert not broker.acks.due("a", DESTINATIONS, "delivered")
    assert broker.acks.begin("b", DESTINATIONS, "delivered") == Ack(1, 1, {"file": 5})


def test_the_last_slice_of_each_part_is_what_the_source_is_told(broker: Broker) -> None:
    feed = Feed(broker)
    broker.micro_batches.open({"a": [piece(0, 5, "one"), piece(5, 9, "one"), piece(0, 2, "two")]}, "c", 1)
    with broker.leases.acquire("sources.a", "t") as lease:
        broker.micro_batches.stage("sources.a", 1, lease.token, Stage("s", [5, 4, 2], 11))
    feed.seal(1, 11)
    feed.delivered(1, 11)
    ack = begin(broker)
    assert ack is not None
    assert ack.position == {"one": 9, "two": 2}


@pytest.mark.proves("I4", "B4")
def test_a_task_that_lost_its_lease_cannot_ack(feed: Feed) -> None:
    feed.delivered(feed.sealed())
    broker = feed.broker
    lost = broker.leases.acquire("acks.a", "old")
    ack = broker.acks.begin("a", DESTINATIONS, "delivered", lost.token)
    lost.release()
    newer = broker.leases.acquire("acks.a", "new")
    assert ack is not None
    with pytest.raises(Fenced):
        broker.acks.begin("a", DESTINATIONS, "delivered", lost.token)
    with pytest.raises(Fenced):
        broker.acks.commit("a", ack, lost.token)
    assert broker.positions.acked("a") == {}
    broker.acks.commit("a", ack, newer.token)
    assert broker.positions.acked("a") == {"file": 10}


def acked(feed: Feed, m: int) -> None:
    feed.delivered(m)
    ack = begin(feed.broker)
    assert ack is not None
    feed.broker.acks.commit("a", ack)


@pytest.mark.proves("I6")
def test_collected_is_only_what_every_destination_confirmed_and_every_source_acked(feed: Feed) -> None:
    broker = feed.broker
    first, second = feed.sealed(), feed.sealed()
    feed.delivered(first)
    feed.delivered(second, destinations=["x"])
    assert broker.collection.due(SOURCES, DESTINATIONS, 0) == [], "not acked yet"
    with pytest.raises(InvariantBroken, match="still needed"):
        broker.collection.begin(first)
    ack = begin(broker)
    assert ack is not None
    assert broker.collection.due(SOURCES, DESTINATIONS, 0) == []
    broker.acks.commit("a", ack)
    assert broker.collection.due(SOURCES, DESTINATIONS, 0) == [first]
    assert broker.collection.due(SOURCES, DESTINATIONS, 3_600) == [], "within its retention"
    with pytest.raises(InvariantBroken, match=f"before {first}"):
        broker.collection.begin(second)
    with pytest.raises(InvariantBroken, match="never begun"):
        broker.collection.end(first)


@pytest.mark.proves("I6", "I5")
def test_a_collection_that_was_interrupted_is_taken_up_again(feed: Feed) -> None:
    broker = feed.broker
    m = feed.sealed()
    acked(feed, m)
    broker.collection.begin(m)
    assert broker.collection.due(SOURCES, DESTINATIONS, 3_600) == [m], "begun, whatever the retention says"
    broker.collection.begin(m)
    broker.collection.end(m)
    broker.collection.end(m)
    broker.collection.begin(m)
    assert broker.collection.due(SOURCES, DESTINATIONS, 0) == []
    assert broker.redis.exists(broker.keys.micro_batch(m)) == 0


@pytest.mark.proves("C11", "I6")
def test_what_is_kept_is_not_looked_at_again_and_again(feed: Feed) -> None:
    broker = feed.broker

    def asked() -> int:
        broker.redis.config_resetstat()
        assert broker.collection.due(SOURCES, DESTINATIONS, 3_600) == []
        broker.collection.slim(SOURCES, DESTINATIONS, 3_600)
        return sum(of["calls"] for of in broker.redis.info("commandstats").values())

    # Given few micro-batches that are done with and kept, and then many
    counts = []
    for more in (5, 60):
        for _ in range(more):
            feed.delivered(feed.sealed())
        for source in SOURCES:
            while ack := broker.acks.begin(source, DESTINATIONS, "delivered"):
                broker.acks.commit(source, ack)
        counts.append(asked())
    # Then both take as many questions
    assert counts[0] == counts[1]


@pytest.mark.proves("I6")
def test_all_that_are_due_are_collected_however_many(feed: Feed) -> None:
    broker = feed.broker
    numbers = [feed.sealed() for _ in range(9)]
    for m in numbers:
        feed.delivered(m)
    for source in SOURCES:
        while ack := broker.acks.begin(source, DESTINATIONS, "delivered"):
            broker.acks.commit(source, ack)
    assert broker.collection.due(SOURCES, DESTINATIONS, 0) == numbers
    broker.collection.slim(SOURCES, DESTINATIONS, 0)
    assert broker.access.numbers("slim")[0] == numbers[-1]
