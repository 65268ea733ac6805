"""Several micro-batches of one destination under way at once (ADR 41): processes killed, stops, changed files."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.delivery.engine import HEARTBEAT
from conduit_tasks.errors import PipelineStopped
from conduit_tasks.micro_batch import rebuild
from conduit_tasks.micro_batch import together as group
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.sending import leased
from conduit_tasks.micro_batch.shard_task import ShardTask
from conduit_tasks.settings import forget
from conduit_tasks.spool.checkpoint import Checkpoint, token_of
from conduit_tasks.topology import UNTOLD
from tests.changes.parts import applied
from tests.faults.beside import Beside, Died
from tests.faults.functions import hold
from tests.faults.grouped import UNCONFIRMED, UnderWay, all_there, broker, changed, pipeline, sealed, under_way
from tests.faults.parts import Receiver, drive, events
from tests.faults.test_shards import WINDOW, beside, deliver, hanging
from tests.forked import Forked
from tests.micro_batch.harness import payloads, run_once, state

__all__ = ["beside", "broker", "hanging", "under_way"]


@pytest.mark.proves("C10")
def test_a_worker_that_is_killed_with_two_micro_batches_under_way_is_run_again_alone(
    receiver: Receiver, beside: Beside, under_way: UnderWay
) -> None:
    """Given lane 0, which is slow in the first micro-batch, while the others are in the second: of these one is killed
    and run again. Then only what that one had not told is sent again."""
    beside.retries = 1
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(deliver, beside)
        under_way.wait()
        beside.processes[1][0].send_signal(signal.SIGKILL)
        hold().unlink()
        done.result(240)
    assert {piece: len(of) for piece, of in beside.processes.items()} == {0: 1, 1: 2, 2: 1}
    all_there(receiver, 1_800, cursor=3, repeats=UNCONFIRMED + UNTOLD)


def test_a_group_is_as_large_as_the_tasks_that_spark_has_need_it(
    quick: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given `parallelism: auto`, a Spark of two cores and micro-batches of 300 records, 200 of which are enough for a
    task, then two are begun together, and not what 16 tasks would need."""
    monkeypatch.setattr(group, "ENOUGH", 200)
    monkeypatch.setenv("CONDUIT_SMALL_RECORDS", "0")
    forget()
    changed(quick, "parallelism: 3", "parallelism: auto")
    events(quick / "data", 1_200)
    sealed(4)
    with opened("p", "run") as context:
        to = context.pipeline.destination("to")
        with leased(context, to) as lease:
            assert group.begin_group(context, to, lease, context.broker.deliveries.get("to"), 4, lambda: 2)
    found = broker.deliveries.get("to")
    assert (found.group, [division.count for division in found.divisions]) == ((1, 2), [2, 2])


@pytest.mark.proves("C10", "I6")
@pytest.mark.parametrize("isolated", [False, True])
def test_a_task_that_is_run_again_needs_no_micro_batch_of_its_lane_that_is_collected_by_then(
    quick: Path, receiver: Receiver, broker: Broker, isolated: bool
) -> None:
    """Given lane 0, whose task ends without an answer once the first of three micro-batches is passed, and that one
    collected before it is run again, then it goes on with the second."""
    pipeline(quick, receiver.url)
    events(quick / "data", 900)
    sealed(3)

    def job(task: Any, lanes: Any) -> list[Any]:
        task = replace(task, tasks=tuple(replace(each, isolate_poison=isolated) for each in task.tasks))
        said = {lane: task(lane) for lane in (1, 2)}
        task.tasks[0](0)
        assert broker.deliveries.get("to").cursor == 1
        broker.redis.hset(broker.keys.micro_batch(1), "state", "collecting")
        with opened("p", "run") as context:
            context.spool.collect("p", 1)
        broker.collection.end(1)
        return [said.get(lane) or task(lane) for lane in lanes]

    deliver(job)
    all_there(receiver, 900, cursor=3)


def driver(_: None) -> None:
    """Delivers, in a session of its own that can be killed; its tasks outlive it alone, as those of a cluster do."""
    os.setsid()
    deliver(Beside())


