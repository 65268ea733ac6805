"""Messages of queues and streams, objects and rows, whatever is in them: records, or an error of ours; none changes
unseen."""

from __future__ import annotations

import gzip
import io
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.connectors.kafka import read as kafka_read
from conduit_tasks.connectors.kafka.outgoing import Messages
from conduit_tasks.connectors.redis.client import entries_as_pairs, opened
from conduit_tasks.connectors.redis.connector import RedisSource
from conduit_tasks.connectors.redis.message import batch_of as redis_batch
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.s3.read import S3Object, unpacked
from conduit_tasks.connectors.sql.connector import SOURCE as SqlSource
from conduit_tasks.connectors.sqs.message import batch_of as sqs_batch
from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch.pass_plan import Pass
from conduit_tasks.micro_batch.row_batches import numbered
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import to_records
from conduit_tasks.spool.spool import Spool
from tests.connectors.test_json_everywhere import write_everywhere
from tests.fuzz.hostile import BYTES, TEXT, damaged, ending, fuzzed
from tests.redis_server import RedisServer

ORIGIN = Origin("p", "in", "", {"opencdc.readAt": "1700000000000000000"})
VALUES = (
    st.none()
    | BYTES
    | st.sampled_from([b"", b"{}", b'{"a":1e400}', b"\0\0\0\0\1\2", gzip.compress(b"{}"), b"\xff" * 9])
)


def passed(batches: list[pa.RecordBatch]) -> list[Record]:
    """What comes of these batches behind a source's processors; all of it can be written everywhere."""
    counts: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(folder)
        result = RowPass(Pass("p", 1, "sources.in", 1, (), (), final=True), spool, 0, [ORIGIN]).run(
            numbered([(0, iter(batches))], counts)
        )
        out = [b for file in result.files for b in spool.read(file)]
        nacked = [b.drop_columns(["error"]) for file in result.nacked_files for b in spool.read(file)]
    assert result.read == sum(b.num_rows for b in batches) == result.written + result.nacked
    for batch in [*out, *nacked]:
        write_everywhere(Rows(batch, [ORIGIN]))
    return [record for batch in out for record in to_records(batch, [ORIGIN])]


@dataclass
class Message:
    """As the client hands it out."""

    at: int
    of: bytes | None = None
    by: bytes | None = None
    heads: list[tuple[str, bytes | None]] | None = None
    time: tuple[int, int] = (1, 1_700_000_000_000)

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes | None:
        return self.of

    def key(self) -> bytes | None:
        return self.by

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.heads

    def timestamp(self) -> tuple[int, int]:
        return self.time


NAMES = TEXT.map(lambda t: t.encode(errors="replace").decode()) | st.sampled_from(
    ["ce_id", "ce_time", "ce_specversion", "ce_source", "ce_type", "ce_x", "content-type", "base64.x", "list.x", ""]
)
MESSAGES = st.builds(
    Message,
    st.integers(0, 2**63 - 1),
    VALUES,
    VALUES,
    st.none() | st.lists(st.tuples(NAMES, VALUES), max_size=4),
    st.tuples(st.integers(0, 2), st.integers(-(2**63), 2**63 - 1)),
)


@fuzzed
@given(messages=st.lists(MESSAGES, min_size=1, max_size=4))
@example(messages=[Message(0, heads=[("ce_time", b"never"), ("ce_id", b""), ("ce_source", b"\xff")], time=(1, -1))])
def test_a_message_of_kafka_is_a_record_whatever_is_in_it(messages: list[Message]) -> None:
    with ending():
        records = passed([kafka_read.batch_of("t:0", messages)])
        assert [(r.after, r.key) for r in records] == [(m.of, m.by) for m in messages]


@fuzzed
@given(message=MESSAGES)
@example(message=Message(0, heads=[("a", b"1"), ("list.a", None), ("a", b"\xff"), ("base64.a", b"2"), ("list.a", b"")]))
def test_headers_of_kafka_are_written_as_they_were_read(message: Message) -> None:
    (read,) = to_records(kafka_read.batch_of("t:0", [message]), [ORIGIN])
    (written,) = Messages({"topic": "t", "format": "payload", "timestamp": "", "id-header": ""})._each([read])
    # Those of one name together, each name where it came first
    sent: dict[str, list[bytes | None]] = {}
    for name, value in message.heads or ():
        sent.setdefault(name, []).append(value)
    exact = [(name, value) for name, of in sent.items() for value in of]
    assert [(n, v.encode() if isinstance(v, str) else v) for n, v in written.headers or ()] == exact


@pytest.fixture(scope="module")
def stream(redis_process: RedisServer) -> Any:
    client = entries_as_pairs(opened(redis_process.url))
    yield client
    client.close()


