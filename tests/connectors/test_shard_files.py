"""What the task of one shard leaves in a folder of files, in a bucket and in a Delta table, and what it takes away
there (`delivery.parallelism`, ADR 27)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ConnectionClosedError

from conduit_tasks.connectors.base import BatchDestination
from conduit_tasks.connectors.file.connector import FileDestination
from conduit_tasks.connectors.rows import ALL, Rows, ShardName
from conduit_tasks.connectors.s3.connector import S3Destination
from conduit_tasks.errors import Unavailable
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from tests.connectors.moto_server import MotoServer

pytestmark = pytest.mark.xdist_group("moto")

ORIGIN = Origin("p", "in", "")
SEAL = 1_764_000_000_000_000


def rows(*seqs: int, through: int = -1, micro_batch: int = 1, **more: Any) -> Rows:
    """Records {"n": seq} of a micro-batch, of which everything up to `through` is confirmed."""
    records = [Record(b"%d" % n, after={"n": n, **more}, origin=ORIGIN) for n in seqs]
    batch = spool_batch([0] * len(records), list(seqs), records)
    return Rows(
        batch,
        [ORIGIN],
        micro_batch,
        seqs[0],
        seqs[-1],
        seal=SEAL + micro_batch,
        seqs=np.array(seqs, np.int64),
        pending=((through + 1, ALL),),
    )


Writer = Callable[..., BatchDestination]
There = Callable[[], list[list[int]]]


def writer(kind: str, home: Path, moto: MotoServer) -> tuple[Writer, There]:
    """Makes the destination of a shard, open; and what is there: the numbers, file by file."""

    def opened(shard: ShardName | None, state: Any = None, connector: str = "to", **settings: str) -> BatchDestination:
        made: BatchDestination
        if kind == "s3":
            made = S3Destination(
                {"bucket": "files", "prefix": f"{home.parent.name}/", "format": "payload", **moto.settings}
            )
        else:
            form = {"format": "parquet"} if kind == "parquet" else {"format": "payload", "files": "many"}
            made = FileDestination({"path": "out", **form, **settings})
        made.pipeline, made.connector, made.shard = "p", connector, shard
        made.open(state)
        return made

    def there() -> list[list[int]]:
        if kind == "parquet":
            paths = sorted((home / "out").rglob("*.parquet"), key=lambda path: path.name)
            return [pq.read_table(path, partitioning=None)["n"].to_pylist() for path in paths]
        if kind == "lines":
            return [numbers_of(path.read_bytes()) for path in sorted((home / "out").glob("*.jsonl"))]
        client = moto.client("s3")
        try:
            found = client.list_objects_v2(Bucket="files", Prefix=f"{home.parent.name}/").get("Contents", ())
            data = [client.get_object(Bucket="files", Key=each["Key"])["Body"].read() for each in found]
        finally:
            client.close()
        return [numbers_of(each) for each in data]

    return opened, there


def numbers_of(lines: bytes) -> list[int]:
    return [json.loads(line)["n"] for line in lines.splitlines()]


@pytest.fixture(params=["parquet", "lines", "s3"])
def to(request: pytest.FixtureRequest, home: Path, moto: MotoServer) -> tuple[Writer, There]:
    client = moto.client("s3")
    if "files" not in [each["Name"] for each in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket="files", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    client.close()
    return writer(request.param, home, moto)


def shard(number: int, count: int = 3, by: str = "key") -> ShardName:
    return ShardName(by, count, number)


@pytest.mark.proves("C10")
def test_a_later_attempt_takes_the_place_of_what_was_not_confirmed_and_leaves_the_rest(
    to: tuple[Writer, There],
) -> None:
    """Given two writes of a shard, of which the first was confirmed, and one of another, then a later attempt, whose
    pieces are cut elsewhere, removes the second alone."""
    opened, there = to
    one, other = opened(shard(0)), opened(shard(1))
    assert one.write(rows(0, 3, 6)) is None
    assert other.write(rows(1, 4)) is None
    one.write(rows(9, 12, through=8))
    one.close()
    again = opened(shard(0))
    again.write(rows(9, through=8))
    again.write(rows(12, 15, through=11))
    other.write(rows(7, through=6))
    assert sorted(there()) == [[0, 3, 6], [1, 4], [7], [9], [12, 15]]
    again.close()
    other.close()


def test_what_was_written_of_a_record_that_is_a_dead_letter_by_then_is_taken_away(to: tuple[Writer, There]) -> None:
    """Given a write that was not confirmed, and an attempt at which its first record is confirmed as a dead letter."""
    opened, there = to
    one = opened(shard(0))
    one.write(rows(0, 3, 6))
    one.close()
    again = opened(shard(0))
    again.write(rows(3, 6, through=2))
    assert there() == [[3, 6]]
    again.close()


def test_nothing_of_a_division_that_was_forgotten_is_left_whoever_delivers_the_micro_batch(
    to: tuple[Writer, There],
) -> None:
    """Given files of three tasks by key, of a micro-batch before, too, then a task of another number, of another order,
    and one task alone each remove all of them of this micro-batch, and nothing of the one before."""
    opened, there = to
    before = opened(shard(0))
    before.write(rows(0, 3, micro_batch=1))
    before.close()
    for other in (shard(0, 2), shard(0, 3, "none"), None):
        for number in range(3):
            one = opened(shard(number))
            one.write(rows(number, number + 3, micro_batch=2))
            one.close()
        it = opened(other)
        it.write(rows(0, 1, micro_batch=2))
        it.close()
        assert there().count([0, 1]) == 1
        assert sorted(there()) == [[0, 1], [0, 3]], other


def test_one_task_alone_keeps_what_several_have_confirmed(to: tuple[Writer, There]) -> None:
    """Given files of two tasks, of which one has told the broker all of its two writes and the other its first one,
    and a destination that was another one meanwhile, to which one task writes, so that the division is over and there
    is no state, then the last write alone is taken away."""
    opened, there = to
    one, other = opened(shard(0, 2)), opened(shard(1, 2))
    one.write(rows(0, 2))
    one.write(rows(4, 6, through=3))
    other.write(rows(1, 3))
    other.write(rows(5, 7, through=4))
    one.close()
    other.close()
    alone = opened(None)
    alone.write(replace(rows(5), seqs=None, pending=((5, 5), (7, ALL))))
    assert sorted(there()) == [[0, 2], [1, 3], [4, 6], [5]]
    alone.close()


def test_one_task_alone_keeps_what_it_confirmed_before_the_destination_was_another_one(
    to: tuple[Writer, There],
) -> None:
    opened, there = to
    alone = opened(None)
    alone.write(replace(rows(0, 1), seqs=None))
    alone.close()
    again = opened(None, {"owner": "another", "size": 0})
    again.write(replace(rows(5, 6), seqs=None, pending=((5, ALL),)))
    again.close()
    assert sorted(there()) == [[0, 1], [5, 6]]


def test_what_one_task_alone_wrote_and_never_confirmed_is_taken_away_by_every_shard(to: tuple[Writer, There]) -> None:
    """Given a confirmed write of one task, another one of the micro-batch behind it, and a file that asks for several
    tasks then."""
    opened, there = to
    alone = opened(None)
    state = alone.write(replace(rows(0, 1, micro_batch=1), seqs=None))
    alone.write(replace(rows(0, 1, 2, micro_batch=2), seqs=None))
    alone.close()
    one = opened(shard(2), state)
    one.write(rows(2, micro_batch=2))
    one.close()
    assert sorted(there()) == [[0, 1], [2]]
    # And one task goes on behind them as it had begun.
    alone = opened(None, state)
    alone.write(replace(rows(0, micro_batch=3), seqs=None))
    assert sorted(there()) == [[0], [0, 1], [2]]
    alone.close()


def test_a_write_that_failed_and_is_not_repeated_leaves_nothing(to: tuple[Writer, There]) -> None:
    opened, there = to
    one = opened(shard(0))
    one.write(rows(0, 3))
    fails_after_it_has_arrived(one)
    with pytest.raises(Unavailable):
        one.write(rows(6, 9, through=5))
    assert there() == [[0, 3], [6, 9]]
    # As the engine does after a failed write, with the state of one task alone.
    one.open(None)
    assert there() == [[0, 3]]
    one.close()


def fails_after_it_has_arrived(one: BatchDestination) -> None:
    """Has writes arrive and fail all the same."""
    which: Any = one
    of, name = (which._client, "put_object") if isinstance(one, S3Destination) else (which._writer._parts, "put")
    real = getattr(of, name)

    def fails(*given: Any, **named: Any) -> None:
        real(*given, **named)
        raise ConnectionClosedError(endpoint_url="http://s3") if name == "put_object" else OSError(28, "no room")

    setattr(of, name, fails)


def test_a_refused_write_takes_away_nothing_that_was_confirmed_before_it(to: tuple[Writer, There]) -> None:
    """Given a write that was confirmed, then one that cannot be encoded, after which the engine opens it again."""
    opened, there = to
    one = opened(shard(0))
    one.write(rows(0, 3))
    one.open(None)
    one.write(rows(6, through=5))
    assert there() == [[0, 3], [6]]
    one.close()


def test_files_in_order_of_names_are_in_the_order_of_their_micro_batches_whoever_delivered_them(
    to: tuple[Writer, There],
) -> None:
    """Given micro-batches that one task alone, two tasks and one task again delivered."""
    opened, there = to
    state = None
    for micro_batch, shards in enumerate(([None], [shard(0, 2), shard(1, 2)], [None, None]), 1):
        for number, which in enumerate(shards):
            one = opened(which, state)
            seq = 10 * micro_batch + number
            written = rows(seq, through=seq - 1, micro_batch=micro_batch)
            state = one.write(written if which else replace(written, seqs=None)) or state
            one.close()
    assert there() == [[10], [20], [21], [30], [31]]


@pytest.mark.parametrize("kind", ["parquet", "lines"])
def test_files_of_one_task_that_finishes_what_several_began_are_behind_theirs(
    home: Path, moto: MotoServer, kind: str
) -> None:
    opened, there = writer(kind, home, moto)
    for number in range(2):
        one = opened(shard(number, 2))
        one.write(rows(number))
        one.close()
    alone = opened(None)
    alone.write(replace(rows(2, through=1), seqs=None))
    alone.close()
    assert there() == [[0], [1], [2]]


@pytest.mark.proves("C10", "I4")
@pytest.mark.parametrize("kind", ["parquet", "lines"])
def test_a_task_that_stands_still_is_waited_for_whoever_delivers_its_micro_batch_by_then(
    home: Path, moto: MotoServer, kind: str
) -> None:
    opened, _ = writer(kind, home, moto)
    still = opened(shard(2))
    for other in (None, shard(0, 2), shard(1, 2)):
        with pytest.raises(Unavailable, match="another process"):
            opened(other)
    beside = opened(shard(0))
    beside.close()
    still.close()
    opened(None).close()


def test_a_micro_batch_that_comes_again_finds_what_a_later_one_left_there(home: Path, moto: MotoServer) -> None:
    """Given a shard that has written three micro-batches, all forgotten by Redis, so that they come again: the first
    one to the same tasks, the others to two."""
    opened, there = writer("lines", home, moto)
    one = opened(shard(0))
    for micro_batch in (1, 2, 3):
        one.write(rows(0, 3, micro_batch=micro_batch))
    one.close()
    again = opened(shard(0))
    again.write(rows(0, 3, micro_batch=1))
    again.close()
    for micro_batch in (2, 3):
        other = opened(shard(0, 2))
        other.write(rows(0, micro_batch=micro_batch))
        other.write(rows(3, through=2, micro_batch=micro_batch))
        other.close()
    assert there() == [[0, 3], [0], [3], [0], [3]]


@pytest.mark.proves("C10")
@pytest.mark.parametrize("kind", ["parquet", "lines"])
def test_destinations_whose_ids_look_alike_take_nothing_from_each_other(
    home: Path, moto: MotoServer, kind: str
) -> None:
    """Given shards of destinations `x:y` and `x_y` of one pipeline, which share a folder."""
    opened, there = writer(kind, home, moto)
    for seq, name in enumerate(("x:y", "x_y")):
        one = opened(shard(0), connector=name)
        one.write(rows(seq))
        one.close()
    assert sorted(there()) == [[0], [1]]


def test_two_processes_do_not_write_the_same_shard_of_a_folder(home: Path, moto: MotoServer) -> None:
    opened, there = writer("parquet", home, moto)
    one = opened(shard(0))
    opened(shard(1)).close()
    with pytest.raises(Unavailable, match="another process"):
        opened(shard(0))
    one.close()
    opened(shard(0)).close()
    assert there() == []


def test_files_of_shards_are_in_the_folders_of_their_values_and_are_taken_away_there(
    home: Path, moto: MotoServer
) -> None:
    opened, there = writer("parquet", home, moto)
    by = {"partition-by": "colour"}
    one = opened(shard(0), **by)
    one.write(rows(0, 3, colour="red"))
    one.write(rows(6, through=5, colour="blue"))
    one.close()
    again = opened(shard(0), **by)
    again.write(rows(6, through=5, colour="red"))
    again.close()
    assert there() == [[0, 3], [6]]
    assert [path.name for path in (home / "out").iterdir() if path.name.startswith("colour=blue")] == ["colour=blue"]
    assert not list((home / "out/colour=blue").iterdir())
