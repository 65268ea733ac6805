"""Confirms: one cursor per destination, ranges behind it, counted exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.errors import ConduitError, InvariantBroken, LeaseHeld, PipelineStopped
from tests.broker.conftest import DESTINATIONS, SOURCES, Feed, letter


@pytest.mark.proves("C17", "I10")
def test_ranges_confirmed_in_any_order_move_the_cursor_when_all_are_there(feed: Feed) -> None:
    m = feed.sealed()
    feed.confirm("x", m, [(7, 9)])
    feed.confirm("x", m, [(0, 2), (4, 4)])
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, str(state.confirmed)) == (0, "0-2,4-4,7-9")
    feed.confirm("x", m, [(3, 3), (5, 6)])
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, str(state.confirmed)) == (m, "")
    assert state.counters["delivered"] == 10


@pytest.mark.proves("T4", "X1")
def test_each_destination_has_its_own_cursor(feed: Feed) -> None:
    first, second = feed.sealed(), feed.sealed()
    feed.delivered(first, destinations=["x"])
    feed.delivered(second, destinations=["x"])
    feed.confirm("y", first, [(0, 0)])
    assert feed.broker.deliveries.get("x").cursor == second
    assert feed.broker.deliveries.get("y").cursor == 0
    assert str(feed.broker.deliveries.get("y").confirmed) == "0-0"


@pytest.mark.proves("I5")
def test_a_repeat_changes_nothing_even_after_the_cursor_has_moved(feed: Feed) -> None:
    m = feed.sealed()
    feed.confirm("x", m, [(0, 4)], state={"length": 50}, dead=[letter(m, 3)])
    before = feed.broker.deliveries.get("x")
    feed.confirm("x", m, [(0, 4)], state={"length": 50}, dead=[letter(m, 3)])
    feed.confirm("x", m, [(1, 2)])
    assert feed.broker.deliveries.get("x").counters == before.counters
    assert feed.broker.dead_letters.count("x") == 1
    feed.confirm("x", m, [(5, 9)])
    feed.confirm("x", m, [(5, 9)])
    assert feed.broker.deliveries.get("x").counters["matched"] == 10


@pytest.mark.proves("I5")
def test_a_mixture_of_new_and_confirmed_is_refused_and_changes_nothing(feed: Feed) -> None:
    m = feed.sealed()
    feed.confirm("x", m, [(0, 4)])
    with pytest.raises(InvariantBroken, match="Invariant 5"):
        feed.confirm("x", m, [(4, 5)], state={"length": 1})
    state = feed.broker.deliveries.get("x")
    assert (str(state.confirmed), state.state, state.counters["matched"]) == ("0-4", None, 5)


@pytest.mark.proves("I10")
def test_what_lies_outside_of_the_micro_batch_or_ahead_of_the_cursor_is_refused(feed: Feed) -> None:
    m = feed.sealed()
    following = feed.sealed()
    with pytest.raises(InvariantBroken, match="outside of 10 records"):
        feed.confirm("x", m, [(5, 10)])
    with pytest.raises(InvariantBroken, match="not the sealed one behind cursor 0"):
        feed.confirm("x", following, [(0, 9)])
    unsealed = feed.open()
    feed.delivered(m)
    feed.delivered(following)
    with pytest.raises(InvariantBroken, match=f"micro-batch {unsealed} is not the sealed one"):
        feed.confirm("x", unsealed, [(0, 9)])
    with pytest.raises(ValueError, match="empty"):
        feed.confirm("x", m, [])


def test_the_destinations_own_state_is_replaced_with_the_confirm_and_survives_the_cursor(feed: Feed) -> None:
    m = feed.sealed()
    feed.confirm("x", m, [(0, 4)], state={"length": 2**60, "file": "ä"})
    feed.confirm("x", m, [(5, 9)])
    assert feed.broker.deliveries.get("x").state == {"length": 2**60, "file": "ä"}
    assert feed.broker.deliveries.get("y").state is None


@pytest.mark.proves("T3")
def test_what_a_trigger_matched_nothing_of_is_complete_without_a_delivery(feed: Feed) -> None:
    for matched in ({"x": 0, "y": 10}, {"y": 10}, {"x": 1, "y": 0}, {"x": 0}):
        feed.sealed(10, matched)
    assert feed.broker.deliveries.complete_unmatched("x") == 2
    assert feed.broker.deliveries.complete_unmatched("x") == 0
    assert feed.broker.deliveries.get("x").cursor == 2
    assert feed.broker.deliveries.complete_unmatched("y") == 0
    # matched but not complete: it needs its delivery
    feed.delivered(3, destinations=["x"])
    assert feed.broker.deliveries.complete_unmatched("x", feed.lease("x").token) == 1
    assert feed.broker.deliveries.get("x").cursor == 4


@pytest.mark.proves("I4")
def test_completing_without_a_delivery_waits_for_no_holder_and_never_works_beside_one(feed: Feed) -> None:
    feed.sealed(10, {"x": 0})
    feed.lease("x")
    with pytest.raises(LeaseHeld):
        feed.broker.deliveries.complete_unmatched("x")
    feed.lease("x").release()
    feed.broker.lifecycle.force_stop()
    assert feed.broker.deliveries.complete_unmatched("x") == 0
    assert feed.broker.deliveries.get("x").cursor == 0


@pytest.mark.proves("T3", "I10")
def test_what_was_matched_is_never_completed_without_a_delivery_whatever_the_caller_thinks(feed: Feed) -> None:
    m = feed.sealed(10, {"x": 1})
    keys = feed.broker.keys
    moved = feed.broker.access.run(
        scripts.COMPLETE,
        {
            "pipeline": keys.pipeline,
            "destination": keys.destination("x"),
            "micro_batch": keys.micro_batch(m),
            "lease": keys.lease("destinations.x"),
            "series": keys.series("x"),
        },
        m=m,
        token=feed.lease("x").token,
        id="x",
    )
    assert moved == [0]
    assert feed.broker.deliveries.get("x").cursor == 0


@pytest.mark.proves("I9", "X1")
def test_an_isolated_destination_stops_alone_with_its_own_first_error(feed: Feed) -> None:
    m = feed.sealed()
    assert feed.broker.lifecycle.stop_destination("x", "disk full", "OSError", m)
    assert not feed.broker.lifecycle.stop_destination("x", "later", "OSError", m)
    with pytest.raises(PipelineStopped, match="disk full"):
        feed.confirm("x", m, [(0, 9)])
    feed.confirm("y", m, [(0, 9)])
    state = feed.broker.deliveries.get("x")
    assert state.status == "stopped"
    assert state.error is not None
    assert (state.error.error, state.error.micro_batch, state.error.node) == ("disk full", m, "destinations.x")
    assert feed.broker.lifecycle.status().status == "running"
    feed.broker.lifecycle.start_destination("x")
    assert feed.broker.deliveries.get("x").error is None
    feed.confirm("x", m, [(0, 9)])


@pytest.mark.proves("C14")
def test_the_index_of_dead_letters_is_ordered_and_holds_each_once(feed: Feed) -> None:
    m = feed.sealed()
    feed.confirm("x", m, [(9, 9)], dead=[letter(m, 9, error_class="http 410: gone: for ever")])
    feed.confirm("x", m, [(2, 3)], dead=[letter(m, 3), letter(m, 2)])
    entries = list(feed.broker.dead_letters.entries("x"))
    assert [(e.micro_batch, e.seq, e.ordinal) for e in entries] == [(m, 2, 0), (m, 3, 0), (m, 9, 0)]
    assert entries[2].error_class == "http 410: gone: for ever"
    assert (entries[0].at, entries[0].attempts) == (1_700_000_000.0, 1)
    assert feed.broker.dead_letters.count("x") == 3
    assert list(feed.broker.dead_letters.entries("y")) == []


class TestRedelivery:
    """Clearing a task that had succeeded."""

    @pytest.fixture
    def m(self, feed: Feed) -> int:
        m = feed.sealed()
        feed.confirm("x", m, [(0, 1), (5, 9)], run="one", retention=60.0)
        feed.confirm("x", m, [(2, 4)], run="two", retention=60.0)
        return m

    def test_exactly_what_that_run_confirmed_is_to_be_sent_again(self, feed: Feed, m: int) -> None:
        assert feed.broker.redeliveries.ranges("x", "one") == [(m, RangeSet.parse("0-1,5-9"))]
        assert feed.broker.redeliveries.ranges("x", "two") == [(m, RangeSet.parse("2-4"))]

    @pytest.mark.proves("I5")
    def test_a_redelivery_goes_on_where_it_was_and_ends(self, feed: Feed, m: int) -> None:
        token = feed.lease("x").token
        before = feed.broker.deliveries.get("x")
        epoch = feed.broker.redeliveries.begin("x", "one", token)
        assert epoch == feed.broker.deliveries.get("x").epoch == 1
        feed.confirm("x", m, [(5, 7)], epoch=epoch, state={"length": 7})
        feed.confirm("x", m, [(5, 7)], epoch=epoch)
        # a crash: the same epoch goes on
        assert feed.broker.redeliveries.begin("x", "one", token) == epoch
        assert feed.broker.redeliveries.ranges("x", "one") == [(m, RangeSet.parse("0-1,8-9"))]
        with pytest.raises(InvariantBroken):
            feed.confirm("x", m, [(7, 8)], epoch=epoch)
        assert feed.broker.redeliveries.ranges("x", "one", epoch) == feed.broker.redeliveries.ranges("x", "one")
        feed.confirm("x", m, [(0, 1), (8, 9)], epoch=epoch)
        assert feed.broker.redeliveries.ranges("x", "one", epoch) == [], "it is finished"
        after = feed.broker.deliveries.get("x")
        assert (after.cursor, after.state) == (before.cursor, {"length": 7})
        assert after.counters == {**before.counters, "redelivered": 7}
        assert feed.broker.redis.exists(feed.broker.keys.redo("x")) == 0

    def test_clearing_it_once_more_is_another_epoch(self, feed: Feed, m: int) -> None:
        lease = feed.lease("x")
        first = feed.broker.redeliveries.begin("x", "two", lease.token)
        feed.confirm("x", m, [(2, 4)], epoch=first)
        assert feed.broker.redeliveries.begin("x", "two", lease.token) == first, "the same call, repeated"
        lease.release()
        again = feed.broker.leases.acquire("destinations.x", "t")
        assert feed.broker.redeliveries.begin("x", "two", again.token) == first + 1

    def test_two_redeliveries_do_not_mix(self, feed: Feed, m: int) -> None:
        feed.broker.redeliveries.begin("x", "one", feed.lease("x").token)
        with pytest.raises(ConduitError, match="still redelivers what run one"):
            feed.broker.redeliveries.begin("x", "two", feed.lease("x").token)

    def test_what_is_forgotten_names_replay(self, feed: Feed, m: int) -> None:
        with pytest.raises(ConduitError, match="conduit replay p"):
            feed.broker.redeliveries.ranges("x", "never")
        feed.delivered(m, destinations=["y"])
        ack = feed.broker.acks.begin("a", DESTINATIONS, "delivered")
        assert ack is not None
        feed.broker.acks.commit("a", ack)
        feed.broker.collection.begin(m)
        feed.broker.collection.end(m)
        with pytest.raises(ConduitError, match="conduit replay p"):
            feed.broker.redeliveries.begin("x", "one", feed.lease("x").token)

    @pytest.mark.proves("I6")
    def test_what_is_being_redelivered_is_not_collected(self, feed: Feed, m: int) -> None:
        feed.delivered(m, destinations=["y"])
        ack = feed.broker.acks.begin("a", DESTINATIONS, "delivered")
        assert ack is not None
        feed.broker.acks.commit("a", ack)
        epoch = feed.broker.redeliveries.begin("x", "two", feed.lease("x").token)
        assert feed.broker.collection.due(SOURCES, DESTINATIONS, 0) == []
        feed.confirm("x", m, [(2, 4)], epoch=epoch)
        assert feed.broker.collection.due(SOURCES, DESTINATIONS, 0) == [m]

    @pytest.mark.proves("I6")
    @pytest.mark.parametrize("touched", ["begun", "confirmed", "of before"])
    def test_one_that_nobody_goes_on_with_is_given_up_and_holds_nothing_back(
        self, feed: Feed, m: int, touched: str
    ) -> None:
        """Given a redelivery that was left unfinished, when nobody has gone on with it for long, then it is given up
        once, what it held is collected, and another run may be sent again."""
        broker, lease = feed.broker, feed.lease("x")
        feed.delivered(m, destinations=["y"])
        ack = broker.acks.begin("a", DESTINATIONS, "delivered")
        assert ack is not None
        broker.acks.commit("a", ack)
        epoch = broker.redeliveries.begin("x", "one", lease.token)
        if touched == "confirmed":
            feed.confirm("x", m, [(0, 1)], epoch=epoch)
        if touched == "of before":
            broker.redis.hdel(broker.keys.redo("x"), "at")
            lease.release()
            assert broker.redeliveries.lapse("x", 0.0) is None, "its time begins with the first look"
            lease = broker.leases.acquire("destinations.x", "t")
        assert broker.redeliveries.lapse("x", 0.0) is None, "somebody may be at it"
        lease.release()
        assert broker.redeliveries.lapse("x", 60.0) is None
        assert broker.collection.due(SOURCES, DESTINATIONS, 0) == []
        assert broker.redeliveries.lapse("x", 0.0) == ("one", 1)
        assert broker.redeliveries.lapse("x", 0.0) is None
        assert broker.collection.due(SOURCES, DESTINATIONS, 0) == [m]
        again = broker.leases.acquire("destinations.x", "t")
        assert broker.redeliveries.ranges("x", "one", epoch) == []
        assert broker.redeliveries.begin("x", "two", again.token) == epoch + 1

    def test_every_step_of_a_redelivery_gives_it_its_time_again(self, feed: Feed, m: int) -> None:
        broker, token = feed.broker, feed.lease("x").token

        def aged() -> int:
            at = int(broker.redis.hget(broker.keys.redo("x"), "at") or 0)
            broker.redis.hset(broker.keys.redo("x"), "at", "1")
            return at

        epoch = broker.redeliveries.begin("x", "one", token)
        steps = [aged()]
        feed.confirm("x", m, [(0, 1)], epoch=epoch)
        steps.append(aged())
        broker.redeliveries.begin("x", "one", token)
        steps.append(aged())
        assert min(steps) > 1


def test_a_confirm_is_one_command(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    m = feed.sealed(1_000)
    feed.confirm("x", m, [(0, 0)])
    sent: list[Any] = []
    execute = type(feed.broker.redis).execute_command

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        sent.append(args[0])
        return execute(self, *args, **options)

    monkeypatch.setattr(type(feed.broker.redis), "execute_command", noted)
    feed.confirm("x", m, [(1, 99)], run="r", retention=60.0, state={"length": 1}, dead=[letter(m, 5)])
    assert sent == ["EVALSHA"]


def test_a_destination_that_is_not_registered_is_a_clear_error(broker: Broker) -> None:
    with pytest.raises(ConduitError, match="no destination z"):
        broker.deliveries.get("z")
