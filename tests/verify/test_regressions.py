"""What `conduit verify` has found, each named after what was lost, alone and without its crashes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conduit_tasks.broker.leases import Leases
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.connectors.file.destination import FileDestination
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import Fenced
from conduit_tasks.micro_batch import seal
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.micro_batch.source_ack import ack
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.spool import durable
from conduit_tasks.spool.store import LocalStore
from tests.micro_batch.harness import here, look, run_once, state, write_pipeline
from tests.micro_batch.test_whole import TWO, events
from tests.redis_server import RedisServer

OTHER = """\
      - {id: in, type: source, plugin: file, settings: {path: "data/in/*.jsonl", format: jsonl, settle: 0s}}
"""


def rows(*payloads: dict[str, Any]) -> Rows:
    records = [Record(b"%d" % n, after=payload) for n, payload in enumerate(payloads)]
    import numpy as np

    batch = spool_batch(np.zeros(len(records), np.int32), np.arange(len(records), dtype=np.int64), records)
    assert isinstance(batch, pa.RecordBatch)
    return Rows(batch, [Origin("p", "in", "")], 1, 0, len(records) - 1)


@pytest.mark.proves("I4", "C10")
def test_a_zombie_does_not_cut_away_what_its_successor_confirmed(home: Path) -> None:
    # Given a holder that stood still with the state it began with, none, while its successor wrote and confirmed
    zombie = FileDestination({"path": "out/f.jsonl", "format": "payload"})
    successor = FileDestination({"path": "out/f.jsonl", "format": "payload"})
    successor.open(None)
    successor.write(rows({"n": 1}, {"n": 2}))
    successor.close()
    before = (home / "out/f.jsonl").read_bytes()

    def lost() -> None:
        raise Fenced("lost")

    # When it goes on
    zombie.still_ours = lost
    with pytest.raises(Fenced):
        zombie.open(None)
    # Then the file is as it was, and nobody is locked out
    assert (home / "out/f.jsonl").read_bytes() == before
    assert before.count(b"\n") == 2
    successor.open(None)
    successor.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders that were fsynced, in order."""
    seen: list[str] = []
    fsync = os.fsync

    def spy(fd: int) -> None:
        seen.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", spy)
    return seen


@pytest.mark.proves("T1")
def test_a_folder_whose_maker_died_before_its_fsync_is_made_durable_by_the_next(
    tmp_path: Path, synced: list[str]
) -> None:
    folder = tmp_path / "spool/p/1"
    folder.mkdir(parents=True)
    durable.make_folders(folder)
    assert {str(tmp_path), str(tmp_path / "spool"), str(tmp_path / "spool/p")} <= set(synced)


@pytest.mark.proves("T1")
def test_a_file_whose_maker_died_before_its_fsync_is_made_durable_before_it_is_confirmed(
    home: Path, synced: list[str]
) -> None:
    (home / "out").mkdir()
    (home / "out/f.jsonl").touch()
    destination = FileDestination({"path": "out/f.jsonl"})
    destination.open(None)
    destination.close()
    assert str((home / "out").resolve()) in synced


@pytest.mark.proves("C16", "I3")
def test_a_micro_batch_that_was_dropped_while_it_was_about_to_be_sealed_is_not_voted_in_part(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a node that has seen everything staged
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 5)
    plan_run("p", "one")
    with opened("p", "one") as context:
        monkeypatch.setattr("conduit_tasks.micro_batch.read.seal_if_complete", lambda *_: "")
        read_source(context, "in", here, 5.0)
        acquire = Leases.acquire

        # When somebody stops the pipeline by force and starts it, before it has the lease
        def late(self: Leases, *args: Any, **options: Any) -> Any:
            other = state("p")
            other.lifecycle.force_stop()
            other.lifecycle.start()
            other.close()
            return acquire(self, *args, **options)

        monkeypatch.setattr(Leases, "acquire", late)
        said = seal.seal_if_complete(context, 1)
    # Then it does nothing: there is something to read again
    assert not said


