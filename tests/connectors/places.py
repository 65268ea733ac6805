"""Somewhere to write for every destination that there is, on the real parts, and what is there afterwards."""

from __future__ import annotations

import io
import json
import sqlite3
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from conduit_tasks.settings import settings


@dataclass
class Place:
    """Settings of the plugin, and what is there, a text for each record or dead letter."""

    plugin: str
    settings: dict[str, str]
    read: Callable[[], list[str]]
    once: bool = False
    """Whether what is written again after a crash is there once."""


def a_file(home: Path, request: Any) -> Place:
    path = home / "out/dead.jsonl"
    return Place("file", {"path": "out/dead.jsonl"}, lambda: path.read_text().splitlines() if path.exists() else [])


def opencdc_lines(home: Path, request: Any) -> Place:
    made = a_file(home, request)
    return Place("file", {**made.settings, "format": "opencdc"}, made.read)


def a_folder(home: Path, request: Any) -> Place:
    def read() -> list[str]:
        files = sorted((home / "out/dead").rglob("*.parquet"))
        return [json.dumps(row, default=str) for file in files for row in pq.ParquetFile(file).read().to_pylist()]

    return Place("file", {"path": "out/dead", "format": "parquet"}, read, once=True)


def a_folder_of_lines(home: Path, request: Any) -> Place:
    def read() -> list[str]:
        files = sorted((home / "out/dead").glob("*.jsonl"))
        return [line for file in files for line in file.read_text().splitlines()]

    return Place("file", {"path": "out/dead", "files": "many"}, read, once=True)


def a_delta_table(home: Path, request: Any) -> Place:
    from deltalake import DeltaTable

    def read() -> list[str]:
        path = home / "out/lake"
        rows = DeltaTable(path).to_pyarrow_table().to_pylist() if path.exists() else []
        return [json.dumps(row, default=str) for row in rows]

    return Place("delta", {"path": "out/lake"}, read)


def an_iceberg_table(home: Path, request: Any) -> Place:
    from pyiceberg.catalog import load_catalog

    def read() -> list[str]:
        with load_catalog("default", uri=f"sqlite:///{home}/out/c.db") as catalog:
            there = catalog.table_exists("dead.letters")
            rows = catalog.load_table("dead.letters").scan().to_arrow().to_pylist() if there else []
        return [json.dumps(row, default=str) for row in rows]

    made = {"table": "dead.letters", "catalog.uri": "sqlite:///out/c.db", "catalog.warehouse": "out/warehouse"}
    return Place("iceberg", made, read)


def a_service(home: Path, request: Any) -> Place:
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
    return Place("http", {"url": f"http://127.0.0.1:{server.server_port}/"}, lambda: bodies)


def a_table(home: Path, request: Any) -> Place:
    def read() -> list[str]:
        if not (home / "dead.db").exists():
            return []
        db = sqlite3.connect(home / "dead.db")
        try:
            return [json.dumps(row) for row in db.execute("SELECT * FROM letters")]
        finally:
            db.close()

    return Place("sql", {"url": "sqlite:///dead.db", "table": "letters"}, read, once=True)


def a_postgres_table(home: Path, request: Any) -> Place:
    db = request.getfixturevalue("db")
    db.run("CREATE TABLE dead_letters (letter text PRIMARY KEY, id text, error text, node text, attempts int, "
           "at float8, record json)")  # fmt: skip
    # Without `table` letters go where they belong, and not into the table of their records.
    more = {"url": db.url, "unknown-fields": "ignore"}
    rows = lambda: db.run("SELECT to_jsonb(t)::text FROM dead_letters t")  # noqa: E731
    return Place("postgres", more, lambda: [text for (text,) in rows()], once=True)


def a_mysql_table(home: Path, request: Any) -> Place:
    db = request.getfixturevalue("mydb")
    db.run("CREATE TABLE dead_letters (letter varchar(99) PRIMARY KEY, id text, error text, node text, attempts int, "
           "at double, record longtext)")  # fmt: skip

    names = ("letter", "id", "error", "node", "attempts", "at", "record")

    def read() -> list[str]:
        return [json.dumps(dict(zip(names, row))) for row in db.run("SELECT * FROM dead_letters")]

    return Place("mysql", {"url": db.url, "unknown-fields": "ignore"}, read, once=True)


def a_topic(home: Path, request: Any) -> Place:
    kafka = request.getfixturevalue("kafka")
    topic = kafka.topic()
    values: Callable[[], list[bytes]] = lambda: kafka.values(topic)  # noqa: E731
    return Place("kafka", {"servers": kafka.servers, "topic": topic}, lambda: [v.decode() for v in values()])


def a_stream(home: Path, request: Any) -> Place:
    import redis

    url = settings().redis_url
    client = redis.Redis.from_url(url)
    request.addfinalizer(client.close)
    name = f"dead-{uuid.uuid4().hex}"
    entries: Callable[[], Any] = lambda: client.xrange(name)  # noqa: E731
    return Place("redis", {"url": url, "stream": name}, lambda: [f[b"data"].decode() for _, f in entries()])


def _bucket(request: Any, **more: str) -> tuple[Any, str, dict[str, str]]:
    moto = request.getfixturevalue("moto")
    client, name = moto.client("s3"), f"dead-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    request.addfinalizer(client.close)
    return client, name, {**moto.settings, "bucket": name, **more}


def a_bucket(home: Path, request: Any) -> Place:
    client, name, made = _bucket(request)

    def read() -> list[str]:
        keys = [found["Key"] for found in client.list_objects_v2(Bucket=name).get("Contents", ())]
        bodies = [client.get_object(Bucket=name, Key=key)["Body"].read().decode() for key in keys]
        return [line for body in bodies for line in body.splitlines()]

    return Place("s3", made, read, once=True)


def a_bucket_of_rows(home: Path, request: Any) -> Place:
    client, name, made = _bucket(request, format="parquet")

    def read() -> list[str]:
        keys = [found["Key"] for found in client.list_objects_v2(Bucket=name).get("Contents", ())]
        bodies = [io.BytesIO(client.get_object(Bucket=name, Key=key)["Body"].read()) for key in keys]
        return [json.dumps(row, default=str) for body in bodies for row in pq.read_table(body).to_pylist()]

    return Place("s3", made, read, once=True)


def an_sqs_queue(home: Path, request: Any) -> Place:
    moto = request.getfixturevalue("moto")
    client, name = moto.client("sqs"), f"dead-{uuid.uuid4().hex}"
    request.addfinalizer(client.close)
    url = client.create_queue(QueueName=name)["QueueUrl"]
    seen: list[str] = []

    def read() -> list[str]:
        while found := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            seen.extend(message["Body"] for message in found)
            handles = [message["ReceiptHandle"] for message in found]
            entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles)]
            client.delete_message_batch(QueueUrl=url, Entries=entries)
        return seen

    return Place("sqs", {**moto.settings, "queue": name}, read)


PLACES: dict[str, Callable[[Path, Any], Place]] = {
    "file": a_file,
    "file, opencdc": opencdc_lines,
    "file, parquet": a_folder,
    "file, many files": a_folder_of_lines,
    "delta": a_delta_table,
    "iceberg": an_iceberg_table,
    "http": a_service,
    "sql": a_table,
    "postgres": a_postgres_table,
    "mysql": a_mysql_table,
    "kafka": a_topic,
    "redis": a_stream,
    "s3": a_bucket,
    "s3, parquet": a_bucket_of_rows,
    "sqs": an_sqs_queue,
}
