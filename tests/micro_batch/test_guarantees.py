"""Pipes with an index and each guarantee, from a file to a target, over processes that die at any operation."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.sending import Sending
from conduit_tasks.connectors.base import DELIVERED, Outcome, RecordDestination, Spec
from conduit_tasks.connectors.sql.connector import SqlDestination
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.micro_batch import deliver_task
from conduit_tasks.pipes import PIPES, Message
from conduit_tasks.pipes.base import AFTER, EPOCH, INDEX, LANE
from conduit_tasks.record.record import Record
from tests.connectors.test_sql import execute
from tests.micro_batch.harness import run_once, run_until_quiet, state, write_pipeline

RECORDS, KEYS = 90, 7
REFUSED = frozenset({0, 7, 13, 14, 55, 89})

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 40}
    dead-letter-queue: {window-size: 0}
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}
        processors: [{id: key, plugin: field.set, settings: {field: .Key, value: "{{ .Payload.After.key }}"}}]
      - {id: out, type: destination, DESTINATION}
"""
HTTP = 'plugin: http, settings: {url: "http://localhost:1/"}, delivery: {timeout: 100ms, max-redeliveries: 100, '
SQL = (
    'plugin: sql, settings: {url: "sqlite:///out/t.db", table: t, mode: append, chunk: "7", '
    'columns: "n:int=.Payload.After.n"}, delivery: {timeout: 100ms, max-redeliveries: 100, guarantee: effectively-once}'
)


class Target(RecordDestination):
    """Notes each arrival in a file before it answers, so that what died after it is seen."""

    spec = Spec("target", "a test's target")
    path = ""

    async def send(self, record: Record) -> Outcome:
        assert isinstance(record.after, dict)
        n = record.after["n"]
        names = (LANE, EPOCH, INDEX, AFTER)
        line = json.dumps({"n": n, "key": record.after["key"], **{k: record.metadata.get(k) for k in names}})
        fd = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)
        return Outcome("refused", "no", 400) if n in REFUSED else DELIVERED


