"""A pass over rows holds a bounded number of bytes, loses no row, and nacks alone what cannot be a record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit_tasks.errors import InvariantBroken
from conduit_tasks.micro_batch.pass_plan import Pass, PassResult
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.record import batches as cutting
from conduit_tasks.record.batches import joined, row_bytes
from conduit_tasks.record.jsons import DEPTH
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import AFTER_STRUCTURED, read_batch, spool_batch
from conduit_tasks.spool.spool import Spool
from conduit_tasks.topology import Processor
from tests.limits import batch_bytes
from tests.micro_batch.harness import run_until_quiet, write_pipeline

LIMIT = 32 << 10
TWICE = Processor("twice", "clone", {"count": "1"})
SET = Processor("set", "field.set", {"field": ".Payload.After.more", "value": "x"})
GROWN = Processor("grown", "field.set", {"field": ".Payload.After.more", "value": "{{ .Payload.After.p }}"})
FUNCTION = Processor("same", "python", {"call": "tests.micro_batch.test_row_pass_bytes:same"})


PLAIN = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: all, type: destination, plugin: file, settings: {path: out/all.jsonl}}
"""


def same(record: Record) -> Record:
    return record


def run(folder: Path, batches: list[pa.RecordBatch], *chain: Processor) -> PassResult:
    plan = Pass("p", 1, "sources.in", 1, chain, (), final=True)
    return RowPass(plan, Spool(str(folder)), 0, [Origin("p", "in", "")]).run(batches)


def rows_of(folder: Path, files: Any) -> list[dict[str, Any]]:
    return [row for file in files for b in Spool(str(folder)).read(file) for row in b.to_pylist()]


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def texts(values: list[bytes], structured: bool = True) -> pa.RecordBatch:
    """Rows as a source read them."""
    positions = pa.array([b"%d" % n for n in range(len(values))], pa.binary())
    batch = read_batch(positions, after=pa.array(values, pa.binary()), shape=AFTER_STRUCTURED if structured else 0)
    numbers = [pa.array([0] * len(values), pa.int32()), pa.array(range(len(values)), pa.int64())]
    columns = [*numbers, pa.array([0] * len(values), pa.int32()), *batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=spool_batch([0], [0], [Record(b"")]).schema)


