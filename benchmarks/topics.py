"""`topics`: an event's way under `@continuous`, Kafka → Kafka, by the real scheduler, over hand-overs.

An embedded stack of its own, and a real Kafka of one node on the same cores. Who sends and who receives are processes
of their own; an event carries when it was due, and its latency ends when the receiver has it.
`python -m benchmarks.topics receive SERVERS TOPIC COUNT | send SERVERS TOPIC RATE SECONDS` are those two processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kafka_server import KafkaServer
from benchmarks.place import PIPELINE, ROOT, Place
from benchmarks.stream import held
from benchmarks.tables import Figure, Result
from benchmarks.whole import stack
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.environment import load_secrets
from conduit_tasks.stack.layout import Layout, State

RATE, PARTITIONS, FROM, TO = 10_000, 4, "events", "delivered"
"""Events a second; of each topic."""
TICK, LOOK = 0.01, 0.01
SILENT = 120.0
"""Seconds without an event after which the receiver gives up."""


def run(place: Place, seconds: int, lasts: int) -> Result:
    """`seconds` of load; `lasts`: seconds that a run of the pipeline lasts."""
    place.archive()
    server = KafkaServer(memory="1g").create()
    try:
        server.start()
        _topics(server.servers)
        at = {"servers": server.servers}
        place.pipeline(
            {
                "id": "in",
                "type": "source",
                "plugin": "kafka",
                "settings": {"topics": FROM, "readFromBeginning": "true", "groupID": "bench", **at},
            },
            {
                "id": "out",
                "type": "destination",
                "plugin": "kafka",
                "settings": {"topic": TO, "format": "payload", **at},
            },
            schedule="@continuous",
            **{"drain-limit": f"{lasts}s"},
        )
        with stack(place, {}):
            return measure(place, server.servers, RATE, seconds, f"runs of {lasts} s")
    finally:
        server.remove()


def measure(place: Place, servers: str, rate: int, seconds: int, said: str) -> Result:
    """On a stack that is up. `said`: of its runs."""
    layout = Layout(place.home)
    state = State.load(layout)
    with Api(state.api_url, password=load_secrets(layout)["password"]) as api:
        # The first ones wait for the pipeline's start, which is measured elsewhere.
        with receiving(servers, 10) as first:
            _send_apart(servers, 10, 1)
            _got(first)
        runs = _runs(api)
        with receiving(servers, rate * seconds) as receiver, held(state.redis_url) as memory:
            sent = _send_apart(servers, rate, seconds)
            got = _got(receiver)
        handed = _runs(api) - runs
    lost = sent - int(got["distinct"])
    return Result(
        f"topics: Kafka → Kafka under @continuous, {seconds} s at {rate:,} events/s, {said}",
        ("rate", "sent", "lost", "again", "p50 s", "p99 s", "most s", "runs begun", "Redis MB"),
        [[f"{rate:,}/s", sent, lost, got["again"], got["p50"], got["p99"], got["most"], handed, memory.said()]],
        [
            Figure("p50", got["p50"], "≤", 0.4, " s"),
            Figure("p99", got["p99"], "≤", 1.2, " s"),
            Figure("lost", float(lost), "≤", 0),
        ],
        [
            "A run that begins is a hand-over. Redis MB: most in each quarter of the load.",
            "The server, who sends and who receives are on the same cores.",
        ],
        {"sent": float(sent), "lost": float(lost), "p50": got["p50"], "p99": got["p99"], "handed": float(handed)},
    )


def _topics(servers: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(name, PARTITIONS) for name in (FROM, TO)]).values():
        made.result(30)


def _runs(api: Api) -> int:
    return int(api.request("GET", f"/dags/{PIPELINE}/dagRuns")["total_entries"])


@contextmanager
def receiving(servers: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """Receives `count` events that come from now on, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.topics", "receive", servers, TO, str(count)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit("the receiver did not begin")
        yield process
    finally:
        process.kill()
        process.communicate()


def _got(receiver: subprocess.Popen[str]) -> dict[str, float]:
    assert receiver.stdout is not None
    said = receiver.stdout.readline()
    if not said:
        raise SystemExit("the receiver ended without a word")
    return dict(json.loads(said))


def _send_apart(servers: str, rate: int, seconds: int) -> int:
    command = [sys.executable, "-m", "benchmarks.topics", "send", servers, FROM, str(rate), str(seconds)]
    return int(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)


# -- the two processes


def receive(servers: str, topic: str, count: int) -> None:
    """Says `ready`, then a line of JSON once `count` different events were there, or none came for a while."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "receiver", "enable.auto.commit": False}
    consumer = Consumer({**settings, "fetch.wait.max.ms": 10})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, n), 30)[1] for n in range(PARTITIONS)]
    consumer.assign([TopicPartition(topic, n, end) for n, end in enumerate(ends)])
    print("ready", flush=True)
    took: list[float] = []
    seen: set[float] = set()
    until = time.monotonic() + SILENT
    while len(seen) < count and time.monotonic() < until:
        for message in consumer.consume(1_000, LOOK):
            if message.error() is not None:
                raise SystemExit(str(message.error()))
            made = json.loads(message.value() or b"")["made"]
            took.append(time.time() - made)
            seen.add(made)
            until = time.monotonic() + SILENT
    consumer.close()
    took.sort()
    share = {name: round(took[int(len(took) * of)], 3) if took else 0.0 for name, of in (("p50", 0.5), ("p99", 0.99))}
    most = round(took[-1], 3) if took else 0.0
    print(json.dumps({"distinct": len(seen), "again": len(took) - len(seen), "most": most, **share}), flush=True)


def send(servers: str, topic: str, rate: int, seconds: int) -> None:
    """Sends events at even times, told apart by them; prints how many."""
    from confluent_kafka import Producer

    refused: list[str] = []
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    began, made, apart = time.time(), 0, 1 / rate
    while made < rate * seconds:
        while made < rate * seconds and (due := began + made * apart) <= time.time():
            value = json.dumps({"n": made, "made": round(due, 6), "text": "x" * 140})
            producer.produce(
                topic, value, key=b"%d" % (made % 1_000), on_delivery=lambda e, _: refused.append(str(e)) if e else None
            )
            made += 1
        producer.poll(0)
        time.sleep(TICK)
    producer.flush()
    if refused:
        raise SystemExit(f"{len(refused)} events were refused: {refused[0]}")
    print(made)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        send(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
