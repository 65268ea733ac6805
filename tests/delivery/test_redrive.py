"""Dead letters go again to exactly their destination, once, whatever happens in between (SEMANTICS X2)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.redrive import AGAIN, REDRIVEN, Redrives
from conduit_tasks.dead_letters.book import OPEN
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.errors import ConduitError, Unavailable
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.record.record import Record
from conduit_tasks.resend import redrive as chunks
from conduit_tasks.resend.letters import Redriven
from conduit_tasks.resend.redrive import redrive, shares
from conduit_tasks.settings import forget, settings
from tests.delivery.shelf import Place, Shelf, book, dies_at, shelves, tell, whole_entries  # noqa: F401 - a fixture
from tests.fork import Fork
from tests.micro_batch.endings import lapse
from tests.micro_batch.harness import deliver_again, run_until_quiet


def states() -> list[tuple[int, int, int, str]]:
    """(n, epoch, attempts, state) of every letter."""
    import json

    rows = [(e, json.loads(e.row["record"])) for e in whole_entries()]
    return sorted((r["payload"]["after"]["n"], e.row["epoch"], e.row["attempts"], e.state) for e, r in rows)


def send(by: str = "ada", **selected: Any) -> Redriven:
    with opened("p", "test") as context:
        outcomes = redrive(context, Selection(**selected), by, wait=60.0)
    return outcomes[0] if outcomes else Redriven("d")


@pytest.fixture
def place(home: Path) -> Place:
    return Place(home)


def failed(place: Place, *numbers: int, total: int = 10) -> None:
    """`total` records of which these are dead letters now, and the cause is fixed."""
    place.feed([(n, f"k{n}") for n in range(total)])
    place.refuse(*numbers)
    run_until_quiet("p")
    place.refuse()


@pytest.mark.proves("X2", "T8", "C14")
@pytest.mark.parametrize("plugin", ["shelf", "binder"])
def test_a_redriven_letter_arrives_under_its_own_id_and_is_marked_with_time_and_operator(
    home: Path, plugin: str
) -> None:
    # Given a record-wise or batch-wise destination that refused three records
    place = Place(home, plugin)
    failed(place, 3, 5, 8)
    before = {e.row["id"] for e in book().entries}
    assert states() == [(3, 0, 1, OPEN), (5, 0, 1, OPEN), (8, 0, 1, OPEN)]
    # When they are redriven
    outcome = send()
    # Then they follow, in their order, and nothing else is sent
    assert (outcome.redriven, outcome.again) == (3, 0)
    assert place.got() == [0, 1, 2, 4, 6, 7, 9, 3, 5, 8]
    if plugin == "shelf":
        assert {row["id"] for row in place.rows()[-3:]} == before
    # And each says when and by whom, in the store itself
    entries = book().entries
    assert [e.state for e in entries] == [REDRIVEN] * 3
    assert {e.mark.by for e in entries if e.mark} == {"ada"}
    assert all(e.mark and e.mark.redrive == 1 and e.mark.at >= e.row["at"] for e in entries)
    # And live delivery goes on as if nothing had been
    place.feed([(10, "a")])
    run_until_quiet("p")
    assert place.got()[-1] == 10
    with opened("p", "look") as context:
        counters = context.broker.deliveries.get("d").counters
        assert (counters["matched"], counters["nacked"], counters["redriven"]) == (11, 3, 3)
        assert context.broker.redis.exists(context.broker.keys.redrive("d")) == 0


@pytest.mark.proves("X2")
def test_what_a_destination_has_already_is_not_selected_again(place: Place) -> None:
    failed(place, 1, 2)
    assert send(classes=("http 400",)).redriven == 2
    assert send().redriven == 0
    assert place.got().count(1) == place.got().count(2) == 1


@pytest.mark.proves("C3", "X2", "I8")
@pytest.mark.parametrize("plugin", ["shelf", "binder"])
def test_what_fails_again_is_a_new_dead_letter_of_the_same_record_with_all_its_attempts(
    home: Path, plugin: str
) -> None:
    # Given two dead letters, one of which is refused still
    place = Place(home, plugin)
    failed(place, 3, 5)
    place.refuse(5)
    # When they are redriven
    outcome = send()
    # Then one arrives, and the other is a dead letter of a new epoch; its old one is not touched again
    assert (outcome.redriven, outcome.again) == (1, 1)
    assert states() == [(3, 0, 1, REDRIVEN), (5, 0, 1, AGAIN), (5, 1, 2, OPEN)]
    first, second = (e.row for e in whole_entries() if '"n":5' in e.row["record"])
    assert (first["id"], first["micro_batch"], first["seq"]) == (second["id"], second["micro_batch"], second["seq"])
    # And the third time it arrives, once
    place.refuse()
    assert send().redriven == 1
    assert states() == [(3, 0, 1, REDRIVEN), (5, 0, 1, AGAIN), (5, 1, 2, REDRIVEN)]
    assert sorted(place.got()) == list(range(10))


@pytest.mark.proves("X2")
def test_letters_are_chosen_by_class_key_micro_batch_id_and_date(place: Place) -> None:
    failed(place, 1, 2)
    place.feed([(n, "again") for n in (20, 21)])
    place.refuse(20, 21)
    run_until_quiet("p")
    place.refuse()
    rows = {(e.row["micro_batch"], e.row["seq"]): e.row for e in book().entries}
    assert send(classes=("timeout",)).redriven == 0
    assert send(keys=("k1",)).redriven == 1
    assert place.got()[-1] == 1
    assert send(ids=(rows[2, 1]["id"],)).redriven == 1
    assert place.got()[-1] == 21
    assert send(until=rows[2, 0]["at"]).redriven == 1
    assert place.got()[-1] == 2
    assert send(micro_batches=(1,)).redriven == 0
    assert send(destination="d", micro_batches=(2,)).redriven == 1
    assert place.got()[-1] == 20


@pytest.mark.proves("X2")
def test_looking_first_changes_nothing(place: Place, home: Path) -> None:
    failed(place, 1, 2)
    files = {path: path.read_bytes() for path in (home / ".conduit/dead-letters").rglob("*.parquet")}
    with opened("p", "look") as context:
        dumps = {k: context.broker.redis.dump(k) for k in context.broker.redis.scan_iter("*")}
        (share,), said = shares(context, Selection())
        after = {k: context.broker.redis.dump(k) for k in context.broker.redis.scan_iter("*")}
    assert [row["seq"] for row in share.rows] == [1, 2]
    assert (said, share.waiting) == ([], 0)
    assert after == dumps
    assert files == {path: path.read_bytes() for path in (home / ".conduit/dead-letters").rglob("*.parquet")}
    assert 1 not in place.got()


@pytest.mark.proves("X5")
def test_a_redrive_is_in_the_ledger_with_who_did_it_and_what_became_of_each_record(place: Place) -> None:
    failed(place, 1, 2, 3)
    place.feed([(20, "again")])
    place.refuse(20)
    run_until_quiet("p")
    place.refuse(2)
    send()
    with opened("p", "look") as context:
        rows = [row for row in Ledger(context.spool, "p").read().to_pylist() if row["epoch"]]
    assert [(r["micro_batch"], r["first"], r["last"], r["outcome"], r["error_class"]) for r in rows] == [
        (1, 1, 1, "acked", None),
        (1, 2, 2, "nacked", "http 400"),
        (1, 3, 3, "acked", None),
        (2, 0, 0, "acked", None),
    ]
    assert {(r["run"], r["status"]) for r in rows} == {("redrive by ada", "done")}
    assert sum(r["delivered"] or 0 for r in rows) == 3
    assert sum(r["nacked"] or 0 for r in rows) == 1


@pytest.mark.proves("X5", "T7")
def test_what_a_redrive_could_not_send_is_open_in_the_ledger(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(place, 1, 2)

    async def down(self: Shelf, record: Record) -> Any:
        raise Unavailable("nobody answers")

    monkeypatch.setattr(Shelf, "send", down)
    with pytest.raises(Unavailable):
        send()
    with opened("p", "look") as context:
        (row,) = [row for row in Ledger(context.spool, "p").read().to_pylist() if row["epoch"]]
    assert (row["first"], row["last"], row["outcome"], row["status"]) == (1, 2, "open", "waiting")


@pytest.mark.proves("X2", "C2")
def test_the_destinations_processors_see_again_only_what_had_not_passed_them(home: Path) -> None:
    # Given a processor that counts, and one that fails record 2
    processors = """
          - {id: count, plugin: field.set, settings: {field: .Payload.After.seen, value: "{{ .Payload.After.seen }}x"}}
          - {id: bad, plugin: error, settings: {message: no}, condition: '{{ eq .Payload.After.n 2 }}'}"""
    place = Place(home, processors=processors)
    place.feed([(n, "k") for n in range(5)])
    place.refuse(3)
    run_until_quiet("p")
    # When the processor is fixed, and both are redriven: one refused after the processors, one failed by them
    place = Place(home, processors=processors.replace(".n 2 ", ".n 99 "))
    place.refuse()
    assert send().redriven == 2
    # Then each passed them once
    seen = {row["n"]: row["after"]["seen"].count("x") for row in place.rows()}
    assert seen == dict.fromkeys(range(5), 1)
    assert place.got() == [0, 1, 4, 2, 3]


@pytest.mark.proves("T7", "X2")
def test_a_destination_that_is_down_keeps_its_letters(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(place, 1, 2)

    async def down(self: Shelf, record: Record) -> Any:
        raise Unavailable("nobody answers")

    monkeypatch.setattr(Shelf, "send", down)
    with pytest.raises(Unavailable, match="nobody answers"):
        send()
    assert states() == [(1, 0, 1, OPEN), (2, 0, 1, OPEN)]


@pytest.mark.proves("C10", "X2")
def test_a_letter_that_kills_its_worker_is_a_dead_letter_again_and_the_others_go(place: Place) -> None:
    failed(place, 1, 2, 3)
    root = settings().path(settings().dead_letters)
    store = DeadLetterStore(root, "p", "d")
    from dataclasses import replace

    store.store([replace(x, error_class="killed its worker", at=x.at + 1) for x in store.letters("d") if x.seq == 2])
    tell(place.out, "deadly", [2])
    outcome = send()
    assert (outcome.redriven, outcome.again) == (2, 1)
    assert states() == [(1, 0, 1, REDRIVEN), (2, 0, 1, AGAIN), (2, 2, 2, OPEN), (3, 0, 1, REDRIVEN)]


def operator(name: str) -> int:
    """Redrives everything, in chunks of ten, in a process of this operator's; returns how much of it."""
    chunks.CHUNK = 10
    with opened("p", name) as context:
        return sum(o.redriven for o in chunks.redrive(context, Selection(), name, wait=120.0))


