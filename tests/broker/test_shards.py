"""Divided micro-batches: the state of several tasks that deliver to one destination (ADR 27)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.state import Division
from conduit_tasks.errors import Fenced, InvariantBroken, PipelineStopped
from conduit_tasks.record.counts import Counts
from tests.broker.conftest import Feed, letter

NODE = "destinations.x"


def divide(feed: Feed, m: int, count: int = 2, matched: int = 10, by: str = "key") -> None:
    assert feed.broker.shards.divide("x", m, feed.lease("x").token, by=by, count=count, matched=matched)


def tell(feed: Feed, m: int, shard: int, numbers: str, *, token: int | None = None, **more: object) -> str:
    ranges = RangeSet.parse(numbers)
    counts = Counts(matched=ranges.count, delivered=ranges.count)
    own = feed.lease("x").token if token is None else token
    return feed.broker.shards.confirm("x", m, own, shard, ranges, counts, total=10, **more)  # type: ignore[arg-type]


def end(feed: Feed, m: int, shard: int, records: int) -> None:
    feed.broker.shards.whole("x", m, feed.lease("x").token, shard, records)


def test_the_cursor_moves_once_every_shard_is_whole_and_nothing_is_left_of_them(feed: Feed) -> None:
    """Given a micro-batch of ten records in two shards, then the cursor moves with the second one's end, and the
    destination's state is as it would be after one task."""
    m = feed.sealed()
    divide(feed, m)
    tell(feed, m, 0, "0-3")
    tell(feed, m, 1, "0-1")
    end(feed, m, 0, 4)
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, state.confirmed_records) == (m - 1, 6)
    assert state.division is not None
    assert state.division.open == [1]
    tell(feed, m, 1, "2-5")
    end(feed, m, 1, 6)
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, state.division, state.counters["delivered"]) == (m, None, 10)
    stored = feed.broker.access.hash(feed.broker.keys.destination("x"))
    assert not [name for name in stored if name in {"ranges", "divided"} or name.startswith("shard:")]


def test_a_repeated_word_changes_nothing_and_one_that_is_half_told_is_refused(feed: Feed) -> None:
    m = feed.sealed()
    divide(feed, m)
    for _ in range(2):
        tell(feed, m, 0, "0-3", dead=[letter(m, 5)])
    assert feed.broker.deliveries.get("x").counters["delivered"] == 4
    assert feed.broker.dead_letters.count("x") == 1
    with pytest.raises(InvariantBroken, match="confirmed in part"):
        tell(feed, m, 0, "2-5")
    for _ in range(2):
        end(feed, m, 0, 4)
    # A word on a shard that is whole, or on a micro-batch that is complete, is a late repeat.
    tell(feed, m, 0, "0-3")
    tell(feed, m, 1, "0-5")
    end(feed, m, 1, 6)
    end(feed, m, 1, 6)
    tell(feed, m, 1, "0-5")
    assert feed.broker.deliveries.get("x").counters["delivered"] == 10


def test_what_a_run_has_counted_in_shards_is_known_as_what_it_has_counted_in_one_task(feed: Feed, twice: None) -> None:
    """Given a run that confirms records of two shards, then `delivered_by` has their counters, by which an asset event
    and a lineage event say how many were delivered, and without which there is none."""
    m = feed.sealed()
    divide(feed, m)
    for shard, numbers, nacked in ((0, "0-2", 0), (1, "0-5", 1)):
        ranges = RangeSet.parse(numbers)
        counts = Counts(matched=ranges.count, delivered=ranges.count - nacked, nacked=nacked)
        feed.broker.shards.confirm(
            "x", m, feed.lease("x").token, shard, ranges, counts, total=10, run="one", retention=60.0
        )
    counted, numbers_of = feed.broker.redeliveries.delivered_by("x", "one")
    assert (counted, numbers_of) == ({"matched": 9, "delivered": 8, "nacked": 1}, [m])


def test_a_shard_is_whole_only_if_all_its_records_are_confirmed_and_all_shards_are_what_was_sealed(feed: Feed) -> None:
    m = feed.sealed()
    divide(feed, m)
    tell(feed, m, 0, "0-2,4-4")
    with pytest.raises(InvariantBroken, match="shard 0 of micro-batch 1 has 5 records"):
        end(feed, m, 0, 5)
    tell(feed, m, 0, "3-3")
    end(feed, m, 0, 5)
    tell(feed, m, 1, "0-3")
    with pytest.raises(InvariantBroken, match="have 9 records, but 10 were sealed"):
        end(feed, m, 1, 4)
    with pytest.raises(InvariantBroken, match="not divided into more than 2 shards"):
        tell(feed, m, 2, "0-0")
    assert feed.broker.deliveries.get("x").cursor == m - 1


