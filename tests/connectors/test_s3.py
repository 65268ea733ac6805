"""S3 on a real server that speaks its protocol: objects in the order of their keys; a server that goes away."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ConnectionClosedError

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.rows import ALL, Rows
from conduit_tasks.connectors.s3 import read as s3_read
from conduit_tasks.connectors.s3.connector import S3Destination, S3Source
from conduit_tasks.connectors.s3.read import S3Object, unpacked
from conduit_tasks.errors import ConfigError, Fenced, Missing, SourceError, Unavailable
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch, to_records
from tests.connectors.moto_server import MotoServer
from tests.connectors.test_delta import rows
from tests.micro_batch.harness import run_once, run_until_quiet, write_pipeline
from tests.micro_batch.test_missing import advice, follow

ORIGIN = Origin("p", "in", "")


@pytest.fixture
def bucket(moto: MotoServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of an empty bucket `lake`."""
    client = moto.client("s3")
    client.create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    yield client
    moto.start() if not moto.running else None
    for found in client.list_objects_v2(Bucket="lake").get("Contents", ()):
        client.delete_object(Bucket="lake", Key=found["Key"])
    client.delete_bucket(Bucket="lake")
    client.close()


def put(client: Any, key: str, data: bytes) -> None:
    client.put_object(Bucket="lake", Key=key, Body=data)


def lines(first: int, count: int) -> bytes:
    return b"".join(b'{"n": %d}\n' % n for n in range(first, first + count))


def source(moto: MotoServer, **more: str) -> S3Source:
    return S3Source({"bucket": "lake", **moto.settings, **{name.replace("_", "-"): v for name, v in more.items()}})


def drain(moto: MotoServer, position: dict[str, Any], limit: Limit, **more: str) -> tuple[list[Record], Any]:
    records: list[Record] = []
    while True:
        made = source(moto, **more)
        slices = made.plan(position, limit)
        for slice in slices:
            again = Slice(**json.loads(json.dumps(slice.__dict__)))
            read = [r for batch in made.read(again) for r in to_records(batch, ORIGIN)]
            assert [r.position for b in made.read(again) for r in to_records(b, ORIGIN)] == [r.position for r in read]
            records += read
            position = {"": again.end}
        made.close()
        if not slices:
            return records, position


def numbers(records: list[Record]) -> list[int]:
    return [int(r.after["n"]) for r in records if isinstance(r.after, dict)]


@pytest.mark.proves("C9")
@pytest.mark.parametrize("limit", [Limit(), Limit(records=1), Limit(bytes=100)])
def test_objects_of_every_kind_are_read_in_the_order_of_their_keys(moto: MotoServer, bucket: Any, limit: Limit) -> None:
    parquet = io.BytesIO()
    pq.write_table(pa.table({"n": range(9, 12)}), parquet)
    put(bucket, "in/1.jsonl", lines(0, 3))
    put(bucket, "in/2.jsonl.gz", gzip.compress(lines(3, 2)) + gzip.compress(lines(5, 1)))
    put(bucket, "in/3.csv", b"n,x\n6,a\n7,\n8,c\n")
    put(bucket, "in/4.parquet", parquet.getvalue())
    put(bucket, "in/empty.jsonl", b"")
    put(bucket, "other/5.jsonl", lines(100, 1))
    records, position = drain(moto, {}, limit, prefix="in/", key="n")
    assert numbers(records) == list(range(12))
    assert len({r.position for r in records}) == 12
    assert (records[0].position, records[0].key) == (b"lake/in/1.jsonl:0", b"0")
    assert position == {"": {"key": "in/4.parquet"}}
    # What comes later is found behind the last key
    put(bucket, "in/5.jsonl", lines(12, 2))
    assert numbers(drain(moto, position, limit, prefix="in/")[0]) == [12, 13]


