"""Several tasks write a topic effectively once (ADR 48): killed at any step, standing still in the middle of a
transaction, their number changed in the middle, and one task that finishes what they began. Readers of `read_committed`
see each record once, those of a key in order."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.shards import Shards
from conduit_tasks.broker.state import DeliveryState
from conduit_tasks.connectors.kafka.index import Transactions
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.errors import ConduitError, Fenced, Unavailable
from conduit_tasks.micro_batch import dividing, rebuild
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.dividing import division_of
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.sending import leased
from conduit_tasks.micro_batch.shard_task import ShardTask
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.settings import forget
from tests.connectors.kafka import Kafka
from tests.faults.beside import Beside, Died
from tests.faults.conftest import quick  # noqa: F401 - a fixture
from tests.faults.parts import drive
from tests.faults.parts import events as numbered
from tests.faults.test_shards import deliver, lanes, sealed
from tests.forked import Forked
from tests.micro_batch.endings import end_at, home_of, lapse
from tests.micro_batch.harness import here, run_once, run_until_quiet, state, write_pipeline
from tests.micro_batch.test_whole import events
from tests.redis_server import RedisServer
from tests.waiting import until

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: RECORDS}
    lag-budget: {records: 100000}
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: KEY, partition-by: file}
      - id: to
        type: destination
        plugin: kafka
        settings: {servers: "SERVERS", topic: "TOPIC", format: payload, chunk: "CHUNK", timeout: 30s}
        delivery:
          {timeout: 200ms, max-redeliveries: 100, guarantee: effectively-once, order-by: ORDER, parallelism: TASKS}
"""
TO_FILE = "plugin: file\n        settings: {path: data/a.jsonl/none, format: payload}\n"
"""A destination to which one task writes, and which is down."""
COUNT = 480


def written(home: Path, kafka: Kafka, topic: str, *, tasks: int = 2, order: str = "key", **more: Any) -> None:
    values = {"RECORDS": 1_000, "KEY": "k", "CHUNK": 20, "SERVERS": kafka.servers, **more}
    text = PIPELINE.replace("TOPIC", topic).replace("TASKS", str(tasks)).replace("ORDER", order)
    for name, value in values.items():
        text = text.replace(name, str(value))
    write_pipeline(home, "p", text)


def once(kafka: Kafka, topic: str, order: str = "key") -> None:
    """Each record is there once, those of a key in order unless that is nobody's concern."""
    of: dict[bytes, list[int]] = {}
    for message in kafka.messages(topic):
        of.setdefault(message.key() or b"", []).append(json.loads(message.value() or b"")["n"])
    assert sum(map(len, of.values())) == COUNT
    for key, numbers in of.items():
        assert (sorted(numbers) if order == "none" else numbers) == sorted(set(numbers)), key


def delivered() -> DeliveryState:
    with closing(state("p")) as broker:
        return broker.deliveries.get("to")


@dataclass(frozen=True)
class Trouble:
    """Work whose process kills or stops itself at its `at`-th commit: with the messages sent, before that, or `after`
    it, before the broker hears of it."""

    task: Callable[[Any], Any]
    signal: signal.Signals
    at: int
    after: bool

    def __call__(self, piece: Any) -> Any:
        count, commit = 0, Transactions._commit

        def troubled(transactions: Transactions, *given: Any) -> None:
            nonlocal count
            count += 1
            if count == self.at and not self.after:
                os.kill(os.getpid(), self.signal)
            commit(transactions, *given)
            if count == self.at and self.after:
                os.kill(os.getpid(), self.signal)

        Transactions._commit = troubled  # type: ignore[method-assign]
        return self.task(piece)


@dataclass
class Troubled(Beside):
    """Processes of which the first one of each of these pieces has trouble."""

    troubles: dict[int, tuple[signal.Signals, int, bool]] = field(default_factory=dict)

    def start(self, function: Callable[[Any], Any], piece: Any) -> Forked:
        if trouble := self.troubles.pop(piece, None):
            function = Trouble(function, *trouble)
        return super().start(function, piece)


@pytest.fixture
def beside() -> Iterator[Troubled]:
    made = Troubled()
    yield made
    for some in made.processes.values():
        for process in some:
            process.send_signal(signal.SIGCONT)
    made.stop()


