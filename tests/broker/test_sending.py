"""What is stored before a send: numbers that no two records share, and the at-most-once mark."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.sending import Numbered
from conduit_tasks.errors import Fenced
from tests.broker.conftest import Feed


def number(feed: Feed, m: int, counts: Mapping[str, int], *, seal: int = 1, stream: int = 0) -> Numbered:
    token = feed.lease("x").token
    return feed.broker.number("x", m, token, seal=seal + m, counts=lambda: counts, stream=stream)


@pytest.mark.proves("O5", "O6")
def test_numbers_go_on_from_micro_batch_to_micro_batch_in_each_lane(feed: Feed) -> None:
    first = number(feed, 1, {"a": 3, "b": 2})
    second = number(feed, 2, {"a": 1, "c": 4})
    fourth = number(feed, 4, {"a": 5})
    assert first.before == {}
    assert second == Numbered(first.epoch, {"a": 3, "b": 2})
    assert fourth == Numbered(first.epoch, {"a": 4, "b": 2, "c": 4})


@pytest.mark.proves("O5", "O6", "I5")
def test_a_micro_batch_keeps_its_numbers_however_often_it_is_asked_for(feed: Feed) -> None:
    number(feed, 1, {"a": 3})
    fixed = number(feed, 2, {"a": 2})

    def never() -> Mapping[str, int]:
        raise AssertionError("its records need not be counted again")

    again = feed.broker.number("x", 2, feed.lease("x").token, seal=3, counts=never)
    assert again == fixed
    assert number(feed, 3, {}).before == {"a": 5}


@pytest.mark.proves("O5", "O6")
@pytest.mark.parametrize(("m", "seal"), [(1, 1), (2, 9)])
def test_a_number_that_might_be_taken_begins_a_new_epoch(feed: Feed, m: int, seal: int) -> None:
    number(feed, 1, {"a": 3})
    fixed = number(feed, 2, {"a": 2})
    anew = number(feed, m, {"a": 4}, seal=seal)
    assert anew.epoch > fixed.epoch
    assert anew.before == {}


@pytest.mark.proves("O5", "O6", "X7")
def test_a_server_that_was_started_since_may_have_forgotten_and_begins_a_new_epoch(feed: Feed) -> None:
    fixed = number(feed, 1, {"a": 3})
    key = feed.broker.keys.numbers("x")
    feed.broker.read(("HSET", key, "server", "anotherrun"))
    assert number(feed, 1, {"a": 3}) == fixed
    anew = number(feed, 2, {"a": 1})
    assert anew.epoch > fixed.epoch
    assert anew.before == {}


def test_a_redelivery_has_an_epoch_and_numbers_of_its_own(feed: Feed) -> None:
    live = number(feed, 1, {"a": 3})
    again = number(feed, 1, {"a": 3}, stream=1)
    assert again.epoch > live.epoch
    assert number(feed, 1, {"a": 3}, stream=2).epoch > again.epoch
    assert number(feed, 2, {"a": 1}) == Numbered(live.epoch, {"a": 3})


@pytest.mark.proves("B8", "I4")
def test_only_the_lease_holder_numbers_or_begins_to_send(broker: Broker, feed: Feed) -> None:
    token = feed.lease("x").token
    with pytest.raises(Fenced):
        broker.number("x", 1, token - 1, seal=1, counts=dict)
    with pytest.raises(Fenced):
        broker.begin_send("x", 1, token - 1, 10)
    assert broker.begun("x", 1) == -1


@pytest.mark.proves("B8")
def test_the_mark_belongs_to_one_micro_batch_and_epoch_and_may_be_taken_back(broker: Broker, feed: Feed) -> None:
    token = feed.lease("x").token
    broker.begin_send("x", 1, token, 500)
    assert (broker.begun("x", 1), broker.begun("x", 2), broker.begun("x", 1, epoch=1)) == (500, -1, -1)
    broker.begin_send("x", 1, token, 41)
    assert broker.begun("x", 1) == 41
