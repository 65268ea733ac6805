"""What the broker keeps of issues: failed tasks, counted once each and bounded; who was told of which opening."""

from __future__ import annotations

import threading
import time
from typing import Any

import orjson
import pytest

from conduit_tasks.broker import issues as module
from conduit_tasks.broker.broker import Broker
from tests.waiting import until


def fail(broker: Broker, issue: str = "a1", attempt: str = "1", by: str = "sources.in", error: str = "broken") -> int:
    said = {"node": by, "by": by, "error_class": "SourceError", "shape": error, "error": error, "log": {"task": "t"}}
    return broker.issues.failed(issue, attempt, said)


def aged(broker: Broker, issue: str, seconds: float) -> None:
    """Makes an issue older than it is."""
    _, by, text = str(broker.redis.hget(broker.keys.failing, issue)).split("|", 2)
    stored = orjson.loads(text)
    for name in ("first", "last", "since"):
        stored[name] = str(int(stored[name]) - int(seconds * 1e6))
    day = str(int(stored["last"]) // 86_400_000_000)
    text = orjson.dumps({**stored, "days": {day: stored["count"]}}).decode()
    broker.redis.hset(broker.keys.failing, issue, f"{stored['last']}|{by}|{text}")


@pytest.mark.proves("I5")
def test_attempts_of_one_cause_are_counted_once_each(broker: Broker) -> None:
    began = time.time()
    assert [fail(broker, attempt=attempt) for attempt in ("1", "1", "2", "2")] == [1, 1, 2, 2]
    fail(broker, error="later")
    (found,) = broker.issues.failing().values()
    assert (found.node, found.error_class, found.error, found.log) == (
        "sources.in",
        "SourceError",
        "later",
        {"task": "t"},
    )
    assert (found.count, sum(found.days.values()), found.succeeded) == (3, 3, 0)
    assert began - 5 < found.first <= found.last < time.time() + 5
    assert found.since == found.first


def test_a_success_closes_the_failures_before_it(broker: Broker) -> None:
    # A node that never failed leaves nothing behind
    broker.issues.succeeded("sources.in")
    assert broker.redis.exists(broker.keys.failing) == 0
    fail(broker)
    fail(broker, "b2", by="acks.in")
    broker.issues.succeeded("sources.in")
    found = broker.issues.failing()
    assert found["a1"].succeeded > found["a1"].last
    assert found["b2"].succeeded == 0
    # When it fails again, it was opened by that
    fail(broker, attempt="2")
    fail(broker, attempt="3")
    found = broker.issues.failing()
    assert found["a1"].first < found["a1"].succeeded < found["a1"].since < found["a1"].last
    assert found["b2"].since == found["b2"].first


def test_days_are_counted_apart_and_two_weeks_of_them(broker: Broker) -> None:
    fail(broker)
    aged(broker, "a1", 86_400 * 3)
    fail(broker, attempt="2")
    assert sorted(broker.issues.failing()["a1"].days.values()) == [1, 1]
    aged(broker, "a1", 86_400 * 14)
    fail(broker, attempt="3")
    assert list(broker.issues.failing()["a1"].days.values()) == [1]


def test_the_oldest_beyond_200_and_those_of_a_month_ago_are_forgotten(broker: Broker) -> None:
    fail(broker, "old", by="gone")
    aged(broker, "old", 86_400 * 31)
    fail(broker, "young")
    aged(broker, "young", 86_400 * 29)
    fail(broker, "new")
    assert set(broker.issues.failing()) == {"young", "new"}
    assert broker.redis.hexists(broker.keys.failing, "ok:gone") is False
    for n in range(199):
        fail(broker, f"i{n}", error="x" * 1_000)
    found = broker.issues.failing()
    assert len(found) == 200
    assert "young" not in found
    assert {"new", "i0", "i198"} <= set(found)
    size: Any = broker.redis.memory_usage(broker.keys.failing, samples=0)
    assert size < 600_000


@pytest.mark.proves("I5")
def test_an_opening_is_told_once_however_many_see_it(broker: Broker) -> None:
    nonces: list[str] = []
    threads = [threading.Thread(target=lambda: nonces.append(broker.issues.announce("a1|ann", 0.0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (nonce,) = filter(None, nonces)
    # Somebody else is told on its own, and the same one only once it could not be told
    assert broker.issues.announce("a1|bob", 0.0)
    broker.issues.settle("a1|ann", 0.0, "somebody else", told=True)
    assert broker.issues.announced() == {}
    broker.issues.settle("a1|ann", 0.0, nonce, told=False)
    again = broker.issues.announce("a1|ann", 0.0)
    broker.issues.settle("a1|ann", 0.0, again, told=True)
    broker.issues.settle("a1|ann", 0.0, again, told=True)
    assert broker.issues.announced() == {"a1|ann": 0}
    assert broker.issues.announce("a1|ann", 0.0) == ""
    # When it was opened again, that is told
    later = broker.issues.announce("a1|ann", 17.5)
    broker.issues.settle("a1|ann", 17.5, later, told=True)
    assert broker.issues.announced() == {"a1|ann": 17_500_000}
    assert [broker.issues.announce("a1|ann", opening) for opening in (0.0, 17.5)] == ["", ""]


def test_who_died_while_it_told_is_followed_by_another(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELLING", 0.05)
    assert broker.issues.announce("a1|ann", 0.0)
    until(lambda: broker.issues.announce("a1|ann", 0.0))


def test_what_is_gone_is_forgotten_and_new_when_it_comes_back(broker: Broker) -> None:
    for subject in ("a1|ann", "b2|ann"):
        broker.issues.settle(subject, 0.0, broker.issues.announce(subject, 0.0), told=True)
    broker.issues.looked("seen", ["a1|ann"])
    assert broker.issues.announced() == {"b2|ann": 0}
    assert broker.issues.mark() == "seen"
    assert broker.issues.announce("a1|ann", 0.0)
    broker.issues.looked("", [])
    assert broker.issues.mark() == ""
