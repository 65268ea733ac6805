"""Several micro-batches of one destination under way at once: the state of a group (ADR 41)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.state import Division
from conduit_tasks.errors import Fenced, InvariantBroken, PipelineStopped
from conduit_tasks.record.counts import Counts
from tests.broker.conftest import Feed
from tests.broker.test_shards import voting

TOTAL = 10


def sealed(feed: Feed, *matched: int) -> list[int]:
    """Micro-batches of ten records, of which `x` wants so many."""
    return [feed.sealed(TOTAL, {"x": each, "y": TOTAL}) for each in matched]


def together(feed: Feed, first: int, shares: Sequence[tuple[int, int, int]], lanes: int = 2) -> bool:
    """Divides micro-batches from `first` on; `shares`: matched, first lane, lanes that have records, of each."""
    group = [Division.begun(m, "none", lanes, *share) for m, share in enumerate(shares, first)]
    return feed.broker.shards.together("x", feed.lease("x").token, group)


def tell(feed: Feed, m: int, shard: int, numbers: str, token: int | None = None) -> None:
    ranges = RangeSet.parse(numbers)
    own = feed.lease("x").token if token is None else token
    counts = Counts(matched=ranges.count, delivered=ranges.count)
    feed.broker.shards.confirm("x", m, own, shard, ranges, counts, total=TOTAL)


def end(feed: Feed, m: int, shard: int, records: int) -> bool:
    return feed.broker.shards.whole("x", m, feed.lease("x").token, shard, records)


def deliver(feed: Feed, m: int, shard: int, records: int) -> bool:
    if records:
        tell(feed, m, shard, f"0-{records - 1}")
    return end(feed, m, shard, records)


def fields(feed: Feed) -> dict[str, str]:
    """What is stored about micro-batches that are under way."""
    stored = feed.broker.access.hash(feed.broker.keys.destination("x"))
    return {name: text for name, text in stored.items() if name.startswith(("ranges", "divided", "shard:", "group"))}


HALVES = (10, 0, 2)


@pytest.mark.proves("I10")
def test_the_cursor_waits_for_the_older_micro_batch_and_then_passes_all_that_are_whole(feed: Feed, twice: None) -> None:
    """Given three micro-batches under way, of which the second and the third are whole first, then the cursor stays
    until the first one is, and passes all of them in that step; nothing is left of them."""
    first, second, third = sealed(feed, 10, 10, 10)
    assert together(feed, first, [HALVES] * 3)
    for m in (third, second):
        assert not deliver(feed, m, 0, 5)
        assert not deliver(feed, m, 1, 5)
    assert not deliver(feed, first, 1, 5)
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, state.confirmed_records, state.confirmed_beyond) == (first - 1, 5, 25)
    assert [division.open for division in state.divisions] == [[0], [], []]
    assert [state.confirmed_of(m) for m in (first, second, third)] == [5, 10, 10]
    deliver(feed, first, 0, 5)
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, state.divisions, state.counters["delivered"]) == (third, (), 30)
    assert fields(feed) == {}


def test_the_next_one_that_is_not_whole_has_the_fields_of_a_divided_micro_batch(feed: Feed, twice: None) -> None:
    """Given a group of four whose second is whole and whose third is delivered in part, then what the cursor comes to
    with the first is the third, as if it had been divided alone."""
    first, second, third, fourth = sealed(feed, 10, 10, 10, 10)
    together(feed, first, [HALVES] * 4)
    deliver(feed, second, 0, 5)
    deliver(feed, second, 1, 5)
    tell(feed, third, 0, "0-1")
    deliver(feed, third, 1, 5)
    tell(feed, fourth, 1, "2-3")
    for shard in (0, 1):
        deliver(feed, first, shard, 5)
    assert fields(feed) == {
        "group": f"{first}-{fourth}",
        "divided": f"{third}:none:2:10:0:2",
        "shard:0": "0-1",
        "shard:1": "=5",
        f"divided:{fourth}": f"{fourth}:none:2:10:0:2",
        f"shard:{fourth}:1": "2-3",
    }
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, state.confirmed_beyond) == (second, 9)
    # The words of their tasks go on to find their place.
    tell(feed, fourth, 1, "0-1,4-4")
    end(feed, fourth, 1, 5)
    tell(feed, third, 0, "2-4")
    end(feed, third, 0, 5)
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, [division.open for division in state.divisions]) == (third, [[0]])
    deliver(feed, fourth, 0, 5)
    assert (feed.broker.deliveries.get("x").cursor, fields(feed)) == (fourth, {})


def test_a_small_micro_batch_has_records_in_some_lanes_only(feed: Feed) -> None:
    """Given micro-batches in one lane each, round the lanes, then a word on a lane without records is refused, and
    each is whole with its own lane."""
    numbers = sealed(feed, 10, 10, 10)
    together(feed, numbers[0], [(10, 1, 1), (10, 2, 1), (10, 2, 2)], lanes=3)
    divisions = feed.broker.deliveries.get("x").divisions
    assert [division.shards for division in divisions] == [[1], [2], [2, 0]]
    assert [division.open for division in divisions] == [[1], [2], [0, 2]]
    for m, lane in ((numbers[0], 0), (numbers[0], 2), (numbers[1], 0), (numbers[1], 1), (numbers[2], 1)):
        with pytest.raises(InvariantBroken, match="is not divided into more than"):
            tell(feed, m, lane, "0-0")
        with pytest.raises(InvariantBroken, match="is not divided into more than"):
            end(feed, m, lane, 0)
    deliver(feed, numbers[0], 1, 10)
    deliver(feed, numbers[2], 2, 5)
    deliver(feed, numbers[1], 2, 10)
    assert feed.broker.deliveries.get("x").cursor == numbers[1]
    deliver(feed, numbers[2], 0, 5)
    assert feed.broker.deliveries.get("x").cursor == numbers[2]


def test_a_micro_batch_of_which_nothing_is_wanted_is_passed_with_the_one_before_it(feed: Feed) -> None:
    numbers = sealed(feed, 10, 0, 10, 0)
    together(feed, numbers[0], [HALVES, (0, 0, 0), HALVES, (0, 0, 0)])
    deliver(feed, numbers[2], 0, 5)
    for shard in (0, 1):
        deliver(feed, numbers[0], shard, 5)
    assert feed.broker.deliveries.get("x").cursor == numbers[1]
    deliver(feed, numbers[2], 1, 5)
    assert (feed.broker.deliveries.get("x").cursor, fields(feed)) == (numbers[3], {})


@pytest.mark.proves("I5")
def test_a_repeated_word_on_a_younger_micro_batch_changes_nothing(feed: Feed, twice: None) -> None:
    first, second = sealed(feed, 10, 10)
    together(feed, first, [HALVES] * 2)
    tell(feed, second, 0, "0-3")
    with pytest.raises(InvariantBroken, match="confirmed in part"):
        tell(feed, second, 0, "2-4")
    with pytest.raises(InvariantBroken, match="has 5 records, but confirmed are: 0-3"):
        end(feed, second, 0, 5)
    tell(feed, second, 0, "4-4")
    end(feed, second, 0, 5)
    tell(feed, second, 1, "0-3")
    with pytest.raises(InvariantBroken, match="have 9 records, but 10 were sealed"):
        end(feed, second, 1, 4)
    tell(feed, second, 1, "4-4")
    end(feed, second, 1, 5)
    # Late repeats, while the older one is open.
    tell(feed, second, 0, "0-3")
    end(feed, second, 0, 5)
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, state.counters["delivered"]) == (first - 1, 10)
    # And after the cursor has passed it.
    for shard in (0, 1):
        deliver(feed, first, shard, 5)
    tell(feed, second, 1, "0-3")
    end(feed, second, 1, 5)
    assert feed.broker.deliveries.get("x").counters["delivered"] == 20


def test_a_group_stands_once_it_is_begun(feed: Feed) -> None:
    """Given a group, then another division of its first micro-batch changes nothing, whatever the file says by now; and
    no second group is begun beyond it."""
    first, second, third = sealed(feed, 10, 10, 10)
    together(feed, first, [HALVES] * 2)
    tell(feed, second, 1, "0-1")
    before = fields(feed)
    assert together(feed, first, [(10, 0, 3)] * 3, lanes=3)
    same = feed.broker.shards.divide("x", first, feed.lease("x").token, by="key", count=4, matched=10)
    assert same is not None
    assert (same.by, same.count, same.open) == ("none", 2, [0, 1])
    assert fields(feed) == before
    with pytest.raises(InvariantBroken, match="is not the one behind cursor 0"):
        together(feed, second, [HALVES] * 2)
    assert third not in range(*feed.broker.deliveries.get("x").group)


def test_what_one_task_has_begun_is_in_no_group(feed: Feed) -> None:
    first, second, third = sealed(feed, 10, 10, 10)
    feed.confirm("x", first, [(0, 2)])
    assert not together(feed, first, [HALVES] * 2)
    feed.confirm("x", first, [(3, 9)])
    assert voting(feed, second, 0)(0, "a1") is None
    assert not together(feed, second, [HALVES] * 2)
    assert fields(feed) == {}
    assert third


def test_only_sealed_micro_batches_are_in_a_group_and_each_has_a_lane_for_its_records(feed: Feed) -> None:
    first, second = sealed(feed, 10, 10)
    for wrong in ([HALVES] * 3, [(0, 0, 0), HALVES], [HALVES, (10, 0, 0)], [HALVES, (0, 0, 1)], [HALVES, (10, 0, 3)]):
        with pytest.raises(InvariantBroken, match="is not sealed, or no shard has its records"):
            together(feed, first, wrong)
    assert fields(feed) == {}
    assert second


@pytest.mark.proves("I4")
def test_a_group_is_begun_by_the_newest_holder_only_and_by_none_while_the_pipeline_is_stopped(feed: Feed) -> None:
    first, _ = sealed(feed, 10, 10)
    group = [Division.begun(m, "none", 2, 10, 0, 2) for m in (first, first + 1)]
    token = feed.lease("x").token
    with pytest.raises(Fenced):
        feed.broker.shards.together("x", token - 1, group)
    feed.broker.lifecycle.fail("sources.a", "broken", "E", None)
    with pytest.raises(PipelineStopped):
        feed.broker.shards.together("x", token, group)
    assert fields(feed) == {}


def test_nothing_that_an_earlier_group_has_left_is_taken_for_confirmed(feed: Feed) -> None:
    """Given fields of a micro-batch of the same number, as they stay if the destination was out of the file meanwhile,
    then a new group begins with nothing."""
    first, second = sealed(feed, 10, 10)
    key = feed.broker.keys.destination("x")
    left = {f"shard:{second}:{lane}": "=5" for lane in (0, 1)} | {"shard:0": "0-3", "divided": f"{first + 7}:none:2:10"}
    feed.broker.redis.hset(key, mapping={**left, f"divided:{second}": f"{second}:none:2:10:0:2"})
    together(feed, first, [HALVES] * 2)
    assert [division.confirmed for division in feed.broker.deliveries.get("x").divisions] == [0, 0]
    assert set(fields(feed)) == {"group", "divided", f"divided:{second}"}


@pytest.mark.proves("I10")
@pytest.mark.parametrize("collected", [1, 2, 3, 4])
def test_a_destination_that_comes_back_goes_on_with_what_is_left_of_its_group(feed: Feed, collected: int) -> None:
    """Given a group of four under way when its destination leaves the file, and micro-batches of it that were collected
    before that comes back, then what had been confirmed of the others is known, and of none of them anything else."""
    numbers = sealed(feed, 10, 10, 10, 10)
    together(feed, numbers[0], [HALVES] * 4)
    deliver(feed, numbers[0], 0, 5)
    tell(feed, numbers[2], 0, "0-2")
    tell(feed, numbers[3], 1, "0-1")
    lifecycle = feed.broker.lifecycle
    lifecycle.register(["a"], ["y"])
    feed.broker.redis.hset(feed.broker.keys.pipeline, "collected", collected)
    lifecycle.register(["a"], ["x", "y"])
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, [division.micro_batch for division in state.divisions]) == (collected, numbers[collected:])
    done = [[str(each) for each in division.done] for division in state.divisions]
    assert done == [["", ""], ["0-2", ""], ["", "0-1"]][collected - 1 :]
    assert [division.open for division in state.divisions] == [[0, 1]] * (4 - collected)
    tell(feed, numbers[3], 0, "0-4")
    for m, lane, left in ((2, 0, "0-4"), (2, 1, "0-4"), (3, 0, "3-4"), (3, 1, "0-4"), (4, 1, "2-4")):
        if m > collected:
            tell(feed, m, lane, left)
    for m in numbers[1:]:
        for lane in (0, 1):
            end(feed, m, lane, 5)
    assert (feed.broker.deliveries.get("x").cursor, fields(feed)) == (numbers[3], {})


@pytest.mark.proves("I10")
def test_one_that_is_finished_by_one_task_leaves_nothing_to_the_next_one_of_its_group(feed: Feed) -> None:
    """Given shards of a micro-batch that the cursor never passed in a delivery, then they are not taken for those of
    the next one of the group."""
    first, second = sealed(feed, 10, 10)
    together(feed, first, [HALVES] * 2)
    key = feed.broker.keys.destination("x")
    feed.broker.redis.hset(key, mapping={"divided": "7:none:2:10:0:2", "shard:0": "=5", "shard:1": "0-1"})
    feed.confirm("x", first, [(0, 9)])
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, [division.open for division in state.divisions]) == (first, [[0, 1]])
    assert state.confirmed_beyond == 0
    assert second


def test_one_task_finishes_a_group_that_several_have_begun_micro_batch_by_micro_batch(feed: Feed) -> None:
    """Given a group of which a plugin that has one task takes the rest, then each micro-batch becomes an undivided one
    when the cursor comes to it, with what was confirmed of it."""
    first, second, third = sealed(feed, 10, 10, 10)
    together(feed, first, [HALVES] * 3)
    deliver(feed, first, 0, 5)
    deliver(feed, second, 0, 5)
    deliver(feed, second, 1, 5)
    tell(feed, third, 1, "0-1")
    shards, token = feed.broker.shards, feed.lease("x").token
    shards.merge("x", first, token, RangeSet.parse("0-4"), RangeSet())
    state = feed.broker.deliveries.get("x")
    assert (state.division, str(state.confirmed)) == (None, "0-4")
    assert not together(feed, first, [HALVES] * 2), "the rest of the group is still there"
    feed.confirm("x", first, [(5, 9)])
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, [division.confirmed for division in state.divisions]) == (second, [2])
    shards.merge("x", third, token, RangeSet.parse("5-6"), RangeSet())
    feed.confirm("x", third, [(0, 4), (7, 9)])
    assert (feed.broker.deliveries.get("x").cursor, fields(feed)) == (third, {})


@pytest.mark.proves("I10")
def test_one_task_passes_those_of_a_group_of_which_everything_is_confirmed(feed: Feed, twice: None) -> None:
    """Given a group of which all records of the first are confirmed, the second is whole, and the third is not begun,
    then one task that takes it over comes to the third at once."""
    first, second, third = sealed(feed, 10, 10, 10)
    together(feed, first, [HALVES] * 3)
    for shard in (0, 1):
        tell(feed, first, shard, "0-4")
        deliver(feed, second, shard, 5)
    end(feed, first, 0, 5)
    shards, token = feed.broker.shards, feed.lease("x").token
    shards.merge("x", first, token, RangeSet.parse("0-9"), RangeSet())
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, state.confirmed_records) == (second, 0)
    assert [division.micro_batch for division in state.divisions] == [third]


@pytest.mark.proves("C6")
def test_what_has_voted_in_a_later_micro_batch_of_a_group_does_not_vote_again_in_one_task(feed: Feed) -> None:
    """Given lane 0, whose shard of the first micro-batch is whole and that has voted for three records of the second,
    then one task that takes over finds these votes when it comes to the second."""
    first, second = sealed(feed, 10, 10)
    together(feed, first, [HALVES] * 2)
    shards, token = feed.broker.shards, feed.lease("x").token
    assert voting(feed, first, 0)(0, "a5") is None
    deliver(feed, first, 0, 5)
    assert voting(feed, first, 1)(0, "a1") is None
    assert voting(feed, second, 0)(0, "a2,n1") is None
    assert shards.voted("x", first, 2) == [0, 1]
    shards.merge("x", first, token, RangeSet.parse("0-4"), RangeSet.parse("0-5"))
    assert voting(feed, first, 0)(0, "a10") is None
    feed.confirm("x", first, [(5, 9)])
    assert shards.voted("x", second, 2) == [3, 0]
    shards.merge("x", second, token, RangeSet(), RangeSet.parse("0-2"))
    # The nack of the third record was tolerated; one more is not.
    assert voting(feed, second, 0)(0, "a2,n1") is None
    assert voting(feed, second, 0)(3, "n1") == 0
    assert "kept" not in feed.broker.access.hash(feed.broker.keys.window("x"))


@pytest.mark.proves("C6")
def test_a_lane_votes_for_one_micro_batch_after_the_other(feed: Feed) -> None:
    """Given a window that tolerates one nack, then a nack in the lane's second micro-batch is one too many after one
    in the first; a repeat of the first one's votes by then changes nothing."""
    first, second = sealed(feed, 10, 10)
    together(feed, first, [HALVES] * 2)
    lane = [voting(feed, m, 1) for m in (first, second)]
    assert lane[0](0, "a2,n1,a2") is None
    assert lane[1](0, "a1") is None
    assert lane[0](0, "a2,n1,a2") is None
    assert lane[1](1, "n1") == 0
    assert feed.broker.lifecycle.status().status == "degraded"
    feed.broker.lifecycle.start()
    assert lane[1](1, "n1") is None


