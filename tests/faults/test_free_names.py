"""An id that was forgotten, or has another name now, is another one when it comes back: whatever is lost in between, no
mark of the former says what it has got (SEMANTICS X7)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_tasks.changes.apply import Decisions, apply
from conduit_tasks.errors import ConfigError, StateLost
from conduit_tasks.micro_batch.context import open_spool
from conduit_tasks.pipeline.load import get_pipeline, load_file
from conduit_tasks.settings import forget
from conduit_tasks.spool.checkpoint import Checkpoint
from conduit_tasks.spool.durable import sync_folder
from tests.changes.parts import SOURCE, conduit, destination, file_of, write
from tests.faults.forgetful import Forgetful, broker
from tests.faults.parts import events
from tests.micro_batch.harness import payloads, run_until_quiet, state

__all__ = ["broker"]

A, B, C = destination("a"), destination("b"), destination("c", "b")
ANOTHER = destination("b", "another")
TIMES = "event-time: .Payload.After.at"
NODE = "destinations.b"


@pytest.fixture
def changed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the changed file is, apart from what runs."""
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "1")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.1")
    forget()
    return tmp_path / "changed.yaml"


def applied(file: Path, text: str, *arguments: str) -> None:
    file.write_text(text)
    result = conduit("apply", file, *arguments, "--deadline", "0")
    assert result.exit_code == 0, (result.output, result.exception)


def checkpoint() -> Checkpoint:
    return Checkpoint(open_spool(get_pipeline("p")), "p")


def all_of_a_late_one(home: Path, changed: Path) -> list[dict[str, object]]:
    """Has `b` join late, get all of history, and be up to date; returns what was read."""
    write(home, file_of(SOURCE, A, more=TIMES))
    rows = events(home / "data", 10, at="2013-03-01T00:00:00Z")
    run_until_quiet("p")
    applied(changed, file_of(SOURCE, A, B, more=TIMES), "--from-history", "b")
    rows += events(home / "data", 10, 10, at="2013-03-02T00:00:00Z")
    run_until_quiet("p")
    assert sorted(row["n"] for row in payloads(home / "out/b.jsonl")) == list(range(20))
    return rows


def power_cut(folder: Path) -> Callable[[], None]:
    """Returns what brings back the files that were there and were removed since, as a power cut does where nobody
    fsynced the folder; what was written since is durable."""
    files = {path: path.read_bytes() for path in folder.glob(f"{NODE}-*.json")}
    assert files

    def come_back() -> None:
        for path, data in files.items():
            path.write_bytes(data)
        sync_folder(folder)

    return come_back


def fenced_holder(_: Path) -> Callable[[], None]:
    """Returns what a process does that stood still with its mark in hand, while its lease ran out."""
    mark = checkpoint().read()[NODE]
    return lambda: checkpoint().write(mark)


@pytest.mark.proves("X7")
@pytest.mark.parametrize("harm", [power_cut, fenced_holder])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_lost_redis_does_not_take_a_new_destination_for_the_one_that_had_its_name(
    home: Path, changed: Path, renamed: bool, harm: Callable[[Path], Callable[[], None]]
) -> None:
    # Given a destination with all of history, that is forgotten or has another name now, and its mark there again
    rows = all_of_a_late_one(home, changed)
    comes_back = harm(home / ".conduit/spool/p/checkpoint")
    if renamed:
        applied(changed, file_of(SOURCE, A, C, more=TIMES), "--rename", "b=c")
    else:
        applied(changed, file_of(SOURCE, A, more=TIMES))
    comes_back()
    # When another one gets its name, and Redis is lost before the first mark of that
    others = (A, ANOTHER, C) if renamed else (A, ANOTHER)
    applied(changed, file_of(SOURCE, *others, more=TIMES))
    state("p").redis.flushall()
    assert conduit("broker", "rebuild", "p").exit_code == 0
    # Then nobody says that it has got what the former had, or been replayed
    done = conduit("apply", changed, "--deadline", "0", "--from-history", "b")
    assert isinstance(done.exception, ConfigError)
    assert "what b is missing is not known" in str(done.exception)
    again = conduit("replay", "p", "--from", "2013-01-01", "--to", "2014-01-01", "--destinations", "b", "--what", "all")
    assert again.exit_code == 0, again.output
    got = [row["n"] for row in payloads(home / "out/another.jsonl")]
    assert sorted(set(got)) == [row["n"] for row in rows]
    # And who has the former's place goes on there
    assert len(payloads(home / "out/b.jsonl")) == 20


