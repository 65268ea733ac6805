"""Part files and manifests: what is written is what is read, and what is not whole is not there."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from conduit_tasks.errors import InvariantBroken, SpoolError
from conduit_tasks.record.schema import SPOOL_SCHEMA
from conduit_tasks.spool.checkpoint import Checkpoint, Mark
from conduit_tasks.spool.manifest import PartFile, SealedManifest, SliceEntry, StageManifest
from conduit_tasks.spool.spool import Spool
from tests.spool.rows import rows


@pytest.fixture(params=["folder", "file URL", "remote", "S3"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spool]:
    """On a local path, the same as a URL, on a filesystem that Arrow reaches by URL only (in memory), and on S3."""
    if request.param == "S3":
        yield Spool(f"{request.getfixturevalue('bucket')}/spool")
        return
    roots = {
        "folder": str(tmp_path / "spool"),
        "file URL": f"file://{tmp_path}/spool",
        "remote": "fsspec+memory:///spool",
    }
    yield Spool(roots[request.param])
    memory = fsspec.filesystem("memory")
    if memory.exists("/spool"):
        memory.rm("/spool", recursive=True)


def write(spool: Spool, *batches: pa.RecordBatch, k: int = 0, token: int = 7) -> PartFile:
    part = spool.writer("p", 3, "sources.in", token).part(k)
    for batch in batches:
        part.write(batch)
    return part.close()


def table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches)


def test_rows_come_back_as_they_were_written_with_counts_and_bounds(spool: Spool) -> None:
    # Given a part of two slices, larger than one row group
    written = [rows(70_000), rows(10, slice=1)]
    # When it is closed, and read in another process
    file = write(spool, *written)
    back = table(pickle.loads(pickle.dumps(spool)).read(file, verify=True))
    # Then the rows are the same, and the file says what is in it
    assert back.equals(pa.Table.from_batches(written))
    assert (file.rows, file.first, file.last) == (70_010, (0, 0), (1, 9))
    assert spool.store.size(file.path) == file.bytes
    assert file.path.startswith("p/0000000003/sources.in-7/part-00000")


def test_only_the_columns_and_rows_asked_for_are_read(spool: Spool) -> None:
    # Given rows with a wish per destination, one whose name begins with the other's, in three row groups
    batch = rows(150_000)
    wanted = np.zeros(150_000, bool)
    wanted[[5, 140_000]] = True
    batch = batch.append_column("to.a", pa.array(wanted)).append_column("to.a.b", pa.array(np.ones(150_000, bool)))
    part = spool.writer("p", 3, "sources.in", 7).part(0, schema_extra=["a", "a.b"])
    part.write(batch)
    file = part.close()
    # When one destination's rows are read
    back = table(spool.read(file, columns=["n", "to.a"], row_filter="to.a"))
    # Then there are exactly those
    assert back.column_names == ["n", "to.a"]
    assert back.column("n").to_pylist() == [5, 140_000]
    assert table(spool.read(file, columns=["n"], row_filter="to.a.b")).num_rows == 150_000
    with pytest.raises(SpoolError, match=r"to\.nobody"):
        list(spool.read(file, row_filter="to.nobody"))


@pytest.mark.proves("I6")
def test_a_second_attempt_under_the_same_token_does_not_change_the_first_ones_file(spool: Spool) -> None:
    first = write(spool, rows(3))
    second = write(spool, rows(5))
    assert first.path != second.path
    assert table(spool.read(first, verify=True)).num_rows == 3


def test_a_part_given_up_leaves_no_file(spool: Spool) -> None:
    part = spool.writer("p", 3, "sources.in", 7).part(0)
    part.write(rows(5))
    part.abort()
    assert spool.store.names("p/0000000003/sources.in-7") == []


@pytest.mark.proves("I10", "C9")
@pytest.mark.parametrize(
    "second", [rows(2, start=4), rows(2), rows(2, start=5).take(pa.array([1, 0]))], ids=["repeated", "back", "swapped"]
)
def test_rows_out_of_order_are_refused(spool: Spool, second: pa.RecordBatch) -> None:
    part = spool.writer("p", 3, "sources.in", 7).part(0)
    part.write(rows(5))
    with pytest.raises(InvariantBroken, match="not sorted"):
        part.write(second)
    assert spool.store.names("p/0000000003/sources.in-7") == []


def test_nacked_rows_keep_their_error_in_any_order(spool: Spool) -> None:
    schema = pa.schema([*SPOOL_SCHEMA, pa.field("error", pa.binary())])
    part = spool.writer("p", 3, "sources.in", 7).nacked(0, schema)
    for n in (5, 2):
        part.write(rows(1, start=n).append_column("error", pa.array([b"bad %d" % n], pa.binary())))
    back = table(spool.read(part.close()))
    assert back.column("error").to_pylist() == [b"bad 5", b"bad 2"]


def damage(spool: Spool, path: str, how: Callable[[bytes], bytes]) -> None:
    with spool.store.open(path) as file:
        data = file.read()
    sink = spool.store.create(path)
    sink.write(how(data))
    sink.commit()


def test_a_missing_or_changed_file_is_named(spool: Spool) -> None:
    gone, short, flipped = (write(spool, rows(100), k=k) for k in range(3))
    spool.store.delete(gone.path)
    damage(spool, short.path, lambda d: d[:-1])
    damage(spool, flipped.path, lambda d: d[:50] + bytes([d[50] ^ 255]) + d[51:])
    with pytest.raises(SpoolError, match=f"{gone.path} is missing"):
        list(spool.read(gone))
    with pytest.raises(SpoolError, match=f"{short.path} was changed"):
        list(spool.read(short))
    with pytest.raises(SpoolError, match=f"{flipped.path} was changed: its checksum"):
        list(spool.read(flipped, verify=True))


def entry(source: str, part: str, end: int, records: int) -> SliceEntry:
    return SliceEntry(source, "", part, {"offset": 0}, {"offset": end}, records, {"file.path": part})


def sealed(**changes: object) -> SealedManifest:
    values: dict[str, object] = {
        "pipeline": "p", "micro_batch": 3, "token": 9, "config": "abc", "total": 35, "bases": [0, 10, 30],
        "slices": [entry("in", "a", 7, 10), entry("in", "a", 9, 20), entry("other", "b", 4, 5)],
        "files": [PartFile("p/x.parquet", 10, 100, 1, (0, 0), (0, 9))], "matched": {"out": 34}, "filtered": 1,
    }  # fmt: skip
    return SealedManifest(**(values | changes))  # type: ignore[arg-type]


def test_manifests_come_back_from_the_spool(spool: Spool) -> None:
    stage = StageManifest(
        "p", 3, "sources.in", 7, [entry("in", "a", 7, 10)], [PartFile("p/x", 9, 80, 5, (0, 0), (0, 9))],
        [PartFile("p/y", 1, 8, 6)], 10, 0, 1, {"out": 9},
    )  # fmt: skip
    assert spool.read_stage(spool.write_stage(stage)) == stage
    path = spool.write_sealed(sealed())
    assert path == "p/0000000003/manifest-9.json"
    assert spool.read_sealed(path) == sealed()
    assert sealed().positions == {"in": {"a": {"offset": 9}}, "other": {"b": {"offset": 4}}}


def test_a_damaged_manifest_is_named(spool: Spool) -> None:
    path = spool.write_sealed(sealed())
    damage(spool, path, lambda d: d[:-20])
    with pytest.raises(SpoolError, match=r"manifest-9\.json is not a manifest"):
        spool.read_sealed(path)
    damage(spool, path, lambda _: b'{"version": 99}')
    with pytest.raises(SpoolError, match="version 99"):
        spool.read_sealed(path)
    with pytest.raises(SpoolError, match="nowhere"):
        spool.read_sealed("p/nowhere.json")


@pytest.mark.proves("I10")
def test_numbers_run_through_all_slices_and_stay_within_them() -> None:
    batch = pa.RecordBatch.from_pydict({"slice": pa.array([0, 1, 2], pa.int32()), "n": pa.array([9, 0, 4], pa.int64())})
    assert sealed().seqs(batch).tolist() == [9, 10, 34]
    for slice, n in ((0, 10), (3, 0), (-1, 0), (1, -1)):
        outside = pa.RecordBatch.from_pydict({"slice": pa.array([slice], pa.int32()), "n": pa.array([n], pa.int64())})
        with pytest.raises(InvariantBroken, match="outside its slice"):
            sealed().seqs(outside)
    with pytest.raises(InvariantBroken, match="invariant 10"):
        sealed(bases=[0, 11, 30])
    with pytest.raises(InvariantBroken, match="invariant 10"):
        sealed(total=36)


@pytest.mark.proves("I6")
def test_collecting_removes_one_micro_batch_with_what_dead_attempts_left(spool: Spool) -> None:
    # Given two attempts at a micro-batch, and another micro-batch
    for token in (5, 7):
        write(spool, rows(3), token=token)
    spool.write_stage(StageManifest("p", 3, "sources.in", 7, []))
    spool.write_sealed(sealed())
    spool.write_sealed(sealed(micro_batch=4))
    assert spool.micro_batches("p") == [3, 4]
    # When it is collected, twice
    spool.collect("p", 3)
    spool.collect("p", 3)
    # Then it alone is gone
    assert spool.micro_batches("p") == [4]
    assert spool.read_sealed("p/0000000004/manifest-9.json").total == 35


@pytest.mark.proves("I6")
def test_a_collection_that_died_is_completed_and_the_manifest_goes_last(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(spool, rows(3))
    spool.write_stage(StageManifest("p", 3, "sources.in", 7, []))
    path = spool.write_sealed(sealed())
    delete, steps = type(spool.store).delete, 0
    while spool.micro_batches("p"):
        steps += 1
        done = 0

        def dying(store: object, target: str) -> None:
            nonlocal done
            if done:
                raise KeyboardInterrupt
            done += 1
            delete(store, target)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(type(spool.store), "delete", dying)
            try:
                spool.collect("p", 3)
            except KeyboardInterrupt:
                left = [n for n, _ in spool.store.names("p/0000000003")]
                assert not left or path.endswith(left[-1]) or len(left) > 1
                assert "manifest-9.json" in left or left == []
    assert 2 <= steps <= 5


def test_names_that_are_no_file_names_get_folders_of_their_own(spool: Spool) -> None:
    folders = {spool.folder(pipeline, 1) for pipeline in (".", "..", "a:b", "a%3Ab", "a")}
    assert len(folders) == 5
    assert all(":" not in f and not f.startswith(("./", "../")) for f in folders)


def test_spark_and_the_spool_agree_on_what_lies_in_a_folder(spool: Spool) -> None:
    file = write(spool, rows(3))
    uri = spool.uri(file.path.rpartition("/")[0])
    assert spool.listing(uri) == [spool.uri(file.path)]
    with spool.open(spool.listing(uri)[0]) as source:
        assert len(source.read()) == file.bytes
    with pytest.raises(SpoolError, match="not in the spool"):
        spool.open("file:///etc/passwd")


def test_an_unknown_kind_of_spool_is_named() -> None:
    with pytest.raises(SpoolError, match="nosuch://somewhere"):
        Spool("nosuch://somewhere").micro_batches("p")


@pytest.mark.proves("X7", "I4")
def test_a_forgotten_node_has_no_mark_until_a_newer_one_is_written(spool: Spool) -> None:
    # Given a node with a mark
    marks, node = Checkpoint(spool, "p"), "destinations.b"
    marks.write(Mark(node, 7, 7, 3, {"destination": {"cursor": "3"}}))
    # When it is forgotten, and a holder that was fenced before writes a mark after all
    marks.forget(node, 8)
    marks.write(Mark(node, 5, 5, 3, {"destination": {"cursor": "3"}}))
    # Then it has none, whoever asks; the next one of that name has its own, and nothing else is left
    assert marks.read() == marks.read(node) == {}
    marks.write(Mark(node, 9, 9, 1, {"destination": {"cursor": "1"}}))
    assert marks.read(node)[node].number == 1
    assert [name for name, _ in spool.store.names("p/checkpoint")] == [f"{node}-9.json"]


def test_marks_of_others_are_those_that_somebody_may_come_back_with(spool: Spool) -> None:
    # Given marks of a node in the file, of one out of it, of one that is forgotten, and of what was collected
    marks = Checkpoint(spool, "p")
    for node in ("destinations.a:1", "destinations.b:1", "destinations.c"):
        marks.write(Mark(node, 7, 7, 3))
    marks.forget("destinations.c", 8)
    marks.collecting(3)
    # Then only the one that is out of it is another
    assert list(marks.besides(["destinations.a:1"])) == ["destinations.b:1"]
    assert marks.besides(["destinations.a:1", "destinations.b:1"]) == {}