def test_what_was_replaced_or_cannot_be_told_is_named(moto: MotoServer, bucket: Any) -> None:
    put(bucket, "a.jsonl", lines(0, 1))
    made = source(moto)
    [slice] = made.plan({}, Limit())
    put(bucket, "a.jsonl", lines(0, 2))
    with pytest.raises(SourceError, match=r"lake/a\.jsonl was replaced or removed"):
        list(made.read(slice))
    bucket.delete_object(Bucket="lake", Key="a.jsonl")
    with pytest.raises(SourceError, match="was replaced or removed"):
        list(made.read(slice))
    put(bucket, "what.xyz", b"?")
    with pytest.raises(SourceError, match="set 'format'"):
        made.plan({}, Limit())
    put(bucket, "what.xyz", b"plain\ntext")
    assert [r.after for r in drain(moto, {}, Limit(), format="text")[0]] == [b"plain", b"text"]
    made.close()
    gone = source(moto, bucket="nowhere")
    with pytest.raises(SourceError, match="nowhere cannot be listed") as raised:
        gone.plan({}, Limit())
    gone.close()
    assert moto.settings["secret-access-key"] not in str(raised.value)


def test_packed_data_is_bounded_and_must_be_whole() -> None:
    packed = gzip.compress(b"x" * 10_000)
    for pieces in ([packed], [packed[n : n + 1] for n in range(len(packed))]):
        assert b"".join(unpacked("o", pieces, 10_000)) == b"x" * 10_000
    # Several members are one, also with zeros behind them.
    assert b"".join(unpacked("o", [packed, b"\0\0", packed + b"\0"], 20_000)) == b"x" * 20_000
    for data, most, said in ((packed, 9_999, "larger"), (packed[:-9], 10**6, "no end"), (b"12345", 4, "larger")):
        with pytest.raises(SourceError, match=said):
            list(unpacked("o", [data], most))


MEASURE = """
import re, zlib
from conduit_tasks.connectors.s3.read import S3Object, unpacked
peak = lambda: int(re.search("VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
packer = zlib.compressobj(wbits=31)
packed = b"".join([packer.compress(bytes(1 << 20)) for _ in range(256)]) + packer.flush()
before = peak()
with S3Object("b/k", unpacked("b/k", [packed], 1 << 30)) as file:
    assert file.size == 256 << 20 and file.bytes_at((256 << 20) - 3, 9) == bytes(3)
print(peak() - before)
"""


@pytest.mark.proves("C13")
def test_an_object_is_read_through_the_disk_and_not_held_in_memory() -> None:
    # Given an object of 256 MiB, packed to a thousandth, and a process of its own
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, timeout=120)
    # When it is unpacked and read, then memory has grown by some pieces of it
    assert int(done.stdout) < 64 << 10


def test_an_object_for_which_there_is_no_room_is_named_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - closed by the object
    monkeypatch.setattr(s3_read.tempfile, "TemporaryFile", lambda **_: full)
    with pytest.raises(SourceError, match=r"s3: b/k cannot be kept in .*No space left.*set TMPDIR"):
        s3_read.S3Object("b/k", [b"x"])
    assert full.closed


def destination(moto: MotoServer, **more: str) -> S3Destination:
    made = S3Destination({"bucket": "lake", "prefix": "out/", "format": "payload", **moto.settings, **more})
    made.pipeline, made.connector = "p", "lake"
    return made


def written(client: Any) -> list[int]:
    data = b"".join(client.get_object(Bucket="lake", Key=key)["Body"].read() for key in keys(client))
    return [json.loads(line)["n"] for line in data.splitlines()]


def piece(first: int, count: int, *, seal: int = 1_000, epoch: int = 0) -> Rows:
    """Records whose payload is their place in micro-batch 1, of which what is before them is confirmed."""
    made = rows(*({"n": n} for n in range(first, first + count)), first=first)
    return replace(made, seal=seal, epoch=epoch, pending=((first, ALL),))


