"""`conduit plan`: what a changed file does to data in flight, before it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.pipeline.names import resend_dag_id
from tests.changes.parts import SOURCE, TRIGGER, changes, conduit, deliver, destination, file_of, planned, read, write
from tests.faults.parts import events
from tests.micro_batch.harness import run_until_quiet, state

A, B = destination("a"), destination("b")


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """Where the changed file is, apart from what runs."""
    return tmp_path / "changed.yaml"


def test_a_pipeline_that_never_ran_has_nothing_to_lose_and_gets_no_state(home: Path, changed: Path) -> None:
    changed.write_text(file_of(SOURCE, A))
    found = planned(changed, 0)
    assert not found["known"]
    assert found["changes"] == []
    broker = state("other")
    assert broker.redis.keys("{conduit:p}*") == []


def test_the_same_file_changes_nothing(home: Path, changed: Path) -> None:
    # Given a pipeline that ran
    write(home, file_of(SOURCE, A))
    events(home / "data", 5)
    run_until_quiet("p")
    # When the same file is planned, from another place
    changed.write_text(file_of(SOURCE, A))
    found = planned(changed, 0)
    # Then it is the version in force, which the micro-batches name too
    assert found["changes"] == []
    assert found["in_force"]["version"] == found["version"] == state("p").micro_batches.get(1).config


def test_what_a_removed_destination_still_has_to_get_is_to_be_decided(home: Path, changed: Path) -> None:
    # Given 30 records that only `a` has
    write(home, file_of(SOURCE, A, B))
    events(home / "data", 30)
    read()
    deliver("a")
    # When `b` leaves the file
    changed.write_text(file_of(SOURCE, A))
    found = changes(planned(changed, 3))
    # Then what it would not get is told
    gone = found["destinations.b", "destination"]
    assert gone["kind"] == "removed"
    assert gone["in_flight"]["b"]["records"] == 30
    assert gone["in_flight"]["b"]["bytes"] > 0
    assert "--drop b" in gone["decision"]
    # And delivered, it may go
    deliver("b")
    assert planned(changed, 0)["changes"][0]["safe"]


def test_a_destination_under_another_id_is_asked_about(home: Path, changed: Path) -> None:
    write(home, file_of(SOURCE, A))
    events(home / "data", 3)
    run_until_quiet("p")
    changed.write_text(file_of(SOURCE, destination("z", "a")))
    found = changes(planned(changed, 3))
    assert "--rename a=z" in found["destinations.a", "destination"]["decision"]
    assert found["destinations.z", "destination"]["effect"] == "begins with micro-batch 2: from now"


def test_a_source_under_another_id_would_be_read_again(home: Path, changed: Path) -> None:
    write(home, file_of(SOURCE, A))
    events(home / "data", 3)
    run_until_quiet("p")
    changed.write_text(file_of(SOURCE.replace("id: in", "id: inn"), A))
    gone = changes(planned(changed, 3))["sources.in", "source"]
    assert "keep the id" in gone["decision"]
    assert "read from its beginning" in gone["effect"]


def test_a_source_of_another_plugin_is_asked_about_and_stops_the_next_run(home: Path, changed: Path) -> None:
    # Given a file source that was read
    write(home, file_of(SOURCE, A))
    events(home / "data", 3)
    run_until_quiet("p")
    # When another plugin takes its id
    text = file_of("{id: in, type: source, plugin: generator, settings: {format.type: raw, format.options.n: int}}", A)
    changed.write_text(text)
    assert changes(planned(changed, 3))["sources.in", "plugin"]["decision"]
    # Then without having asked, the run ends before it reads positions that mean something else
    write(home, text)
    with pytest.raises(ConfigError, match="source in of p was of plugin file"):
        plan_run("p", "run")


def test_a_trigger_decides_from_the_next_micro_batch_on_and_processors_of_a_destination_at_once(
    home: Path, changed: Path
) -> None:
    write(home, file_of(SOURCE, A, B))
    events(home / "data", 10)
    read()
    more = "processors: [{id: x, plugin: field.set, settings: {field: .Key, value: k}}], delivery: {retry: 3}"
    changed.write_text(
        file_of(SOURCE, destination("a", more=f"trigger: {{filters: [{TRIGGER}]}}"), destination("b", more=more))
    )
    found = changes(planned(changed, 0))
    assert "from micro-batch 2" in found["destinations.a", "trigger"]["effect"]
    assert "not confirmed" in found["destinations.b", "processors"]["effect"]
    assert found["destinations.b", "delivery"]["what"] == "delivery (retry)"
    assert found["destinations.b", "delivery"]["in_flight"]["b"]["records"] == 10


def test_a_micro_batch_that_is_not_sealed_is_read_again(home: Path, changed: Path) -> None:
    write(home, file_of(SOURCE, A))
    events(home / "data", 10)
    plan_run("p", "run")
    changed.write_text(
        file_of(SOURCE, A, more="processors: [{id: x, plugin: field.set, settings: {field: .Key, value: k}}]")
    )
    found = changes(planned(changed, 0))
    assert "micro-batch 1 is not sealed and is read again" in found["pipeline", "processors"]["effect"]


def test_the_spool_may_move_once_everything_is_delivered(home: Path, changed: Path) -> None:
    write(home, file_of(SOURCE, A))
    events(home / "data", 10)
    read()
    changed.write_text(file_of(SOURCE, A, more="spool: {path: elsewhere}"))
    assert changes(planned(changed, 3))["pipeline", "spool-path"]["in_flight"]["a"]["records"] == 10
    deliver("a")
    planned(changed, 0)


@pytest.mark.proves("T2", "I1")
@pytest.mark.parametrize(("before", "after"), [("stored", "delivered"), ("delivered", "stored")])
def test_another_default_of_when_a_source_is_acked_is_told_and_takes_what_is_in_flight_along(
    home: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    # Given a micro-batch that is sealed and not delivered, under a connector that is acked by another default
    monkeypatch.setattr(FileSource, "ack_on", before)
    path = write(home, file_of(SOURCE, A))
    events(home / "data", 10)
    read()
    broker = state("p")
    assert int(broker.access.hash(broker.keys.ack("in")).get("m", 0)) == (before == "stored")
    # When its default changes, with the release that brings it
    broker.redis.hset(broker.keys.version, "digest", "of the release before")
    monkeypatch.setattr(FileSource, "ack_on", after)
    # Then the same file says so, and that it is safe
    [change] = planned(path, 0)["changes"]
    assert (change["node"], change["what"], change["effect"]) == ("sources.in", "ack-on", "concerns the next ack")
    # And what was in flight is delivered and acked once
    run_until_quiet("p")
    assert len((home / "out/a.jsonl").read_text().splitlines()) == 10
    assert broker.access.hash(broker.keys.ack("in"))["m"] == "1"
    assert planned(path, 0)["changes"] == []


def test_no_value_of_a_setting_is_kept_or_printed(home: Path, changed: Path) -> None:
    # Given a secret in a destination's settings
    web = "{{id: web, type: destination, plugin: http, settings: {{url: 'http://127.0.0.1:1/', {}}}}}"
    write(home, file_of(SOURCE, web.format("auth.basic.username: u, auth.basic.password: hunter2")))
    plan_run("p", "run")
    # Then Redis has no word of it, and a change of it is seen all the same
    broker = state("p")
    assert "hunter2" not in str(broker.access.hash(broker.keys.version))
    changed.write_text(file_of(SOURCE, web.format("auth.basic.username: u, auth.basic.password: hunter3")))
    result = conduit("plan", changed)
    assert "settings (auth.basic.password)" in result.output
    assert "hunter" not in result.output


def test_what_left_without_being_asked_about_is_still_told(home: Path, changed: Path) -> None:
    # Given a destination that left the file, which a run took as it was
    write(home, file_of(SOURCE, A, B))
    events(home / "data", 10)
    read()
    path = write(home, file_of(SOURCE, A))
    run_until_quiet("p")
    # Then what it lacks is named
    found = changes(planned(path, 0))
    assert found["destinations.b", "left"]["in_flight"]["b"]["records"] == 10
    # And put back it goes on
    write(home, file_of(SOURCE, A, B))
    run_until_quiet("p")
    assert (home / "out/b.jsonl").read_text() == (home / "out/a.jsonl").read_text()
    assert planned(home / "include/pipelines/p.yaml", 0)["changes"] == []


def test_state_without_a_version_still_says_which_connectors_come_and_go(home: Path, changed: Path) -> None:
    write(home, file_of(SOURCE, A, B))
    events(home / "data", 10)
    read()
    broker = state("p")
    broker.redis.delete(broker.keys.version)
    changed.write_text(file_of(SOURCE, A, destination("c")))
    found = changes(planned(changed, 3))
    assert set(found) == {("destinations.b", "destination"), ("destinations.c", "destination")}


@pytest.mark.parametrize(("text", "said"), [("pipelines: [", "E0"), (file_of(SOURCE, A, id="q"), "no pipeline p")])
def test_a_file_that_cannot_be_used_ends_with_2(home: Path, changed: Path, text: str, said: str) -> None:
    changed.write_text(text)
    result = conduit("plan", changed, "p")
    assert result.exit_code == 2
    assert said in result.output


KAFKA = "{{id: {}, type: source, plugin: kafka, settings: {{servers: k, topics: t}}}}"


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_a_file_that_clashes_with_a_pipeline_that_is_there_is_refused(home: Path, changed: Path, command: str) -> None:
    write(home, file_of(KAFKA.format("b.c"), A, id="a"), "a")
    # Given a consumer group that both would have, as they are put together of ids that a dot makes equal
    changed.write_text(file_of(KAFKA.format("c"), B, id="a.b"))
    result = conduit(command, changed)
    assert result.exit_code == 2, result.output
    assert "E108 c of a.b would share the" in result.output
    assert not (home / "include/pipelines/changed.yaml").exists()
    # And a pipeline whose DAG would take the name of one that is there
    changed.write_text(file_of(SOURCE, B, id=resend_dag_id("a")))
    result = conduit(command, changed)
    assert result.exit_code == 2, result.output
    assert "E106" in result.output


def test_a_file_that_takes_the_place_of_its_older_self_clashes_with_nothing(home: Path, changed: Path) -> None:
    write(home, file_of(KAFKA.format("b.c"), A, id="a"), "a")
    # Given one that was refused together with it
    write(home, file_of(KAFKA.format("c"), B, id="a.b"), "b")
    changed.write_text(file_of(KAFKA.format("c"), B, destination("more"), id="a.b"))
    assert conduit("plan", changed).exit_code == 2
    # When another one brings the way out, it is taken
    changed.write_text(file_of(KAFKA.format("d"), B, id="a.b"))
    result = conduit("plan", changed)
    assert result.exit_code == 0, result.output
