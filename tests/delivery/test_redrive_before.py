"""What failed before the fan-out goes again through processors and triggers, once to each destination (X2)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.redrive import AGAIN, REDRIVEN, Redrives
from conduit_tasks.dead_letters.book import OPEN
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.errors import Unavailable
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.resend import reprocess
from conduit_tasks.resend.letters import Redriven
from conduit_tasks.resend.redrive import redrive, shares
from conduit_tasks.settings import settings
from tests.delivery.shelf import Shelf, book, dies_at, shelves, tell, whole_entries  # noqa: F401 - a fixture
from tests.micro_batch.harness import deliver_again, run_once, run_until_quiet, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {{window-size: 0}}
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}}
        processors:
          - {{id: count, plugin: field.set,
             settings: {{field: .Payload.After.seen, value: "{{{{ .Payload.After.seen }}}}s"}}}}
          - {{id: early, plugin: error, settings: {{message: "no, early"}}, condition: '{{{{ {early} }}}}'}}
      - {{id: all, type: destination, plugin: shelf, settings: {{path: out/all.jsonl}},
         processors: [{{id: own, plugin: field.set,
                       settings: {{field: .Payload.After.seen, value: "{{{{ .Payload.After.seen }}}}d"}}}}]}}
      - {{id: even, type: destination, plugin: shelf, settings: {{path: out/even.jsonl}},
         trigger: {{filters: [{{sql: "even = 'yes'"}}]}}}}
    processors:
{clone}      - {{id: mark, plugin: field.set, condition: '{{{{ .Payload.After.e }}}}',
         settings: {{field: .Metadata.even, value: "yes"}}}}
      - {{id: late, plugin: error, settings: {{message: "no, late"}}, condition: '{{{{ {late} }}}}'}}
      - {{id: gone, plugin: filter, condition: '{{{{ eq .Payload.After.n 8 }}}}'}}
"""
NEVER = "eq .Payload.After.n 99"


def write(home: Path, *, early: str = NEVER, late: str = NEVER, clone: bool = False) -> None:
    """The pipeline, with processors that fail what these conditions say."""
    more = "      - {id: twin, plugin: clone, settings: {count: 1}}\n" if clone else ""
    write_pipeline(home, "p", PIPELINE.format(early=early, late=late, clone=more))


