"""Which messages have come before: known exactly, in bounded memory, without their handles being loaded."""

from __future__ import annotations

import tracemalloc
import uuid
from collections.abc import Iterator

import numpy as np
import orjson
import pytest

from conduit_tasks.connectors.sqs import known as sqs_known
from conduit_tasks.connectors.sqs.connector import SqsSource
from conduit_tasks.connectors.sqs.known import Known, packed


def test_what_came_is_known_and_what_did_not_is_new_once() -> None:
    ids = [str(uuid.UUID(int=n << 64 | low)) for n in range(50) for low in range(3)] + ["no uuid", "another"]
    known = Known([packed(ids[:70]), packed(ids[70:])])
    assert len(known) == len(ids)
    assert not any(known.new(id) for id in ids)
    for fresh in (str(uuid.UUID(int=7 << 64 | 9)), str(uuid.UUID(int=99 << 64)), str(uuid.UUID(int=0, version=4)), "x"):
        assert known.new(fresh)
        assert not known.new(fresh)


def test_nothing_is_known_at_first() -> None:
    assert Known([]).new("a")


def test_no_more_is_asked_for_than_fits_and_the_newest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqs_known, "MOST", 25)
    asked: list[int] = []

    def pages() -> Iterator[bytes]:
        for n in range(100):
            asked.append(n)
            yield packed(f"{n}-{i}" for i in range(10))

    known = Known(pages())
    assert asked == [0, 1, 2]
    assert len(known) == 25
    assert not known.new("0-9")
    assert known.new("2-9")


class Hour:
    """Receipts of many micro-batches, made when they are asked for."""

    def __init__(self, messages: int) -> None:
        self.messages, self.loaded = messages, 0

    def put(self, data: bytes) -> str:
        raise NotImplementedError

    def get(self, name: str) -> bytes:
        kind, _, m = name.partition("-")
        if kind == "ids":
            halves = np.full((self.messages, 2), int(m), ">u8")
            halves[:, 1] = range(self.messages)
            data = halves.tobytes()
        else:
            numbers = [int(m) << 64 | n for n in range(self.messages)]
            data = orjson.dumps([(str(uuid.UUID(int=number)), "h" * 240, 1_700_000_000) for number in numbers])
        self.loaded += len(data)
        return data


def test_an_hour_of_messages_takes_sixteen_bytes_each(moto_settings: dict[str, str]) -> None:
    """Given 300 micro-batches of 1,000 messages of the last hour, when the next one is read, then 16 bytes of each
    are loaded, and memory holds not much more."""
    source = SqsSource({"queue": "q", **moto_settings})
    source.receipts = hour = Hour(1_000)
    assert packed([str(uuid.UUID(int=3 << 64))]) == hour.get("ids-3")[:16]
    hour.loaded = 0
    source.unsettled = [{"0": {"receipts": f"receipts-{m}", "ids": f"ids-{m}"}} for m in range(300)]
    tracemalloc.start()
    known = Known(source._ids())
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(known) == 300_000
    assert hour.loaded == 300_000 * 16
    assert used < 300_000 * 16 * 1.5
    # What an earlier version kept, handles and all, is known too
    source.unsettled = [{"0": "receipts-7"}]
    assert not Known(source._ids()).new(str(uuid.UUID(int=7 << 64 | 5)))


@pytest.fixture
def moto_settings() -> dict[str, str]:
    return {"region": "eu-central-1"}
