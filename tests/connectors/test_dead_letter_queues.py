"""Dead letters at every destination that there is: a record that is refused arrives there once, with its error and its
position, and arrives at its own destination when it is redriven (SEMANTICS C14, T7, X2)."""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.delivery import dead_letter_plugin
from conduit_tasks.delivery.dead_letter_select import Selection
from conduit_tasks.delivery.dead_letter_store import DeadLetterStore
from conduit_tasks.delivery.dead_letters import dead_letter_handler
from conduit_tasks.delivery.redrive import redrive
from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.control import start
from conduit_tasks.pipeline.topology import DeadLetterQueue, Delivery
from conduit_tasks.record.jsons import DEPTH
from conduit_tasks.settings import settings
from tests.delivery.test_dead_letters import letter
from tests.faults.parts import events
from tests.micro_batch.harness import payloads, run_once, state, write_pipeline

pytestmark = pytest.mark.xdist_group("moto")

SAID = "not on a Sunday, says the müller"
REFUSED = {"log": "drops them", "spark": "writes through the driver's session"}
"""Destinations that take none, and why (docs/pipeline-file.md)."""


@dataclass
class Queue:
    """Somewhere for letters: settings of the plugin, and what is there, a text for each letter."""

    plugin: str
    settings: dict[str, str]
    read: Callable[[], list[str]]
    once: bool = False
    """Whether what is written again after a crash is there once."""


def a_file(home: Path, request: Any) -> Queue:
    path = home / "out/dead.jsonl"
    return Queue("file", {"path": "out/dead.jsonl"}, lambda: path.read_text().splitlines() if path.exists() else [])


def opencdc_lines(home: Path, request: Any) -> Queue:
    made = a_file(home, request)
    return Queue("file", {**made.settings, "format": "opencdc"}, made.read)


def a_folder(home: Path, request: Any) -> Queue:
    def read() -> list[str]:
        files = sorted((home / "out/dead").rglob("*.parquet"))
        return [json.dumps(row, default=str) for file in files for row in pq.ParquetFile(file).read().to_pylist()]

    return Queue("file", {"path": "out/dead", "format": "parquet"}, read, once=True)


def a_delta_table(home: Path, request: Any) -> Queue:
    from deltalake import DeltaTable

    def read() -> list[str]:
        path = home / "out/lake"
        rows = DeltaTable(path).to_pyarrow_table().to_pylist() if path.exists() else []
        return [json.dumps(row, default=str) for row in rows]

    return Queue("delta", {"path": "out/lake"}, read)


def a_service(home: Path, request: Any) -> Queue:
    bodies: list[str] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    request.addfinalizer(stop)
    return Queue("http", {"url": f"http://127.0.0.1:{server.server_port}/"}, lambda: bodies)


def a_table(home: Path, request: Any) -> Queue:
    def read() -> list[str]:
        if not (home / "dead.db").exists():
            return []
        db = sqlite3.connect(home / "dead.db")
        try:
            return [json.dumps(row) for row in db.execute("SELECT * FROM letters")]
        finally:
            db.close()

    return Queue("sql", {"url": "sqlite:///dead.db", "table": "letters"}, read, once=True)


def a_postgres_table(home: Path, request: Any) -> Queue:
    db = request.getfixturevalue("db")
    db.run("CREATE TABLE dead_letters (letter text PRIMARY KEY, id text, error text, node text, attempts int, "
           "at float8, record json)")  # fmt: skip
    # Without `table` letters go where they belong, and not into the table of their records.
    more = {"url": db.url, "unknown-fields": "ignore"}
    rows = lambda: db.run("SELECT to_jsonb(t)::text FROM dead_letters t")  # noqa: E731
    return Queue("postgres", more, lambda: [text for (text,) in rows()], once=True)


def a_topic(home: Path, request: Any) -> Queue:
    kafka = request.getfixturevalue("kafka")
    topic = kafka.topic()
    values: Callable[[], list[bytes]] = lambda: kafka.values(topic)  # noqa: E731
    return Queue("kafka", {"servers": kafka.servers, "topic": topic}, lambda: [v.decode() for v in values()])


