"""After a dead letter of a key, the later records of that key wait, in order, and follow it (SEMANTICS X4)."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.redrive import Redrives
from conduit_tasks.cli.main import app
from conduit_tasks.dead_letters.book import OPEN
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.settings import settings
from tests.delivery.shelf import Place, shelves  # noqa: F401 - a fixture
from tests.delivery.test_redrive import book, send, states
from tests.micro_batch.harness import run_once, run_until_quiet
from tests.redis_server import RedisServer

PLUGINS = pytest.mark.parametrize("plugin", ["shelf", "binder"])


def parked() -> dict[str, Any]:
    with opened("p", "look") as context:
        return context.broker.redrives.parked("d")


def counters() -> dict[str, int]:
    with opened("p", "look") as context:
        return context.broker.deliveries.get("d").counters


def copies() -> list[int]:
    store = DeadLetterStore(settings().path(settings().dead_letters), "p", parked=True)
    return [letter.record.after["n"] for letter in store.letters("d") if isinstance(letter.record.after, dict)]


def of(place: Place, *numbers: int) -> list[int]:
    """These, in the order in which they arrived."""
    return [n for n in place.got() if n in numbers]


@pytest.mark.proves("X4", "C9")
@PLUGINS
def test_later_records_of_the_key_wait_while_other_keys_flow_and_follow_in_order(home: Path, plugin: str) -> None:
    # Given two keys in turns, one of whose records is refused
    place = Place(home, plugin, park=True)
    place.feed([(n, "ab"[n % 2]) for n in range(10)])
    place.refuse(2)
    run_until_quiet("p")
    # Then the other key is there whole, and of this one only what came before
    assert of(place, *range(1, 10, 2)) == [1, 3, 5, 7, 9]
    assert of(place, *range(0, 10, 2)) == [0]
    assert copies() == [4, 6, 8]
    # And they count as handled
    found = counters()
    assert (found["matched"], found["delivered"], found["nacked"], found["parked"]) == (10, 6, 1, 3)
    assert len(parked()) == 1
    # And so do the key's records of later micro-batches, also after the option was taken away
    place.feed([(10, "a"), (11, "b")])
    run_until_quiet("p")
    place = Place(home, plugin)
    place.feed([(12, "a"), (13, "b")])
    run_until_quiet("p")
    assert of(place, 10, 11, 12, 13) == [11, 13]
    # When the letter is redriven
    place = Place(home, plugin, park=True)
    place.refuse()
    outcome = send()
    # Then they follow it in order, and the key flows again
    assert (outcome.redriven, outcome.released, outcome.waiting) == (1, 5, 0)
    assert of(place, *range(0, 13, 2)) == [0, 2, 4, 6, 8, 10, 12]
    assert (parked(), copies()) == ({}, [])
    place.feed([(14, "a")])
    run_until_quiet("p")
    assert place.got()[-1] == 14
    assert sorted(place.got()) == list(range(15))


@pytest.mark.proves("X4", "C3")
@PLUGINS
def test_a_released_record_that_fails_is_the_next_letter_and_the_rest_goes_on_waiting(home: Path, plugin: str) -> None:
    place = Place(home, plugin, park=True)
    place.feed([(n, "a") for n in range(6)])
    place.refuse(1, 3)
    run_until_quiet("p")
    assert (place.got(), copies()) == ([0], [2, 3, 4, 5])
    # When the first is fixed, and the third is not
    place.refuse(3)
    outcome = send()
    # Then all goes up to the third
    assert (outcome.redriven, outcome.released, outcome.again, outcome.waiting) == (1, 1, 1, 2)
    assert place.got() == [0, 1, 2]
    assert [(n, state) for n, _, _, state in states() if state == OPEN] == [(3, OPEN)]
    # And where the letter itself fails again, nothing overtakes it
    assert send().released == 0
    assert place.got() == [0, 1, 2]
    place.refuse()
    send()
    assert place.got() == [0, 1, 2, 3, 4, 5]
    assert (parked(), copies()) == ({}, [])


@pytest.mark.proves("X4")
@PLUGINS
def test_what_a_processor_fails_parks_its_key_and_waits_for_the_processor_too(home: Path, plugin: str) -> None:
    processors = """
          - {id: count, plugin: field.set, settings: {field: .Payload.After.seen, value: "{{ .Payload.After.seen }}x"}}
          - {id: bad, plugin: error, settings: {message: no}, condition: '{{ eq .Payload.After.n 1 }}'}"""
    place = Place(home, plugin, park=True, processors=processors)
    place.feed([(n, "a") for n in range(5)])
    run_until_quiet("p")
    assert (place.got(), copies()) == ([0], [2, 3, 4])
    place = Place(home, plugin, park=True, processors=processors.split("\n          - {id: bad", maxsplit=1)[0])
    send()
    assert place.got() == [0, 1, 2, 3, 4]
    assert [(row.get("after") or row)["seen"].count("x") for row in place.rows()] == [1] * 5


@pytest.mark.proves("X4")
def test_a_redrive_reads_of_what_waits_what_it_sends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given two keys that wait, in files of their own
    place = Place(home, park=True)
    place.refuse(0, 1)
    for rows in ([(0, "a"), (1, "b")], [(2, "a")], [(3, "b")], [(4, "b")], [(5, "b")]):
        place.feed(rows)
        run_until_quiet("p")
    assert copies() == [2, 3, 4, 5]
    read: list[tuple[bool, int]] = []
    table = DeadLetterStore.table

    def noted(self: DeadLetterStore, path: str, of: Any) -> Any:
        read.append(("/_parked/" in path, int(path.rpartition("/")[2].partition("-")[0])))
        return table(self, path, of)

    # When the letter of one of them is redriven
    place.refuse()
    with monkeypatch.context() as patch:
        patch.setattr(DeadLetterStore, "table", noted)
        outcome = send(keys=("a",))
    # Then the rows of that key alone are read, and it flows again, while the other one waits
    assert (outcome.redriven, outcome.released, outcome.waiting) == (1, 1, 3)
    assert {batch for parked, batch in read if parked} == {2}
    assert {batch for parked, batch in read if not parked} == {1}
    assert (place.got(), copies(), len(parked())) == ([0, 2], [3, 4, 5], 1)


@pytest.mark.proves("X4")
def test_records_without_a_key_are_never_parked(home: Path) -> None:
    place = Place(home, park=True)
    path = home / "include/pipelines/p.yaml"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if ".Key" not in line))
    place.feed([(n, None) for n in range(5)])
    place.refuse(1)
    run_until_quiet("p")
    assert place.got() == [0, 2, 3, 4]
    assert parked() == {}


@pytest.mark.proves("X4")
def test_a_purged_letter_holds_nothing_back(home: Path) -> None:
    place = Place(home, park=True)
    place.feed([(n, "a") for n in range(4)])
    place.refuse(1)
    run_until_quiet("p")
    with opened("p", "t") as context:
        context.broker.redrives.purge("d", [e.key for e in book().entries])
    outcome = send()
    assert (outcome.redriven, outcome.released) == (0, 2)
    assert place.got() == [0, 2, 3]
    assert parked() == {}


@pytest.mark.proves("X4")
def test_a_parked_key_takes_less_than_200_bytes(home: Path) -> None:
    place = Place(home, park=True)
    place.feed([(n, f"a rather long key of its own, number {n % 500}") for n in range(1000)])
    place.refuse(*range(500))
    run_until_quiet("p")
    with opened("p", "look") as context:
        key = context.broker.keys.parked("d")
        size: Any = context.broker.redis.memory_usage(key, samples=0)
        assert context.broker.redis.hlen(key) == 500
    assert size / 500 < 200


class Dies:
    """Runs something in a child that ends before or after the n-th call of some operation."""

    OPERATIONS = (
        (Deliveries, "confirm"),
        (Deliveries, "vote"),
        (DeadLetterStore, "store"),
        (DeadLetterStore, "remove"),
        (Redrives, "claim"),
        (Redrives, "settle"),
        (Redrives, "mark"),
        (Redrives, "unpark"),
        (Marks, "write"),
    )

    def __init__(self, at: int, *, after: bool) -> None:
        self.left, self.after = at, after

    def __call__(self, work: Any) -> bool:
        pid = os.fork()
        if pid == 0:
            for owner, name in self.OPERATIONS:
                setattr(owner, name, self._ending(getattr(owner, name)))
            try:
                work()
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with opened("p", "look") as context:
            for node in ("destinations.d", "sources.in", "seal"):
                if context.broker.redis.exists(context.broker.keys.lease(node)):
                    context.broker.redis.hset(context.broker.keys.lease(node), "until", "0")
        return code != 0

    def _ending(self, call: Any) -> Any:
        def ending(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                os._exit(9)
            answer = call(*args, **kwargs)
            if self.left == 0:
                os._exit(9)
            return answer

        return ending


STEPS = random.Random(4).sample([(at, after) for at in range(1, 8) for after in (False, True)], 14)
"""(number of the operation at which a process dies, whether after it) each."""


@pytest.mark.proves("X4", "X2", "C9", "C10")
@PLUGINS
@pytest.mark.parametrize("half", [0, 1])
def test_a_crash_between_any_two_steps_loses_nothing_and_keeps_the_order_of_a_key(
    home: Path, plugin: str, half: int
) -> None:
    # Given records of three keys, some of which fail now and then, and processes that die at any step: of a run with
    # the one plugin and of a redrive with the other
    chance = random.Random(half)
    place = Place(home, plugin, park=True)
    n = 0
    for number, (at, after) in enumerate(STEPS[half::2]):
        rows = [(n + i, "abc"[(n + i) % 3]) for i in range(6)]
        n += 6
        place.feed(rows)
        place.refuse(*(row for row in range(n) if chance.random() < 0.15))
        lives = (number % 2 == 0) is (plugin == "shelf")
        Dies(at, after=after)((lambda: run_once("p", "live")) if lives else send)
        run_once("p", "live")
    # When everything is fixed, and sent
    place.refuse()
    run_until_quiet("p")
    while send().redriven:
        pass
    run_until_quiet("p")
    # Then all are there, each key in order but for repeats, and nothing waits
    got = place.got()
    assert set(got) == set(range(n)), f"missing {sorted(set(range(n)) - set(got))}"
    for key in range(3):
        first_seen = list(dict.fromkeys(number for number in got if number % 3 == key))
        assert first_seen == sorted(first_seen)
    if plugin == "binder":
        assert len(got) == n, "a file is cut back to what was confirmed"
    assert (parked(), copies()) == ({}, [])
    assert not any(e.open for e in book().entries)


@pytest.mark.proves("X7", "X4", "X2")
@PLUGINS
def test_a_lost_redis_forgets_no_letter_and_nothing_that_waits(
    home: Path, plugin: str, redis_server: RedisServer
) -> None:
    # Given a letter that was redriven, one that is open, and records that wait behind it
    place = Place(home, plugin, park=True)
    place.feed([(n, "ab"[n % 2]) for n in range(10)])
    place.refuse(1, 4)
    run_until_quiet("p")
    place.refuse()
    send(keys=("b",))
    assert (place.got().count(1), copies()) == (1, [6, 8])
    # When Redis loses everything, and the state is rebuilt from the spool and the store
    redis_server.flush()
    assert CliRunner().invoke(app, ["broker", "rebuild", "p"]).exit_code == 0
    # Then the letter is open, its key is parked, and what was redriven stays so
    assert [(n, state) for n, _, _, state in states() if state == OPEN] == [(4, OPEN)]
    assert len(parked()) == 1
    place.feed([(10, "a"), (11, "b")])
    run_until_quiet("p")
    assert of(place, 10, 11) == [11]
    outcome = send()
    assert (outcome.redriven, outcome.released) == (1, 3)
    assert of(place, *range(0, 12, 2)) == [0, 2, 4, 6, 8, 10]
    assert sorted(place.got()) == list(range(12))


@pytest.mark.proves("X7", "X4", "C9")
@PLUGINS
def test_nothing_overtakes_a_record_whose_confirm_redis_forgot_while_its_sender_went_on(
    home: Path, plugin: str
) -> None:
    # Given a letter, three records that wait behind it, and a Redis that forgot the confirm of the first of them before
    # a mark in the spool spoke of it
    place = Place(home, plugin, park=True)
    place.feed([(n, "a") for n in range(4)])
    place.refuse(0)
    run_until_quiet("p")
    assert copies() == [1, 2, 3]
    with opened("p", "look") as context:
        context.broker.redis.hset(context.broker.keys.destination("d"), mapping={"cursor": 0, "ranges": "0-0,2-3"})
    shutil.rmtree(home / ".conduit/spool/p/checkpoint")
    # When the letter is redriven before that record is delivered again
    place.refuse()
    assert send().redriven == 1
    # Then those behind it wait until it is, and all come in their order
    assert place.got() == [0]
    run_until_quiet("p")
    send()
    assert place.got() == [0, 1, 2, 3]
    assert (parked(), copies()) == ({}, [])