@pytest.mark.proves("C10", "I4", "I5")
@pytest.mark.parametrize("alone", [True, False])
def test_a_driver_that_is_killed_with_two_micro_batches_under_way_leaves_nothing_to_repair(
    receiver: Receiver, beside: Beside, under_way: UnderWay, alone: bool
) -> None:
    """Given a driver that is killed alone, then its tasks go on and finish the group, and the next one finds nothing to
    do. Given that they are killed with it, then the next one has the lanes that are left finish the group, once the
    lease has lapsed."""
    killed = Forked(driver, None)
    try:
        under_way.wait()
    finally:
        if alone:
            killed.kill()
        else:
            os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        hold().unlink()
    deliver(beside, "two", wait=240.0)
    assert [set(job) - {0, 1, 2} for job in beside.jobs] == ([] if alone else [set()])
    all_there(receiver, 1_800, cursor=3, repeats=0 if alone else 3 * (UNCONFIRMED + UNTOLD))


@pytest.mark.proves("C15")
def test_a_graceful_stop_finishes_what_is_under_way(
    receiver: Receiver, beside: Beside, broker: Broker, under_way: UnderWay
) -> None:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(deliver, beside)
        under_way.wait()
        broker.lifecycle.stop(240.0)
        hold().unlink()
        done.result(240)
    all_there(receiver, 1_800, cursor=3)
    assert broker.lifecycle.status().status in {"stopping", "stopped"}


