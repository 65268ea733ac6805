"""Files, their names, and encoded records: each a record, one that is marked, or an error of ours."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.errors import ConduitError, RecordError
from conduit_tasks.processors.avro import DecodeAvro, EncodeAvro
from conduit_tasks.record import jsons
from conduit_tasks.record.batches import RECORD_BYTES
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import to_records
from conduit_tasks.spool.spool import folder_name
from tests.fuzz.hostile import BYTES, NUMBERS, TEXT, damaged, ending, fuzzed, json_like

ORIGIN = Origin("p", "in", "", {"opencdc.readAt": "1700000000000000000"})
CSV = b'name,note\r\na,"b ""c"""\n"d\ne",\xff\n'
LINES = b'{"a":1}\n{"b":[1,2]}\n\n{"c":"\xc3\xa9"}\n'
PIECES = st.sampled_from(
    [
        b'"',
        b'""',
        b",",
        b"\n",
        b"\r\n",
        b"\r",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"a",
        b'"a',
        b"NA",
        b"{",
        b"}",
        b"[" * 300,
        b'{"a":',
        b"1" * 30,
        b"\\u",
    ]
)


def read(path: Path, format: str, **more: str) -> int:
    """Records of the file. Every one is read, or marked."""
    with ending():
        try:
            source = FileSource({"path": str(path), "format": format, "settle": "0s", **more})
            slices = source.plan({}, Limit())
            found = 0
            for piece in slices:
                batches = list(source.read(piece))
                rows = [r for b in batches for r in to_records(b, Origin("p", "in", piece.partition))]
                assert len(rows) == piece.records
                found += len(rows)
        except ConduitError:
            return -1
        return found


@pytest.mark.parametrize("format", ["text", "jsonl", "csv", "parquet"])
@fuzzed
@given(data=damaged(st.just(CSV) | st.just(LINES)) | st.lists(PIECES | BYTES, max_size=20).map(b"".join))
@example(data=b'a,b\n"' + b'"' * 9_999)
@example(data=b'"\n')
def test_a_file_of_anything_is_read_or_refused(tmp_path: Path, format: str, data: bytes) -> None:
    path = tmp_path / "data"
    path.write_bytes(data)
    read(path, format)
    if format in ("jsonl", "csv"):
        read(path, format, key="name")


@fuzzed
@given(name=TEXT | st.binary(min_size=1, max_size=80).map(os.fsdecode))
@example(name="a:1")
@example(name="*")
@example(name="[a")
@example(name="a\nb")
def test_a_file_of_any_name_is_read_whole(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "names"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    try:
        path = folder / name.replace("/", "_").replace("\0", "_")
        if path.name in ("", ".", "..") or path.parent != folder:
            return
        path.write_bytes(b"one\ntwo\n")
    except (OSError, ValueError):
        return
    assert read(folder / "*", "text") in (2, -1) or path.name.startswith(".")


@fuzzed
@given(id=st.text(min_size=1))
@example(id="..")
@example(id="a/../../b")
def test_an_id_never_becomes_a_path_elsewhere(id: str) -> None:
    try:
        name = folder_name(id)
    except ConduitError:
        return
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert "\0" not in name


SCHEMA = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "a", "type": ["null", "string", "long"]},
        {"name": "b", "type": {"type": "array", "items": "bytes"}},
        {"name": "c", "type": {"type": "map", "values": "double"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "e", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "f", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}


class Registry:
    """One schema, whatever is asked for."""

    def __init__(self, schema: Any = SCHEMA) -> None:
        import json

        self._schema = json.dumps(schema)

    def by_id(self, id: int) -> str:
        return self._schema

    def by_version(self, subject: str, version: int) -> tuple[int, str]:
        return 1, self._schema

    def register(self, subject: str, schema: str) -> int:
        return 1

    def close(self) -> None: ...


def sound() -> bytes:
    out = io.BytesIO()
    value = {
        "a": "x",
        "b": [b"1", b"2"],
        "c": {"k": 1.5},
        "d": b"\x01",
        "e": 1,
        "f": "00000000-0000-0000-0000-000000000000",
    }
    fastavro.schemaless_writer(
        out,
        {
            **SCHEMA,
            "fields": [{**f, "type": f["type"] if f["name"] in "abc" else f["type"]["type"]} for f in SCHEMA["fields"]],
        },
        value,
    )
    return b"\0\0\0\0\1" + out.getvalue()


@fuzzed
@given(raw=damaged(st.just(sound())) | BYTES | BYTES.map(lambda b: b"\0\0\0\0\1" + b))
@example(raw=sound())
@example(raw=b"\0\0\0\0\1\2" + b"\xff" * 9 + b"\1")
@example(raw=b"\0\0\0\0\1\0\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1")
@example(raw=b"\0\0\0\0\1\0\xfe\xff\xff\xff\x0f" + b"\0" * 50)
def test_avro_that_is_none_is_the_records_error(raw: bytes) -> None:
    processor = DecodeAvro({})
    processor._registry = Registry  # type: ignore[assignment,method-assign]
    with ending():
        try:
            processor.process(Record(b"1", after=raw, origin=ORIGIN))
        except RecordError:
            return


NODE = {
    "type": "record",
    "name": "node",
    "fields": [{"name": "x", "type": ["null", "node"]}, {"name": "y", "type": {"type": "array", "items": "node"}}],
}
EMPTY = {"type": "record", "name": "empty", "fields": [{"name": "n", "type": "null"}]}
LEAVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string", "node", "empty"])
TYPES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda each: {"type": "array", "items": each}),
        inner.map(lambda each: {"type": "map", "values": each}),
        LEAVES.map(lambda each: ["null", each] if each != "null" else [each]),
    ),
    max_leaves=3,
)
COUNTS = st.sampled_from([b"\0", b"\2", b"\4", b"\1\2", b"\2\0", b"\xff" * 9 + b"\1", b"\x80" * 6 + b"\2", b"\2" * 300])