@pytest.mark.proves("C10", "B8", "I4")
def test_a_piece_written_again_is_the_same_object_and_one_cut_elsewhere_takes_its_place(
    moto: MotoServer, bucket: Any
) -> None:
    # Given a writer that died before its first confirmation
    one = destination(moto)
    one.open(None)
    one.write(piece(0, 4))
    # When the same piece is written again, and then, after another death, in smaller ones
    two = destination(moto)
    two.open(None)
    two.write(piece(0, 4))
    assert keys(bucket) == ["out/p/lake/0000000000001000-0000000001-000000000-000000003.jsonl"]
    two.write(piece(4, 4))
    three = destination(moto)
    three.open(None)
    three.write(piece(0, 3))
    three.write(piece(3, 3))
    assert written(bucket) == list(range(6))
    # And what is behind a confirmation is written again
    four = destination(moto)
    four.open(None)
    four.write(piece(3, 5))
    assert written(bucket) == list(range(8))
    # Then a writer that lost its lease removes and writes nothing
    one.still_ours = lost
    with pytest.raises(Fenced):
        one.write(piece(0, 9))
    assert written(bucket) == list(range(8))
    for each in (one, two, three, four):
        each.close()


@pytest.mark.proves("C10", "I4")
def test_a_write_that_failed_and_arrived_is_taken_away_alone(moto: MotoServer, bucket: Any) -> None:
    # Given a confirmed write, and one whose answer was lost
    out = destination(moto)
    out.open(None)
    out.write(piece(0, 3))
    put = out._client.put_object

    def loses_the_answer(**given: Any) -> None:
        put(**given)
        raise ConnectionClosedError(endpoint_url="http://s3")

    out._client.put_object = loses_the_answer
    with pytest.raises(Unavailable):
        out.write(piece(3, 3))
    assert written(bucket) == list(range(6))
    # When it is opened again, then nothing else is removed, and nothing at all without the lease
    ours, out.still_ours = out.still_ours, lost
    with pytest.raises(Fenced):
        out.open(None)
    assert written(bucket) == list(range(6))
    out.still_ours = ours
    out.open(None)
    assert written(bucket) == [0, 1, 2]
    # And a confirmed one that is sent again and fails stays
    out._client.put_object = loses_the_answer
    with pytest.raises(Unavailable):
        out.write(piece(0, 3, epoch=7))
    out.open(None)
    assert written(bucket) == [0, 1, 2]
    out.close()


@pytest.mark.proves("C10")
def test_nothing_of_other_micro_batches_is_touched(moto: MotoServer, bucket: Any) -> None:
    # Given what an earlier life of the pipeline wrote under the same number, and a neighbour of a similar name
    earlier = destination(moto)
    earlier.open(None)
    earlier.write(piece(0, 3))
    neighbour = destination(moto)
    neighbour.connector = "lake.2"
    neighbour.open(None)
    neighbour.write(piece(100, 1, seal=2_000))
    out = destination(moto)
    out.open(None)
    out.write(piece(50, 2, seal=2_000))
    # When what was confirmed is delivered again on demand, or records are redriven, each twice
    out.open(None)
    for _ in range(2):
        out.write(piece(50, 2, seal=2_000, epoch=7))
        out.write(piece(60, 2, seal=0))
    out.open(None)
    assert sorted(written(bucket)) == [0, 1, 2, 50, 51, 60, 61, 100]
    # Then what follows is behind them in the order of keys, as a source reads them
    out.write(piece(52, 1, seal=3_000))
    assert keys(bucket)[-1].startswith("out/p/lake/0000000000003000-")
    for each in (earlier, neighbour, out):
        each.close()


