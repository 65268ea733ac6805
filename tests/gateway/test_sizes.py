"""What a gateway source holds is planned and acked by the sizes beside it; what earlier versions stored has none."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.gateway import store as module
from conduit_tasks.gateway.event import join
from conduit_tasks.gateway.store import Budget, Chunk, Held, IngestStore
from conduit_tasks.redis_client.connection import Client
from tests.redis_server import RedisServer

AMPLE = Budget(1_000_000, 1 << 30)


@pytest.fixture
def store(client: Client) -> IngestStore:
    return IngestStore("p", "web", client)


@pytest.fixture
def stream(store: IngestStore) -> str:
    return store.keys.ingest("web")


@pytest.fixture
def sizes(store: IngestStore) -> str:
    return store.keys.ingest_sizes("web")


def put(store: IngestStore, group: int, *counts: int, size: int = 1) -> list[str]:
    """Stores a chunk of so many events of `size` bytes for each count; the chunks' ids."""
    ids = store.add("g", group, counts, [join([b"." * size] * count) for count in counts], AMPLE)
    return [id for id in ids if id is not None]


def beside(client: Client, stream: str, sizes: str) -> bool:
    """Whether the sizes are those of what is there."""
    there = [(id, of["n"], str(len(of["e"]))) for id, of in client.xrange(stream)]  # type: ignore[union-attr]
    return there == [(id, of["n"], of["b"]) for id, of in client.xrange(sizes)]  # type: ignore[union-attr]