@pytest.mark.parametrize("how", ["whole", "text", "json"])
@fuzzed
@given(
    entries=st.lists(
        st.lists(st.tuples(BYTES | st.sampled_from([b"d", b"k"]), BYTES), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    )
)
@example(entries=[[(b"\xff", b"1"), (b"\xfe", b"2")]])
@example(entries=[[(b"d", b"\xff")]])
@example(entries=[[(b"d", b"1"), (b"k", b"x"), (b"d", b"2")]])
def test_an_entry_of_a_stream_is_a_record_and_none_changes_unseen(
    how: str, entries: list[list[tuple[bytes, bytes]]], stream: Any
) -> None:
    stream.delete("s")
    for entry in entries:
        stream.execute_command("XADD", "s", "*", *(text for pair in entry for text in pair))
    stream.xgroup_create("s", "g", id="0")
    settings = {"url": "redis://h", "streams": "s", "key": "k"}
    if how != "whole":
        settings |= {"data": "d", "format": how}
    source = RedisSource(settings)
    batch = redis_batch("s", stream.xreadgroup("g", "c", {"s": ">"})[0][1], source.settings)
    records = to_records(batch, [ORIGIN])
    for record, entry in zip(records, entries, strict=True):
        if "conduit.error" in record.meta():
            continue
        if how == "whole":
            assert isinstance(record.after, dict)
            values = {k: v if isinstance(v, list) else [v] for k, v in record.after.items()}
            assert sorted((k.encode(), v.encode()) for k, of in values.items() for v in of) == sorted(entry)
        elif how == "text":
            assert record.after == dict(entry)[b"d"]
            assert sum(name == b"d" for name, _ in entry) == 1
    with ending():
        passed([batch])


@fuzzed
@given(
    messages=st.lists(
        st.fixed_dictionaries(
            {"Body": TEXT | st.just('{"a":1}'), "MessageId": TEXT},
            optional={
                "Attributes": st.dictionaries(
                    st.sampled_from(["SenderId", "SentTimestamp", "MessageGroupId"]), TEXT | st.just("17")
                ),
                "MessageAttributes": st.dictionaries(
                    TEXT, st.fixed_dictionaries({}, optional={"BinaryValue": BYTES, "StringValue": TEXT})
                ),
            },
        ),
        min_size=1,
        max_size=4,
    ),
    as_json=st.booleans(),
)
@example(messages=[{"Body": "\ud800", "MessageId": "1"}], as_json=True)
@example(messages=[{"Body": "a", "MessageId": "1", "Attributes": {"SentTimestamp": "²"}}], as_json=False)
def test_a_message_of_sqs_is_a_record_whatever_is_in_it(messages: list[dict[str, Any]], as_json: bool) -> None:
    with ending():
        assert len(sqs_batch(messages, json=as_json, key="k")) == len(messages)
        passed([sqs_batch(messages, json=as_json, key="k")])


def sound() -> bytes:
    table = pa.table(
        {
            "n": pa.array(range(50), pa.int64()),
            "t": pa.array([f"text {n}" for n in range(50)]),
            "l": pa.array([[n, None] for n in range(50)]),
            "s": pa.array([{"a": n, "b": None} for n in range(50)]),
            "d": pa.array([None] * 50, pa.timestamp("us", "UTC")),
        }
    )
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=20, compression="snappy")
    return out.getvalue()


PARQUET = sound()


@fuzzed
@given(data=damaged(st.just(PARQUET)) | BYTES.map(lambda b: b"PAR1" + b + b"\1\0\0\0PAR1"))
@example(data=PARQUET)
@example(data=PARQUET[:-8] + b"\xff\xff\xff\x7fPAR1")
def test_a_parquet_file_that_is_damaged_is_refused_by_name(data: bytes) -> None:
    def from_a_bucket() -> list[pa.RecordBatch]:
        with S3Object("b/k.parquet", [data]) as file:
            return list(file.rows("n"))

    def from_a_file() -> list[pa.RecordBatch]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "f.parquet"
            path.write_bytes(data)
            source = FileSource({"path": str(path), "format": "parquet", "settle": "0s", "key": "n"})
            return [b for piece in source.plan({}, Limit()) for b in source.read(piece)]

    for read in (from_a_bucket, from_a_file):
        with ending():
            said = "parquet"
            try:
                passed(read())
            except ConduitError as error:
                said = str(error).lower()
            assert "parquet" in said


@fuzzed
@given(
    data=damaged(st.just(gzip.compress(b"a\n" * 50) * 2)) | BYTES.map(lambda b: b"\x1f\x8b" + b),
    most=st.integers(1, 300),
)
def test_a_packed_object_is_unpacked_no_further_than_it_may_be(data: bytes, most: int) -> None:
    found, said = b"", "s3: b/k"
    try:
        found = b"".join(unpacked("s3: b/k", [data[:9], data[9:]], most))
    except ConduitError as error:
        said = str(error)
    assert len(found) <= max(most, len(data))
    assert "s3: b/k" in said


CELLS = ["NULL", "1", "9223372036854775807", "1e999", "-1e999", "-0.0", "x''", "x'ff00'",
         "'text'", "''", "char(0)", "'a' || char(55296)",
         "CAST(x'ff' AS TEXT)", "CAST(x'22c328' AS TEXT)", "0.1", "'1e400'", "zeroblob(3)"]  # fmt: skip


@fuzzed
@given(cells=st.lists(st.tuples(st.sampled_from(CELLS), st.sampled_from(CELLS)), min_size=1, max_size=4))
@example(cells=[("CAST(x'ff' AS TEXT)", "1")])
@example(cells=[("1e999", "x'ff00'")])
def test_a_row_of_a_database_is_a_record_whatever_is_in_it(cells: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d.sqlite"
        base = sqlite3.connect(path)
        base.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b TEXT)")
        for n, (a, b) in enumerate(cells):
            base.execute(f"INSERT INTO t VALUES ({n}, {a}, {b})")
        base.commit()
        base.close()
        source = SqlSource({"url": f"sqlite:///{path}", "table": "t", "column": "id", "key": "id"})
        try:
            batches = [b for piece in source.plan({}, Limit(records=100)) for b in source.read(piece)]
        finally:
            source.close()
    with ending():
        assert sum(b.num_rows for b in batches) == len(cells)
        passed(batches)
