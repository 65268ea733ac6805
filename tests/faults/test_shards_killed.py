"""What happens if one of several tasks of a destination dies or stands still, or Redis does (ADR 27)."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from conduit_tasks.errors import Fenced
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.dividing import division_of
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.sending import leased
from conduit_tasks.micro_batch.shard_task import ShardTask
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.settings import forget
from conduit_tasks.topology import UNTOLD
from tests.faults.beside import Beside, Died
from tests.faults.parts import Receiver, drive, events
from tests.faults.test_shards import WINDOW, all_there, beside, deliver, lanes, pipeline, sealed
from tests.micro_batch.harness import payloads, run_once, state, write_pipeline
from tests.redis_server import RedisServer
from tests.waiting import until

__all__ = ["beside"]


@pytest.mark.proves("C10")
def test_a_task_whose_worker_is_killed_is_run_again_alone(quick: Path, receiver: Receiver, beside: Beside) -> None:
    """Given three tasks in the middle, of which one is killed and run again, then the others go on, and only what that
    one had not told the broker is sent again."""
    beside.retries = 1
    pipeline(quick, receiver.url)
    lanes(quick / "data", 2_400)
    sealed()
    receiver.hold(600)
    done = threading.Thread(target=deliver, args=(beside,))
    done.start()
    try:
        until(partial(in_the_middle, receiver, beside), "the middle of the delivery")
        beside.processes[1][0].send_signal(signal.SIGKILL)
        receiver.release()
    finally:
        done.join()
    assert {piece: len(of) for piece, of in beside.processes.items()} == {0: 1, 1: 2, 2: 1}
    all_there(receiver, 2_400, repeats=8 + UNTOLD)


def in_the_middle(receiver: Receiver, beside: Beside) -> bool:
    """Whether three tasks wait for answers."""
    return receiver.accepted() >= 599 and len(beside.processes) == 3


@pytest.mark.proves("C10")
def test_a_delivery_that_was_cut_off_is_finished_by_the_number_of_tasks_that_it_was_begun_with(
    quick: Path, receiver: Receiver, beside: Beside
) -> None:
    """Given a driver that fails because one of three tasks died in the middle, and a file that asks for one task by
    then and another order, then the run that follows starts the open shards of the three, and the one after it one
    task."""
    pipeline(quick, receiver.url)
    lanes(quick / "data", 2_400)
    sealed()
    receiver.hold(600)
    beside.cut_off(deliver, partial(in_the_middle, receiver, beside), receiver.release)
    pipeline(quick, receiver.url, order="partition", tasks=1)
    drive(run_all=beside)
    assert beside.jobs == [[0, 1, 2], [1]]
    all_there(receiver, 2_400, repeats=8 + UNTOLD)
    events(quick / "data", 700, start=5_000, lane="new-")
    drive(run_all=beside)
    assert beside.jobs == [[0, 1, 2], [1], [0]]
    all_there(receiver, 3_100, repeats=8 + UNTOLD)


@pytest.mark.proves("C10", "T4")
@pytest.mark.parametrize("order", ["key", "none"])
def test_a_plugin_to_which_one_task_writes_finishes_what_several_tasks_have_begun(
    quick: Path, receiver: Receiver, beside: Beside, order: str
) -> None:
    """Given three tasks cut off in the middle, and a file that names a plugin with a state by then, then one task
    writes there what the three had not confirmed, and nothing else."""
    pipeline(quick, receiver.url, order=order)
    rows = lanes(quick / "data", 2_400)
    sealed()
    receiver.hold(600)
    beside.cut_off(deliver, partial(in_the_middle, receiver, beside), receiver.release)
    broker = state("p")
    before = broker.deliveries.get("to")
    broker.close()
    assert before.division is not None
    text = (quick / "include" / "pipelines" / "p.yaml").read_text().replace(", parallelism: 3", "")
    text = text.replace("plugin: http", "plugin: file")
    write_pipeline(quick, "p", text.replace(f'url: "{receiver.url}"', "path: out.jsonl, format: payload"))
    drive(run_all=beside)
    assert beside.jobs == [[0, 1, 2], [0]]
    written = payloads(quick / "out.jsonl")
    assert len(written) == 2_400 - before.confirmed_records
    places = [rows.index(row) for row in written]
    assert places == sorted(places)
    assert receiver.accepted() + len(written) >= 2_400
    broker = state("p")
    after = broker.deliveries.get("to")
    broker.close()
    assert (after.cursor, after.counters["delivered"]) == (1, 2_400)


@pytest.mark.proves("I4")
def test_a_task_that_stood_still_while_its_shard_was_given_to_another_cannot_confirm(
    quick: Path, receiver: Receiver, beside: Beside
) -> None:
    pipeline(quick, receiver.url, tasks=2)
    lanes(quick / "data", 2_400)
    sealed()
    with opened("p", "run") as context:
        to = context.pipeline.destination("to")
        with leased(context, to) as lease, keeping(lease):
            division = division_of(context, to, lease, context.broker.deliveries.get("to"))
            assert division is not None
            slower = replace(to, delivery=replace(to.delivery, rate_limit=100.0))
            task = ShardTask(get_pipeline("p"), "to", 1, lease.token, "run", division=division)
            slow = replace(task, pipeline=replace(task.pipeline, destinations=(slower,)))
            first = beside.start(slow, 0)
            until(lambda: receiver.accepted() >= 30, "the middle of the shard")
            first.send_signal(signal.SIGSTOP)
            other, second = beside(task, [1, 0])
            first.send_signal(signal.SIGCONT)
            said = first.answer()
        assert isinstance(said, Fenced)
        assert context.broker.deliveries.get("to").cursor == 1
    assert other.counts.delivered + second.counts.delivered <= 2_400
    all_there(receiver, 2_400, repeats=8 + UNTOLD)


@pytest.mark.proves("C10")
def test_a_record_that_kills_its_worker_is_found_within_its_shard(
    quick: Path, receiver: Receiver, beside: Beside
) -> None:
    """Given a record that kills whoever processes it, then attempts at its shard die until it is searched for; it
    becomes a dead letter, and everything else arrives once the broker was told of it."""
    pipeline(quick, receiver.url, order="none", more=WINDOW.replace("SIZE", "0").replace("NACKS", "0"))
    text = (quick / "include" / "pipelines" / "p.yaml").read_text()
    deadly = '        processors: [{id: deadly, plugin: python, settings: {call: "tests.faults.functions:deadly"}}]\n'
    text = text.replace("parallelism: 3", "parallelism: 3, max-redeliveries: 1").rstrip() + "\n" + deadly
    write_pipeline(quick, "p", text)
    lanes(quick / "data", 400)
    events(quick / "data", 1, 400, deadly=True)
    lanes(quick / "data", 200)
    deaths = 0
    for number in range(10):
        try:
            run_once("p", run=f"run-{number}", run_all=beside)
            break
        except Died:
            deaths += 1
    assert deaths == 2
    drive(run_all=beside)
    broker = state("p")
    delivered, letters = broker.deliveries.get("to"), list(broker.dead_letters.entries("to"))
    broker.close()
    assert delivered.cursor == 1
    assert (delivered.counters["delivered"], delivered.counters["nacked"]) == (600, 1)
    assert [(letter.seq, letter.error_class) for letter in letters] == [(400, "killed its worker")]
    assert receiver.accepted() == 600


@pytest.mark.proves("C10", "T1", "I5")
def test_redis_killed_while_several_tasks_deliver_loses_nothing(
    own_redis: RedisServer, quick: Path, receiver: Receiver, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given three tasks in the middle, then Redis is killed and started again a moment later: the tasks end, the next
    runs start those that are not whole, and only what the broker was not told is sent again."""
    monkeypatch.setenv("CONDUIT_REDIS_URL", own_redis.url)
    forget()
    pipeline(quick, receiver.url)
    lanes(quick / "data", 2_400)
    receiver.hold(600)
    with ThreadPoolExecutor(1) as pool:
        runs = pool.submit(drive, run_all=beside)
        until(partial(in_the_middle, receiver, beside), "the middle of the delivery")
        own_redis.kill()
        receiver.release()
        time.sleep(1.5)
        own_redis.start()
        runs.result(240)
    assert {len(job) for job in beside.jobs} <= {1, 2, 3}
    all_there(receiver, 2_400, repeats=3 * (8 + UNTOLD))
