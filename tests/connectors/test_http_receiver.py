"""The demo's receiver, from outside."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conduit_tasks.demo.receiver import Faults
from tests.connectors.receiving import ReceiverProcess


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverProcess]:
    options = ("--seed", "3", "--unavailable", "0.2", "--limited", "0.1", "--refuse", "carrier=YV", "--order", "lane,n")
    process = ReceiverProcess(tmp_path, options).start()
    yield process
    process.kill()


def post(receiver: ReceiverProcess, key: str, body: object) -> int:
    request = urllib.request.Request(receiver.url, json.dumps(body).encode(), {"Idempotency-Key": key})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code if error.code != 429 or error.headers["Retry-After"] == "1" else -1


def persist(receiver: ReceiverProcess, key: str, body: object) -> list[int]:
    """Sends until it is taken or refused; the statuses."""
    statuses: list[int] = []
    while not statuses or statuses[-1] in (503, 429):
        statuses.append(post(receiver, key, body))
    return statuses


def test_it_remembers_what_it_took_across_its_own_death(receiver: ReceiverProcess) -> None:
    # Given events of which some are refused, repeated, or out of order
    for n in range(60):
        persist(receiver, f"k{n}", {"carrier": "YV" if n % 10 == 0 else "AA", "lane": "a", "n": n})
    persist(receiver, "k5", {"carrier": "AA", "lane": "a", "n": 5})
    persist(receiver, "late", {"carrier": "AA", "lane": "a", "n": 2})
    before = receiver.summary()
    assert (before["accepted"], before["duplicates"], before["out_of_order"]) == (55, 1, 1)
    assert before["refused"] == 6
    assert before["unavailable"] > 3
    assert before["limited"] > 0
    order = receiver.accepted()
    # When it is killed with a torn line in its log, and started again
    receiver.kill()
    with (receiver.folder / "receiver.db").open("ab") as log:
        log.write(b"A\ttorn")
    receiver.start()
    # Then it knows the same
    assert receiver.summary() == before
    assert receiver.accepted() == order


def test_its_faults_depend_on_seed_key_and_attempt_alone() -> None:
    faults, same, other = Faults(1, 0.3, 0.2), Faults(1, 0.3, 0.2), Faults(2, 0.3, 0.2)
    asked = [(f"k{n}", attempt) for n in range(2000) for attempt in (1, 2)]
    found = [faults.of(*each) for each in asked]
    assert found == [same.of(*each) for each in asked]
    assert found != [other.of(*each) for each in asked]
    assert 0.25 < found.count("U") / len(found) < 0.35
    assert 0.15 < found.count("L") / len(found) < 0.25


def test_its_mode_can_be_switched_and_outlives_it(receiver: ReceiverProcess) -> None:
    receiver.mode("down")
    assert {post(receiver, f"k{n}", {}) for n in range(20)} == {503}
    receiver.kill()
    receiver.start()
    assert post(receiver, "k", {}) == 503
    receiver.mode("clean")
    assert {post(receiver, f"k{n}", {}) for n in range(20)} == {204}
    assert receiver.summary()["mode"] == "clean"


@pytest.mark.parametrize("of", [lambda n: n, lambda n: f"01-{n:02d} 0800"])
def test_it_sees_a_lane_that_went_back_whether_it_counts_in_numbers_or_text(
    receiver: ReceiverProcess, of: Callable[[int], object]
) -> None:
    # Given two lanes, of which one goes back once
    receiver.mode("clean")
    for key, lane, n in [
        ("a1", "a", 1),
        ("b9", "b", 9),
        ("a3", "a", 3),
        ("a2", "a", 2),
        ("b9+", "b", 9),
        ("a4", "a", 4),
    ]:
        assert post(receiver, key, {"lane": lane, "n": of(n)}) == 204
    # When an event has no place in the order
    assert post(receiver, "none", {"lane": "a"}) == 204
    # Then that one alone is out of order, and what could not be compared is not counted as if it had been
    summary = receiver.summary()
    assert (summary["accepted"], summary["ordered"], summary["out_of_order"]) == (7, 6, 1)