@pytest.mark.proves("C10")
def test_what_is_sent_again_takes_no_place_of_another_version_of_its_row(moto: MotoServer, bucket: Any) -> None:
    """Given two versions of a row under one id, as `singer` gives them, then each is an object of its own when it is
    redriven, however often."""
    out = destination(moto)
    out.open(None)
    for _ in range(2):
        for version in (1, 2):
            records = [Record(b"key", after={"n": version}, origin=ORIGIN)]
            out.write(Rows(spool_batch([0], [0], records), [ORIGIN], epoch=7))
    assert sorted(written(bucket)) == [1, 2]
    out.close()


def lost() -> None:
    raise Fenced("lost")


def keys(client: Any) -> list[str]:
    return [each["Key"] for each in client.list_objects_v2(Bucket="lake", Prefix="out/").get("Contents", ())]


@pytest.mark.proves("T6")
def test_a_server_that_goes_away_and_comes_back(moto: MotoServer, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks.connectors import aws

    monkeypatch.setattr(aws, "RETRIES", 1)
    out = destination(moto)
    out.open(None)
    moto.stop()
    with pytest.raises(Unavailable, match="cannot be tidied"):
        out.write(piece(1, 1))
    with pytest.raises(Unavailable):
        out.write(piece(1, 1))
    reading = source(moto)
    with pytest.raises(SourceError):
        reading.plan({}, Limit())
    moto.start()
    out.open(None)
    out.write(piece(1, 1))
    assert written(bucket) == [1]
    out.close()
    reading.close()


def test_parquet_is_written_and_read_back(moto: MotoServer, bucket: Any) -> None:
    out = destination(moto, format="parquet")
    out.open(None)
    out.write(rows({"n": 1, "s": "a"}, {"n": 2, "s": None}))
    out.close()
    records, _ = drain(moto, {}, Limit(), prefix="out/")
    assert [r.after for r in records] == [{"n": 1, "s": "a"}, {"n": 2, "s": None}]


@pytest.mark.usefixtures("bucket")
def test_the_connector_keeps_its_contract(moto: MotoServer) -> None:
    both = {"bucket": "lake", **moto.settings}
    accept(
        "s3", source={**both, "prefix": "out/"}, destination={**both, "prefix": "out/", "format": "payload"}
    ).require()


def test_options_that_do_not_go_together_are_named() -> None:
    with pytest.raises(ConfigError, match="secret-access-key"):
        S3Source({"bucket": "lake", "access-key-id": "x"})
    with pytest.raises(ConfigError, match="records-per-object"):
        S3Destination({"bucket": "lake", "records-per-object": "0"})


@pytest.mark.parametrize("way", ["advice", "skip"])
def test_an_object_that_is_gone_after_its_plan_can_be_left_behind(
    home: Path, moto: MotoServer, bucket: Any, way: str
) -> None:
    settings = ", ".join(f'{name}: "{value}"' for name, value in {"bucket": "lake", **moto.settings}.items())
    text = f"""
version: "2.2"
pipelines:
  - id: p
    error-recovery: {{min-delay: 1ms, max-delay: 1ms}}
    connectors:
      - {{id: in, type: source, plugin: s3, settings: {{MORE{settings}}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.jsonl}}}}
"""
    write_pipeline(home, "p", text.replace("MORE", ""))
    for key in "abc":
        put(bucket, f"{key}.jsonl", lines(0, 2))
    plan_run("p", "first")
    bucket.delete_object(Bucket="lake", Key="a.jsonl")
    with pytest.raises(Missing, match=r"lake/a\.jsonl was replaced or removed") as caught:
        run_once("p")
    skip, *once = advice(caught.value)
    if way == "skip":
        write_pipeline(home, "p", text.replace("MORE", "missing: skip, "))
        once = [skip]
    follow(once)
    run_until_quiet("p")
    assert len((home / "out.jsonl").read_text().splitlines()) == 4


def test_positions_in_an_object_begin_with_its_key_whatever_that_ends_with() -> None:
    with S3Object("b/key#1", [b"line\n"]) as file:
        assert file.place == "b/key#1"