@pytest.mark.proves("X2", "I4")
def test_two_operators_at_once_redrive_every_letter_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given forty dead letters, in chunks of ten
    failed(place, *range(40), total=50)
    place.patient()
    # Nobody dies: who stands still for a while loses no lease
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "60")
    forget()
    tell(place.out, "slow", 0.01)
    # When two processes redrive them at the same time
    both = [Fork(operator, "ada"), Fork(operator, "bob")]
    # Then each arrived once
    assert [each.end() for each in both] == [0, 0]
    assert sorted(place.got()) == list(range(50))
    assert sum(each.answer() for each in both) == 40
    assert all(state == REDRIVEN for *_, state in states())


@pytest.mark.proves("X2", "I4", "C10")
def test_a_redrive_that_is_killed_goes_on_where_it_was(place: Place) -> None:
    # Given a redrive that is killed half-way
    failed(place, *range(40), total=50)
    place.patient()
    tell(place.out, "slow", 0.03)
    tell(place.out, "deadly", [25])
    assert Fork(operator, "ada").end() == -signal.SIGKILL
    tell(place.out, "deadly", [])
    sent = len(place.got()) - 10
    assert 10 < sent < 40
    # When it is called again, after the lease has lapsed
    lapse()
    tell(place.out, "slow", 0.0)
    outcome = send("bob")
    # Then every letter arrived, and only what was sent and not settled came twice: what is on its way, and one flush
    got = place.got()
    assert set(got) == set(range(50))
    repeated = [n for n in set(got) if got.count(n) > 1]
    assert len(repeated) <= 12
    # And the store knows of all of them who sent them
    entries = book().entries
    assert all(e.state == REDRIVEN for e in entries)
    by = [e.mark.by for e in entries if e.mark]
    assert by.count("bob") == outcome.redriven < 40
    assert by.count("ada") == 40 - outcome.redriven
    with opened("p", "look") as context:
        assert context.broker.redis.exists(context.broker.keys.redrive("d")) == 0