def a_stream(home: Path, request: Any) -> Queue:
    import redis

    url = settings().redis_url
    client = redis.Redis.from_url(url)
    request.addfinalizer(client.close)
    name = f"dead-{uuid.uuid4().hex}"
    entries: Callable[[], Any] = lambda: client.xrange(name)  # noqa: E731
    return Queue("redis", {"url": url, "stream": name}, lambda: [f[b"data"].decode() for _, f in entries()])


def _bucket(request: Any, **more: str) -> tuple[Any, str, dict[str, str]]:
    moto = request.getfixturevalue("moto")
    client, name = moto.client("s3"), f"dead-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    request.addfinalizer(client.close)
    return client, name, {**moto.settings, "bucket": name, **more}


def a_bucket(home: Path, request: Any) -> Queue:
    client, name, made = _bucket(request)

    def read() -> list[str]:
        keys = [found["Key"] for found in client.list_objects_v2(Bucket=name).get("Contents", ())]
        bodies = [client.get_object(Bucket=name, Key=key)["Body"].read().decode() for key in keys]
        return [line for body in bodies for line in body.splitlines()]

    return Queue("s3", made, read, once=True)


def a_bucket_of_rows(home: Path, request: Any) -> Queue:
    client, name, made = _bucket(request, format="parquet")

    def read() -> list[str]:
        import io

        keys = [found["Key"] for found in client.list_objects_v2(Bucket=name).get("Contents", ())]
        bodies = [io.BytesIO(client.get_object(Bucket=name, Key=key)["Body"].read()) for key in keys]
        return [json.dumps(row, default=str) for body in bodies for row in pq.read_table(body).to_pylist()]

    return Queue("s3", made, read, once=True)


def an_sqs_queue(home: Path, request: Any) -> Queue:
    moto = request.getfixturevalue("moto")
    client, name = moto.client("sqs"), f"dead-{uuid.uuid4().hex}"
    request.addfinalizer(client.close)
    url = client.create_queue(QueueName=name)["QueueUrl"]
    seen: list[str] = []

    def read() -> list[str]:
        while found := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for message in found:
                seen.append(message["Body"])
                client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return seen

    return Queue("sqs", {**moto.settings, "queue": name}, read)


QUEUES: dict[str, Callable[[Path, Any], Queue]] = {
    "file": a_file,
    "file, opencdc": opencdc_lines,
    "file, parquet": a_folder,
    "delta": a_delta_table,
    "http": a_service,
    "sql": a_table,
    "postgres": a_postgres_table,
    "kafka": a_topic,
    "redis": a_stream,
    "s3": a_bucket,
    "s3, parquet": a_bucket_of_rows,
    "sqs": an_sqs_queue,
}


def test_every_destination_that_there_is_is_tried_here() -> None:
    there = {name for name, found in registry.known().items() if found.destination is not None}
    assert there == {name.partition(",")[0] for name in QUEUES} | REFUSED.keys()


PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}}}}
      - id: out
        type: destination
        plugin: file
        settings: {{path: out/good.jsonl, format: payload}}
        processors: [{processors}]
        dead-letter-queue: {{plugin: {plugin}, settings: {settings}, window-size: 0}}
"""
REFUSING = f"{{id: no, plugin: error, settings: {{message: '{SAID}'}}, condition: '{{{{ eq .Payload.After.n 2.0 }}}}'}}"


@pytest.fixture(params=QUEUES)
def queue(request: pytest.FixtureRequest, home: Path) -> Queue:
    return QUEUES[request.param](home, request)


@pytest.mark.proves("C14", "C5", "X2", "I8")
def test_a_refused_record_arrives_as_a_letter_once_and_redriven_at_its_destination(home: Path, queue: Queue) -> None:
    # Given a pipeline whose letters go there, and a record that is refused
    def write(processors: str) -> None:
        given = json.dumps(queue.settings)
        write_pipeline(home, "p", PIPELINE.format(processors=processors, plugin=queue.plugin, settings=given))

    write(REFUSING)
    rows = events(home / "data", 5)
    # When it runs
    said = run_once("p")
    # Then everything is acked but the one, whose letter is there once, whole
    assert state("p").delivery("out").cursor == 1, said
    (stored,) = DeadLetterStore(settings().path(settings().dead_letters), "p").list()
    (there,) = queue.read()
    there = there.replace("\\u00fc", "ü")
    assert SAID in there
    assert stored["id"] in there, "whose letter it is"
    assert base64.b64encode(stored["position"]).decode() in there
    assert "destinations.out/no" in there
    # And when what was wrong is mended, a redrive sends it where it belongs, from our copy
    write("")
    with opened("p", "operator") as context:
        (outcome,) = redrive(context, Selection(), "me", wait=10.0)
    assert (outcome.redriven, outcome.again) == (1, 0)
    assert sorted(row["n"] for row in payloads(home / "out/good.jsonl")) == [row["n"] for row in rows]
    assert len(queue.read()) == 1, "a redrive takes nothing out, and puts nothing in"


ONE = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {queue}
    processors: [{be}]
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out/good.jsonl, format: payload}},
          processors: [{at}]}}
"""