@pytest.mark.proves("C15")
def test_a_forceful_stop_ends_all_lanes_and_a_start_goes_on_with_the_same_group(
    receiver: Receiver, beside: Beside, broker: Broker, under_way: UnderWay
) -> None:
    """Given a stop by force with two micro-batches under way, then what has arrived is told, nothing more is sent, and
    after a start the rest of both is."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(deliver, beside)
        under_way.wait()
        broker.lifecycle.force_stop()
        # Its tasks hear of it within `engine.HEARTBEAT`; what they have at hand is not sent then.
        time.sleep(3 * HEARTBEAT)
        hold().unlink()
        with pytest.raises(PipelineStopped):
            done.result(240)
    found = broker.deliveries.get("to")
    # All that has arrived is told, but the last record of each lane, as records that it became may have followed.
    assert 0 <= receiver.accepted() - found.confirmed_beyond - 600 * found.cursor <= 3
    assert receiver.accepted() < 1_800
    broker.lifecycle.start()
    deliver(beside, "two")
    assert len(beside.jobs) == 2
    all_there(receiver, 1_800, cursor=3, repeats=3)


@pytest.mark.proves("C10")
def test_a_group_is_finished_as_it_was_begun_whatever_the_file_says_by_then(
    quick: Path, receiver: Receiver, beside: Beside, under_way: UnderWay
) -> None:
    """Given a delivery cut off with two micro-batches under way, and a file that asks for one task and an order by
    then, then the lanes that are left finish the group, and what comes after it is delivered as the file says."""
    under_way.cut_off(beside)
    changed(quick, "order-by: none, parallelism: 3", "order-by: partition")
    events(quick / "data", 200, start=5_000)
    drive(run_all=beside)
    assert beside.jobs[0] == [0, 1, 2]
    assert set(beside.jobs[1]) <= {0, 1, 2}
    assert beside.jobs[2:] == [[0]]
    all_there(receiver, 2_000, cursor=4, repeats=UNCONFIRMED + UNTOLD)


@pytest.mark.proves("C10", "C14")
def test_a_destination_that_is_renamed_with_a_group_under_way_goes_on_with_it(
    quick: Path, tmp_path: Path, receiver: Receiver, beside: Beside, broker: Broker, under_way: UnderWay
) -> None:
    """Given a delivery cut off with two micro-batches under way, and `conduit apply` of a file in which the destination
    has another id, then all that was confirmed is known under that, and the lanes that are left finish the group."""
    under_way.cut_off(beside)
    before = broker.deliveries.get("to")
    text = (quick / "include" / "pipelines" / "p.yaml").read_text()
    file = tmp_path / "changed.yaml"
    file.write_text(text.replace("- id: to\n", "- id: sink\n"))
    applied(file, "--rename", "to=sink")
    assert broker.deliveries.get("sink").divisions == before.divisions
    drive(run_all=beside)
    seen, after = receiver.summary(), broker.deliveries.get("sink")
    assert (seen["accepted"], after.cursor, after.group) == (1_800, 3, (0, -1))
    assert seen["duplicates"] <= UNCONFIRMED + UNTOLD


@pytest.mark.proves("C10", "T4")
def test_a_plugin_to_which_one_task_writes_finishes_each_micro_batch_of_a_group(
    quick: Path, receiver: Receiver, beside: Beside, broker: Broker, under_way: UnderWay
) -> None:
    """Given a delivery cut off with two micro-batches under way, and a file that names a plugin with a state by then,
    then one task writes there, in order, what the lanes had not confirmed, and nothing else."""
    under_way.cut_off(beside)
    before = broker.deliveries.get("to")
    changed(quick, ", parallelism: 3", "")
    changed(quick, "plugin: http", "plugin: file")
    changed(quick, f'url: "{receiver.url}"', "path: out.jsonl, format: payload")
    drive(run_all=beside)
    written = [row["n"] for row in payloads(quick / "out.jsonl")]
    assert len(written) == 1_800 - before.confirmed_beyond - 600 * before.cursor
    assert written == sorted(written)
    assert receiver.accepted() + len(written) >= 1_800
    after = broker.deliveries.get("to")
    assert (after.cursor, after.counters["delivered"], after.group) == (3, 1_800, (0, -1))


@pytest.mark.proves("C6")
def test_one_task_that_takes_over_a_group_does_not_vote_for_a_shard_whose_lane_is_further_on(
    quick: Path, receiver: Receiver, broker: Broker
) -> None:
    """Given lane 1, which has delivered its shards of both micro-batches, so that its window is at the second, then all
    records of its shard of the first have voted."""
    pipeline(quick, receiver.url)
    events(quick / "data", 600)
    sealed(2)

    def job(task: Any, _: Any) -> list[Any]:
        task(1)
        raise Died

    with pytest.raises(Died):
        deliver(job)
    front, shards = broker.deliveries.get("to").division, broker.shards
    assert front is not None
    with opened("p", "two") as context:
        task = ShardTask(context.pipeline, "to", 1, 0, "two", division=front)
        confirmed, voted = task.merged(context, shards.voted("to", 1, front.count))
    assert (str(confirmed), str(voted)) == ("100-199", "100-199")


@pytest.mark.proves("X7")
@pytest.mark.parametrize("newer", [False, True])
def test_a_lost_redis_is_rebuilt_with_all_that_the_mark_says_of_a_group(
    receiver: Receiver, beside: Beside, broker: Broker, under_way: UnderWay, newer: bool
) -> None:
    """Given a mark with two micro-batches under way, then a state that is rebuilt from the spool has what was confirmed
    of each, and the lanes finish them; if the last one was sealed after the mark, what the mark says of it counts
    not."""
    under_way.cut_off(beside)
    before, front = broker.deliveries.get("to"), token_of(broker.micro_batches.get(2).manifest)
    assert (before.cursor, [division.micro_batch for division in before.divisions]) == (1, [2, 3])
    with opened("p", "two") as context:
        with context.broker.leases.acquire("destinations.to", "two", wait=30.0) as lease:
            Marker(context, "destinations.to", lease.token).mark()
        if newer:
            marks = Checkpoint(context.spool, "p")
            marks.write(replace(marks.read()["destinations.to"], at=front))
        broker.redis.flushall()
        found = rebuild.from_spool(context.pipeline, context.spool, broker)
        rebuild.apply(broker, found, replace=False)
    after = broker.deliveries.get("to")
    assert after.divisions == (before.divisions[:1] if newer else before.divisions)
    drive(run_all=beside)
    seen = receiver.summary()
    assert seen["accepted"] == 1_800
    assert seen["duplicates"] <= UNCONFIRMED + UNTOLD + (600 if newer else 0)
    assert broker.deliveries.get("to").cursor == 3


@pytest.mark.proves("C10")
def test_a_record_that_kills_its_worker_is_found_in_a_group(quick: Path, receiver: Receiver, beside: Beside) -> None:
    """Given a record in the second of three micro-batches that kills whoever processes it, then it becomes a dead
    letter, and everything else arrives."""
    pipeline(quick, receiver.url, records=200, more=WINDOW.replace("SIZE", "0").replace("NACKS", "0"))
    deadly = 'processors: [{id: deadly, plugin: python, settings: {call: "tests.faults.functions:deadly"}}]'
    changed(quick, "parallelism: 3}\n", f"parallelism: 3, max-redeliveries: 1}}\n        {deadly}\n")
    events(quick / "data", 300)
    events(quick / "data", 1, 300, deadly=True)
    events(quick / "data", 299, 301)
    sealed(3)
    for number in range(10):
        try:
            run_once("p", run=f"run-{number}", run_all=beside)
            break
        except Died:
            continue
    drive(run_all=beside)
    found = state("p")
    delivered, letters = found.deliveries.get("to"), list(found.dead_letters.entries("to"))
    found.close()
    assert (delivered.cursor, delivered.counters["delivered"], delivered.counters["nacked"]) == (3, 599, 1)
    assert [(letter.micro_batch, letter.seq, letter.error_class) for letter in letters] == [
        (2, 100, "killed its worker")
    ]
    assert receiver.accepted() == 599