def test_a_shard_without_records_is_whole_at_once(feed: Feed) -> None:
    m = feed.sealed()
    divide(feed, m)
    end(feed, m, 1, 0)
    tell(feed, m, 0, "0-9")
    end(feed, m, 0, 10)
    assert feed.broker.deliveries.get("x").cursor == m


def test_a_micro_batch_is_finished_by_the_number_of_tasks_that_it_was_begun_with(feed: Feed) -> None:
    m = feed.sealed()
    divide(feed, m, 4, by="none")
    tell(feed, m, 3, "0-1")
    again = feed.broker.shards.divide("x", m, feed.lease("x").token, by="key", count=2, matched=10)
    assert again is not None
    assert (again.by, again.count) == ("none", 4)
    division = feed.broker.deliveries.get("x").division
    assert division is not None
    assert (division.by, division.count, division.confirmed) == ("none", 4, 2)


def test_a_micro_batch_that_one_task_has_begun_is_not_divided(feed: Feed) -> None:
    m = feed.sealed()
    feed.confirm("x", m, [(0, 2)])
    assert feed.broker.shards.divide("x", m, feed.lease("x").token, by="key", count=2, matched=10) is None
    assert feed.broker.deliveries.get("x").division is None


@pytest.mark.parametrize("most", [4_000, 1])
def test_one_task_finishes_what_several_have_begun_from_what_they_have_confirmed(
    feed: Feed, twice: None, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Given two shards in the middle, then the ranges that they are told to be are those of an undivided micro-batch,
    whose votes begin again; told in several calls of which the last is missing, it stays divided."""
    monkeypatch.setattr("conduit_tasks.broker.shards.MOST", most)
    m = feed.sealed()
    divide(feed, m)
    tell(feed, m, 0, "0-3")
    tell(feed, m, 1, "0-1")
    shards, token = feed.broker.shards, feed.lease("x").token
    feed.broker.deliveries.vote("x", m, token, 0, [("a", 4)], size=10, threshold=1)
    own = feed.broker.keys
    keys = {
        **shards._of("x"),
        "window": own.window("x"),
        "micro_batch": own.micro_batch(m),
        "series": own.series("x"),
    }
    feed.broker.access.run(scripts.MERGE, keys, m=m, token=token, ranges="7-7", voted="", first=True, last=False)
    assert feed.broker.deliveries.get("x").division is not None
    shards.merge("x", m, token, RangeSet.parse("0-1,4-5,8-9"), RangeSet())
    state = feed.broker.deliveries.get("x")
    assert (state.division, str(state.confirmed), state.counters["delivered"]) == (None, "0-1,4-5,8-9", 6)
    stored = feed.broker.access.hash(feed.broker.keys.destination("x"))
    assert not [name for name in stored if name == "divided" or name.startswith("shard:")]
    # The votes of a shard were of other records: a nack among the first is not passed over.
    assert feed.broker.deliveries.vote("x", m, token, 0, [("a", 2), ("n", 1)], size=10, threshold=0) == 2
    feed.broker.lifecycle.start()
    feed.confirm("x", m, [(2, 3), (6, 7)])
    assert feed.broker.deliveries.get("x").cursor == m


@pytest.mark.proves("I10")
@pytest.mark.parametrize("most", [4_000, 1])
def test_one_task_that_finds_nothing_left_of_what_several_have_begun_has_the_cursor_moved(
    feed: Feed, twice: None, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Given a micro-batch all of whose records are confirmed, of which a task died before it said that its shard is
    whole, then one task that takes it over has nothing to confirm, so the cursor moves at once."""
    monkeypatch.setattr("conduit_tasks.broker.shards.MOST", most)
    m = feed.sealed()
    divide(feed, m)
    tell(feed, m, 0, "0-4")
    tell(feed, m, 1, "0-4")
    feed.broker.shards.whole("x", m, feed.lease("x").token, 0, 5)
    before = feed.broker.deliveries.get("x")
    assert (before.cursor, before.confirmed_records) == (m - 1, 10)
    feed.broker.shards.merge("x", m, feed.lease("x").token, RangeSet.parse("0-9"), RangeSet.parse("0-9"))
    state = feed.broker.deliveries.get("x")
    assert (state.cursor, state.division, state.confirmed_records, state.counters["delivered"]) == (m, None, 0, 10)
    following = feed.sealed()
    assert voting(feed, following, 0)(0, "n1") is None


@pytest.mark.proves("C6")
@pytest.mark.parametrize("most", [4_000, 1])
def test_records_that_have_voted_in_a_shard_do_not_vote_again_in_the_whole(
    feed: Feed, twice: None, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Given shards of even and odd records, of which the even ones 0 to 4 have voted and of the odd ones 1 and 3 have
    not, then one task's window holds each of them once: so a second nack among the last six trips it, and the votes
    after that are of their own records."""
    monkeypatch.setattr("conduit_tasks.broker.shards.MOST", most)
    m = feed.sealed()
    divide(feed, m)
    shards, token = feed.broker.shards, feed.lease("x").token
    window = {"size": 6, "threshold": 1, "error": "refused"}
    vote = feed.broker.deliveries.vote
    assert vote("x", m, token, 0, [("a", 2), ("n", 1)], **window) is None  # type: ignore[arg-type]
    tell(feed, m, 0, "0-2", dead=[letter(m, 4)])
    tell(feed, m, 1, "0-1")
    assert shards.voted("x", m, 2) == [3, 0]
    shards.merge("x", m, token, RangeSet.parse("0-4"), RangeSet.parse("0-0,2-2,4-4"))
    assert vote("x", m, token, 0, [("a", 5), ("n", 1)], **window) == 5  # type: ignore[arg-type]
    feed.broker.lifecycle.start()
    # A window that has tripped begins again, and its watermark stays.
    assert vote("x", m, token, 0, [("a", 5), ("n", 1)], **window) is None  # type: ignore[arg-type]
    assert vote("x", m, token, 6, [("n", 1)], **window) == 0  # type: ignore[arg-type]
    feed.broker.lifecycle.start()
    feed.confirm("x", m, [(5, 9)])
    # Of the next micro-batch every record votes.
    following = feed.sealed()
    assert vote("x", following, token, 0, [("n", 1)], **window) is None  # type: ignore[arg-type]
    assert vote("x", following, token, 1, [("a", 3), ("n", 1)], **window) == 3  # type: ignore[arg-type]
    assert "voted" not in feed.broker.access.hash(feed.broker.keys.window("x"))


@pytest.mark.proves("C6")
def test_a_nack_that_a_shard_has_accepted_is_not_voted_on_again_by_the_whole(feed: Feed) -> None:
    """Given a nack that was accepted in a shard and not confirmed, then one task may nack that record again."""
    m = feed.sealed()
    divide(feed, m)
    token = feed.lease("x").token
    assert voting(feed, m, 1)(0, "n1") is None
    assert voting(feed, m, 0)(0, "a4") is None
    assert feed.broker.shards.voted("x", m, 2) == [4, 1]
    feed.broker.shards.merge("x", m, token, RangeSet(), RangeSet.parse("0-2,4-4,6-6"))
    assert voting(feed, m, 0)(0, "a1,n1") is None
    # The others do vote: the first of them is tolerated, the second one is not.
    assert voting(feed, m, 0)(2, "a1,n1") is None
    assert voting(feed, m, 0)(4, "n1") is None
    assert voting(feed, m, 0)(5, "n1") == 0


@pytest.mark.proves("C6")
def test_a_micro_batch_in_which_one_task_has_voted_is_not_divided(feed: Feed) -> None:
    """Given a vote of one task, of which nothing is confirmed yet, or a micro-batch that one task is to finish, of
    which records voted in shards, then shards would take their votes for others'."""
    m = feed.sealed()
    token = feed.lease("x").token
    assert voting(feed, m, 0)(0, "a1,n1") is None
    assert feed.broker.shards.divide("x", m, token, by="none", count=2, matched=10) is None
    feed.confirm("x", m, [(0, 9)])
    following = feed.sealed()
    divide(feed, following)
    assert feed.broker.shards.voted("x", following, 2) == [0, 0]
    assert voting(feed, following, 1)(0, "n1") is None
    feed.broker.shards.merge("x", following, token, RangeSet(), RangeSet.parse("5-5"))
    assert feed.broker.shards.divide("x", following, token, by="none", count=2, matched=10) is None


def test_nothing_but_a_divided_micro_batch_behind_the_cursor_is_given_to_one_task(feed: Feed) -> None:
    m = feed.sealed()
    divide(feed, m)
    token = feed.lease("x").token
    with pytest.raises(InvariantBroken, match="micro-batch 2 is not the divided one behind cursor 0"):
        feed.broker.shards.merge("x", m + 1, token, RangeSet(), RangeSet())
    with pytest.raises(Fenced):
        feed.broker.shards.merge("x", m, token - 1, RangeSet(), RangeSet())
    feed.broker.shards.merge("x", m, token, RangeSet(), RangeSet())
    state = feed.broker.deliveries.get("x")
    assert (state.division, state.confirmed_records) == (None, 0)


@pytest.mark.proves("B8")
def test_what_one_task_takes_over_is_not_divided_again_and_how_it_was_is_known_until_the_cursor_has_passed_it(
    feed: Feed, twice: None
) -> None:
    """Given three shards that were merged before anything of them was confirmed."""
    m = feed.sealed()
    feed.sealed()
    divide(feed, m, 3, by="none")
    assert feed.broker.deliveries.get("x").merged is None
    shards, token = feed.broker.shards, feed.lease("x").token
    shards.merge("x", m, token, RangeSet(), RangeSet())
    assert shards.divide("x", m, token, by="key", count=2, matched=10) is None
    group = [Division.begun(number, "none", 2, 10) for number in (m, m + 1)]
    assert not shards.together("x", token, group)
    merged = feed.broker.deliveries.get("x").merged
    assert merged is not None
    assert (merged.micro_batch, merged.by, merged.count, merged.shards) == (m, "none", 3, [0, 1, 2])
    feed.confirm("x", m, [(0, 9)])
    assert feed.broker.deliveries.get("x").merged is None
    assert shards.divide("x", m + 1, token, by="key", count=2, matched=10) is not None


def test_only_the_micro_batch_behind_the_cursor_is_divided(feed: Feed) -> None:
    m = feed.sealed()
    feed.sealed()
    with pytest.raises(InvariantBroken, match="is not the sealed one behind cursor 0"):
        divide(feed, m + 1)


def test_the_run_that_delivered_a_shard_is_remembered_for_the_whole_micro_batch(feed: Feed) -> None:
    m = feed.sealed()
    divide(feed, m)
    tell(feed, m, 1, "2-3", run="r", retention=60.0)
    assert feed.broker.redeliveries.confirmed_by("x", ["r"]) == {"r": {str(m): "0-9"}}


# -- attempts -----------------------------------------------------------------------------------------------------


def voting(feed: Feed, m: int, shard: int) -> Callable[[int, str], int | None]:
    def vote(first: int, votes: str) -> int | None:
        given = [(v[0], int(v[1:])) for v in votes.split(",")]
        return feed.broker.deliveries.vote(
            "x", m, feed.lease("x").token, first, given, size=10, threshold=1, error="refused", shard=shard
        )

    return vote


def test_each_shard_has_a_window_of_its_own_and_the_first_that_trips_stops_all(feed: Feed) -> None:
    """Given windows of ten outcomes that tolerate one nack, then two shards may have one each, a second one in either
    of them stops the pipeline, and no further votes are taken at any shard until it is started."""
    m = feed.sealed()
    one, two = voting(feed, m, 0), voting(feed, m, 1)
    assert one(0, "a2,n1") is None
    assert two(0, "a1,n1") is None
    # Told again, they are not counted again.
    assert two(0, "a1,n1") is None
    assert two(2, "a1,n1") == 1
    # The answer of the call that tripped comes again if the call does.
    assert two(2, "a1,n1") == 1
    assert feed.broker.lifecycle.status().status == "degraded"
    with pytest.raises(PipelineStopped):
        one(3, "n1")
    feed.broker.lifecycle.start()
    assert two(3, "n1") is None
    assert one(3, "a3,n1") is None


def test_the_first_shards_window_is_that_of_a_micro_batch_that_is_not_divided(feed: Feed) -> None:
    m = feed.sealed()
    assert voting(feed, m, 0)(0, "a1,n1") is None
    feed.confirm("x", m, [(0, 9)])
    following = feed.sealed()
    assert (
        feed.broker.deliveries.vote(
            "x", following, feed.lease("x").token, 0, [("n", 1)], size=10, threshold=1, error="refused"
        )
        == 0
    )
