"""One destination delivered by several tasks (`delivery.parallelism`), and what happens when one of them dies, stands
still, or its target does not answer (ADR 27)."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis

from conduit_tasks.errors import Fenced
from conduit_tasks.ledger.messages import Overall
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.dividing import division_of
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.micro_batch.recorded import ledger
from conduit_tasks.micro_batch.sending import leased
from conduit_tasks.micro_batch.shard_task import ShardTask
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.settings import forget, settings
from conduit_tasks.topology import UNTOLD
from tests.conftest import RedisServer
from tests.faults.beside import Beside, Died
from tests.faults.parts import Receiver, drive, events, until
from tests.micro_batch.harness import deliver_again, here, payloads, run_once, state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: to
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {timeout: 2s, max-unconfirmed: 8, order-by: ORDER, parallelism: TASKS}
"""
WINDOW = """
        dead-letter-queue: {window-size: SIZE, window-nack-threshold: NACKS}
"""


def pipeline(home: Path, url: str, *, order: str = "key", tasks: int | str = 3, more: str = "") -> None:
    text = PIPELINE.replace("URL", url).replace("ORDER", order).replace("TASKS", str(tasks))
    write_pipeline(home, "p", text + more)


def lanes(folder: Path, count: int) -> list[dict[str, Any]]:
    """Events of 40 keys: every shard has some."""
    return [row for key in range(40) for row in events(folder, count // 40, lane=f"{key}-")]


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside()
    yield made
    made.stop()


def sealed(run: str = "run") -> None:
    plan_run("p", run)
    with opened("p", run) as context:
        read_source(context, "in", here, 5.0)


def deliver(run_all: Any, run: str = "run", wait: float = 20.0) -> Any:
    with opened("p", run) as context:
        return deliver_destination(context, "to", run_all, run=run, wait=wait, cleared=False, progress=lambda **_: None)


def all_there(receiver: Receiver, count: int, repeats: int = 0) -> None:
    seen = receiver.summary()
    assert seen["accepted"] == count
    assert seen["duplicates"] <= repeats
    assert seen["out_of_order"] == 0
    broker = state("p")
    delivered = broker.deliveries.get("to")
    stored = broker.access.hash(broker.keys.destination("to"))
    broker.close()
    assert delivered.division is None
    assert not [name for name in stored if name.startswith("shard:") or name in {"divided", "ranges"}]
    assert delivered.counters["delivered"] + delivered.counters["nacked"] == delivered.counters["matched"]


@pytest.mark.proves("C9", "I10")
@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_several_tasks_deliver_a_micro_batch_each_its_own_records(
    quick: Path, receiver: Receiver, beside: Beside, order: str
) -> None:
    """Given records of 40 keys in one file for each of 4 partitions, then three tasks deliver all of them, once, in the
    order that `order-by` keeps; the state left is that of one task, and the ledger names every record once."""
    pipeline(quick, receiver.url, order=order)
    by_file = "settings: {partition-by: file, path"
    text = (quick / "include" / "pipelines" / "p.yaml").read_text().replace("settings: {path", by_file)
    write_pipeline(quick, "p", text)
    for number in range(4):
        folder = quick / "data" / "new"
        rows = [row for key in range(10) for row in events(folder, 30, lane=f"{number}-{key}-")]
        assert len(rows) == 300
        (folder / "a.jsonl").rename(quick / "data" / f"{number}.jsonl")
    sealed()
    deliver(beside)
    assert beside.jobs == [[0, 1, 2]]
    if order == "none":
        assert receiver.accepted() == 1_200
    else:
        all_there(receiver, 1_200)
    with opened("p", "run") as context:
        assert context.broker.deliveries.get("to").cursor == 1
        rows = ledger(context).read("to").to_pylist()
        assert sum(row["records"] for row in rows) == 1_200
        assert {row["outcome"] for row in rows} == {"acked"}
        root = settings().path(settings().dead_letters)
        assert Overall(context.pipeline, context.spool, root).of(1).acked.count == 1_200


def test_few_records_are_delivered_by_one_task_whose_state_is_as_ever(
    quick: Path, receiver: Receiver, beside: Beside
) -> None:
    pipeline(quick, receiver.url)
    lanes(quick / "data", 160)
    sealed()
    deliver(beside)
    assert beside.jobs == [[0]]
    all_there(receiver, 160)


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
        until(lambda: receiver.accepted() >= 599 and len(beside.processes) == 3, "the middle of the delivery")
        beside.processes[1][0].send_signal(signal.SIGKILL)
        receiver.release()
    finally:
        done.join()
    assert {piece: len(of) for piece, of in beside.processes.items()} == {0: 1, 1: 2, 2: 1}
    all_there(receiver, 2_400, repeats=8 + UNTOLD)


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

    def killed() -> None:
        with pytest.raises(Died):
            deliver(beside)

    done = threading.Thread(target=killed)
    done.start()
    try:
        until(lambda: receiver.accepted() >= 599 and len(beside.processes) == 3, "the middle of the delivery")
        beside.processes[1][0].send_signal(signal.SIGKILL)
        receiver.release()
    finally:
        done.join()
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

    def killed() -> None:
        with pytest.raises(Died):
            deliver(beside)

    done = threading.Thread(target=killed)
    done.start()
    try:
        until(lambda: receiver.accepted() >= 599 and len(beside.processes) == 3, "the middle of the delivery")
        beside.processes[1][0].send_signal(signal.SIGKILL)
        receiver.release()
    finally:
        done.join()
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
            said = first.communicate(timeout=240)[0]
        assert Fenced.__name__.encode() in said
        assert context.broker.deliveries.get("to").cursor == 1
    assert other.counts.delivered + second.counts.delivered <= 2_400
    all_there(receiver, 2_400, repeats=8 + UNTOLD)


def test_a_nack_at_any_task_stops_the_pipeline_and_is_sent_again_after_a_start(
    quick: Path, receivers: Any, beside: Beside
) -> None:
    """Given the default window, in which no nack is tolerated, then the first one of any task stops all; everything
    else is delivered once it is started again and the receiver takes it."""
    receiver = receivers("--refuse", "k=3-2")
    pipeline(quick, receiver.url)
    lanes(quick / "data", 1_200)
    said = run_once("p", run_all=beside)["destinations.to"]
    assert "does not tolerate" in str(said) or "degraded" in str(said), said
    broker = state("p")
    assert broker.lifecycle.status().status == "degraded"
    assert broker.dead_letters.count("to") == 0
    receiver.mode("clean")
    pipeline(quick, receiver.url, more=WINDOW.replace("SIZE", "0").replace("NACKS", "0"))
    broker.lifecycle.start()
    broker.close()
    drive(run_all=beside)
    seen = receiver.summary()
    assert seen["out_of_order"] == 0
    broker = state("p")
    delivered = broker.deliveries.get("to")
    letters = broker.dead_letters.count("to")
    broker.close()
    assert (delivered.cursor, delivered.counters["nacked"]) == (1, letters)
    assert seen["accepted"] + letters == 1_200


def test_a_run_that_is_cleared_sends_again_the_micro_batches_that_its_tasks_delivered(
    quick: Path, receiver: Receiver, beside: Beside
) -> None:
    pipeline(quick, receiver.url)
    lanes(quick / "data", 1_200)
    run_once("p", run="one", run_all=beside)
    all_there(receiver, 1_200)
    deliver_again("p", "to", "one")
    seen = receiver.summary()
    assert (seen["accepted"], seen["duplicates"]) == (1_200, 1_200)
    broker = state("p")
    assert broker.deliveries.get("to").counters["redelivered"] == 1_200
    broker.close()


class Hanging:
    """An HTTP receiver that leaves requests of some keys unanswered until it is released, and takes all others."""

    def __init__(self, keys: str) -> None:
        self.released = threading.Event()
        self.taken: Counter[int] = Counter()
        hanging = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if event["k"].startswith(keys):
                    hanging.released.wait(240)
                hanging.taken[event["n"]] += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging("stuck-")
    yield made
    made.stop()


def test_a_task_whose_target_hangs_holds_up_no_other(quick: Path, hanging: Hanging, beside: Beside) -> None:
    """Given one key whose requests are not answered, then the tasks of the other shards end and say so, while the one
    that waits is still at work; once it is answered, the micro-batch is complete."""
    pipeline(quick, hanging.url)
    text = (quick / "include" / "pipelines" / "p.yaml").read_text().replace("timeout: 2s", "timeout: 240s")
    write_pipeline(quick, "p", text)
    (quick / "data").mkdir(exist_ok=True)
    rows = [{"n": n, "k": f"{n % 40}"} for n in range(1_200)] + [{"n": 1_200, "k": "stuck-1"}]
    (quick / "data" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sealed()
    done = threading.Thread(target=deliver, args=(beside,))
    done.start()
    broker = state("p")

    def whole() -> list[int | None]:
        division = broker.deliveries.get("to").division
        return [records for records in division.whole if records is not None] if division else []

    try:
        until(lambda: len(whole()) == 2, "the other two shards")
        assert broker.deliveries.get("to").cursor == 0
    finally:
        hanging.released.set()
        done.join()
    assert broker.deliveries.get("to").cursor == 1
    broker.close()
    assert hanging.taken == Counter(range(1_201))


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


def test_rows_are_written_in_batches_by_several_tasks(quick: Path, beside: Beside, redis_server: RedisServer) -> None:
    """Given a stream of Redis as destination, which appends, then three tasks append every record once, those of a key
    in order."""
    client = redis.Redis.from_url(redis_server.url)
    pipeline(quick, "http://unused/")
    text = (quick / "include" / "pipelines" / "p.yaml").read_text()
    text = text.replace("plugin: http", "plugin: redis")
    text = text.replace('{url: "http://unused/"}', f'{{url: "{redis_server.url}", stream: "shards", fields: payload}}')
    write_pipeline(quick, "p", text)
    rows = lanes(quick / "data", 1_200)
    sealed()
    try:
        deliver(beside)
        entries: Any = client.xrange("shards")
    finally:
        client.delete("shards")
        client.close()
    assert beside.jobs == [[0, 1, 2]]
    found = [{"n": int(of[b"n"]), "k": of[b"k"].decode()} for _, of in entries]
    assert sorted(found, key=lambda row: (row["k"], row["n"])) == sorted(rows, key=lambda row: (row["k"], row["n"]))
    for key in {row["k"] for row in rows}:
        assert [row["n"] for row in found if row["k"] == key] == [row["n"] for row in rows if row["k"] == key]
    assert found != rows


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
        until(lambda: receiver.accepted() >= 599 and len(beside.processes) == 3, "the middle of the delivery")
        own_redis.kill()
        receiver.release()
        time.sleep(1.5)
        own_redis.start()
        runs.result(240)
    assert {len(job) for job in beside.jobs} <= {1, 2, 3}
    all_there(receiver, 2_400, repeats=3 * (8 + UNTOLD))