def stopped(process: Forked) -> bool:
    """Whether it stands still."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.proves("B8", "C9", "C10")
@pytest.mark.parametrize("after", [False, True], ids=["before its commit", "after its commit"])
@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_a_task_that_is_killed_in_a_transaction_is_run_again_alone_and_each_record_is_there_once(
    quick: Path,  # noqa: F811
    kafka: Kafka,
    beside: Troubled,
    order: str,
    after: bool,
) -> None:
    topic = kafka.topic(2)
    written(quick, kafka, topic, order=order)
    for name in "ab":
        rows = [row for key in range(20) for row in numbered(quick / "new", COUNT // 40, lane=f"{name}{key}-")]
        assert len(rows) == COUNT // 2
        (quick / "data").mkdir(exist_ok=True)
        (quick / "new" / "a.jsonl").rename(quick / "data" / f"{name}.jsonl")
    sealed()
    beside.retries, beside.troubles = 1, {1: (signal.SIGKILL, 3, after)}
    deliver(beside)
    assert {piece: len(of) for piece, of in beside.processes.items()} == {0: 1, 1: 2}
    once(kafka, topic, order)
    assert delivered().cursor == 1


@pytest.mark.proves("B8", "I4")
def test_a_task_that_stood_still_in_a_transaction_while_its_shard_was_given_to_another_commits_nothing_more(
    quick: Path,  # noqa: F811
    kafka: Kafka,
    beside: Troubled,
) -> None:
    topic = kafka.topic(2)
    written(quick, kafka, topic)
    lanes(quick / "data", COUNT)
    sealed()
    beside.troubles = {0: (signal.SIGSTOP, 3, False)}
    with opened("p", "run") as context:
        to = context.pipeline.destination("to")
        with leased(context, to) as lease, keeping(lease):
            division = division_of(context, to, lease, context.broker.deliveries.get("to"))
            assert division is not None
            task = ShardTask(get_pipeline("p"), "to", 1, lease.token, "run", division=division)
            first = beside.start(task, 0)
            until(lambda: stopped(first), "the middle of a transaction")
            answers = beside(task, [1, 0])
            first.send_signal(signal.SIGCONT)
            said = first.answer()
    assert not [answer for answer in answers if isinstance(answer, ConduitError)]
    assert isinstance(said, (Fenced, Unavailable))
    once(kafka, topic)
    assert delivered().cursor == 1


@pytest.mark.proves("B8", "I4")
@pytest.mark.parametrize(("order", "at"), [("key", 2), ("none", 2), ("key", 1)])
def test_one_task_that_finishes_what_several_have_begun_knows_what_they_have_written(
    quick: Path,  # noqa: F811
    kafka: Kafka,
    beside: Troubled,
    order: str,
    at: int,
) -> None:
    """Given three tasks, of which two have committed and were killed before the broker heard of it, and one stands
    still in a transaction, then a file that names a plugin that one task writes, and after it the topic again. `at`:
    the transaction of the first two; with 1, nothing is confirmed."""
    topic = kafka.topic(2)
    written(quick, kafka, topic, tasks=3, order=order)
    text = (quick / "include/pipelines/p.yaml").read_text()
    lanes(quick / "data", COUNT)
    sealed()
    beside.troubles = {0: (signal.SIGKILL, at, True), 1: (signal.SIGSTOP, at, False), 2: (signal.SIGKILL, 1, True)}
    with opened("p", "run") as context:
        to = context.pipeline.destination("to")
        with leased(context, to) as lease, keeping(lease):
            division = division_of(context, to, lease, context.broker.deliveries.get("to"))
            assert division is not None
            task = ShardTask(get_pipeline("p"), "to", 1, lease.token, "run", division=division)
            for shard in range(3):
                beside.start(task, shard)
            of = [beside.processes[shard][0] for shard in range(3)]
            until(lambda: stopped(of[1]), "the middle of a transaction")
            of[0].wait(240)
            of[2].wait(240)
    begin = text.index("plugin: kafka")
    to_file = (
        text[:begin] + TO_FILE + text[text.index("        delivery:") :].replace("parallelism: 3", "parallelism: 1")
    )
    write_pipeline(quick, "p", to_file)
    run_once("p", run_all=beside)
    now = delivered()
    assert (now.division, now.merged is not None, now.confirmed.count) == (None, True, 40 * (at - 1))
    # When the file names the topic again, and another number of tasks
    write_pipeline(quick, "p", text.replace("parallelism: 3", "parallelism: 2"))
    drive(run_all=beside)
    of[1].send_signal(signal.SIGCONT)
    assert isinstance(of[1].answer(), ConduitError)
    once(kafka, topic, order)
    assert delivered().cursor == 1
    # Then the next micro-batch has several tasks again
    lanes(quick / "data", COUNT)
    beside.jobs.clear()
    drive(run_all=beside)
    assert beside.jobs == [[0, 1]]
    assert len(kafka.values(topic)) == 2 * COUNT


@pytest.mark.proves("B8")
def test_what_one_task_has_begun_is_finished_by_one_though_the_file_asks_for_several_by_then(
    quick: Path,  # noqa: F811
    kafka: Kafka,
    beside: Troubled,
) -> None:
    """Given one task that has committed and was killed before the broker heard of anything."""
    topic = kafka.topic(2)
    written(quick, kafka, topic, tasks=1)
    lanes(quick / "data", COUNT)
    sealed()
    beside.troubles = {0: (signal.SIGKILL, 1, True)}
    with pytest.raises(Died):
        deliver(beside)
    assert delivered().confirmed_records == 0
    written(quick, kafka, topic, tasks=3)
    drive(run_all=beside)
    assert beside.jobs == [[0], [0]]
    once(kafka, topic)
    lanes(quick / "data", COUNT)
    drive(run_all=beside)
    assert beside.jobs[2:] == [[0, 1, 2]]
    assert len(kafka.values(topic)) == 2 * COUNT


@pytest.mark.proves("B8", "C10", "I4")
@pytest.mark.parametrize("after", [False, True], ids=["before its commit", "after its commit"])
def test_several_micro_batches_at_once_are_there_once(
    quick: Path,  # noqa: F811
    kafka: Kafka,
    beside: Troubled,
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
) -> None:
    """Given three tasks with a group of micro-batches, of which two are killed, one in the first micro-batch and one in
    the second, then the next run goes on in each lane where that was."""
    monkeypatch.setenv("CONDUIT_SMALL_RECORDS", "400")
    forget()
    topic = kafka.topic(2)
    written(quick, kafka, topic, tasks=3, order="none", RECORDS=320)
    lanes(quick / "data", 960)
    for run in range(3):
        sealed(f"run-{run}")
    # A lane has some 107 records of each micro-batch: six transactions
    beside.troubles = {0: (signal.SIGKILL, 3, after), 1: (signal.SIGKILL, 8, after)}
    with pytest.raises(Died):
        deliver(beside)
    assert [d.micro_batch for d in delivered().divisions][:2] == [1, 2]
    drive(run_all=beside)
    assert beside.jobs[0] == [0, 1, 2]
    assert sorted(json.loads(value or b"")["n"] for value in kafka.values(topic)) == sorted(list(range(24)) * 40)
    assert delivered().cursor == 3


STEPS = [(Shards, "divide"), (Deliveries, "confirm"), (Shards, "confirm"), (Shards, "whole"), (Transactions, "_commit")]


def run_and_die(at: int) -> None:
    # Clients that the test has used and not collected yet have no threads in a fork, and cannot be destroyed there.
    gc.freeze()
    dividing.LEAST = 1
    end_at(STEPS, at)
    run_once("p", "killed")


def run_on(forgotten: bool) -> None:
    gc.freeze()
    dividing.LEAST = 1
    if forgotten:
        with opened("p", "rebuild") as context:
            found = rebuild.from_spool(context.pipeline, context.spool, context.broker)
            rebuild.apply(context.broker, found, replace=False)
    run_until_quiet("p", run_all=here)


@pytest.mark.proves("B8", "C10")
def test_a_kill_at_any_step_leaves_every_record_once_whatever_number_of_tasks_the_file_asks_for_then(
    home: Path, redis_server: RedisServer, kafka: Kafka
) -> None:
    """Given two tasks, a death before any operation of theirs, and a file that asks for one or three tasks and another
    order by then, or a Redis that has lost everything; with another micro-batch waiting."""
    number = 0
    while True:
        number += 1
        redis_server.flush()
        topic, this = kafka.topic(), home_of(home, number, os.environ.__setitem__)
        given = {"RECORDS": 12, "KEY": "n", "CHUNK": 3}
        written(this, kafka, topic, order="none", **given)
        events(this / "data", "a.jsonl", 0, 20)
        try:
            in_child(run_and_die, number)
            break
        except ChildDied as died:
            assert died.how == "signal 9"  # noqa: PT017 - or it has ended
        lapse()
        forgotten = number % 3 == 1
        if forgotten:
            redis_server.flush()
        else:
            written(this, kafka, topic, order="key", tasks=1 + number % 3, **given)
        in_child(run_on, forgotten)
        found = sorted(json.loads(value or b"")["n"] for value in kafka.values(topic))
        assert found == list(range(20)), f"operation {number}"
    assert number > 10, "the kills cover both tasks"