@pytest.mark.proves("C13", "I10")
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    sizes=st.lists(st.sampled_from([1, 50, 2_000, 30_000, 200_000]), min_size=1, max_size=60),
    per_batch=st.integers(1, 60),
    chain=st.sampled_from([(), (TWICE,), (SET,), (SET, TWICE)]),
)
def test_every_row_is_stored_in_row_groups_of_a_bounded_size(
    sizes: list[int], per_batch: int, chain: tuple[Processor, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    records = [Record(b"%d" % n, after={"p": "x" * size}, origin=Origin("p", "in", "")) for n, size in enumerate(sizes)]
    numbers = range(len(records))
    given_batches = [
        spool_batch([0] * len(numbers[at : at + per_batch]), numbers[at : at + per_batch], records[at : at + per_batch])
        for at in range(0, len(records), per_batch)
    ]
    with batch_bytes(LIMIT):
        result = run(folder, given_batches, *chain)
        rows = rows_of(folder, result.files)
        for file in result.files:
            assert all(b.num_rows == 1 or b.nbytes <= LIMIT for b in Spool(str(folder)).read(file))
    times = 2 if TWICE in chain else 1
    assert [(row["n"], row["ord"]) for row in rows] == [(n, ord) for n in numbers for ord in range(times)]
    assert (result.read, result.written, result.nacked) == (len(sizes), len(sizes), 0)
    for file in result.files:
        about = pq.ParquetFile(folder / file.path).metadata
        groups = [about.row_group(n) for n in range(about.num_row_groups)]
        assert all(group.num_rows == 1 or group.total_byte_size <= LIMIT + 4096 for group in groups)


@pytest.mark.proves("C13", "C4")
@pytest.mark.parametrize("chain", [(), (SET,), (TWICE,)])
def test_a_record_beyond_the_limit_is_nacked_alone_with_its_position(
    chain: tuple[Processor, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given one record among others that is larger than a record may be
    monkeypatch.setattr(cutting, "RECORD_BYTES", 1 << 20)
    values = [b'{"p":"%s"}' % (b"x" * (2 << 20 if n == 3 else 900_000)) for n in range(6)]
    # When they pass
    result = run(tmp_path, [texts(values)], *chain)
    # Then that one is nacked, whole, and the others go on
    assert sorted({row["n"] for row in rows_of(tmp_path, result.files)}) == [0, 1, 2, 4, 5]
    (nacked,) = rows_of(tmp_path, result.nacked_files)
    assert nacked["after"] == values[3]
    assert b'"message":"3: the record has 2097' in nacked["error"]
    assert b"1 MiB is the most" in nacked["error"]
    assert (result.read, result.nacked, result.written) == (6, 1, 5)


@pytest.mark.proves("C13", "C4", "I10")
@pytest.mark.parametrize("chain", [(GROWN,), (GROWN, TWICE), (TWICE, GROWN), (FUNCTION, GROWN)])
def test_a_record_that_a_processor_makes_larger_than_one_may_be_is_nacked_alone(
    chain: tuple[Processor, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given one record among others that a processor makes larger than a record may be
    monkeypatch.setattr(cutting, "RECORD_BYTES", 1 << 20)
    values = [b'{"p":"%s"}' % (b"x" * (700_000 if n == 3 else 10)) for n in range(6)]
    # When they pass
    result = run(tmp_path, [texts(values)], *chain)
    # Then that one is nacked, with all that was derived of it, and the others go on
    times = 2 if TWICE in chain else 1
    assert [row["n"] for row in rows_of(tmp_path, result.files)] == [
        n for n in range(6) if n != 3 for _ in range(times)
    ]
    nacked = rows_of(tmp_path, result.nacked_files)
    assert [row["n"] for row in nacked] == [3] * times
    assert all(b"1 MiB is the most" in row["error"] for row in nacked)
    assert (result.read, result.nacked, result.written, result.filtered) == (6, 1, 5, 0)


@pytest.mark.proves("C4", "C14")
@pytest.mark.parametrize("chain", [(), (SET,), (TWICE,)])
@pytest.mark.parametrize("deep", [DEPTH + 1, 254, 255, 1000, 1024])
def test_a_record_nested_too_deeply_is_nacked_alone(chain: tuple[Processor, ...], deep: int, tmp_path: Path) -> None:
    values = [
        nested(1),
        nested(DEPTH),
        nested(deep),
        b'{"a":"%s"}' % (b"[{" * 500),
        b'{"a":[%s]}' % (b"{}," * 999 + b"0"),
    ]
    result = run(tmp_path, [texts(values)], *chain)
    assert sorted({row["n"] for row in rows_of(tmp_path, result.files)}) == [0, 1, 3, 4]
    (nacked,) = rows_of(tmp_path, result.nacked_files)
    assert (nacked["after"], nacked["shape"]) == (nested(deep), 0), "as the bytes that it is, it can be written"
    assert b"nested deeper than 200" in nacked["error"]
    assert b'"class":"unwritable"' in nacked["error"]


def test_raw_payloads_are_whatever_they_are(tmp_path: Path) -> None:
    result = run(tmp_path, [texts([nested(1000), b"\xff\x00"], structured=False)])
    assert (result.written, result.nacked) == (2, 0)


def made_of(record: Record) -> Record:
    """What a processor of the user's makes of a record, by its number."""
    kind = record.after["n"] if isinstance(record.after, dict) else None
    deep: Any = 1
    for _ in range(230):
        deep = [deep]
    made: dict[Any, Any] = {
        1: {"a": deep},
        2: {"a": "\ud800"},
        3: {"\ud800": 1},
        4: {"a": object()},
        5: {(1, 2): 1},
    }
    if kind in made:
        record.after = made[kind]
    elif kind == 6:
        record.after = ["no object"]  # type: ignore[assignment]
    elif kind == 7:
        record.metadata = {"a": 1}  # type: ignore[dict-item]
    elif kind == 8:
        record.metadata = {"a": "\ud800"}
    elif kind == 9:
        record.key = "\ud800"  # type: ignore[assignment]
    elif kind == 10:
        record.operation = "upsert"
    elif kind == 11:
        record.after = {"big": 10**30, 10**25: float("nan")}  # type: ignore[dict-item]
    elif kind == 12:
        record.metadata = "none"  # type: ignore[assignment]
    return record


@pytest.mark.proves("C4")
def test_what_a_processor_made_and_nothing_can_write_is_nacked_alone(tmp_path: Path) -> None:
    call = Processor("mine", "python", {"call": "tests.micro_batch.test_row_pass_bytes:made_of"})
    result = run(tmp_path, [texts([b'{"n":%d}' % n for n in range(14)])], call)
    assert [row["n"] for row in rows_of(tmp_path, result.files)] == [0, 11, 13]
    assert rows_of(tmp_path, result.files)[1]["after"] == b'{"big":1%s,"1%s":null}' % (b"0" * 30, b"0" * 25)
    nacked = rows_of(tmp_path, result.nacked_files)
    assert [row["after"] for row in nacked] == [b'{"n":%d}' % n for n in (*range(1, 11), 12)]
    assert all(b'"node":"sources.in/mine"' in row["error"] for row in nacked)


@pytest.mark.proves("C4")
def test_a_field_that_is_set_ever_deeper_is_nacked_and_not_stuck(tmp_path: Path) -> None:
    deeper = Processor("deeper", "json.decode", {"field": ".Payload.After.a.text"})
    values = [b'{"a":{"text":"%s"}}' % nested(n).replace(b'"', b'\\"') for n in (1, DEPTH - 2, DEPTH - 1, DEPTH)]
    result = run(tmp_path, [texts(values)], deeper)
    assert [row["n"] for row in rows_of(tmp_path, result.files)] == [0, 1]
    assert [row["n"] for row in rows_of(tmp_path, result.nacked_files)] == [2, 3]


@pytest.mark.proves("I10")
def test_batches_that_would_lose_rows_when_they_are_joined_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given batches of more than 2 GiB together, which share the memory of one
    payload = pa.py_buffer(bytes(700 << 20))
    at = texts([b"1"]).schema.get_field_index("after")
    offsets = pa.array([0, 700 << 20], pa.int32()).buffers()[1]
    one = texts([b"1"])
    large = one.set_column(at, one.schema.field(at), pa.Array.from_buffers(pa.binary(), 1, [None, offsets, payload]))
    # Then they do not become one
    with pytest.raises(InvariantBroken, match="too large to be one"):
        joined([large] * 4)
    # Nor are rows lost without a word
    monkeypatch.setattr(pa, "concat_batches", lambda batches: batches[0])
    with pytest.raises(InvariantBroken, match="2 rows became 1"):
        joined([one, one])


def test_sizes_are_those_of_the_rows_also_of_a_part() -> None:
    records = [Record(b"12", metadata={"k" * n: "v" * n} if n else {}, key=b"x" * n, after={"a": n}) for n in range(5)]
    batch = spool_batch([0] * 5, range(5), records)
    sizes = [64 + 2 + 3 * n + len(b'{"a":1}') for n in range(5)]
    assert row_bytes(batch).tolist() == sizes
    assert row_bytes(batch.slice(2, 2)).tolist() == sizes[2:4]


@pytest.mark.proves("I10")
def test_rows_that_get_lost_between_the_source_and_the_spool_are_not_staged(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a pass that loses the last row of each batch
    take = RowPass._take
    monkeypatch.setattr(RowPass, "_take", lambda self, batch: take(self, batch.slice(0, batch.num_rows - 1)))
    write_pipeline(home, "p", PLAIN)
    (home / "data").mkdir()
    (home / "data/a.jsonl").write_text('{"n":1}\n{"n":2}\n')
    # When it runs
    with pytest.raises(InvariantBroken, match=r"2 rows of micro-batch 1 came to sources\.in, but of these are 1 taken"):
        run_until_quiet("p")


@pytest.mark.proves("I10")
def test_a_file_that_holds_other_rows_than_its_manifest_says_is_not_read(tmp_path: Path) -> None:
    result = run(tmp_path, [texts([b"{}"] * 5)])
    (file,) = result.files
    with pytest.raises(InvariantBroken, match="5 rows, of 6 written"):
        list(Spool(str(tmp_path)).read(replace(file, rows=6)))