def test_planning_looks_at_no_event(store: IngestStore, client: Client, stream: str) -> None:
    """Given sizes, then a plan is the same where the events are not to be had."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLICE_RECORDS", 4)
        patch.setattr(module, "SLICE_BYTES", 40)
        put(store, 1, 3, 5, 1, 1, 9)
        slices = store.plan(None, Limit())
        assert len(slices) > 3
        plans = [(None, Limit(7, 60)), (slices[1].end, Limit()), (slices[2].start, Limit(bytes=1))]
        before = [slices, *(store.plan(*of) for of in plans)]
        client.rename(stream, "elsewhere")
        assert [store.plan(None, Limit()), *(store.plan(*of) for of in plans)] == before


def test_sizes_come_and_go_with_what_they_are_of(store: IngestStore, client: Client, stream: str, sizes: str) -> None:
    put(store, 1, 2, 3, 1)
    put(store, 1, 2, 3, 1)
    assert beside(client, stream, sizes)
    [s] = store.plan(None, Limit())
    for acked, left in ((s.start + 4, 2), (s.start + 5, 1), (s.end, 0)):
        for _ in range(2):
            store.ack(acked)
            assert (client.xlen(sizes), beside(client, stream, sizes)) == (left, True)


@pytest.mark.proves("X7")
def test_what_is_put_back_has_its_sizes(
    store: IngestStore, client: Client, redis_server: RedisServer, stream: str, sizes: str
) -> None:
    # Given chunks of which one was lost
    ids = [tuple(map(int, id.split("-"))) for id in put(store, 1, 2, 3, 1)]
    data = [join([b"."] * count) for count in (2, 3, 1)]
    chunks = [Chunk(*id, count, of) for id, count, of in zip(ids, (2, 3, 1), data)]
    # When Redis forgets the events, or all
    for forgets in (lambda: client.delete(stream, store.keys.ingested("web")), redis_server.flush):
        forgets()
        for _ in range(2):
            store.restore("j", [chunks[0], chunks[2]])
        # Then what is put back, and what stands for the lost one, has its sizes once
        assert [of["n"] for _, of in client.xrange(sizes)] == ["2", "3", "1"]  # type: ignore[union-attr]
        assert beside(client, stream, sizes)


def test_after_an_upgrade_everything_is_planned_in_order(
    store: IngestStore, client: Client, stream: str, sizes: str
) -> None:
    # Given events of an earlier version, which knew no sizes
    put(store, 1, 2, 3, 1)
    client.delete(sizes)
    # When new ones come
    put(store, 2, 4, 1)
    assert client.xlen(sizes) == 2
    # Then all are planned once, and once the old are acked, everything has its size
    done: int | None = None
    total = 0
    while slices := store.plan(done, Limit(records=2)):
        assert slices[0].start == (done or slices[0].start)
        total += sum(s.records or 0 for s in slices)
        done = slices[-1].end
        store.ack(done)
    assert (total, client.xlen(stream), client.xlen(sizes)) == (11, 0, 0)
    assert store.held() == Held(0, 0)
    put(store, 3, 1)
    assert beside(client, stream, sizes)


counts = st.lists(st.integers(1, 6), min_size=1, max_size=14)
limits = st.builds(Limit, st.one_of(st.none(), st.integers(1, 30)), st.one_of(st.none(), st.integers(1, 300)))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(counts, st.data(), limits, st.integers(1, 9), st.integers(1, 90))
def test_a_plan_and_an_ack_are_the_same_whichever_sizes_there_are(
    store: IngestStore,
    client: Client,
    stream: str,
    sizes: str,
    counts: list[int],
    data: st.DataObject,
    limit: Limit,
    slice_records: int,
    slice_bytes: int,
) -> None:
    # Given gateways of two versions side by side, and acks of both
    client.flushall()
    ids = put(store, 1, *counts)
    total = sum(counts)
    first = int(store.state()["base"]) + 1
    acked = data.draw(st.integers(0, total - 1), "acked")
    if acked:
        store.ack(first + acked - 1)
        if data.draw(st.booleans(), "by the earlier version"):
            for id, count in zip(ids, counts):
                client.xadd("all", {"n": count, "b": len(join([b"."] * count))}, id=id)
            client.rename("all", sizes)
    without = data.draw(st.sets(st.sampled_from(range(len(ids)))), "stored by the earlier version")
    client.xdel(sizes, "1-1", *(ids[n] for n in without))
    behind = data.draw(st.one_of(st.none(), st.integers(0, total + 1)), "after")
    after = None if behind is None else first - 1 + behind
    further = data.draw(st.integers(acked, total), "further")

    def outcome() -> tuple[list[Slice], Held, list[str]]:
        slices = store.plan(after, limit)
        store.ack(first + further - 1)
        return slices, store.held(), [id for id, _ in client.xrange(stream)]  # type: ignore[union-attr]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLICE_RECORDS", slice_records)
        patch.setattr(module, "SLICE_BYTES", slice_bytes)
        backup = {key: client.hgetall(key) for key in [store.keys.ingested("web")]}
        entries = client.xrange(stream)
        found = outcome()
        # When there are no sizes at all
        client.delete(sizes, stream)
        for key, fields in backup.items():
            client.hset(key, mapping=fields)  # type: ignore[arg-type]
        for id, of in entries:  # type: ignore[union-attr]
            client.xadd(stream, of, id=id)
        # Then it is the same
        assert found == outcome()


def test_a_chunk_without_a_size_is_looked_at_once(
    store: IngestStore, client: Client, sizes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE_BYTES", 400)
    put(store, 1, *[1] * 60, size=100)

    def looks() -> int:
        client.config_resetstat()
        assert len(store.plan(None, Limit())) > 10
        return int(client.info("commandstats")["cmdstat_xrange"]["calls"])  # type: ignore[index]

    with_sizes = looks()
    client.delete(sizes)
    assert with_sizes < looks() <= with_sizes + 60


def test_a_plan_that_has_looked_at_much_ends_and_the_next_one_goes_on(
    store: IngestStore, client: Client, sizes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given 40 MiB of an earlier version's, each chunk a slice
    monkeypatch.setattr(module, "SLICE_BYTES", 1 << 20)
    for group in range(1, 41):
        put(store, group, 1, size=(1 << 20) - 100)
    client.delete(sizes)
    slices = store.plan(None, Limit())
    # Then no call looks at them all, and all are planned in the end
    plans = 1
    while more := store.plan(slices[-1].end, Limit()):
        assert more[0].start == slices[-1].end
        slices += more
        plans += 1
    assert 2 <= plans <= 6
    assert sum(s.records or 0 for s in slices) == 40


@pytest.mark.proves("C13")
@pytest.mark.parametrize("known", ["all", "the last", "none"])
def test_no_answer_of_redis_is_larger_than_a_page_but_for_one_event(
    store: IngestStore, raw_client: Client, stream: str, sizes: str, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """Given small entries with large ones behind and among them, then they are read in pages of so many bytes."""
    monkeypatch.setattr(module, "PAGE_BYTES", 1_000)
    for group, size in enumerate([10, 900, 10, 2_000]):
        put(store, group, *[3] * 40, size=size // 3)
    if known == "none":
        raw_client.delete(sizes)
    if known == "the last":
        raw_client.xtrim(sizes, maxlen=20)
    answers: list[tuple[int, int]] = []
    xrange = raw_client.xrange

    def spy(key: str, *args: object, **options: object) -> object:
        found = xrange(key, *args, **options)  # type: ignore[arg-type]
        if key == stream:
            answers.append((len(found), sum(len(of[b"e"]) for _, of in found)))  # type: ignore[arg-type,union-attr,misc]
        return found

    reader = IngestStore("p", "web", raw_client)
    monkeypatch.setattr(raw_client, "xrange", spy)
    for slice in store.plan(None, Limit(None, None)):
        assert sum(map(len, reader.entries(slice))) == int(slice.end) - int(slice.start)
    assert all(count == 1 or size <= 1_000 for count, size in answers)
    # And of small ones there are many in each, where it is known that they are
    assert (max(count for count, _ in answers) > 10) == (known == "all")
