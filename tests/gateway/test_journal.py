"""`durability: spool`: what was answered outlives Redis, under the same numbers (SEMANTICS X7)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.connectors.base import Limit
from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.gateway import journal as module
from conduit_tasks.gateway.event import join, unpack
from conduit_tasks.gateway.journal import Journal, JournaledStore
from conduit_tasks.gateway.store import REPEATED, REPLAYED, SETTLING, UNSETTLED, Budget, Chunk, Held, IngestStore
from conduit_tasks.gateway.verify import LEEWAY, REPEAT, REPLAY, Mark
from conduit_tasks.redis_client.connection import Client
from tests.gateway.conftest import GatewayProcess, event
from tests.gateway.test_kills import PRODUCERS, Producer
from tests.micro_batch.harness import payloads, run_once, run_until_quiet, write_pipeline
from tests.redis_server import RedisServer
from tests.waiting import until

AMPLE = Budget(1_000_000, 1 << 30)
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 4}
    connectors:
      - {id: web, type: source, plugin: gateway, durability: spool, settings: {auth: none}}
      - {id: out, type: destination, plugin: file, settings: {path: out.jsonl, format: payload}}
"""

Serving = Callable[..., GatewayProcess]
Stored = Callable[..., list[bytes]]
Opened = Callable[[], Journal]


@pytest.fixture
def store(client: Client) -> IngestStore:
    return IngestStore("p", "web", client)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], Journal]]:
    """Opens the journal in the test's folder, as often as there are gateways."""
    journals: list[Journal] = []

    def open_() -> Journal:
        journals.append(Journal(tmp_path))
        return journals[-1]

    yield open_
    for journal in journals:
        journal.close()


def put(journaled: JournaledStore, group: int, *events: bytes, gateway: str = "g") -> None:
    """Each event in a chunk of its own, answered."""
    ids = journaled.add(gateway, group, [1] * len(events), [join([e]) for e in events], AMPLE)
    assert None not in ids


def held(store: IngestStore, raw: Client) -> list[tuple[bytes, bytes]]:
    reader = IngestStore("p", "web", raw)
    return [entry for s in store.plan(None, Limit()) for page in reader.entries(s) for entry in page]


