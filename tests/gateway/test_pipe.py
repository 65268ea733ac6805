"""The receiver side of pipes at ingest (SEMANTICS O5–O6r): duplicates, gaps and disorder of one source and key."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_tasks.errors import BrokerUnavailable, ConfigError
from conduit_tasks.gateway.connector import GatewaySource
from conduit_tasks.gateway.event import join, pack, unpack
from conduit_tasks.gateway.pipe import WITHHELD, PipedStore
from conduit_tasks.gateway.store import Budget, Held, IngestStore
from conduit_tasks.pipes.base import Message
from conduit_tasks.pipes.registry import PIPES
from conduit_tasks.redis_client.connection import Client
from tests.gateway.conftest import Answer, GatewayProcess, event, write_pipeline
from tests.redis_server import RedisServer
from tests.waiting import until

AMPLE = Budget(1_000_000, 1 << 30)
NAMES = ("monotonic", "monotonic-relaxed", "continuous", "continuous-relaxed")

Serving = Callable[..., GatewayProcess]
Stored = Callable[..., list[bytes]]


def packed(number: int, key: str = "k") -> bytes:
    meta = {"cloudevents.source": "/s", "cloudevents.sequence": str(number), "cloudevents.partitionkey": key}
    return pack(b"n", meta, b"")


def piped(client: Client, name: str, **settings: str) -> PipedStore:
    source = GatewaySource({"auth": "none", "pipe": name, **settings})
    return PipedStore(IngestStore("p", "web", client), source.receiver, source.pipe_key, source.lanes)


def sequences(stored: Stored) -> list[int]:
    return [int(unpack(e)[1]["cloudevents.sequence"]) for e in stored()]


@pytest.mark.proves("O5", "O5r", "O6", "O6r")
@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(sent=st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=6), min_size=1, max_size=6))
def test_what_is_stored_is_what_the_pipes_own_receiver_delivers(
    client: Client, stored: Stored, name: str, sent: list[list[int]]
) -> None:
    # Given two gateways of one source, and the pipe's receiver as it stands in `pipes`
    client.flushall()
    gateways = [piped(client, name) for _ in range(2)]
    model = PIPES[name].receiver(first=1, **({"queue": 0} if name.startswith("continuous") else {}))
    expected: list[int] = []
    for n, group in enumerate(sent):
        # When a group of single requests arrives at one of them
        chunks = [join([packed(number)]) for number in group]
        said = gateways[n % 2].add(f"g{n % 2}", n + 1, [1] * len(group), chunks, AMPLE)
        # Then each is answered as the receiver says; one that waits is looked at again behind what it waited for
        left = list(range(len(group)))
        answers: dict[int, str] = {}
        moved = True
        while moved:
            moved = False
            for i in list(left):
                reaction = model.receive(Message(group[i]))
                if reaction.confirm:
                    left.remove(i)
                    moved = True
                    answers[i] = "stored" if reaction.deliver else ""
                    expected += [m.number for m in reaction.deliver]
        for i, id in enumerate(said):
            assert id == WITHHELD if i in left else bool(id) == bool(answers[i])
    assert sequences(stored) == expected


@pytest.mark.proves("O6", "I5")
def test_a_call_whose_answer_was_lost_is_repeated_as_it_was(
    client: Client, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = piped(client, "continuous")
    real, lost = store.store.add, iter([True, False, True])

    def losing(*args: object, **more: object) -> list[str | None]:
        ids = real(*args, **more)  # type: ignore[arg-type]
        if next(lost, False):
            raise BrokerUnavailable("the answer was lost")
        return ids

    monkeypatch.setattr(store.store, "add", losing)
    for group, numbers in enumerate(([2, 1, 3], [5, 4, 3]), 1):
        chunks = [join([packed(n)]) for n in numbers]
        with pytest.raises(BrokerUnavailable):
            store.add("g", group, [1] * 3, chunks, AMPLE)
        ids = store.add("g", group, [1] * 3, chunks, AMPLE)
        assert WITHHELD not in ids
    assert sequences(stored) == [1, 2, 3, 4, 5]


@pytest.mark.proves("O5", "C13")
def test_a_repeat_is_not_taken_for_stored_where_the_first_did_not_fit(client: Client, stored: Stored) -> None:
    # Given room for one event, and in one group the same event twice behind it
    store = piped(client, "monotonic")
    chunks = [join([packed(n)]) for n in (1, 2, 2)]
    tight = Budget(1, 1 << 20)
    # Then neither of the two is answered as stored
    assert [bool(id) for id in store.add("g", 1, [1] * 3, chunks, tight)] == [True, False, False]
    assert store.add("g", 2, [1], [join([packed(2)])], tight) == [None]
    assert store.add("g", 3, [1], [join([packed(1)])], tight) == [""]
    assert sequences(stored) == [1]


@pytest.mark.proves("O6")
def test_a_batch_passes_whole_or_waits_whole(client: Client, stored: Stored) -> None:
    store = piped(client, "continuous")

    def add(group: int, *numbers: tuple[int, str]) -> str | None:
        [id] = store.add("g", group, [len(numbers)], [join([packed(*n) for n in numbers])], AMPLE)
        return id

    assert add(1, (1, "a"), (1, "b"), (3, "a")) == WITHHELD
    assert store.store.held() == Held(0, 0)
    assert add(2, (1, "a"), (1, "b"), (2, "a"))
    assert add(3, (1, "b"), (2, "b"), (2, "a"))
    assert add(4, (1, "a"), (2, "b")) == ""
    assert sequences(stored) == [1, 1, 2, 2]


def test_lanes_may_begin_with_whatever_comes_first(client: Client, stored: Stored) -> None:
    store = piped(client, "continuous", **{"pipe.first": "any"})
    for group, number in enumerate((7, 8, 7, 9), 1):
        store.add("g", group, [1], [join([packed(number)])], AMPLE)
    assert sequences(stored) == [7, 8, 9]


def send(gateway: GatewayProcess, number: int, key: str = "k", to: str = "p") -> Answer:
    sent = event(number, sequence=str(number), partitionkey=key)
    return gateway.post(sent, path=f"/ingest/{to}/web", type="application/cloudevents+json")


@pytest.mark.proves("O6", "T2")
def test_an_event_waits_for_its_predecessor_and_is_told_when_that_does_not_come(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    # (which waits for longer than this machine may stand still, where that is to follow)
    write_pipeline(gateway_home, pipe="continuous", **{"pipe.wait": "25s"})
    write_pipeline(gateway_home, "short", pipe="continuous", **{"pipe.wait": "300ms"})
    gateway = serving()
    # Given one that comes too early, and whose predecessor follows
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(send, gateway, 2)
        until(early.running)
        assert send(gateway, 1).status == 202
        assert early.result(120).status == 202
    assert sequences(stored) == [1, 2]
    # When the predecessor does not come
    late = send(gateway, 5, to="short")
    assert (late.status, late.headers["retry-after"], late.problem["title"]) == (409, "1", "Not the next")
    # Then it is not stored
    assert stored("short") == []
    # And a repeat is answered with success and not stored again; other keys are their own
    assert send(gateway, 2).status == 202
    assert send(gateway, 1, key="other").status == 202
    assert sequences(stored) == [1, 2, 1]
    for bad in ({}, {"sequence": "x"}, {"sequence": "3", "sequencetype": "Lexical"}):
        answer = gateway.post(event(3, partitionkey="k", **bad), type="application/cloudevents+json")
        assert answer.status == 400
        assert answer.problem["attribute"].startswith("sequence")


@pytest.mark.proves("O6", "T2", "C9")
def test_a_shuffling_repeating_route_and_kills_leave_every_event_once_and_in_order(
    gateway_home: Path, fsyncing: RedisServer, serving: Serving, stored: Stored
) -> None:
    # Given two gateways, and producers that send everything shuffled, twice, until it is answered
    write_pipeline(gateway_home, pipe="continuous", **{"pipe.wait": "300ms"})
    gateways = [serving(), serving()]
    todo = [(number, key) for number in range(1, 21) for key in ("a", "b")] * 2
    random.Random(7).shuffle(todo)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                number, key = todo.pop()
            try:
                status = send(random.choice(gateways), number, key).status
            except OSError:
                status = 0
            if status != 202:
                assert status in (0, 409, 503)
                with lock:
                    todo.insert(0, (number, key))

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    # When one gateway is killed among it
    until(lambda: len(stored()) > 10)
    gateways[0].kill()
    gateways[0].start()
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads)
    # Then each key's events are there once, in order
    there = [(m["cloudevents.partitionkey"], int(m["cloudevents.sequence"])) for _, m, _ in map(unpack, stored())]
    for key in ("a", "b"):
        assert [n for k, n in there if k == key] == list(range(1, 21))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pipe": "resend"}, "option 'pipe' cannot be 'resend'"),
        ({"pipe": "continuous", "pipe.first": "x"}, "option 'pipe.first'"),
        ({"pipe": "continuous", "pipe.wait": "2"}, "option 'pipe.wait'"),
        ({"pipe": "monotonic", "webhooks": "true"}, "option 'webhooks'"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GatewaySource({"auth": "none", **given})
    assert said in str(caught.value)