@pytest.mark.proves("X7", "C9")
def test_a_micro_batch_that_redis_forgot_and_that_was_planned_again_without_a_source_is_not_read_by_it(
    home: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a node that has seen a micro-batch with something of its source
    write_pipeline(home, "p", TWO.replace("id: in,", "id: in2,").replace("data/*", "data/in2/*") + OTHER)
    for name in ("in", "in2"):
        events(home / "data" / name, "a.jsonl", 0, 5)
    plan_run("p", "one")
    with opened("p", "one") as context:
        seen = context.broker.micro_batches.unsealed()
        assert seen is not None
        assert set(seen.slices) == {"in", "in2"}
        # When Redis forgets it, and one without that source is planned under its number
        (home / "data/in/a.jsonl").unlink()
        redis_server.flush()
        plan_run("p", "two")
        with monkeypatch.context() as patch:
            patch.setattr(type(context.broker.micro_batches), "unsealed", lambda _: seen)
            read_source(context, "in", here, 5.0)
        # Then it does nothing, and what there is now is read
        now = context.broker.micro_batches.unsealed()
        assert now is not None
        assert set(now.slices) == {"in2"}
        assert not now.stages
        read_source(context, "in2", here, 5.0)
        assert context.broker.micro_batches.unsealed() is None


@pytest.mark.proves("I6")
def test_two_runs_may_collect_the_same_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1/a").mkdir(parents=True)
    (tmp_path / "1/a/part").touch()
    unlink = os.unlink

    def twice(path: Any, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", twice)
    LocalStore(tmp_path).delete("1")
    assert not (tmp_path / "1").exists()


@pytest.mark.proves("I3", "X7")
def test_a_micro_batch_that_was_sealed_and_rebuilt_meanwhile_is_not_read_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a source that is about to read the open micro-batch
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 5)
    plan_run("p", "one")
    acquire = Leases.acquire

    # When another run seals it, and the state is rebuilt from the spool, which knows of no stages
    def late(self: Leases, node: str, *args: Any, **options: Any) -> Any:
        if node == "sources.in":
            context.broker.redis.hset(context.broker.keys.micro_batch(1), mapping={"state": "sealed", "manifest": ""})
            context.broker.redis.hdel(context.broker.keys.pipeline, "unsealed")
        return acquire(self, node, *args, **options)

    monkeypatch.setattr(Leases, "acquire", late)
    with opened("p", "one") as context:
        before = context.broker.access.hash(context.broker.keys.index("in"))
        said = read_source(context, "in", here, 5.0)
        # Then it stands as it is, and no index is given out twice
        assert said == "micro-batch 1 is sealed"
        assert context.broker.access.hash(context.broker.keys.index("in")) == before


@pytest.mark.proves("I4")
def test_a_node_whose_holder_died_before_the_servers_clock_went_back_is_worked_on(home: Path) -> None:
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 5)
    plan_run("p", "one")
    # Given a dead holder's lease, which ends in an hour by the clock that Redis has now
    with opened("p", "one") as context:
        context.broker.leases.acquire("sources.in", "dead")
        key = context.broker.keys.lease("sources.in")
        ahead = int(context.broker.access.hash(key)["until"]) + 3_600_000_000
        context.broker.redis.hset(key, "until", str(ahead))
    # Then a run that looks at the node works on it, rather than leave it to that holder
    assert look("p", "sources.in", "two").submit


@pytest.mark.proves("I2", "I4", "C12")
def test_an_ack_that_stood_still_over_its_mark_is_not_told_after_its_successors(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an ack whose mark takes so long that another run has the lease by then
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 5)
    run_once("p")
    events(home / "data", "a.jsonl", 5, 5)
    plan_run("p", "one")
    with opened("p", "one") as context:
        read_source(context, "in", here, 5.0)
        for name in ("all", "red"):
            deliver_destination(context, name, here, run="one", wait=5.0, cleared=False, progress=lambda **_: None)
    told, mark = list[object](), Marker.mark

    def slow(self: Marker) -> None:
        mark(self)
        with opened("p", "two") as other:
            other.broker.redis.hset(other.broker.keys.lease("acks.in"), "until", "0")
            other.broker.leases.acquire("acks.in", "another")

    monkeypatch.setattr(Marker, "mark", slow)
    monkeypatch.setattr(FileSource, "ack", lambda self, position: told.append(position))
    # Then it tells the source nothing
    with opened("p", "one") as context, pytest.raises(Fenced):
        ack(context, "in")
    assert told == []
