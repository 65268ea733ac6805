"""Sharing a group's partitions, however many there are; the cluster itself is not asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.connectors.kafka.group import Part
from conduit_tasks.connectors.kafka.share import WHOLE, GroupShare


def member(name: str) -> GroupShare:
    return GroupShare("cluster", "group", name, 300.0)


@pytest.mark.proves("B6")
@pytest.mark.parametrize("count", [WHOLE, WHOLE + 1, 5 * WHOLE // 2])
def test_a_topic_of_thousands_of_partitions_is_shared_like_any_other(home: Path, count: int) -> None:
    # Given a topic of very many partitions, all of which one member has in flight
    parts: list[Part] = [("few", n) for n in range(3)] + [("many", n) for n in range(count)]
    one, two = member("one"), member("two")
    assert one.claim(parts, []) == parts
    assert one.held(parts) == parts
    # When another one comes, it gets none of them
    assert two.claim(parts, []) == []
    assert one.claim(parts, parts) == parts
    # When nothing is in flight any more, each gets its half, and none belongs to both
    kept = one.claim(parts, [])
    taken = two.claim(parts, [])
    assert sorted(kept + taken) == parts
    assert abs(len(kept) - len(taken)) <= 1 + count // WHOLE
    assert two.held(parts) == taken
    # And so it stays
    assert one.claim(parts, []) == kept
    assert two.claim(parts, kept) == taken