@pytest.mark.proves("X2", "I5")
def test_a_crash_between_any_two_steps_of_a_redrive_loses_nothing_and_marks_everything(place: Place) -> None:
    failed(place, 1, 2, 3)
    steps = [
        (Redrives, "claim"),
        (Redrives, "settle"),
        (DeadLetterStore, "store"),
        (Marks, "write"),
        (Redrives, "mark"),
    ]
    for owner, name in steps:
        for after in (False, True):
            place.refuse(2)
            assert dies_at(send, owner, name, "destinations.d", after=after) == 9
    # When the last one is not disturbed
    send("bob")
    place.refuse()
    send("bob")
    # Then every record is there, nothing is open, and every letter that is known to the broker is marked
    assert set(place.got()) == set(range(10))
    assert not any(e.open for e in book().entries)
    with opened("p", "look") as context:
        assert context.broker.dead_letters.count("d") == 0
        assert context.broker.redis.exists(context.broker.keys.redrive("d")) == 0


@pytest.mark.proves("C14", "X2", "C3")
@pytest.mark.parametrize("plugin", ["shelf", "binder"])
def test_a_cleared_task_that_delivers_a_dead_letters_record_closes_the_letter(home: Path, plugin: str) -> None:
    # Given two dead letters of a run, whose cause is fixed for one of them
    place = Place(home, plugin)
    failed(place, 3, 5, total=6)
    place.refuse(5)
    # When the run's task is cleared and delivers again
    deliver_again("p", "d", "run-0")
    # Then the one that arrived is a dead letter no more, the other one is a new letter, and the store says by whom
    assert 3 in place.got()
    assert states() == [(3, 0, 1, REDRIVEN), (5, 0, 1, AGAIN), (5, 1, 1, OPEN)]
    assert {e.mark.by for e in book().entries if e.mark} == {"run run-0"}
    with opened("p", "look") as context:
        assert context.broker.dead_letters.count("d") == 1
        assert context.broker.redis.exists(context.broker.keys.redrive("d")) == 0
    # And a redrive sends what is left, once
    place.refuse()
    assert send().redriven == 1
    assert place.got().count(3) == 1
    assert place.got().count(5) == 1


def test_a_stopped_pipeline_sends_nothing(place: Place) -> None:
    failed(place, 1)
    with opened("p", "look") as context:
        context.broker.lifecycle.force_stop()
    with pytest.raises(ConduitError, match="conduit start p"):
        send()
    assert 1 not in place.got()