@pytest.mark.proves("X7")
def test_a_renaming_that_redis_did_not_survive_leaves_no_mark_of_the_old_id(home: Path, changed: Path) -> None:
    # Given a renaming that ended when the new id had its mark, and Redis lost with it
    all_of_a_late_one(home, changed)
    changed.write_text(file_of(SOURCE, A, C, more=TIMES))
    (pipeline,) = load_file(changed).pipelines

    class Killed(Exception):
        pass

    def die(said: str) -> None:
        if "is marked where" in said:
            raise Killed

    with pytest.raises(Killed):
        apply(changed, pipeline, Decisions({"b": "c"}), deadline=0, wake=None, step=die)
    state("p").redis.flushall()
    assert conduit("broker", "rebuild", "p").exit_code == 0
    assert state("p").deliveries.get("c").cursor == 2
    # When the same command is given again
    applied(changed, changed.read_text(), "--rename", "b=c")
    # Then the id is free, and the other has the mark
    assert set(checkpoint().read()) >= {"destinations.c"}
    assert NODE not in checkpoint().read()


@pytest.mark.proves("X7")
def test_nothing_is_applied_to_a_pipeline_whose_state_is_lost(home: Path, changed: Path) -> None:
    # Given a pipeline that only the spool knows
    all_of_a_late_one(home, changed)
    before = (home / "include/pipelines/p.yaml").read_text()
    state("p").redis.flushall()
    # When a destination is to leave, or to have another name, then that is refused, as nobody could note it
    for text, more in ((file_of(SOURCE, A, more=TIMES), ()), (file_of(SOURCE, A, C, more=TIMES), ("--rename", "b=c"))):
        changed.write_text(text)
        done = conduit("apply", changed, "--deadline", "0", *more)
        assert isinstance(done.exception, StateLost)
        assert "conduit broker rebuild p" in str(done.exception)
    assert (home / "include/pipelines/p.yaml").read_text() == before
    # And after the rebuild it is done
    assert conduit("broker", "rebuild", "p").exit_code == 0
    applied(changed, changed.read_text(), "--rename", "b=c")
    assert NODE not in checkpoint().read()
    assert checkpoint().read()["destinations.c"].number == 2


@pytest.mark.proves("X7")
def test_a_redis_that_is_behind_a_mark_does_not_write_over_it_by_a_renaming(
    broker: Forgetful, home: Path, changed: Path
) -> None:
    # Given a Redis that forgot what a destination got last
    write(home, file_of(SOURCE, A, B))
    rows = events(home / "data", 10)
    run_until_quiet("p")
    early = broker.log()
    rows += events(home / "data", 10, 10)
    run_until_quiet("p")
    broker.put_back(early)
    # When the destination is to have another name, then what its mark says stays
    changed.write_text(file_of(SOURCE, A, C))
    done = conduit("apply", changed, "--deadline", "0", "--rename", "b=c")
    assert isinstance(done.exception, StateLost)
    assert checkpoint().read()[NODE].number == 2
    # And once a run has brought the state back, nothing comes twice
    assert conduit("start", "p").exit_code == 0
    run_until_quiet("p")
    applied(changed, changed.read_text(), "--rename", "b=c")
    rows += events(home / "data", 10, 20)
    run_until_quiet("p")
    assert payloads(home / "out/b.jsonl") == rows
