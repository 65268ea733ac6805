"""What is stored before a send: numbers that no two records share, and the at-most-once mark."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.sending import Numbered
from conduit_tasks.errors import Fenced
from conduit_tasks.redis_client.portions import PORTION
from tests.broker.conftest import Feed, cut_off


def number(
    feed: Feed, m: int, counts: Mapping[str, int], *, seal: int = 1, stream: int = 0, known: int = 10_000
) -> Numbered:
    token = feed.lease("x").token
    return feed.broker.sending.number("x", m, token, seal=seal + m, counts=lambda: counts, stream=stream, known=known)


@pytest.mark.proves("O5", "O6")
def test_numbers_go_on_from_micro_batch_to_micro_batch_in_each_lane(feed: Feed) -> None:
    first = number(feed, 1, {"a": 3, "b": 2})
    second = number(feed, 2, {"a": 1, "c": 4})
    fourth = number(feed, 4, {"a": 5})
    assert first.before == {"a": 0, "b": 0}
    assert second == Numbered(first.epoch, {"a": 3, "c": 0})
    assert fourth == Numbered(first.epoch, {"a": 4})


@pytest.mark.proves("O5", "O6", "I5")
def test_a_micro_batch_keeps_its_numbers_however_often_it_is_asked_for(feed: Feed) -> None:
    number(feed, 1, {"a": 3})
    fixed = number(feed, 2, {"a": 2})

    def never() -> Mapping[str, int]:
        raise AssertionError("its records need not be counted again")

    again = feed.broker.sending.number("x", 2, feed.lease("x").token, seal=3, counts=never, known=9)
    assert again == fixed
    assert number(feed, 3, {}).before == {}
    assert number(feed, 4, {"a": 1}).before == {"a": 5}


@pytest.mark.proves("B8")
def test_a_micro_batch_whose_records_have_numbers_is_known_to_be_begun(feed: Feed) -> None:
    sending = feed.broker.sending
    assert not sending.fixed("x", 1)
    number(feed, 1, {"": 3})
    assert sending.fixed("x", 1)
    assert not sending.fixed("x", 2)
    # What is sent again says nothing of the live delivery.
    number(feed, 2, {"": 3}, stream=7)
    assert not sending.fixed("x", 2)


@pytest.mark.proves("O5", "O6")
@pytest.mark.parametrize(("m", "seal"), [(1, 1), (2, 9)])
def test_a_number_that_might_be_taken_begins_a_new_epoch(feed: Feed, m: int, seal: int) -> None:
    number(feed, 1, {"a": 3})
    fixed = number(feed, 2, {"a": 2})
    again = number(feed, m, {"a": 4}, seal=seal)
    assert again.epoch > fixed.epoch
    assert again.before == {"a": 0}


@pytest.mark.proves("O5", "O6", "X7")
def test_a_server_that_was_started_since_may_have_forgotten_and_begins_a_new_epoch(feed: Feed) -> None:
    fixed = number(feed, 1, {"a": 3})
    key = feed.broker.keys.numbers("x")
    feed.broker.access.read(("HSET", key, "server", "anotherrun"))
    assert number(feed, 1, {"a": 3}) == fixed
    again = number(feed, 2, {"a": 1})
    assert again.epoch > fixed.epoch
    assert again.before == {"a": 0}


def test_a_redelivery_has_an_epoch_and_numbers_of_its_own(feed: Feed) -> None:
    live = number(feed, 1, {"a": 3})
    again = number(feed, 1, {"a": 3}, stream=1)
    assert again.epoch > live.epoch
    assert number(feed, 1, {"a": 3}, stream=2).epoch > again.epoch
    assert number(feed, 2, {"a": 1}) == Numbered(live.epoch, {"a": 3})


@pytest.mark.proves("O5", "O6", "I5")
@pytest.mark.usefixtures("twice")
def test_any_number_of_lanes_is_numbered_and_keeps_its_numbers(feed: Feed) -> None:
    """Given far more lanes than one call takes, then each has its numbers, at every attempt the same ones."""
    lanes = {f"in/data/{n}.jsonl": n % 7 + 1 for n in range(3 * PORTION + 5)}
    first = number(feed, 1, lanes)
    assert first.before == dict.fromkeys(lanes, 0)
    second = number(feed, 2, lanes)
    assert second == Numbered(first.epoch, lanes)
    assert number(feed, 2, {}) == second, "fixed: nothing is counted again"


@pytest.mark.proves("O5", "O6", "I5")
@pytest.mark.parametrize("portions", [1, 2, 3])
def test_a_numbering_that_was_cut_off_between_its_portions_gives_the_same_numbers(feed: Feed, portions: int) -> None:
    """Given a process that died when some lanes had their numbers and some not, then the next one ends it, and the
    lanes go on as if it had been one step; nothing was told of it before."""
    lanes = {f"lane-{n}": 2 for n in range(3 * PORTION + 5)}
    epoch = number(feed, 1, lanes).epoch
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, portions)
        with pytest.raises(ConnectionResetError):
            number(feed, 2, lanes)
    assert number(feed, 2, lanes) == Numbered(epoch, lanes)
    assert number(feed, 3, {"lane-0": 1, "lane-3004": 1}) == Numbered(epoch, {"lane-0": 4, "lane-3004": 4})


@pytest.mark.proves("O5", "O6")
def test_lanes_that_no_source_knows_any_more_are_forgotten_in_a_new_epoch(feed: Feed) -> None:
    """Given a folder whose files come and go, each a partition, and a source that forgets them, then what is known of
    lanes has one size; and a file that comes back gets no number that it had."""
    broker, sizes, given = feed.broker, list[int](), dict[int, set[str]]()
    for m in range(1, 40):
        files = [f"f{n}" for n in range(10 * m, 10 * m + 10)] + ["back"] * (m % 9 == 0)
        broker.redis.delete(broker.keys.index("a"))
        broker.redis.hset(broker.keys.index("a"), mapping=dict.fromkeys(files, "1"))
        found = number(feed, m, {f"a/{name}": 1 for name in files}, known=broker.positions.partitions())
        for name in files:
            mine = given.setdefault(found.epoch, set())
            taken = f"{name} {found.before[f'a/{name}'] + 1}"
            assert taken not in mine
            mine.add(taken)
        sizes.append(broker.redis.hlen(broker.keys.numbers("x")))
    assert max(sizes) < 40
    assert sorted(given) == list(given), "epochs only grow"


def test_lanes_that_a_source_knows_stay_in_their_epoch(feed: Feed) -> None:
    broker = feed.broker
    broker.redis.hset(broker.keys.index("a"), mapping={f"f{n}": "1" for n in range(10)})
    epochs = {number(feed, m, {f"a/f{m % 10}": 1}, known=broker.positions.partitions()).epoch for m in range(1, 40)}
    assert len(epochs) == 1


@pytest.mark.proves("O5", "O6")
def test_numbers_that_an_earlier_version_fixed_stay_and_the_next_are_of_a_new_epoch(feed: Feed) -> None:
    """Given numbers as they were stored until now, all lanes in one text, then the micro-batch that may be sent in part
    keeps them, and the next one has no number that was given."""
    key = feed.broker.keys.numbers("x")
    of_before = {
        "stream": "0",
        "epoch": "7",
        "m": "2",
        "seal": "3",
        "server": "s",
        "before": '{"a":3}',
        "after": '{"a":5}',
    }
    feed.broker.redis.hset(key, mapping=of_before)
    assert number(feed, 2, {"a": 2}) == Numbered(7, {"a": 3})
    feed.broker.redis.hset(key, "server", feed.broker.redis.info("server")["run_id"])
    following = number(feed, 3, {"a": 1})
    assert following.epoch > 7
    assert following.before == {"a": 0}


@pytest.mark.proves("B8", "I4")
def test_only_the_lease_holder_numbers_or_begins_to_send(broker: Broker, feed: Feed) -> None:
    token = feed.lease("x").token
    with pytest.raises(Fenced):
        broker.sending.number("x", 1, token - 1, seal=1, counts=dict, known=1)
    with pytest.raises(Fenced):
        broker.sending.begin("x", 1, token - 1, 10)
    assert broker.sending.begun("x", 1) == -1


@pytest.mark.proves("B8")
def test_the_mark_belongs_to_one_micro_batch_and_epoch_and_may_be_taken_back(broker: Broker, feed: Feed) -> None:
    token = feed.lease("x").token
    broker.sending.begin("x", 1, token, 500)
    assert (broker.sending.begun("x", 1), broker.sending.begun("x", 2), broker.sending.begun("x", 1, epoch=1)) == (
        500,
        -1,
        -1,
    )
    broker.sending.begin("x", 1, token, 41)
    assert broker.sending.begun("x", 1) == 41
