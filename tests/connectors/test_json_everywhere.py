"""Whatever JSON comes in by any door comes out of every other, to the digit; what cannot is refused at the door, or
nacked alone. No text raises anything but the project's errors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_tasks.connectors.arrow_rows import batch_of as rows_as_records
from conduit_tasks.connectors.arrow_rows import table_of
from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.connectors.file.lines import lines
from conduit_tasks.connectors.http.connector import HttpDestination
from conduit_tasks.connectors.http.source import HttpSource, _Page
from conduit_tasks.connectors.kafka.outgoing import Messages
from conduit_tasks.connectors.log import LogDestination
from conduit_tasks.connectors.postgres.cells import cell as postgres_cell
from conduit_tasks.connectors.postgres.cells import copy_line
from conduit_tasks.connectors.postgres.values import json_row
from conduit_tasks.connectors.redis.connector import RedisSource
from conduit_tasks.connectors.redis.destination import RedisDestination
from conduit_tasks.connectors.redis.message import batch_of
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.sql.columns import cell as sql_cell
from conduit_tasks.connectors.sqs.destination import _opencdc as sqs_body
from conduit_tasks.connectors.sqs.message import batch_of as messages_as_records
from conduit_tasks.dead_letters.store import letters_table
from conduit_tasks.errors import Refused
from conduit_tasks.gateway.attributes import BadEvent
from conduit_tasks.gateway.event import unpack
from conduit_tasks.gateway.parse import parse
from conduit_tasks.micro_batch.pass_plan import Pass
from conduit_tasks.micro_batch.row_batches import numbered
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.record import jsons
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.jsons import DEPTH
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import AFTER_STRUCTURED, READ_SCHEMA, read_batch, read_columns, to_records
from conduit_tasks.settings import Settings, forget
from conduit_tasks.spool.spool import Spool
from conduit_tasks.topology import Processor

ORIGIN = Origin("p", "in", "", {"opencdc.readAt": "1"})


def nested(levels: int, lists: bool = False) -> bytes:
    begin, end = (b"[", b"]") if lists else (b'{"a":', b"}")
    return b'{"n":' + begin * (levels - 1) + b"1" + end * (levels - 1) + b"}"


NUMBERS = st.one_of(
    st.integers(-(1 << 130), 1 << 130),
    st.sampled_from([1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1, 10**300, 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=5)
TEXTS = st.one_of(
    OBJECTS.map(lambda v: json.dumps(v).encode()),
    OBJECTS.map(lambda v: json.dumps(v, ensure_ascii=False, indent=1).encode(errors="replace").replace(b"\n", b"\r")),
    st.builds(nested, st.sampled_from([1, DEPTH - 1, DEPTH, DEPTH + 1, 255, 1000, 1024, 1025, 3000]), st.booleans()),
    st.sampled_from(
        [
            b"", b"{}", b"[]", b"1", b"null", b"{", b'{"a":1}x', b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1e999}',
            b'{"a":"\\ud800"}', b'{"\\udfff":1}', b'{"a":"\xff"}', b'{"a":"\\u0000"}', b'{"a":1,"a":2}', b'{"":-0.0}',
            b'{"a":123456789012345678901234567890.5}', b'{"a":"12345678901234567890"}', b'\xef\xbb\xbf{"a":1}',
            b'{"a":%s}' % (b"9" * 5000), b'{"a":"%s"}' % (b"[" * 5000), b'{"a":[%s{}]}' % (b"{}," * 400),
        ]
    ),
    st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b" ")),
)  # fmt: skip
"""Of one line."""


def file_lines(format: str, **options: str) -> Callable[[list[bytes]], list[pa.RecordBatch]]:
    def read(texts: list[bytes]) -> list[pa.RecordBatch]:
        with tempfile.TemporaryDirectory() as home:
            Settings(home=Path(home)).use()
            try:
                (Path(home) / "f").write_bytes(b"".join(text + b"\n" for text in texts))
                source = FileSource({"path": "f", "format": format, "settle": "0s", **options})
                return [b for s in source.plan({}, Limit()) for b in source.read(s)]
            finally:
                forget()

    return read


def csv_cells(texts: list[bytes]) -> list[pa.RecordBatch]:
    quoted = [b'"%s",x' % text.replace(b'"', b'""') for text in texts]
    return file_lines("csv")([b"a,b", *quoted])


def redis_entries(texts: list[bytes]) -> list[pa.RecordBatch]:
    source = RedisSource({"url": "redis://h", "streams": "s", "data": "d", "format": "json"})
    whole = RedisSource({"url": "redis://h", "streams": "s"})
    entries = [(b"%d-0" % n, [(b"d", text)]) for n, text in enumerate(texts)]
    return [batch_of("s", entries, each.settings) for each in (source, whole)]


def sqs_messages(texts: list[bytes]) -> list[pa.RecordBatch]:
    bodies = [{"Body": t.decode(errors="replace"), "MessageId": str(n)} for n, t in enumerate(texts)]
    return [messages_as_records(bodies, json=True, key=None)]


def http_page(texts: list[bytes]) -> list[pa.RecordBatch]:
    records = []
    for text in texts:
        try:
            records.append(jsons.exact(text))
        except jsons.JSONDecodeError:
            continue
    source = HttpSource({"url": "http://h/", "key": "a", "cursor.next": "etag"})
    return [source._batch(_Page({}, 0, records, None))]


def gateway_requests(texts: list[bytes]) -> list[pa.RecordBatch]:
    packed = []
    for text in texts:
        structured = b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":%s}' % text
        for kind, body in (
            (b"application/json", text),
            (b"application/cloudevents+json", structured),
            (b"application/cloudevents-batch+json", b"[%s,%s]" % (structured, structured)),
            (b"application/cloudevents+json", text),
        ):
            try:
                packed += parse([(b"content-type", kind)], body)
            except BadEvent as error:
                refused = error.status
                assert 400 <= refused < 500  # a door's answer, one of several
    events = [unpack(event) for event in packed]
    if not events:
        return []
    shape = [AFTER_STRUCTURED if structured else 0 for structured, _, _ in events]
    batch = read_batch(
        pa.array([b"%d" % n for n in range(len(events))], pa.binary()),
        after=pa.array([data for _, _, data in events], pa.binary()),
        metadata=pa.array([list(meta.items()) for _, meta, _ in events], READ_SCHEMA.field("metadata").type),
    )
    return [batch.set_column(6, READ_SCHEMA.field("shape"), pa.array(shape, pa.int8()))]


def postgres_rows(texts: list[bytes]) -> list[pa.RecordBatch]:
    rows = [json_row({"j": text.decode(errors="replace")}, {"j": 114}) for text in texts]
    records = [Record(b"%d" % n, key={"id": n}, after=row) for n, row in enumerate(rows)]
    return [pa.RecordBatch.from_arrays(read_columns(records), schema=READ_SCHEMA)]


def parquet_rows(texts: list[bytes]) -> list[pa.RecordBatch]:
    # Arrow does not look whether a text is UTF-8, so a file may hold anything.
    offsets = pa.array([0, *(sum(map(len, texts[: n + 1])) for n in range(len(texts)))], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.string(), len(texts), [None, offsets, pa.py_buffer(b"".join(texts))])
    return [rows_as_records(pa.RecordBatch.from_arrays([column], ["t"]), "f", 0, "t")]


def raw(texts: list[bytes]) -> list[pa.RecordBatch]:
    """As Kafka has them; the processor decodes them."""
    return [
        read_batch(pa.array([b"%d" % n for n in range(len(texts))], pa.binary()), after=pa.array(texts, pa.binary()))
    ]


DECODE = (Processor("decode", "json.decode", {"field": ".Payload.After"}),)
SOURCES: dict[str, tuple[Callable[[list[bytes]], list[pa.RecordBatch]], tuple[Processor, ...]]] = {
    "file jsonl": (file_lines("jsonl"), ()),
    "file jsonl with a key": (file_lines("jsonl", key="a"), ()),
    "file csv": (csv_cells, ()),
    "file text, decoded": (file_lines("text"), DECODE),
    "redis": (redis_entries, ()),
    "sqs": (sqs_messages, ()),
    "http pages": (http_page, ()),
    "gateway": (gateway_requests, ()),
    "postgres": (postgres_rows, ()),
    "parquet": (parquet_rows, ()),
    "kafka, decoded": (raw, DECODE),
}


def same(text: bytes | str, value: Any) -> None:
    """JSON that is written is JSON to any other parser, and holds exactly the value."""
    assert repr(json.loads(text)) == repr(value)


def write_everywhere(rows: Rows) -> None:
    records = rows.records()
    written = b"".join(lines(rows, "opencdc")).split(b"\n")[:-1]
    for line, record in zip(written, records, strict=True):
        same(line, record.to_opencdc())
    payloads = [r.after for r in records]
    if not any(isinstance(p, bytes) and b"\n" in p for p in payloads):
        b"".join(lines(rows, "payload"))
    for body in ("payload", "opencdc", "cloudevents-binary", "cloudevents-structured"):
        http = HttpDestination({"url": "http://h/", "body": body})
        for record in records:
            _, data, _ = http._body(record)
            if isinstance(record.after, dict):
                found = json.loads(data)
                value = found["payload"]["after"] if body == "opencdc" else found
                value = found["data"] if body == "cloudevents-structured" else value
                assert repr(value) == repr(record.after)
    Messages({"topic": "t", "format": "opencdc", "timestamp": "now", "id-header": ""}).of(rows)
    Messages({"topic": "t", "format": "payload", "timestamp": "now", "id-header": ""}).of(rows)
    list(map(sqs_body, records))
    LogDestination({}).write(rows)
    for fields in ("record", "payload"):
        redis = RedisDestination({"url": "redis://h", "stream": "s", "fields": fields})
        for record in records:
            try:
                redis._fields(record)
            except Refused:
                assert fields == "payload"
    for record in records:
        for type_ in ("json", "text", "text[]", "bytea"):
            for value in record.after.values() if isinstance(record.after, dict) else ():
                try:
                    copy_line([postgres_cell(value, type_, "c")])
                except Refused:
                    assert type_ == "bytea"
        for stored in ("json", "text", ""):
            sql_cell(record.after, stored)
    table_of(records, "opencdc")
    with suppress(Refused):
        table_of(records, "payload")
    table = letters_table([DeadLetter(1, n, r, "n", "e", "c", 1, 0, 0.0, None) for n, r in enumerate(records)])
    for text, record in zip(table.column("record").to_pylist(), records, strict=True):
        same(text, record.to_opencdc())


@pytest.mark.proves("C4", "C10")
@pytest.mark.parametrize("source", SOURCES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_what_is_read_can_be_written_everywhere(source: str, texts: list[bytes]) -> None:
    read, chain = SOURCES[source]
    # Given what a source makes of any texts
    batches = read(texts)
    counts: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        # When it passes through a pipeline's section
        spool = Spool(folder)
        plan = Pass("p", 1, "sources.in", 1, chain, (), final=True)
        result = RowPass(plan, spool, 0, [ORIGIN]).run(numbered([(0, iter(batches))], counts))
        passed = [b for file in result.files for b in spool.read(file)]
        nacked = [b for file in result.nacked_files for b in spool.read(file)]
    # Then each record is there, or was nacked
    assert result.read == counts[0] == sum(b.num_rows for b in batches) == result.written + result.nacked
    # And every destination can write what is there, and the dead letters what is not
    for batch in passed:
        write_everywhere(Rows(batch, [ORIGIN]))
    for batch in nacked:
        write_everywhere(Rows(batch.drop_columns(["error"]), [ORIGIN]))
        letters_table([DeadLetter(1, 0, r, "n", "e", "c", 1, 0, 0.0, None) for r in to_records(batch, [ORIGIN])])


@pytest.mark.proves("C10")
@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1, 10**30, -(10**100)])
@pytest.mark.parametrize("source", ["file jsonl", "redis", "sqs", "http pages", "gateway", "kafka, decoded"])
def test_whole_numbers_beyond_64_bits_keep_every_digit(source: str, number: int) -> None:
    read, chain = SOURCES[source]
    counts: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        plan = Pass("p", 1, "sources.in", 1, chain, (), final=True)
        batches = read([b'{"a":%d,"b":1.5}' % number])
        result = RowPass(plan, Spool(folder), 0, [ORIGIN]).run(numbered([(0, iter(batches))], counts))
        passed = [b for file in result.files for b in Spool(folder).read(file)]
    values = [r.after for b in passed for r in to_records(b, [ORIGIN]) if isinstance(r.after, dict) and "a" in r.after]
    assert values
    assert all(value == {"a": number, "b": 1.5} for value in values)
    for batch in passed:
        write_everywhere(Rows(batch, [ORIGIN]))


@pytest.mark.proves("C4")
@pytest.mark.parametrize("levels", [DEPTH + 1, 254, 255, 1000, 1024])
@pytest.mark.parametrize("kind", ["json", "cloudevents+json", "cloudevents-batch+json"])
def test_the_gateway_refuses_what_is_nested_too_deeply(levels: int, kind: str) -> None:
    event = b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":%s}' % nested(levels)
    body = {"json": nested(levels), "cloudevents+json": event, "cloudevents-batch+json": b"[%s]" % event}[kind]
    with pytest.raises(BadEvent, match=r"nested deeper than 200 levels|depth limit exceeded") as refused:
        parse([(b"content-type", f"application/{kind}".encode())], body)
    assert refused.value.status == 400
