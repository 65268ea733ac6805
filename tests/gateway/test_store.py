"""What a gateway source holds in Redis, against a model: a list of events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.errors import SourceError
from conduit_tasks.gateway import store as module
from conduit_tasks.gateway.event import join
from conduit_tasks.gateway.store import Budget, Held, IngestStore
from conduit_tasks.redis_client.connection import Client
from tests.redis_server import RedisServer

AMPLE = Budget(1_000_000, 1 << 30)


@pytest.fixture
def store(client: Client) -> IngestStore:
    return IngestStore("p", "web", client)


@pytest.fixture
def reader(raw_client: Client) -> IngestStore:
    return IngestStore("p", "web", raw_client)


def events(reader: IngestStore, slices: list[Slice]) -> list[bytes]:
    return [event for s in slices for page in reader.entries(s) for _, event in page]


def put(store: IngestStore, group: int, *chunks: list[bytes], budget: Budget = AMPLE, gateway: str = "g") -> list[bool]:
    ids = store.add(gateway, group, [len(c) for c in chunks], [join(c) for c in chunks], budget)
    return [id is not None for id in ids]


def test_chunks_are_stored_under_their_last_number_and_the_bytes_so_far(store: IngestStore, client: Client) -> None:
    sent = ([2, 1], [join([b"a", b"b"]), join([b"c"])])
    ids = store.add("g", 1, *sent, AMPLE)
    assert ids == [id for id, _ in client.xrange(store.keys.ingest("web"))]  # type: ignore[union-attr]
    assert store.add("g", 1, *sent, AMPLE) == ids
    last = int(store.state()["last"])
    assert ids == [f"{last - 1}-10", f"{last}-15"]


def size(*events: bytes) -> int:
    return len(join(events))


@pytest.mark.proves("I5")
def test_a_group_that_is_sent_again_is_stored_once_and_answered_the_same(
    store: IngestStore, reader: IngestStore
) -> None:
    # Given a group of which one chunk does not fit
    budget = Budget(3, 100)
    group = [[b"a", b"b"], [b"c", b"d"], [b"e"]]
    assert put(store, 1, *group, budget=budget) == [True, False, True]
    # When it is sent again, and the same number by another gateway
    assert put(store, 1, *group, budget=budget) == [True, False, True]
    assert put(store, 1, [b"x"], budget=budget, gateway="h") == [False]
    # Then it is there once
    assert events(reader, store.plan(None, Limit())) == [b"a", b"b", b"e"]
    assert store.held() == Held(3, size(b"a", b"b", b"e"))


@pytest.mark.proves("C13", "T2")
@pytest.mark.parametrize(("budget", "fits"), [(Budget(1000, 1 << 30), 1000), (Budget(10**6, 500 * 14), 500)])
def test_a_burst_is_stored_or_refused_chunk_by_chunk_at_exactly_the_budget(
    store: IngestStore, reader: IngestStore, budget: Budget, fits: int
) -> None:
    burst = [b"%010d" % n for n in range(2_000)]
    answer = put(store, 1, *([e] for e in burst), budget=budget)
    assert answer == [True] * fits + [False] * (len(burst) - fits)
    slices = store.plan(None, Limit())
    assert events(reader, slices) == burst[:fits]
    # When a part is acked, as much fits again
    store.ack(slices[0].start + 10)
    assert put(store, 2, *([e] for e in burst[:20]), budget=budget) == [True] * 10 + [False] * 10


@pytest.mark.proves("T2")
def test_an_ack_removes_what_lies_before_it_and_may_be_repeated(store: IngestStore, reader: IngestStore) -> None:
    put(store, 1, [b"a", b"bb"], [b"ccc", b"dddd"], [b"eeeee"])
    [s] = store.plan(None, Limit())
    # An entry stays until the last of its events is acked
    for _ in range(2):
        store.ack(s.start + 3)
        assert store.held() == Held(2, size(b"ccc", b"dddd", b"eeeee"))
    assert events(reader, store.plan(s.start + 3, Limit())) == [b"dddd", b"eeeee"]
    store.ack(s.start + 2)
    store.ack(s.end)
    assert store.held() == Held(0, 0)
    # Numbers go on behind what is gone
    put(store, 2, [b"f"])
    [after] = store.plan(s.end, Limit())
    assert (after.start, after.end) == (s.end, s.end + 1)


@pytest.mark.proves("I3")
def test_reading_again_gives_the_same_entries_whatever_came_since(store: IngestStore, reader: IngestStore) -> None:
    put(store, 1, [b"a", b"b", b"c"])
    [s] = store.plan(None, Limit(records=2))
    once = list(reader.entries(s))
    put(store, 2, [b"d"])
    assert list(reader.entries(s)) == once
    assert [e for page in once for _, e in page] == [b"a", b"b"]
    # And the rest of an entry has positions of its own
    [rest] = store.plan(s.end, Limit())
    positions = [position for part in (s, rest) for page in reader.entries(part) for position, _ in page]
    assert len(set(positions)) == 4


def test_an_entry_that_is_gone_is_an_error_and_no_gap(store: IngestStore, reader: IngestStore, client: Client) -> None:
    put(store, 1, [b"a"], [b"b"], [b"c"])
    [s] = store.plan(None, Limit())
    stream = store.keys.ingest("web")
    for _ in range(2):
        [_, (last, _), *_] = client.xrange(stream)  # type: ignore[misc]
        client.xdel(stream, last)
        with pytest.raises(SourceError, match=r"event \d+ of those up to"):
            events(reader, [s])


def test_a_redis_that_forgot_all_gives_no_number_again(
    store: IngestStore, fsyncing: RedisServer, reader: IngestStore
) -> None:
    put(store, 1, [b"a", b"b"])
    [before] = store.plan(None, Limit())
    fsyncing.flush()
    put(store, 2, [b"c"])
    # A position from before is not in the way of what came after
    slices = store.plan(before.end, Limit())
    assert slices[0].start > before.end
    assert events(reader, slices) == [b"c"]


def test_two_sources_do_not_mix(store: IngestStore, reader: IngestStore, client: Client) -> None:
    other = IngestStore("p", "other", client)
    put(store, 1, [b"a"])
    put(other, 1, [b"b"])
    assert events(reader, store.plan(None, Limit())) == [b"a"]
    assert other.held() == Held(1, size(b"b"))


chunks = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=12)
limits = st.builds(Limit, st.one_of(st.none(), st.integers(1, 20)), st.one_of(st.none(), st.integers(1, 200)))


@pytest.mark.proves("I7", "C13")
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(chunks, limits, st.integers(1, 12), st.integers(1, 120), st.integers(0, 8), st.integers(1, 3))
def test_slices_are_all_that_fits_the_limit_in_order(
    store: IngestStore,
    reader: IngestStore,
    client: Client,
    chunks: list[list[int]],
    limit: Limit,
    slice_records: int,
    slice_bytes: int,
    acked: int,
    page: int,
) -> None:
    # Given chunks of events of some sizes, the first of them acked
    client.flushall()
    groups = [[bytes([65 + n, 65 + i]) + b"." * size for i, size in enumerate(of)] for n, of in enumerate(chunks)]
    put(store, 1, *groups)
    burst = [e for of in groups for e in of]
    within = [size(*of) for of in groups for _ in of]
    position: int | None = None
    if acked and acked < len(burst):
        position = store.plan(None, Limit(records=acked))[-1].end
        store.ack(position)
        burst, within = burst[acked:], within[acked:]
    # When it is planned
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SLICE_RECORDS", slice_records), ("SLICE_BYTES", slice_bytes), ("PAGE_ENTRIES", page)):
            patch.setattr(module, name, value)
        slices = store.plan(position, limit)
        taken = events(reader, slices)
        # Then each slice holds its records, in order, without a gap
        for s in slices:
            assert len(events(reader, [s])) == s.records == s.end - s.start <= slice_records
    assert taken == burst[: len(taken)]
    assert all(a.end == b.start for a, b in pairwise(slices))
    # And together they keep within the limit, but for one event
    n = len(taken)
    assert limit.records is None or n <= limit.records
    assert n == 1 or limit.bytes is None or sum(s.bytes or 0 for s in slices) <= limit.bytes
    # And more would not have fitted
    assert (
        n == len(burst)
        or n == limit.records
        or (limit.bytes is not None and sum(s.bytes or 0 for s in slices) + within[n] > limit.bytes)
    )