@pytest.mark.proves("T7", "C5", "I8")
@pytest.mark.parametrize("place", ["at a destination", "before the fan-out"])
def test_where_letters_cannot_be_stored_the_record_is_not_acked_and_goes_on_once_they_can(
    home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    # Given a place for letters that is away, and a record refused
    monkeypatch.setattr(dead_letter_plugin, "SENDS", Delivery(retry=1, backoff_delay=0.001))
    given = '{plugin: sql, settings: {url: "sqlite:///dead.db", table: letters}, window-size: 0}'
    text = ONE.format(queue=given, **{place[:2]: REFUSING, {"at": "be", "be": "at"}[place[:2]]: ""})
    write_pipeline(home, "p", text)
    rows = events(home / "data", 5)
    (home / "dead.db").mkdir()
    # When it runs
    # Then nothing of the record is confirmed, or acked, and it says why
    with pytest.raises(ConduitError, match=r"cannot be stored .*unable to open database file.* stay unacknowledged"):
        raise next(each for each in run_once("p").values() if isinstance(each, ConduitError))
    assert state("p").acked_position("in") == {}
    assert state("p").dead_count("out") + state("p").dead_count("") == 0
    # And when it is back, everything goes on
    (home / "dead.db").rmdir()
    start("p")
    run_once("p", run="again")
    assert state("p").acked_position("in") != {}
    assert sorted(row["n"] for row in payloads(home / "out/good.jsonl")) == [r["n"] for r in rows if r["n"] != 2]
    db = sqlite3.connect(home / "dead.db")
    assert db.execute("SELECT count(*) FROM letters").fetchall() == [(1,)]
    db.close()


@pytest.mark.proves("T8", "C14")
def test_letters_that_come_again_after_a_crash_are_the_same_and_others_beside_them_are_kept(
    home: Path, queue: Queue
) -> None:
    # Given letters of two destinations about the same record, of records of all shapes
    def handler(destination: str) -> Any:
        made = DeadLetterQueue(queue.plugin, queue.settings)
        return dead_letter_handler(made, root=str(home / "store"), pipeline="flights", destination=destination)

    raw = replace(letter(6), record=replace(letter(6).record, after=b"\xff raw", key={"k": [1]}, before=None))
    odd = replace(letter(7), record=replace(letter(7).record, after={"n": "text", "o": {}}, metadata={}), index=None)
    deep: Any = 1
    for _ in range(DEPTH - 2):
        deep = [deep]
    worst = replace(letter(8, error="half a \udcff, none \0"), attempts=2**30)
    worst = replace(worst, record=replace(worst.record, after={"deep": deep, "big": 2**70, "none": "\0"}))
    handler("delays").store([letter(5), raw, odd, worst])
    handler("archive").store([replace(letter(5), node="destinations.archive")])
    # When the first are stored once more, as after a crash before they were confirmed
    handler("delays").store([letter(5), raw, odd, worst])
    # Then none of them has gone, and where a letter can be told by its id, it is there once
    found = queue.read()
    if queue.once:
        assert len(found) == 5
    assert len({_name(text) for text in found}) == 5


def _name(text: str) -> str:
    """The letter's own id, in whichever form it is written."""

    def inside(value: Any) -> Iterator[str]:
        if isinstance(value, str) and value.startswith(("{", "[")):
            try:
                value = json.loads(value)
            except ValueError:
                return
        if isinstance(value, dict):
            if "letter" in value:
                yield value["letter"]
            value = list(value.values())
        if isinstance(value, list | tuple):
            for each in value:
                yield from inside(each)

    return next(iter(inside(text)))