def feed(home: Path, count: int = 10) -> None:
    (home / "data").mkdir(exist_ok=True)
    rows = [{"n": n, "e": n % 2 == 0, "seen": ""} for n in range(count)]
    (home / "data/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows(home: Path, name: str) -> list[dict[str, Any]]:
    path = home / f"out/{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def got(home: Path, name: str) -> list[int]:
    return [row["n"] for row in rows(home, name)]


def send(**selected: Any) -> dict[str, Redriven]:
    with opened("p", "test") as context:
        return {o.destination: o for o in redrive(context, Selection(**selected), "ada", wait=60.0)}


def states(destination: str = "_pipeline") -> list[tuple[int, int, int, str]]:
    """(n, epoch, attempts, state) of every letter."""
    found = [(e, json.loads(e.row["record"])) for e in whole_entries() if e.destination == destination]
    return sorted((r["payload"]["after"]["n"], e.row["epoch"], e.row["attempts"], e.state) for e, r in found)


@pytest.fixture
def failed(home: Path) -> Path:
    """Ten records: 2, 3 failed in the source's section, 6, 7, 8 in the pipeline's; now the causes are fixed."""
    write(
        home,
        early="or (eq .Payload.After.n 2) (eq .Payload.After.n 3)",
        late="and (ge .Payload.After.n 6) (lt .Payload.After.n 9)",
    )
    feed(home)
    run_until_quiet("p")
    assert got(home, "all") == [0, 1, 4, 5, 9]
    assert states() == [(n, 0, 1, OPEN) for n in (2, 3, 6, 7, 8)]
    write(home)
    return home


@pytest.mark.proves("X2", "C2", "C3")
def test_it_goes_on_where_it_failed_and_each_destination_gets_what_its_trigger_wants_once(failed: Path) -> None:
    # When they are redriven after the processors were fixed
    outcomes = send()
    # Then each passed what was left of its way once, was filtered, or went where its trigger wants it, in order
    assert got(failed, "all") == [0, 1, 4, 5, 9, 2, 3, 6, 7]
    assert got(failed, "even") == [0, 4, 2, 6]
    assert {row["after"]["seen"] for row in rows(failed, "all")} == {"sd"}
    assert {row["after"]["seen"] for row in rows(failed, "even")} == {"s"}
    assert outcomes["_pipeline"].redriven == 5, "8 was filtered, which is well"
    assert (outcomes["all"].redriven, outcomes["even"].redriven) == (4, 2)
    # And nothing is a dead letter any more, nor is anything sent again
    assert states() == [(n, 0, 1, REDRIVEN) for n in (2, 3, 6, 7, 8)]
    assert not any(e.open for e in book().entries)
    assert send() == {}
    with opened("p", "look") as context:
        broker = context.broker
        assert [broker.dead_letters.count(name) for name in ("", "all", "even")] == [0, 0, 0]
        assert not broker.redis.exists(broker.keys.redrive(""), broker.keys.redrive("all"))


@pytest.mark.proves("X2", "T8")
@pytest.mark.parametrize("clone", [False, True])
def test_its_ids_are_those_of_a_record_that_never_failed(failed: Path, clone: bool) -> None:
    # Given the same file through the same pipeline with nothing to fail it
    for path in failed.glob("out/*"):
        path.unlink()
    write(failed, clone=clone, late="and (ge .Payload.After.n 6) (lt .Payload.After.n 8)")
    (failed / "data/a.jsonl").rename(failed / "data/b.jsonl")
    run_until_quiet("p")
    # (the file's new name makes them new records, of which some fail)
    write(failed, clone=clone)
    send(since=None, micro_batches=(2,))
    ids = Counter(row["id"] for row in rows(failed, "all"))
    numbers = Counter(got(failed, "all"))
    copies = 2 if clone else 1
    assert numbers == {n: copies for n in range(10) if n != 8}
    assert set(ids.values()) == {1}
    # Then the ids are those that records derived from their positions have
    from conduit_tasks.record.record import Origin, Record

    with opened("p", "look") as context:
        manifest = context.spool.read_sealed(context.broker.micro_batches.get(2).manifest)
        origin = Origin("p", "in", manifest.slices[0].partition, manifest.slices[0].metadata)
        letters = {
            x.record.position: x for x in DeadLetterStore(settings().path(settings().dead_letters), "p").letters()
        }
    wanted = {
        Record(position, ordinal=k, origin=origin).id
        for position, letter in letters.items()
        if letter.micro_batch == 2
        for k in range(copies)
    }
    assert wanted <= ids.keys()


@pytest.mark.proves("X2", "C3", "I8")
def test_what_fails_again_is_a_new_dead_letter_and_the_rest_goes(failed: Path) -> None:
    write(failed, late="eq .Payload.After.n 3")
    outcome = send()["_pipeline"]
    assert (outcome.redriven, outcome.again) == (4, 1)
    assert states()[1:3] == [(3, 0, 1, AGAIN), (3, 1, 2, OPEN)]
    letter = next(e.row for e in book().entries if e.open)
    assert (letter["node"], letter["error"]) == ("processors/late", "no, late")
    # The third time it begins where it failed the second time
    write(failed, early="eq .Payload.After.n 3")
    assert send()["_pipeline"].redriven == 1
    assert got(failed, "all")[-1] == 3


@pytest.mark.proves("X2", "T4", "T7")
def test_a_destination_that_is_down_gets_it_later_and_the_others_not_again(
    failed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Shelf.send

    async def down(self: Shelf, record: Any) -> Any:
        if self.path.name == "all.jsonl":
            raise Unavailable("nobody answers")
        return await whole(self, record)

    monkeypatch.setattr(Shelf, "send", down)
    with pytest.raises(Unavailable):
        send(classes=("processor",))
    # Then it is a dead letter of its destinations, as it failed
    assert {e.state for e in book().entries if e.destination == "_pipeline"} == {REDRIVEN}
    assert [n for n, *_ in states("all")] == [2, 3, 6, 7]
    assert {e.row["error_class"] for e in book().entries} == {"processor"}
    # And the same call sends what is left
    monkeypatch.setattr(Shelf, "send", whole)
    outcomes = send(classes=("processor",))
    assert (outcomes["all"].redriven, "_pipeline" in outcomes) == (4, False)
    assert sorted(got(failed, "all")) == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert sorted(got(failed, "even")) == [0, 2, 4, 6]


@pytest.mark.proves("X2", "T4")
def test_a_letter_that_waits_for_its_destination_is_not_settled_by_a_redelivery_that_did_not_send_it(
    failed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given letters of a destination that was down when they came through the processors, beside one of its own
    def down(self: Shelf, record: Any) -> Any:
        raise Unavailable("nobody answers")

    tell(failed / "out/even.jsonl", "refuse", [12])
    feed(failed, 14)
    run_once("p", "run-2")
    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "send", down)
        with pytest.raises(Unavailable):
            send(destination="_pipeline")
    assert [n for n, *_ in states("even")] == [2, 6, 12]
    # When what a run had delivered is sent again
    tell(failed / "out/even.jsonl", "refuse", [])
    for run in ("run-0", "run-2"):
        deliver_again("p", "even", run)
    # Then what had failed there has arrived, and the others are still to be sent
    assert [(n, state) for n, _, _, state in states("even")] == [(2, OPEN), (6, OPEN), (12, REDRIVEN)]
    assert send(destination="even")["even"].redriven == 2
    assert sorted(got(failed, "even")) == [0, 0, 2, 4, 4, 6, 10, 10, 12]


@pytest.mark.proves("X2")
def test_one_destination_of_its_own_is_chosen_as_pipeline_and_looking_changes_nothing(failed: Path) -> None:
    with opened("p", "look") as context:
        dumps = {k: context.broker.redis.dump(k) for k in context.broker.redis.scan_iter("*")}
        found, said = shares(context, Selection(destination="_pipeline"))
        assert dumps == {k: context.broker.redis.dump(k) for k in context.broker.redis.scan_iter("*")}
    assert [(s.destination, len(s.rows)) for s in found] == [("_pipeline", 5)]
    assert said == []
    assert send(destination="all") == {}
    tell(failed / "out/all.jsonl", "refuse", [2])
    assert send(destination="_pipeline")["all"].again == 1
    assert got(failed, "all")[5:] == [3, 6, 7]


def test_what_no_processor_has_seen_or_can_be_found_is_refused_in_words(failed: Path) -> None:
    from conduit_tasks.pipeline.load import get_pipeline

    pipeline = get_pipeline("p")
    assert "could not be read" in str(reprocess.start_of(pipeline, "sources.in", "decode"))
    assert "which p has no more" in str(reprocess.start_of(pipeline, "sources.old/early", "processor"))
    assert reprocess.start_of(pipeline, "processors/removed", "processor") == reprocess.Start("processors", 0)


STEPS = [
    (owner, name, after)
    for owner, name in (
        (Redrives, "claim"),
        (DeadLetterStore, "store"),
        (Redrives, "dispatch"),
        (Marks, "write"),
        (Redrives, "mark"),
        (Redrives, "settle"),
    )
    for after in (False, True)
]


@pytest.mark.proves("X2", "I5")
@pytest.mark.parametrize(("owner", "name", "after"), STEPS)
def test_a_crash_between_any_two_steps_loses_nothing_and_sends_nothing_twice_that_was_settled(
    failed: Path, owner: type, name: str, after: bool
) -> None:
    assert dies_at(send, owner, name, "redrive", "destinations.all", "destinations.even", after=after) == 9
    send()
    # Only what was sent and not settled may come twice: a crash before `settle` is one of a live delivery
    most = 2 if (name, after) == ("settle", False) else 1
    for destination, wanted in (("all", {0, 1, 2, 3, 4, 5, 6, 7, 9}), ("even", {0, 2, 4, 6})):
        numbers = Counter(got(failed, destination))
        assert set(numbers) == wanted
        assert max(numbers.values()) <= most
    assert not any(e.open for e in book().entries)
    with opened("p", "look") as context:
        assert not context.broker.redis.exists(context.broker.keys.redrive(""))


@pytest.mark.proves("X2", "X7")
def test_what_was_not_sent_yet_comes_back_after_redis_was_lost(failed: Path) -> None:
    # Given letters that were dispatched and not sent
    assert dies_at(send, Redrives, "dispatch", "redrive", "destinations.all", "destinations.even", after=True) == 9
    # When Redis loses everything and its state is rebuilt
    from conduit_tasks.micro_batch.rebuild import apply, from_spool

    with opened("p", "lose") as context:
        context.broker.redis.flushall()
        found = from_spool(context.pipeline, context.spool, context.broker)
        apply(context.broker, found, replace=True)
    send()
    assert {*got(failed, "all")} == {0, 1, 2, 3, 4, 5, 6, 7, 9}
    assert {*got(failed, "even")} == {0, 2, 4, 6}