@pytest.fixture
def target(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Takes the place of http; answers with all arrivals so far."""
    path = home / "arrivals"
    monkeypatch.setattr(Target, "path", str(path))
    original = deliver_task.connect
    monkeypatch.setattr(deliver_task, "connect", lambda p, d: Target({}) if d.plugin == "http" else original(p, d))
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "0.2")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.05")
    from conduit_tasks.settings import forget

    forget()
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def begin(home: Path, redis: Any, destination: str) -> None:
    redis.flush()
    write_pipeline(home, "p", PIPELINE.replace("DESTINATION", destination))
    (home / "data").mkdir()
    rows = [json.dumps({"n": n, "key": f"k{n * n % KEYS}"}) for n in range(RECORDS)]
    (home / "data" / "a.jsonl").write_text("\n".join(rows) + "\n")


def live_and_die(seed: int, operations: int = 25) -> None:
    """Runs in children that die at a random operation, before or after it, and then to the end."""
    chance, deaths = random.Random(seed), 0
    for attempt in range(5):
        try:
            in_child(_run, f"run-{attempt}", chance.randint(1, operations), chance.random() < 0.5)
        except ChildDied:
            deaths += 1
    assert deaths >= 2, "too few deaths to show anything"
    run_until_quiet("p")


def _run(run: str, die_at: int, after: bool) -> None:
    """`die_at`: the operation of this run that ends the process; 0: none."""
    count = 0

    def die(early: bool) -> None:
        nonlocal count
        if early:
            count += 1
        if count == die_at and early is not after:
            os._exit(9)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            die(True)
            answer = original(*args, **kwargs)
            die(False)
            return answer

        return operation

    async def send(self: Target, record: Record) -> Outcome:
        die(True)
        answer = await original_send(self, record)
        die(False)
        return answer

    original_send = Target.send
    Target.send = send  # type: ignore[method-assign] # this process ends soon
    for owner, name in ((Sending, "number"), (Sending, "begin"), (Deliveries, "confirm"), (SqlDestination, "write")):
        setattr(owner, name, wrap(getattr(owner, name)))
    run_once("p", run)


def passed(pipe: str, arrivals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What receivers of this pipe, one per lane and epoch, hand on of these arrivals."""
    receivers: dict[tuple[str, str], Any] = {}
    out = []
    for arrival in arrivals:
        lane, epoch, index, after = (arrival[k] for k in (LANE, EPOCH, INDEX, AFTER))
        receiver = receivers.setdefault((lane, epoch), PIPES[pipe].receiver(epoch=int(epoch)))
        message = Message(int(index), arrival, epoch=int(epoch), after=None if after is None else int(after))
        out += [m.payload for m in receiver.receive(message).deliver]
    return out


@pytest.mark.proves("O5", "O5r", "O6", "O6r", "C9")
@pytest.mark.parametrize(
    ("pipe", "order_by", "seed"),
    [
        ("monotonic", "key", 0),
        ("monotonic-relaxed", "partition", 1),
        ("continuous", "partition", 1),
        ("continuous", "key", 3),
        ("continuous-relaxed", "key", 4),
    ],
)
def test_a_receiver_of_the_pipe_has_every_record_once_in_the_order_of_its_lane(
    home: Path, redis_server: Any, target: Callable[[], list[dict[str, Any]]], pipe: str, order_by: str, seed: int
) -> None:
    # Given a target that refuses some records, and processes that die at any operation
    unconfirmed = ", max-unconfirmed: 8" if order_by == "key" else ""
    begin(home, redis_server, f"{HTTP} pipe: {pipe}, order-by: {order_by}{unconfirmed}}}")
    live_and_die(seed)
    arrivals = target()
    # Then records did arrive again, but a number never stood for two records
    numbers: dict[tuple[str, str, str], int] = {}
    for a in arrivals:
        assert numbers.setdefault((a[LANE], a[EPOCH], a[INDEX]), a["n"]) == a["n"]
    assert len({a[EPOCH] for a in arrivals}) == 1
    assert len(arrivals) > RECORDS or order_by == "key"
    # And numbers are consecutive from 1 in each lane, those of refused records included
    lanes: dict[str, set[int]] = {}
    for a in arrivals:
        lanes.setdefault(a[LANE], set()).add(int(a[INDEX]))
    assert all(numbers == set(range(1, len(numbers) + 1)) for numbers in lanes.values())
    # And its receivers hand on all that was not refused, in the order of the source, the strict ones once
    handed = [a for a in passed(pipe, arrivals) if a["n"] not in REFUSED]
    if pipe.endswith("relaxed"):
        handed = list({a["n"]: a for a in handed}.values())
    assert sorted(a["n"] for a in handed) == sorted(set(range(RECORDS)) - REFUSED)
    for lane in lanes:
        in_lane = [a["n"] for a in handed if a[LANE] == lane]
        assert in_lane == sorted(in_lane)
    assert len(lanes) == (1 if order_by == "partition" else len({a["key"] for a in arrivals}))
    broker = state("p")
    assert broker.dead_letters.count("out") == len(REFUSED)
    assert broker.positions.acked("in") == broker.positions.planned("in")
    broker.close()


@pytest.mark.proves("O5", "O6")
@pytest.mark.parametrize("pipe", ["monotonic", "continuous"])
def test_files_that_come_and_go_have_lanes_that_come_and_go(
    home: Path,
    redis_server: Any,
    target: Callable[[], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    pipe: str,
) -> None:
    """Given a folder whose files, a lane each, are removed and forgotten, and some come back, then what is stored of
    lanes has one size, and a receiver has every record once."""
    monkeypatch.setattr("conduit_tasks.micro_batch.gone.EVERY", 0.0)
    begin(home, redis_server, f"{HTTP} pipe: {pipe}, order-by: partition}}")
    file = home / "include/pipelines/p.yaml"
    write_pipeline(
        home, "p", file.read_text().replace("settle: 0s", "settle: 0s, partition-by: file, forget-removed: 1ms")
    )
    (home / "data/a.jsonl").unlink()
    broker, sizes, count = state("p"), list[int](), 0
    for part in range(8):
        for path in (home / "data").iterdir():
            path.unlink()
        for name in [*(f"{part}-{n}" for n in range(9)), *(["back"] if part % 3 == 0 else [])]:
            rows = [json.dumps({"n": 100 + count + n, "key": "k"}) for n in range(3)]
            (home / f"data/{name}.jsonl").write_text("\n".join(rows) + "\n")
            count += 3
        run_until_quiet("p")
        sizes.append(broker.redis.hlen(broker.keys.numbers("out")))
    assert max(sizes) < 40
    arrivals = target()
    assert sorted(a["n"] for a in passed(pipe, arrivals)) == list(range(100, 100 + count))
    taken = [(a[LANE], a[EPOCH], a[INDEX]) for a in arrivals]
    assert len(set(taken)) == len(taken) == count
    broker.close()


@pytest.mark.proves("B8")
@pytest.mark.parametrize(("order_by", "seed"), [("partition", 0), ("none", 1)])
def test_at_most_once_never_sends_a_record_twice_whenever_the_process_dies(
    home: Path, redis_server: Any, target: Callable[[], list[dict[str, Any]]], order_by: str, seed: int
) -> None:
    unconfirmed = ", max-unconfirmed: 8" if order_by == "none" else ""
    begin(home, redis_server, f"{HTTP} guarantee: at-most-once, order-by: {order_by}{unconfirmed}}}")
    live_and_die(seed)
    sent = [a["n"] for a in target()]
    assert len(sent) == len(set(sent))
    # What is lost is told apart, and nothing waits for it
    broker = state("p")
    counters = broker.deliveries.get("out").counters
    assert counters["matched"] == RECORDS
    assert counters["delivered"] + counters["completed"] + counters["nacked"] == RECORDS
    assert counters["completed"] >= RECORDS - len(sent)
    assert broker.positions.acked("in") == broker.positions.planned("in")
    broker.close()


@pytest.mark.proves("B8")
def test_at_most_once_loses_what_was_let_through_and_not_sent_when_the_process_died(
    home: Path, redis_server: Any, target: Callable[[], list[dict[str, Any]]]
) -> None:
    """The price: a kill between the mark and the first send."""
    begin(home, redis_server, f"{HTTP} guarantee: at-most-once}}")
    with pytest.raises(ChildDied):
        in_child(_run, "run", 1, True)
    run_until_quiet("p")
    sent = {a["n"] for a in target()}
    assert sent == set(range(40, RECORDS))


@pytest.mark.proves("B8")
def test_at_most_once_loses_nothing_when_nothing_dies(
    home: Path, redis_server: Any, target: Callable[[], list[dict[str, Any]]]
) -> None:
    begin(home, redis_server, f"{HTTP} guarantee: at-most-once}}")
    run_until_quiet("p")
    assert [a["n"] for a in target()] == list(range(RECORDS))
    broker = state("p")
    assert (broker.deliveries.get("out").counters["completed"], broker.dead_letters.count("out")) == (0, len(REFUSED))
    broker.close()


@pytest.mark.proves("B8", "O5")
@pytest.mark.parametrize("seed", range(2))
def test_effectively_once_appends_each_row_once_in_order_whenever_the_process_dies(
    home: Path, redis_server: Any, target: object, seed: int
) -> None:
    begin(home, redis_server, SQL)
    live_and_die(seed, operations=8)
    assert [n for (n,) in execute(f"sqlite:///{home}/out/t.db", "SELECT n FROM t")] == list(range(RECORDS))