def test_a_file_that_another_gateway_removes_as_it_is_made_takes_no_events(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a second gateway that cleans up between the making of a file by the first and its lock
    mine, other = opened(), opened()
    lock, cleaned = module.lock, []

    def late(file: object) -> None:
        if not cleaned:
            cleaned.append(1)
            other.clean(0)
        lock(file)

    monkeypatch.setattr(module, "lock", late)
    # When an event is appended, then it is there
    mine.append([Chunk(1, 1, 1, b"one")])
    assert cleaned
    assert [chunk.data for chunk in other.chunks()] == [b"one"]


@pytest.mark.proves("X7", "T2")
def test_a_redis_that_lost_all_gets_everything_back_under_the_same_positions(
    store: IngestStore, fsyncing: RedisServer, raw_client: Client, opened: Opened
) -> None:
    # Given two gateways with one folder, taking turns
    one, other = (JournaledStore(store, opened()) for _ in range(2))
    for n in range(6):
        put((one, other)[n % 2], n + 1, b"%d" % n, gateway=f"g{n % 2}")
    before = held(store, raw_client)
    # When Redis forgets all, and somebody goes on sending
    fsyncing.flush()
    put(one, 7, b"6", gateway="g0")
    # Then all is there as it was, in order, once
    after = held(store, raw_client)
    assert after[:6] == before
    assert [e for _, e in after] == [b"%d" % n for n in range(7)]
    # And one that only looks finds nothing to do
    other.look()
    assert held(store, raw_client) == after


@pytest.mark.proves("X7")
@pytest.mark.parametrize("sizes", [True, False])
def test_a_redis_that_went_back_gets_what_it_forgot(
    store: IngestStore, raw_client: Client, opened: Opened, sizes: bool
) -> None:
    """`sizes`: whether they went back, too; a backup of single keys may be of a version that had none."""
    journaled = JournaledStore(store, opened())
    put(journaled, 1, b"a", b"b")
    keys = [store.keys.ingested("web"), store.keys.ingest("web"), *([store.keys.ingest_sizes("web")] if sizes else [])]
    backup = {key: raw_client.dump(key) for key in keys}
    put(journaled, 2, b"c")
    before = held(store, raw_client)
    # When Redis is as it was a moment ago
    for key, data in backup.items():
        raw_client.restore(key, 0, data, replace=True)  # type: ignore[arg-type]
    put(journaled, 3, b"d")
    # Then what it forgot is in front of what came since
    after = held(store, raw_client)
    assert after[:3] == before
    assert [e for _, e in after] == [b"a", b"b", b"c", b"d"]


@pytest.mark.proves("X7")
def test_a_chunk_that_was_never_answered_may_be_missing_and_is_no_error(
    store: IngestStore, fsyncing: RedisServer, raw_client: Client, opened: Opened
) -> None:
    journaled = JournaledStore(store, opened())
    put(journaled, 1, b"a", b"b")
    # Given a gateway that died between Redis and its journal
    name = journaled.journal.name
    store.add("dead", 1, [2], [join([b"x", b"y"])], AMPLE, journal=name, known=0)
    put(journaled, 2, b"c")
    before = held(store, raw_client)
    fsyncing.flush()
    journaled.look()
    # Then its events are gone, the others keep their positions, and slices do not count what is not there
    assert held(store, raw_client) == [entry for entry in before if entry[1] not in (b"x", b"y")]
    slices = store.plan(None, Limit())
    assert [s.records for s in slices] == [None] * len(slices)
    assert slices[-1].end - slices[0].start == 5


@pytest.mark.proves("X7")
def test_a_torn_record_at_the_end_is_left_out_and_nothing_before_it(tmp_path: Path, opened: Opened) -> None:
    journal = opened()
    journal.append([Chunk(n, n * 10, 1, b"%d" % n) for n in (1, 2, 3)])
    journal.close()
    [file] = tmp_path.glob("*.journal")
    whole = file.read_bytes()
    for cut in range(1, len(whole) // 3):
        file.write_bytes(whole[:-cut])
        assert [c.number for c in opened().chunks()] == [1, 2]
    file.write_bytes(whole[:-1] + b"?")
    assert [c.number for c in opened().chunks()] == [1, 2]


def test_a_disk_that_is_full_is_told_and_leaves_no_torn_record_behind(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened()
    journal.append([Chunk(1, 10, 1, b"one")])
    # Given a disk that takes the bytes and fails to keep them
    with monkeypatch.context() as patch:

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(module.os, "fdatasync", full)
        with pytest.raises(BrokerUnavailable, match=r"journal in .* cannot be written: No space left"):
            journal.append([Chunk(2, 20, 1, b"two")])
    journal.append([Chunk(2, 20, 1, b"two")])
    assert [(c.number, c.data) for c in journal.chunks()] == [(1, b"one"), (2, b"two")]


def test_files_go_when_all_in_them_is_acked_but_not_those_of_a_gateway_that_lives(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEGMENT", 100)
    mine, other = opened(), opened()
    other.append([Chunk(1, 10, 1, b"theirs")])
    for n in range(2, 8):
        mine.append([Chunk(n, n * 10, 1, b"x" * 30)])
    assert len(list(tmp_path.glob("*.journal"))) == 4
    mine.clean(4)
    assert [c.number for c in mine.chunks()] == [1, 4, 5, 6, 7]
    # When the other is gone, its file goes too
    other.close()
    mine.clean(4)
    assert [c.number for c in mine.chunks()] == [4, 5, 6, 7]
    mine.clean(7)
    assert list(mine.chunks()) == []
    mine.append([Chunk(8, 80, 1, b"")])
    assert opened().known == 8


@pytest.mark.proves("X7", "T2", "C9")
def test_what_was_answered_survives_the_loss_of_redis_and_of_the_gateway(
    gateway_home: Path, fsyncing: RedisServer, serving: Serving, stored: Stored
) -> None:
    # Given producers under way
    write_pipeline(gateway_home, "p", PIPELINE)
    gateway = serving()
    producers = [Producer(gateway, number) for number in range(PRODUCERS)]
    try:
        for and_gateway in (False, True):
            before = [len(p.answered) for p in producers]
            until(lambda before=before: all(len(p.answered) > n + 20 for p, n in zip(producers, before)))
            # When Redis loses all it had, alone or together with the gateway
            fsyncing.flush()
            if and_gateway:
                gateway.kill()
                gateway.start()
        before = [len(p.answered) for p in producers]
        until(lambda: all(len(p.answered) > n + 10 for p, n in zip(producers, before)))
    finally:
        for producer in producers:
            producer.end()
    there: dict[int, list[int]] = {number: [] for number in range(PRODUCERS)}
    for packed in stored():
        _, metadata, data = unpack(packed)
        there[int(metadata["cloudevents.producer"])].append(json.loads(data or b"")["n"])
    # Then every answered event is there, in order, and only what was once unanswered may be there twice
    for producer in producers:
        found = there[producer.number]
        first = list(dict.fromkeys(found))
        assert [n for n in first if n in set(producer.answered)] == producer.answered
        assert {n for n, times in Counter(found).items() if times > 1} <= producer.unanswered


@pytest.mark.proves("X7")
def test_a_pipeline_goes_on_after_the_loss_of_redis_with_every_event_once(
    gateway_home: Path, fsyncing: RedisServer, serving: Serving, client: Client
) -> None:
    # Given ten events, of which a run delivered four
    write_pipeline(gateway_home, "p", PIPELINE)
    gateway = serving()
    for n in range(10):
        assert gateway.post(event(n), type="application/cloudevents+json").status == 202
    run_once("p")
    assert [r["n"] for r in payloads(gateway_home / "out.jsonl")] == [0, 1, 2, 3]
    # When Redis is lost, and its state rebuilt from the spool
    fsyncing.flush()
    store = IngestStore("p", "web", client)
    until(lambda: store.held().records >= 6)
    rebuilt = CliRunner().invoke(app, ["broker", "rebuild", "p"])
    assert rebuilt.exit_code == 0, rebuilt.output
    # Then the rest follows, in order, and nothing twice
    run_until_quiet("p")
    assert [r["n"] for r in payloads(gateway_home / "out.jsonl")] == list(range(10))
    # And when all is in the spool, the journal is empty and Redis, too
    assert store.held() == Held(0, 0)
    folder = gateway_home / ".conduit" / "spool" / "p" / "gateway.web"
    until(lambda: not list(folder.glob("*.journal")))


def test_a_signed_request_is_called_taken_only_once_it_is_in_the_journal(
    store: IngestStore, client: Client, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 202 to a message that comes again says that it is durable: with `durability: spool`, in the journal, too."""
    soon = int(time.time()) + 600
    replay, message = (REPLAY + "r", soon), (REPEAT + "m", soon)
    anew = (REPLAY + "anew", soon)
    journaled = JournaledStore(store, opened(), remembered=(10, 300.0))
    other = JournaledStore(store, opened(), remembered=(10, 300.0))

    def send(by: JournaledStore, group: int, *marks: Mark, gateway: str = "g") -> str | None:
        return by.add(gateway, group, [1], [join([b"e"])], AMPLE, marks=[marks])[0]

    # Given a gateway whose disk fails between Redis and its journal
    with monkeypatch.context() as patch:

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(module.os, "fdatasync", full)
        with pytest.raises(BrokerUnavailable):
            send(journaled, 1, replay, message)
    # Then it is neither taken nor a replay, at whatever gateway, also if it is signed again
    assert send(other, 1, replay, message, gateway="h") == UNSETTLED
    assert send(other, 2, anew, message, gateway="h") == UNSETTLED
    assert [chunk.data for chunk in journaled.journal.chunks()] == []
    # When the call is repeated and the disk is well, then it is in the journal, and remembered
    id = send(journaled, 1, replay, message)
    assert [chunk.id for chunk in journaled.journal.chunks()] == [id]
    assert send(other, 3, replay, message, gateway="h") == REPLAYED
    assert send(other, 4, anew, message, gateway="h") == REPEATED
    seen = store.keys.ingest_seen("web")
    assert sorted(client.zrange(seen, 0, -1)) == sorted([replay[0], message[0]])
    assert {client.zscore(seen, mark) for mark, _ in (replay, message)} == {soon}
    assert 0 < client.ttl(seen) <= 2 * 300 + 2 * LEEWAY


def test_a_request_of_a_gateway_that_died_before_its_journal_is_taken_when_it_comes_later(
    store: IngestStore, client: Client, opened: Opened
) -> None:
    soon = int(time.time()) + 600
    marks = [[(REPLAY + "r", soon)]]
    journaled = JournaledStore(store, opened(), remembered=(10, 300.0))
    journal = journaled.journal
    put(journaled, 1, b"before")
    # Given a gateway that died between Redis and its journal
    journal_arguments = {"journal": journal.name, "known": journal.known, "remembered": (10, 300.0)}
    store.add("dead", 1, [1], [join([b"e"])], AMPLE, marks=marks, **journal_arguments)  # type: ignore[arg-type]
    assert journaled.add("g", 2, [1], [join([b"e"])], AMPLE, marks=marks) == [UNSETTLED]
    # When its time is over, then the request is taken, and is a replay from then on
    [mark] = client.zrange(store.keys.ingest_seen("web"), 0, -1)
    assert 0 < (client.zscore(store.keys.ingest_seen("web"), mark) or 0) - time.time() <= SETTLING + 5
    client.zincrby(store.keys.ingest_seen("web"), -3_600, mark)
    [id] = journaled.add("g", 3, [1], [join([b"e"])], AMPLE, marks=marks)
    assert [chunk.id for chunk in journal.chunks()][1:] == [id]
    assert journaled.add("g", 4, [1], [join([b"e"])], AMPLE, marks=marks) == [REPLAYED]
