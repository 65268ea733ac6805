"""The connector sqs against a real server: what is received, what is deleted and when, an outcome per entry."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.acceptance.resources import Open
from conduit_tasks.connectors.acceptance.source import InMemory
from conduit_tasks.connectors.base import Limit, Outcome, Slice
from conduit_tasks.connectors.sqs.connector import SqsSource
from conduit_tasks.connectors.sqs.destination import SqsDestination
from conduit_tasks.errors import ConfigError, SourceError, Unavailable
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import to_records
from tests.answering import answering
from tests.connectors.moto_server import MotoServer
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("moto")

ORIGIN = Origin("p", "in", "")
RECEIPTS = InMemory()
QUICK = {"wait": "0s", "visibility-timeout": "30s"}


class Queue:
    """A queue of the test's own."""

    def __init__(self, moto: MotoServer, **attributes: str) -> None:
        self.client = moto.client("sqs")
        suffix = ".fifo" if attributes.get("FifoQueue") else ""
        self.name = f"q-{uuid.uuid4().hex}{suffix}"
        self.url = self.client.create_queue(QueueName=self.name, Attributes=attributes)["QueueUrl"]
        self.settings = {**moto.settings, "queue": self.name}

    def put(self, *bodies: str, **more: Any) -> None:
        for body in bodies:
            self.client.send_message(QueueUrl=self.url, MessageBody=body, **more)

    def counts(self) -> tuple[int, int]:
        """Messages that are visible, and that are hidden."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])

    def source(self, **settings: str) -> SqsSource:
        return SqsSource({**self.settings, **QUICK, **settings})


@pytest.fixture
def queue(moto: MotoServer) -> Iterator[Queue]:
    made = Queue(moto)
    yield made
    made.client.close()


@pytest.fixture
def fifo(moto: MotoServer) -> Iterator[Queue]:
    made = Queue(moto, FifoQueue="true")
    yield made
    made.client.close()


@dataclass
class Received:
    records: list[Record]
    position: dict[str, Any]


def received(source: SqsSource, slices: list[Slice]) -> Received:
    source.receipts = RECEIPTS
    out = Received([], {})
    for each in slices:
        slice = Slice(**json.loads(json.dumps(each.__dict__)))
        out.records += [r for batch in source.read(slice) for r in to_records(batch, ORIGIN)]
        out.position[slice.part] = source.reached(slice)
    return out


def receive(source: SqsSource) -> Received:
    try:
        return received(source, source.plan({}, Limit()))
    finally:
        source.close()


def acked(source: SqsSource, *found: Received) -> None:
    source.receipts = RECEIPTS
    try:
        for each in found:
            source.ack(each.position)
    finally:
        source.close()


def test_messages_become_records_with_their_attributes(queue: Queue) -> None:
    attributes = {"kind": {"DataType": "String", "StringValue": "order"}}
    queue.put('{"n": 1}', MessageAttributes=attributes)
    queue.put("no json")
    one, other = receive(queue.source(**{"format": "json", "key-attribute": "kind"})).records
    assert (one.after, one.key, one.metadata["sqs.attribute.kind"]) == ({"n": 1}, b"order", "order")
    assert abs(int(one.metadata["opencdc.createdAt"]) / 1e9 - time.time()) < 60
    assert (other.after, other.key) == (b"no json", None)
    assert other.metadata["conduit.error"].startswith("not JSON")
    assert one.position != other.position


def test_nothing_waits_in_an_empty_queue(queue: Queue) -> None:
    source = queue.source()
    assert source.plan({}, Limit()) == []
    source.close()


def test_a_micro_batch_takes_no_more_than_its_limits(queue: Queue) -> None:
    queue.put(*("x" * 100 for _ in range(25)))
    source = queue.source()
    assert len(received(source, source.plan({}, Limit(records=7))).records) == 7
    assert len(received(source, source.plan({}, Limit(bytes=250))).records) == 3
    source.close()


def test_workers_share_what_waits(queue: Queue) -> None:
    queue.put(*(str(n) for n in range(40)))
    source = queue.source(**{"max-parallel": "3"})
    slices = source.plan({"0": "x"}, Limit(records=40))
    assert [(s.part, s.partition, s.open, s.hint["records"]) for s in slices] == [
        ("0", "", True, 14),
        ("1", "", True, 13),
        ("2", "", True, 13),
    ]
    assert len(received(source, slices).records) == 40
    source.close()


@pytest.mark.proves("T2", "C12")
def test_messages_are_deleted_only_when_they_are_settled_and_twice_does_no_harm(queue: Queue) -> None:
    queue.put(*(str(n) for n in range(23)))
    found = receive(queue.source())
    assert queue.counts() == (0, 23)
    acked(queue.source(), found)
    assert queue.counts() == (0, 0)
    acked(queue.source(), found)


@pytest.mark.proves("T2", "C10")
def test_what_is_never_settled_is_handed_out_again_with_the_same_position(queue: Queue) -> None:
    queue.put("a", "b")
    first = receive(queue.source(**{"visibility-timeout": "3s"}))
    again = until(lambda: receive(queue.source()).records)
    assert [r.position for r in again] == [r.position for r in first.records]
    assert [r.id for r in again] == [r.id for r in first.records]


def test_an_attempt_that_failed_gives_its_messages_back(queue: Queue) -> None:
    queue.put("a", "b")
    source = queue.source()
    for slice in source.plan({}, Limit()):
        assert sum(batch.num_rows for batch in source.read(slice)) == 2
    source.close()
    assert queue.counts() == (2, 0)


def test_messages_stay_hidden_while_their_worker_lives(queue: Queue) -> None:
    queue.put("a")
    # (for longer than this machine stands still: they are hidden anew after a third of it)
    source = queue.source(**{"visibility-timeout": "15s"})
    received(source, source.plan({}, Limit()))
    until = time.monotonic() + 17
    while time.monotonic() < until:
        assert queue.counts() == (0, 1)
        time.sleep(0.1)
    source.close()


@pytest.mark.proves("C9")
def test_a_fifo_queue_keeps_the_order_of_each_message_group(fifo: Queue) -> None:
    for n in range(8):
        fifo.put(json.dumps({"n": n}), MessageGroupId=f"g{n % 2}", MessageDeduplicationId=str(n))
    records = receive(fifo.source(format="json")).records
    for group in (b"g0", b"g1"):
        numbers = [r.after["n"] for r in records if r.key == group]  # type: ignore[index]  # structured
        assert numbers == sorted(numbers)
    assert len(records) == 8


def test_a_queue_that_is_not_there_is_named(moto: MotoServer) -> None:
    source = SqsSource({**moto.settings, "queue": "nowhere"})
    with pytest.raises(SourceError, match=r"nowhere.*check its name"):
        source.plan({}, Limit())
    source.close()


def test_while_the_server_is_away_nothing_is_lost(moto: MotoServer, queue: Queue) -> None:
    queue.put("a")
    found = receive(queue.source())
    moto.stop()
    source = queue.source()
    with pytest.raises(Unavailable, match="it is tried again"):
        acked(source, found)
    with pytest.raises(SourceError, match="it is tried again"):
        source.plan({}, Limit())
    source.close()
    moto.start()
    acked(queue.source(), found)
    assert queue.counts() == (0, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wait": "21s"}, "'wait'"),
        ({"visibility-timeout": "1s"}, "'visibility-timeout'"),
        ({"max-parallel": "0"}, "'max-parallel'"),
        ({"access-key-id": "a"}, "'secret-access-key'"),
        ({"session-token": "hush"}, "'session-token'"),
    ],
)
def test_a_bad_option_is_named_and_secrets_are_not_shown(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        SqsSource({"queue": "q", **settings})
    assert "hush" not in str(caught.value)


# -- destination --------------------------------------------------------------------------------------------------


def send(settings: dict[str, str], records: list[Record]) -> list[Outcome]:
    async def run() -> list[Outcome]:
        destination = SqsDestination(settings)
        await destination.open(10.0)
        try:
            return await asyncio.gather(*map(destination.send, records))
        finally:
            await destination.close()

    return asyncio.run(run())


def record(n: int, after: Any = None, key: bytes | None = b"k", **more: Any) -> Record:
    return Record(str(n).encode(), after={"n": n} if after is None else after, key=key, origin=ORIGIN, **more)


@pytest.mark.proves("C17", "T6")
def test_each_entry_has_an_outcome_of_its_own(queue: Queue) -> None:
    records = [record(n) for n in range(25)]
    records[3] = record(3, after=b"x" * 300_000)
    records[7] = record(7, after=b"\xff")
    records[9] = record(9, after=b"")
    records[11] = record(11, after=b"a\0b")
    outcomes = send(queue.settings, records)
    assert [n for n, o in enumerate(outcomes) if o.kind == "refused"] == [3, 7, 9, 11]
    assert {o.kind for o in outcomes} == {"delivered", "refused"}
    bodies = [r.after for r in receive(queue.source(format="json")).records]
    assert sorted(b["n"] for b in bodies) == [n for n in range(25) if n not in (3, 7, 9, 11)]  # type: ignore[index,arg-type]


def test_large_messages_travel_in_requests_that_sqs_takes(queue: Queue) -> None:
    outcomes = send(queue.settings, [record(n, after=b"y" * 100_000) for n in range(10)])
    assert {o.kind for o in outcomes} == {"delivered"}
    assert queue.counts() == (10, 0)


@pytest.mark.proves("T8")
def test_the_id_and_chosen_metadata_are_attributes(queue: Queue) -> None:
    sent = record(1, metadata={"kind": "order", "other": "x"})
    assert send({**queue.settings, "attributes": "kind, absent"}, [sent]) == [Outcome("delivered")]
    got = receive(queue.source()).records[0]
    assert {k: v for k, v in got.metadata.items() if k.startswith("sqs.attribute.")} == {
        "sqs.attribute.conduit-id": sent.id,
        "sqs.attribute.kind": "order",
    }


@pytest.mark.proves("T8")
def test_a_fifo_queue_drops_what_is_sent_again(fifo: Queue) -> None:
    records = [record(n, key=f"k {n % 2}".encode()) for n in range(6)]
    for _ in range(2):
        assert {o.kind for o in send(fifo.settings, records)} == {"delivered"}
    got = receive(fifo.source(format="json")).records
    assert sorted(r.after["n"] for r in got) == list(range(6))  # type: ignore[index]  # structured
    assert len({r.key for r in got}) == 2


def test_while_the_server_is_away_sends_fail_and_may_recover(moto: MotoServer, queue: Queue) -> None:
    async def run() -> list[Outcome]:
        destination = SqsDestination(queue.settings)
        await destination.open(10.0)
        moto.stop()
        try:
            first = await destination.send(record(1))
            moto.start()
            return [first, await destination.send(record(1))]
        finally:
            await destination.close()

    failed, delivered = asyncio.run(run())
    assert (failed.kind, delivered.kind) == ("failed", "delivered")
    assert "a-secret-of-tests" not in failed.message


def test_a_queue_that_is_not_there_is_a_mistake_of_the_file(moto: MotoServer) -> None:
    with pytest.raises(ConfigError, match="nowhere cannot be found"):
        send({**moto.settings, "queue": "nowhere"}, [])


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_both_sides_keep_the_contract(moto: MotoServer, kind: str) -> None:
    queue = Queue(moto, **({"FifoQueue": "true"} if kind == "fifo" else {}))
    source = {**queue.settings, "wait": "0s", "visibility-timeout": "3s"}
    accept("sqs", source=source, destination=queue.settings, records=30).require()
    queue.client.close()


@pytest.mark.usefixtures("no_garbage_collected")
def test_one_that_cannot_be_opened_leaves_no_connection() -> None:
    async def opened_twice(address: str) -> None:
        given = {"queue": "q", "endpoint-url": address, "region": "eu-central-1"}
        made = SqsDestination({**given, "access-key-id": "testing", "secret-access-key": "a-secret-of-tests"})
        for _ in range(2):
            with suppress(Unavailable):
                await made.open(20.0)
        await made.close()

    # Given a server that is up, and fails
    with answering(lambda *_: (500, b""), "HTTP/1.1") as address:
        asyncio.run(opened_twice(address))
        before = Open.now().sockets
        for _ in range(3):
            asyncio.run(opened_twice(address))
        # Then both ends of each connection are closed, though nobody collects garbage
        until(lambda: Open.now().sockets <= before)
