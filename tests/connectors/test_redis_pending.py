"""Entries that were handed out and not acked: of attempts that ended, of other consumers, trimmed ones."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.redis import connector as module
from tests.broker.test_connection import cluster, tcp  # noqa: F401 - a fixture
from tests.connectors.redis_entries import add, step


@pytest.mark.proves("T2", "C10", "I3")
def test_what_an_attempt_read_and_did_not_stage_is_read_again_at_once(client: redis.Redis, reader: Any) -> None:
    add(client, *range(6))
    _, position = step(reader(), {}, 2)
    # Given an attempt that died with what it read, of which nothing was staged
    assert step(reader(), position, 3)[0] == ["2", "3", "4"]
    # Then the next one reads the same, and what is staged but not acked is not read again
    assert step(reader(), position, 3)[0] == ["2", "3", "4"]
    assert step(reader(), position)[0] == ["2", "3", "4", "5"]


@pytest.mark.proves("T2")
def test_what_a_dead_consumer_held_is_taken_over_and_hides_nothing_of_ours(client: redis.Redis, reader: Any) -> None:
    # Given entries that another consumer of the group holds, some behind and some before ours
    add(client, 0)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "other", {"s": ">"}, count=1)
    add(client, 1, 2)
    source = reader(group="g", min_idle="1h")
    read, position = step(source, {}, 2)
    assert read == ["1", "2"]
    assert step(reader(group="g", min_idle="1h"), position)[0] == []
    add(client, 3, 4)
    assert step(reader(group="g", min_idle="1h"), position, 1)[0] == ["3"]  # and dies
    client.xreadgroup("g", "other", {"s": ">"}, count=1)
    # When that consumer has been silent for too long, and there is room for two only
    eager = reader(group="g", min_idle="0s")
    taken, after = step(eager, position, 2)
    assert taken == ["0", "4"]
    # Then what the attempt before left is still there for the next micro-batch
    rest, end = step(eager, after)
    assert "3" in rest
    for token in (position, after, end):
        eager.ack(token)
    assert client.xpending("s", "g")["pending"] == 0


@pytest.mark.proves("T2", "C9", "C10")
@pytest.mark.parametrize("second", ["a lost answer", "a second task"])
def test_pages_that_became_ours_without_this_task_are_read_by_it_in_order(
    client: redis.Redis,
    reader: Any,
    monkeypatch: pytest.MonkeyPatch,
    second: str,
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    add(client, *range(9))
    source, other = reader(), reader()
    [slice] = source.plan({}, Limit())
    beside = other.read(slice)
    if second == "a second task":
        next(beside)
    reading = source.read(slice)
    read = next(reading).num_rows
    # When new entries are given to our consumer, and this task never sees that answer
    if second == "a second task":
        next(beside)
    else:
        client.xreadgroup("conduit.p.in", "p.in", {"s": ">"}, count=2)
    # Then it reads all of them all the same: nothing that it passed over lies before where it ends
    read += sum(batch.num_rows for batch in reading)
    assert read == 9
    position = {"s": source.reached(slice)}
    assert step(reader(), position)[0] == []
    source.ack(position)
    assert client.xpending("s", "conduit.p.in")["pending"] == 0
    beside.close()


def _dead(client: redis.Redis, *numbers: int) -> None:
    """Entries that a consumer of the group was given before it died."""
    add(client, *numbers)
    client.xreadgroup("g", "other", {"s": ">"}, count=len(numbers))


@pytest.mark.proves("T2", "T4")
def test_what_was_taken_over_and_staged_is_not_taken_again_before_its_ack(
    client: redis.Redis,
    reader: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given what was taken over by one micro-batch, and by the next, neither of them acked yet
    monkeypatch.setattr(module, "PAGE", 2)
    client.xgroup_create("s", "g", id="0", mkstream=True)
    ends: list[dict[str, Any]] = []

    def source() -> Any:
        made = reader(group="g", min_idle="0s")
        made.unsettled = tuple(ends)
        return made

    _dead(client, 0, 1, 2)
    first, position = step(source(), {})
    ends.append(position)
    _dead(client, 3)
    second, after = step(source(), position)
    ends.append(after)
    assert (first, second) == (["0", "1", "2"], ["3"])
    # Then neither comes again, however long they wait, and an attempt that staged nothing hides nothing
    assert source().plan(after, Limit()) == []
    _dead(client, 4)
    for _ in range(2):
        assert step(source(), after)[0] == ["4"]
    # When the first is acked, and what was kept beside it is collected
    source().ack(position)
    del source().receipts.kept[position["s"]["receipts"]]
    third, end = step(source(), after)
    ends.append(end)
    assert third == ["4"]
    for token in (after, end):
        source().ack(token)
    assert client.xpending("s", "g")["pending"] == 0
    assert source().plan(end, Limit()) == []


@pytest.mark.proves("T2")
def test_entries_trimmed_before_they_were_read_are_acked_and_plan_nothing_for_ever(
    client: redis.Redis,
    reader: Any,
) -> None:
    # Given entries that nobody was given yet
    source = reader(group="g", min_idle="0s")
    source.plan({}, Limit())
    add(client, 0, 1)
    client.xtrim("s", maxlen=0)
    assert source.plan({}, Limit()) == []
    # And some that a consumer held, one of which is there
    _dead(client, 2, 3)
    client.xdel("s", client.xrange("s")[0][0])
    read, position = step(source, {})
    assert read == ["3"]
    source.ack(position)
    assert client.xpending("s", "g")["pending"] == 0
    assert source.plan(position, Limit()) == []
