"""Connectors as formats of Spark: read, written, and what is refused."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.connectors.file.destination import FileDestination
from conduit_tasks.connectors.generator import GeneratorSource
from conduit_tasks.connectors.s3.connector import S3Source
from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import settings
from conduit_tasks.spark import datasource_write, datasources
from conduit_tasks.spark.datasource_write import RecordWriter
from conduit_tasks.spark.datasources import ConduitDataSource, SliceStream, as_settings, register
from conduit_tasks.spark.frame_records import records_of
from conduit_tasks.spark.plain import context
from tests.limits import batch_bytes


class _Taking(BaseHTTPRequestHandler):
    """Keeps what it is sent; answers 503 to the first request, and 400 to what is refused."""

    protocol_version = "HTTP/1.1"
    bodies: list[bytes]
    answers: list[int]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.answers.pop() if self.answers else (400 if b"refuse" in body else 200)
        if status == 200:
            self.bodies.append(body)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def taking() -> Iterator[tuple[str, list[bytes], list[int]]]:
    """A server: its URL, the bodies that it took, and answers that it gives first."""
    handler = type("Taking", (_Taking,), {"bodies": [], "answers": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/", handler.bodies, handler.answers
        server.shutdown()
        serving.join()


@pytest.fixture
def formats(spark: Any, home: Path) -> Any:
    """The session with our formats, which work in this home."""
    names = register(spark)
    assert {"conduit_file", "conduit_http"} <= set(names)
    assert "conduit_spark" not in names
    return spark


def test_a_source_is_read_with_a_partition_per_slice(formats: Any, home: Path) -> None:
    (home / "in.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(100)) + "torn\n")
    read = formats.read.format("conduit_file").option("format", "jsonl").option("slice-bytes", "400")
    frame = read.load("in.jsonl")
    assert frame.rdd.getNumPartitions() > 2
    rows = frame.selectExpr("CAST(after AS STRING) AS after", "operation", "metadata", "position").collect()
    assert [row.after for row in rows] == [f'{{"n":{n}}}' for n in range(100)] + ["torn"]
    assert {row.operation for row in rows} == {"create"}
    assert rows[0].metadata == {"file.path": "in.jsonl"}
    assert "not JSON" in rows[-1].metadata["conduit.error"]
    assert bytes(rows[1].position) == b"in.jsonl:8"


STREAMS = pytest.mark.skipif(find_spec("pyspark.sql.streaming.datasource") is None, reason="a stream needs Spark 4.2")


def test_a_stream_says_which_spark_it_needs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasources, "find_spec", lambda name: None)
    monkeypatch.setattr(datasources, "version", lambda name: "4.1.1")
    monkeypatch.setattr(ConduitDataSource, "connector", "file", raising=False)
    with pytest.raises(ConfigError, match=r"a stream needs Spark 4\.2, this is 4\.1\.1: use spark\.read"):
        ConduitDataSource({"path": "in.txt"}).streamReader(None)


@pytest.mark.slow
@STREAMS
def test_a_stream_goes_on_where_its_checkpoint_says(formats: Any, home: Path) -> None:
    def run() -> None:
        frame = formats.readStream.format("conduit_file").option("path", "in.jsonl").option("format", "jsonl").load()
        stream = frame.selectExpr("CAST(after AS STRING)").writeStream.format("text")
        query = stream.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True)
        query.start(str(home / "out")).awaitTermination(120)

    # Given a stream that has read what there was
    (home / "in.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(10)))
    run()
    # When more comes, and it is begun again
    with (home / "in.jsonl").open("a") as file:
        file.writelines(f'{{"n":{n}}}\n' for n in range(10, 15))
    run()
    # Then each record was read once
    rows = [json.loads(line) for path in (home / "out").glob("part-*") for line in path.read_text().splitlines()]
    assert sorted(row["n"] for row in rows) == list(range(15))


@STREAMS
def test_a_stream_plans_within_its_limit_and_acks_what_spark_has(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    acked: list[Any] = []
    monkeypatch.setattr(FileSource, "ack", lambda _, position: acked.append(position))
    (home / "in.txt").write_text("a\nb\nc\n")
    stream = SliceStream("file", {"path": "in.txt"}, settings(), 2)
    first = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    [part] = stream.partitions(stream.initialOffset(), json.loads(json.dumps(first)))
    assert [batch.column("after").to_pylist() for batch in stream.read(part)] == [[b"a", b"b"]]
    second = stream.latestOffset(first, ReadAllAvailable())
    assert second["position"]["in.txt"]["offset"] == 6
    assert stream.latestOffset(second, ReadAllAvailable()) == second
    assert stream.partitions(second, second) == []
    stream.commit(first)
    assert acked == [first["position"]]


def test_nothing_to_read_is_an_empty_frame(formats: Any, home: Path) -> None:
    (home / "empty.txt").write_text("")
    assert formats.read.format("conduit_file").load("empty.txt").count() == 0


@pytest.mark.slow
def test_what_is_read_can_be_written_record_by_record(
    formats: Any, home: Path, taking: tuple[str, list[bytes], list[int]]
) -> None:
    url, bodies, answers = taking
    answers.append(503)
    (home / "in.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(50)))
    frame = formats.read.format("conduit_file").option("path", "in.jsonl").option("format", "jsonl").load()
    frame.write.format("conduit_http").mode("append").option("url", url).option("headers.X-Team", "data").save()
    assert sorted(json.loads(body)["n"] for body in bodies) == list(range(50))


@pytest.mark.slow
def test_any_frame_can_be_written_by_one_task_where_there_is_one_file(formats: Any, home: Path) -> None:
    frame = formats.range(20).selectExpr("id", "CAST(id / 2 AS DECIMAL(5, 1)) AS half", "DATE'2026-11-21' AS day")
    for _ in range(2):
        write = frame.coalesce(1).write.format("conduit_file").mode("append").option("format", "payload")
        write.save("out/rows.jsonl")
    rows = [json.loads(line) for line in (home / "out" / "rows.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == sorted([*range(20)] * 2), (
        "the second write keeps what the first one wrote"
    )
    assert {"id": 3, "half": "1.5", "day": "2026-11-21"} in rows
    with pytest.raises(Exception, match=r"written by one task: use frame.coalesce\(1\)"):
        frame.repartition(2).write.format("conduit_file").mode("append").save("out/other.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "mode", "said"),
    [
        ({"url": "ftp://x"}, "append", "must begin with http"),
        ({"url": "http://127.0.0.1:9/", "colour": "red"}, "append", "unknown option 'colour'"),
        ({"url": "http://127.0.0.1:9/"}, "overwrite", "nothing is overwritten"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is(
    formats: Any, options: dict[str, str], mode: str, said: str
) -> None:
    write = formats.range(1).write.format("conduit_http").mode(mode).options(**options)
    with pytest.raises(Exception, match=said):
        write.save()


@pytest.mark.proves("C13")
@pytest.mark.parametrize("rows", ["records", "any frame's"])
@pytest.mark.parametrize("connector", ["file", "http"])
def test_large_rows_of_a_batch_are_written_some_at_a_time(
    home: Path, taking: tuple[str, list[bytes], list[int]], monkeypatch: pytest.MonkeyPatch, connector: str, rows: str
) -> None:
    # Given a batch of Spark's of 60 rows with 10 KB each
    texts = [f"{n:02}" + "x" * 10_000 for n in range(60)]
    column = pa.array(texts) if rows == "records" else pa.array([{"list": [text]} for text in texts])
    batch = pa.RecordBatch.from_arrays([column], ["after" if rows == "records" else "row"])
    pieces: list[int] = []

    def counting(given: pa.RecordBatch, run: str) -> Any:
        pieces.append(given.nbytes)
        return records_of(given, run)

    monkeypatch.setattr(datasource_write, "records_of", counting)
    write = FileDestination.write
    monkeypatch.setattr(
        FileDestination, "write", lambda self, rows: (pieces.append(rows.batch.nbytes), write(self, rows))[1]
    )
    # When it is written with a limit of 100 KB
    with batch_bytes(100_000):
        options = {"file": {"path": "out.jsonl", "format": "payload"}, "http": {"url": taking[0]}}[connector]
        RecordWriter(connector, options, settings()).write(iter([batch]))
    # Then never more than that is records, and all arrive, with numbers as their positions, each once
    assert max(pieces) < 110_000
    assert len(pieces) > 5
    arrived = (home / "out.jsonl").read_bytes().splitlines() if connector == "file" else taking[1]
    assert sorted(re.search(r"\d\dx", body.decode())[0] for body in arrived) == [f"{n:02}x" for n in range(60)]  # type: ignore[index]  # found


def test_a_refused_record_fails_the_write_and_says_why(
    formats: Any, taking: tuple[str, list[bytes], list[int]]
) -> None:
    frame = formats.sql("SELECT 'refuse this' AS after")
    with pytest.raises(Exception, match=r"was refused in 1 attempt\(s\): 400 Bad Request"):
        frame.write.format("conduit_http").mode("append").option("url", taking[0]).save()


def test_options_get_their_spelling_back() -> None:
    given = {"recordcount": "5", "format.type": "raw", "format.options.id": "int"}
    assert as_settings(GeneratorSource.spec, given) == {
        "recordCount": "5",
        "format.type": "raw",
        "format.options.id": "int",
    }
    assert as_settings(FileSource.spec, {"path": "x", "nonsense": "y"}) == {"path": "x", "nonsense": "y"}
    # Conduit's names as well
    assert as_settings(S3Source.spec, {"aws.accesskeyid": "a", "aws.bucket": "b"}) == {
        "aws.accessKeyId": "a",
        "aws.bucket": "b",
    }


def test_the_session_is_the_one_of_the_context(spark: Any) -> None:
    assert context() is spark.sparkContext