@pytest.mark.proves("I10")
@pytest.mark.parametrize("seed", range(20))
def test_in_any_order_of_words_the_cursor_is_where_everything_before_it_is_whole(feed: Feed, seed: int) -> None:
    """Given a drawn group and its words in a drawn order, then after each one the cursor is at the last micro-batch up
    to which all shards are whole, and at the end nothing but the cursor is left."""
    draw = random.Random(seed)
    lanes = draw.randint(2, 4)
    wanted = [draw.choice([0, 10, 10, 10]) if n else 10 for n in range(draw.randint(2, 5))]
    numbers, shares, at = sealed(feed, *wanted), list[tuple[int, int, int]](), 0
    for matched in wanted:
        used = draw.randint(1, lanes) if matched else 0
        shares.append((matched, at, used))
        at = (at + used) % lanes
    together(feed, numbers[0], shares, lanes)
    left = {
        (m, (first + n) % lanes): matched * (n + 1) // used - matched * n // used
        for m, (matched, first, used) in zip(numbers, shares)
        for n in range(used)
    }
    while left:
        (m, lane), records = draw.choice(sorted(left.items()))
        deliver(feed, m, lane, records)
        del left[m, lane]
        passed = min((m for m, _ in left), default=numbers[-1] + 1)
        assert feed.broker.deliveries.get("x").cursor == passed - 1
    assert fields(feed) == {}
    assert feed.broker.deliveries.get("x").counters["delivered"] == sum(wanted)


