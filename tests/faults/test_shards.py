"""One destination delivered by several tasks (`delivery.parallelism`, ADR 27)."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis

from conduit_tasks.ledger.messages import Overall
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.micro_batch.recorded import ledger
from conduit_tasks.settings import settings
from tests.faults.beside import Beside
from tests.faults.parts import Receiver, drive, events
from tests.micro_batch.harness import deliver_again, here, run_once, state, write_pipeline
from tests.redis_server import RedisServer
from tests.waiting import until

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
    """An HTTP receiver that leaves requests of some keys unanswered until it is released, and takes all others.
    `answer`: the status that the former get then."""

    def __init__(self, keys: str) -> None:
        self.released = threading.Event()
        self.answer = 204
        self.taken: Counter[int] = Counter()
        hanging = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stuck = event["k"].startswith(keys)
                if stuck:
                    hanging.released.wait(240)
                hanging.taken[event["n"]] += 1
                self.send_response(hanging.answer if stuck else 204)
                self.send_header("Content-Length", "0")
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