@fuzzed
@given(types=st.lists(TYPES, max_size=3), raw=st.lists(COUNTS | BYTES, max_size=6).map(b"".join))
@example(types=[{"type": "array", "items": "null"}], raw=b"\0\0" + b"\xff" * 9 + b"\1\0")
@example(types=[{"type": "array", "items": "empty"}], raw=b"\0\0" + b"\x80" * 6 + b"\2\0")
@example(types=[], raw=b"\2" * 30_000)
@example(types=["node"] * 2, raw=b"\2" * 150 + b"\0" * 400)
def test_avro_of_any_schema_ends_and_is_what_it_says_or_refused(types: list[Any], raw: bytes) -> None:
    # Given a schema in which a type holds itself and another has no byte, and bytes that may be of it
    fields = [{"name": f"f{n}", "type": each} for n, each in enumerate([NODE, EMPTY, *types])]
    schema = {"type": "record", "name": "top", "fields": fields}
    processor = DecodeAvro({})
    processor._registry = lambda: Registry(schema)  # type: ignore[assignment,method-assign,return-value]
    with ending():
        try:
            # When it is decoded
            out = processor.process(Record(b"1", after=b"\0\0\0\0\1" + raw, origin=ORIGIN))
        except RecordError:
            return
        # Then it is what the bytes say, and can be written
        value = fastavro.schemaless_reader(io.BytesIO(raw), fastavro.parse_schema(schema), None)
        assert out.after is not None
        assert out.after.keys() == value.keys()
        assert len(jsons.dumps(out.after)) <= RECORD_BYTES


@fuzzed
@given(value=st.dictionaries(TEXT, json_like(), max_size=4), number=NUMBERS)
def test_what_does_not_fit_into_avro_is_the_records_error(value: dict[str, Any], number: float) -> None:
    fixed = EncodeAvro(
        {"schema.strategy": "preRegistered", "schema.preRegistered.subject": "s", "schema.preRegistered.version": "1"}
    )
    free = EncodeAvro({"schema.strategy": "autoRegister", "schema.autoRegister.subject": "s"})
    for processor in (fixed, free):
        processor._registry = Registry  # type: ignore[assignment,method-assign]
        for after in (value, {**value, "a": number, "e": number}):
            with ending():
                try:
                    processor.process(Record(b"1", after=dict(after), origin=ORIGIN))
                except RecordError:
                    continue