@pytest.mark.proves("C6")
def test_a_lane_does_not_vote_again_where_it_was_before_one_task_finished_an_older_micro_batch(feed: Feed) -> None:
    """Given a lane that voted for one nack in the second micro-batch, when one task finishes the first, then the same
    votes told again by the lane are not counted again: a second nack would trip the window."""
    first, second = sealed(feed, 10, 10)
    together(feed, first, [HALVES] * 2)
    assert voting(feed, first, 0)(0, "a5") is None
    deliver(feed, first, 0, 5)
    assert voting(feed, second, 0)(0, "a2,n1") is None
    token = feed.lease("x").token
    feed.broker.shards.merge("x", first, token, RangeSet.parse("0-4"), RangeSet.parse("0-4"))
    assert voting(feed, first, 0)(0, "a10") is None
    feed.confirm("x", first, [(5, 9)])
    assert [division.micro_batch for division in feed.broker.deliveries.get("x").divisions] == [second]
    assert voting(feed, second, 0)(0, "a2,n1") is None
    # And goes on behind them.
    assert voting(feed, second, 0)(3, "a2") is None
    assert feed.broker.lifecycle.status().status == "running"


def test_what_younger_micro_batches_have_confirmed_is_told_while_one_task_finishes_the_oldest(feed: Feed) -> None:
    first, second = sealed(feed, 10, 10)
    together(feed, first, [HALVES] * 2)
    deliver(feed, second, 0, 5)
    feed.broker.shards.merge("x", first, feed.lease("x").token, RangeSet.parse("0-1"), RangeSet())
    state = feed.broker.deliveries.get("x")
    assert state.division is None, "one task delivers the one behind the cursor"
    assert (state.confirmed_beyond, state.confirmed_of(first), state.confirmed_of(second)) == (7, 2, 5)
