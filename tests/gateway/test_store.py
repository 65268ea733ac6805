"""What a gateway source holds in Redis, against a model: a list of events."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_tasks.broker.connection import Client
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.errors import SourceError
from conduit_tasks.gateway import store as module
from conduit_tasks.gateway.store import Budget, Held, IngestStore
from tests.conftest import RedisServer

AMPLE = Budget(1_000_000, 1 << 30)


@pytest.fixture
def store(client: Client) -> IngestStore:
    return IngestStore("p", "web", client)


@pytest.fixture
def reader(raw_client: Client) -> IngestStore:
    return IngestStore("p", "web", raw_client)


def events(reader: IngestStore, slices: list[Slice]) -> list[bytes]:
    return [event for s in slices for page in reader.entries(s) for _, event in page]


@pytest.mark.proves("I5")
def test_a_group_that_is_sent_again_is_stored_once_and_answered_the_same(
    store: IngestStore, reader: IngestStore
) -> None:
    # Given a group of which one request does not fit
    budget = Budget(3, 100)
    answer = store.add("g", 1, [2, 2, 1], [b"a", b"b", b"c", b"d", b"e"], budget)
    assert answer == [True, False, True]
    # When it is sent again, and the same number by another gateway
    assert store.add("g", 1, [2, 2, 1], [b"a", b"b", b"c", b"d", b"e"], budget) == answer
    assert store.add("h", 1, [1], [b"x"], budget) == [False]
    # Then it is there once
    assert events(reader, store.plan(None, Limit())) == [b"a", b"b", b"e"]
    assert store.held() == Held(3, 3)


@pytest.mark.proves("C13", "T2")
@pytest.mark.parametrize(("budget", "fits"), [(Budget(1000, 1 << 30), 1000), (Budget(10**6, 5_000), 500)])
def test_a_burst_is_stored_or_refused_event_by_event_at_exactly_the_budget(
    store: IngestStore, reader: IngestStore, budget: Budget, fits: int
) -> None:
    burst = [b"%010d" % n for n in range(2_000)]
    answer = store.add("g", 1, [1] * len(burst), burst, budget)
    assert answer == [True] * fits + [False] * (len(burst) - fits)
    slices = store.plan(None, Limit())
    assert events(reader, slices) == burst[:fits]
    # When a part is acked, as much fits again
    store.ack(slices[0].start + 10)
    assert store.add("g", 2, [1] * 20, burst[:20], budget) == [True] * 10 + [False] * 10


@pytest.mark.proves("T2")
def test_an_ack_removes_what_lies_before_it_and_may_be_repeated(store: IngestStore, reader: IngestStore) -> None:
    store.add("g", 1, [5], [b"a", b"bb", b"ccc", b"dddd", b"eeeee"], AMPLE)
    [s] = store.plan(None, Limit())
    for _ in range(2):
        store.ack(s.start + 3)
        assert store.held() == Held(2, 9)
    assert events(reader, store.plan(s.start + 3, Limit())) == [b"dddd", b"eeeee"]
    store.ack(s.end)
    assert store.held() == Held(0, 0)
    # Numbers go on behind what is gone
    store.add("g", 2, [1], [b"f"], AMPLE)
    [after] = store.plan(s.end, Limit())
    assert (after.start, after.end) == (s.end, s.end + 1)


@pytest.mark.proves("I3")
def test_reading_again_gives_the_same_entries_whatever_came_since(store: IngestStore, reader: IngestStore) -> None:
    store.add("g", 1, [3], [b"a", b"b", b"c"], AMPLE)
    [s] = store.plan(None, Limit(records=2))
    once = list(reader.entries(s))
    store.add("g", 2, [1], [b"d"], AMPLE)
    assert list(reader.entries(s)) == once
    assert [e for page in once for _, e in page] == [b"a", b"b"]


def test_an_entry_that_is_gone_is_an_error_and_no_gap(store: IngestStore, reader: IngestStore, client: Client) -> None:
    store.add("g", 1, [3], [b"a", b"b", b"c"], AMPLE)
    [s] = store.plan(None, Limit())
    stream = store.keys.ingest("web")
    [_, middle, _] = client.xrange(stream)  # type: ignore[misc]
    client.xdel(stream, middle[0])
    with pytest.raises(SourceError, match=r"1 events between"):
        events(reader, [s])


def test_a_redis_that_forgot_all_gives_no_number_again(
    store: IngestStore, fsyncing: RedisServer, reader: IngestStore
) -> None:
    store.add("g", 1, [2], [b"a", b"b"], AMPLE)
    [before] = store.plan(None, Limit())
    fsyncing.flush()
    store.add("g", 2, [1], [b"c"], AMPLE)
    # A position from before is not in the way of what came after
    slices = store.plan(before.end, Limit())
    assert slices[0].start > before.end
    assert events(reader, slices) == [b"c"]


def test_two_sources_do_not_mix(store: IngestStore, reader: IngestStore, client: Client) -> None:
    other = IngestStore("p", "other", client)
    store.add("g", 1, [1], [b"a"], AMPLE)
    other.add("g", 1, [1], [b"b"], AMPLE)
    assert events(reader, store.plan(None, Limit())) == [b"a"]
    assert other.held() == Held(1, 1)


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=30)
limits = st.builds(Limit, st.one_of(st.none(), st.integers(1, 20)), st.one_of(st.none(), st.integers(1, 200)))


@pytest.mark.proves("I7", "C13")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=sizes,
    limit=limits,
    slice_records=st.integers(1, 12),
    slice_bytes=st.integers(1, 120),
    acked=st.integers(0, 8),
)
def test_slices_are_all_that_fits_the_limit_in_order(
    store: IngestStore,
    reader: IngestStore,
    client: Client,
    sizes: list[int],
    limit: Limit,
    slice_records: int,
    slice_bytes: int,
    acked: int,
) -> None:
    client.flushall()
    burst = [bytes([65 + n % 26]) * size for n, size in enumerate(sizes)]
    store.add("g", 1, [len(burst)], burst, AMPLE)
    position: int | None = None
    if acked and acked < len(burst):
        position = store.plan(None, Limit(records=acked))[-1].end
        store.ack(position)
        burst = burst[acked:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLICE_RECORDS", slice_records)
        patch.setattr(module, "SLICE_BYTES", slice_bytes)
        slices = store.plan(position, limit)
    taken = events(reader, slices)
    assert taken == burst[: len(taken)]
    assert all(s.records == s.end - s.start <= slice_records for s in slices)
    assert [s.bytes for s in slices] == [len(b"".join(events(reader, [s]))) for s in slices]
    assert all((s.bytes or 0) <= slice_bytes or s.records == 1 for s in slices)
    assert all(a.end == b.start for a, b in pairwise(slices))

    def fits(some: list[Any]) -> bool:
        enough = limit.records is None or len(some) <= limit.records
        return enough and (limit.bytes is None or len(b"".join(some)) <= limit.bytes or len(some) == 1)

    assert fits(taken)
    assert len(taken) == len(burst) or not fits(burst[: len(taken) + 1])
