"""`conduit apply`: a changed file takes over without an event lost or sent twice, whenever it is interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.errors import SpoolError
from conduit_tasks.micro_batch import rebuild
from tests.changes.parts import SOURCE, TRIGGER, A, B, applied, conduit, deliver, destination, file_of, read, write
from tests.faults.parts import account, dead_letters, events
from tests.micro_batch.harness import payloads, run_until_quiet, state


@pytest.mark.proves("C10")
def test_a_renamed_destination_goes_on_where_it_was(home: Path, changed: Path) -> None:
    # Given a destination with a trigger that has confirmed one micro-batch, and lacks the next
    old = destination("b", more=f"trigger: {{filters: [{TRIGGER}]}}")
    write(home, file_of(SOURCE, A, old))
    rows = events(home / "data", 70)
    run_until_quiet("p")
    rows += events(home / "data", 70, 70)
    read()
    deliver("a")
    # When it gets another id, and more is read after
    changed.write_text(file_of(SOURCE, A, destination("z", "b", f"trigger: {{filters: [{TRIGGER}]}}")))
    applied(changed, "--rename", "b=z")
    rows += events(home / "data", 70, 140)
    run_until_quiet("p")
    # Then it got each record once, in order, and its account goes on
    assert payloads(home / "out/b.jsonl") == [row for row in rows if row["k"] == "3"]
    assert account()["destinations"]["z"]["delivered"] == 30
    assert state("p").versions.left() == {}
    # And the ledger tells its whole history, as it was
    said = conduit("ledger", "p", "--destination", "z", "--sql", "SELECT DISTINCT destination FROM ledger ORDER BY 1")
    assert [word for word in said.stdout.split() if word in ("b", "z")] == ["b", "z"]


@pytest.mark.proves("C14", "X4")
def test_dead_letters_and_parked_keys_go_along(home: Path, changed: Path) -> None:
    # Given a letter of `b`, and records of its key parked behind it
    keyed = "processors: [{id: k, plugin: field.set, settings: {field: .Key, value: '{{ .Payload.After.k }}'}}]"
    fails = "processors: [{id: x, plugin: error, condition: '{{ eq .Payload.After.n 3 }}'}], "
    more = "delivery: {park-keys: true, order-by: key}, dead-letter-queue: {window-size: 0}"
    write(home, file_of(SOURCE, A, destination("b", more=fails + more), more=keyed))
    events(home / "data", 21)
    run_until_quiet("p")
    assert len(dead_letters("p", "b")) == 1
    assert len(state("p").redrives.parked("b")) == 1
    assert len(payloads(home / "out/b.jsonl")) == 18
    # When it is renamed
    changed.write_text(file_of(SOURCE, A, destination("z", "b", more), more=keyed))
    applied(changed, "--rename", "b=z")
    # Then they are of `z`, and are sent again there, in the order of their key
    assert len(dead_letters("p", "z")) == 1
    assert dead_letters("p", "b") == []
    again = conduit("dead-letters", "redrive", "p", "--destination", "z")
    assert again.exit_code == 0, again.output
    assert state("p").dead_letters.count("z") == 0
    assert state("p").redrives.parked("z") == {}
    assert [row["n"] for row in payloads(home / "out/b.jsonl")][18:] == [3, 10, 17]


@pytest.mark.proves("X7")
def test_a_renamed_destination_is_found_where_it_was_when_redis_is_lost(home: Path, changed: Path) -> None:
    # Given a renamed destination that has one micro-batch, and lacks the next
    write(home, file_of(SOURCE, A, B))
    rows = events(home / "data", 20)
    run_until_quiet("p")
    rows += events(home / "data", 20, 20)
    read()
    deliver("a")
    changed.write_text(file_of(SOURCE, A, destination("z", "b")))
    applied(changed, "--rename", "b=z")
    # When Redis is lost, and rebuilt from the spool
    broker = state("p")
    broker.redis.flushall()
    assert conduit("broker", "rebuild", "p").exit_code == 0
    assert rebuild.holds_state(broker)
    assert broker.deliveries.get("z").cursor == 1
    run_until_quiet("p")
    # Then it gets what it lacks, and nothing else
    assert payloads(home / "out/b.jsonl") == rows


def test_a_removed_destination_needs_a_word_and_comes_back_where_it_was(home: Path, changed: Path) -> None:
    # Given records that `b` has not got
    live = write(home, file_of(SOURCE, A, B))
    rows = events(home / "data", 10)
    read()
    deliver("a")
    # When it is to leave: not without being asked, not without a yes
    changed.write_text(file_of(SOURCE, A))
    before = live.read_text()
    assert "Decide: --drop b" in applied(changed, code=3).output
    assert "Add --yes" in applied(changed, "--drop", "b", code=3).output
    assert "safe" in applied(changed, "--drop", "b", "--yes", "--dry-run").output
    assert live.read_text() == before
    assert state("p").lifecycle.status().status == "running"
    applied(changed, "--drop", "b", "--yes")
    run_until_quiet("p")
    # Then it may come back, and go on
    assert not (home / "out/b.jsonl").exists()
    changed.write_text(file_of(SOURCE, A, B))
    applied(changed)
    run_until_quiet("p")
    assert payloads(home / "out/b.jsonl") == rows


def test_a_destination_that_left_is_forgotten_for_good_by_a_second_word(home: Path, changed: Path) -> None:
    write(home, file_of(SOURCE, A, B))
    events(home / "data", 10)
    read()
    deliver("a")
    changed.write_text(file_of(SOURCE, A))
    applied(changed, "--drop", "b", "--yes")
    # The same again forgets nothing: it may only have been interrupted
    applied(changed, "--drop", "b", "--yes")
    assert set(state("p").versions.left()) == {"b"}
    applied(changed, "--forget", "b", code=3)
    applied(changed, "--forget", "b", "--yes")
    broker = state("p")
    assert broker.versions.left() == {}
    assert not [key for key in broker.redis.keys("*") if key.endswith((":b", ".b"))]


@pytest.mark.proves("X7")
@pytest.mark.parametrize("renamed", [False, True])
def test_a_name_that_is_free_again_is_not_taken_for_one_that_redis_has_forgotten(
    home: Path, changed: Path, caplog: pytest.LogCaptureFixture, renamed: bool
) -> None:
    # Given a destination that was delivered to, and is forgotten or has another name now
    write(home, file_of(SOURCE, A, B))
    events(home / "data", 10)
    run_until_quiet("p")
    c = destination("c")
    changed.write_text(file_of(SOURCE, A, c) if renamed else file_of(SOURCE, A))
    applied(changed, *(("--rename", "b=c") if renamed else ()))
    # When another one gets its name
    changed.write_text(file_of(SOURCE, A, B, c) if renamed else file_of(SOURCE, A, B))
    applied(changed)
    more = events(home / "data", 10, 10)
    run_until_quiet("p")
    # Then it begins from there, and nothing is brought back by the marks of the former
    assert "Redis has forgotten" not in caplog.text
    assert payloads(home / "out/b.jsonl")[-10:] == more


@pytest.mark.proves("X3")
def test_an_added_destination_begins_now_or_with_history_without_a_gap(home: Path, changed: Path) -> None:
    # Given history, and something that is sealed already
    write(home, file_of(SOURCE, A))
    rows = events(home / "data", 10, at="2013-03-01T00:00:00Z")
    run_until_quiet("p")
    # When one is added from now, one with history
    now, history = destination("now"), destination("history")
    changed.write_text(file_of(SOURCE, A, now, history, more="event-time: .Payload.After.at"))
    applied(changed, "--from-now", "now", "--from-history", "history")
    more = events(home / "data", 10, 10, at="2013-03-02T00:00:00Z")
    run_until_quiet("p")
    # Then neither has a gap behind where it began, or anything twice
    assert payloads(home / "out/now.jsonl") == more
    assert payloads(home / "out/history.jsonl") == rows + more
    # And the same again does nothing
    applied(changed, "--from-history", "history")
    assert payloads(home / "out/history.jsonl") == rows + more


def test_a_destination_whose_spool_file_is_lost_begins_again_as_the_documents_say(home: Path, changed: Path) -> None:
    """Given a sealed file that somebody removed before a destination got it, when the operator does what
    docs/operations.md says, then it gets everything, and so does the one beside it, which never stood still."""
    whole = file_of(SOURCE, A, B, more="event-time: .Payload.After.at")
    write(home, whole)
    rows = events(home / "data", 10, at="2013-03-01T00:00:00Z")
    read()
    deliver("a")
    for part in (home / ".conduit/spool/p/0000000001").rglob("part-*.parquet"):
        part.unlink()
    with pytest.raises(SpoolError, match=r"is missing; restore it from a backup; .* 'A file of the spool is lost'"):
        deliver("b")
    # The documents' three commands
    changed.write_text(file_of(SOURCE, A, more="event-time: .Payload.After.at"))
    applied(changed, "--drop", "b", "--yes")
    applied(changed, "--forget", "b", "--yes")
    changed.write_text(whole)
    applied(changed, "--from-history", "b")
    rows += events(home / "data", 10, 10, at="2013-03-02T00:00:00Z")
    run_until_quiet("p")
    assert payloads(home / "out/a.jsonl") == payloads(home / "out/b.jsonl") == rows


@pytest.mark.parametrize("status", ["running", "stopped", "degraded"])
def test_what_stood_still_stands_still_after(home: Path, changed: Path, status: str) -> None:
    write(home, file_of(SOURCE, A))
    events(home / "data", 10)
    run_until_quiet("p")
    broker = state("p")
    if status == "stopped":
        broker.lifecycle.force_stop()
    elif status == "degraded":
        broker.lifecycle.fail("plan", "a reason", "X")
    changed.write_text(file_of(SOURCE, A, B))
    applied(changed)
    assert broker.lifecycle.status().status == status
    assert (broker.lifecycle.status().error is not None) == (status == "degraded")


def test_an_effectively_once_destination_is_renamed_only_once_it_is_drained(home: Path, changed: Path) -> None:
    # Given a database that knows by id what it was written
    settings = f"{{url: 'sqlite:///{home}/x.db', table: events}}"
    table = f"plugin: sql, settings: {settings}, delivery: {{guarantee: effectively-once}}"
    write(home, file_of(SOURCE, f"{{id: b, type: destination, {table}}}"))
    events(home / "data", 10)
    read()
    changed.write_text(file_of(SOURCE, f"{{id: z, type: destination, {table}}}"))
    # Then not while it may have written something that is not confirmed
    assert "would write them twice" in applied(changed, "--rename", "b=z", code=3).output
    assert conduit("start", "p").exit_code == 0
    run_until_quiet("p")
    applied(changed, "--rename", "b=z")
    assert account()["destinations"]["z"]["delivered"] == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rename", "b"), "it is OLD=NEW"),
        (("--rename", "a=z"), "none a"),
        (("--drop", "a"), "still has it"),
        (("--from-history", "q"), "no destination q"),
        (("--from-history", "a", "--from-now", "a"), "one of the two"),
    ],
)
def test_an_option_that_fits_nothing_is_named(home: Path, changed: Path, arguments: tuple[str, ...], said: str) -> None:
    write(home, file_of(SOURCE, A, B))
    events(home / "data", 1)
    run_until_quiet("p")
    changed.write_text(file_of(SOURCE, A, destination("z")))
    result = conduit("apply", changed, *arguments)
    assert result.exit_code == 1
    assert said in str(result.exception)


def test_a_file_does_not_take_other_pipelines_with_it(home: Path, changed: Path) -> None:
    both = file_of(SOURCE, A) + file_of(SOURCE, B, id="q").partition("pipelines:\n")[2]
    live = write(home, both)
    events(home / "data", 1)
    run_until_quiet("p")
    changed.write_text(file_of(SOURCE, A, destination("z")))
    result = conduit("apply", changed, "--deadline", "0")
    assert "also holds q" in str(result.exception)
    assert live.read_text() == both


def test_a_corrected_file_takes_the_place_of_the_broken_one(home: Path, changed: Path) -> None:
    live = write(home, file_of(SOURCE))
    changed.write_text(file_of(SOURCE, A))
    applied(changed)
    assert live.read_text() == changed.read_text()
    assert [p.name for p in live.parent.iterdir()] == [live.name]


def test_a_file_does_not_take_what_a_broken_one_holds_with_it(home: Path, changed: Path) -> None:
    # Given a file that names p and breaks behind q
    both = file_of(SOURCE, A) + file_of(SOURCE, B, id="q").partition("pipelines:\n")[2]
    live = write(home, f"{both}  bad: [unclosed\n", "other")
    # When p is put into another file, then nothing is changed, whether or not q goes with it
    for text, said in ((file_of(SOURCE, A), "also holds q"), (both, "what that holds beside p is unknown")):
        changed.write_text(text)
        result = conduit("apply", changed, "--deadline", "0")
        assert said in str(result.exception)
    assert live.read_text() == f"{both}  bad: [unclosed\n"
    assert [p.name for p in live.parent.iterdir()] == [live.name]
