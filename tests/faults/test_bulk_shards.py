"""Several tasks write files in a folder, objects of S3, commits of Delta and of Iceberg. One of them is killed, or
stands still while its shard is given to another, or Redis is killed before the first confirm (ADR 27)."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.shard import Shard
from conduit_tasks.errors import Fenced, PipelineStopped, Unavailable
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver_task import rows_of
from conduit_tasks.micro_batch.dividing import division_of
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.sending import leased
from conduit_tasks.micro_batch.shard_task import ShardTask
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.settings import forget
from tests.connectors.moto_server import MotoServer
from tests.faults.beside import Beside
from tests.faults.parts import drive
from tests.faults.test_shards import deliver, lanes, sealed
from tests.micro_batch.harness import here, state, write_pipeline
from tests.redis_server import RedisServer
from tests.waiting import until

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: to
        type: destination
        plugin: PLUGIN
        settings: {SETTINGS}
        delivery: {timeout: 2s, order-by: key, parallelism: TASKS, rate-limit: "100/s"}
"""
COUNT = 480
"""Records; 20 in a write, and 50 a second by each of two tasks."""
BUCKET = "faults"
Read = Callable[[Path, MotoServer], list[dict[str, Any]]]


def in_parquet(home: Path, moto: MotoServer) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    paths = sorted((home / "out").glob("*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def in_lines(home: Path, moto: MotoServer) -> list[dict[str, Any]]:
    paths = sorted((home / "out").glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def in_s3(home: Path, moto: MotoServer) -> list[dict[str, Any]]:
    client = moto.client("s3")
    try:
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{home.parent.name}/").get("Contents", ())
        data = [client.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read() for each in found]
    finally:
        client.close()
    return [json.loads(line) for each in data for line in each.splitlines()]


def in_delta(home: Path, moto: MotoServer) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    # By hand, in the order of the commits.
    lines = [line for path in sorted((home / "t/_delta_log").glob("*.json")) for line in path.read_text().splitlines()]
    added = [log["add"]["path"] for log in map(json.loads, lines) if "add" in log]
    return [row for path in added for row in pq.read_table(home / "t" / path).to_pylist()]


def in_iceberg(home: Path, moto: MotoServer) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq
    from pyiceberg.catalog import load_catalog

    # In the order of the commits.
    with load_catalog("default", uri=f"sqlite:///{home}/c.db") as catalog:
        files = catalog.load_table("lake.t").inspect.entries().sort_by("sequence_number")["data_file"].to_pylist()
    paths = [file["file_path"].removeprefix("file://") for file in files]
    return [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]


TARGETS: dict[str, tuple[str, str, Read]] = {
    "parquet": ("file", 'path: out, format: parquet, rows-per-file: "20"', in_parquet),
    "lines": ("file", 'path: out, format: payload, files: many, rows-per-file: "20"', in_lines),
    "s3": ("s3", 'bucket: faults, prefix: PREFIX, format: payload, records-per-object: "20", MOTO', in_s3),
    "delta": ("delta", 'path: t, rows-per-commit: "20"', in_delta),
    "iceberg": (
        "iceberg",
        'table: lake.t, catalog: {uri: "sqlite:///c.db", warehouse: wh}, rows-per-commit: "20"',
        in_iceberg,
    ),
}


@dataclass
class Target:
    """A destination of one kind, and what is in it."""

    kind: str
    home: Path
    moto: MotoServer

    def pipeline(self, tasks: int = 2) -> None:
        plugin, settings, _ = TARGETS[self.kind]
        moto = ", ".join(f'{name}: "{value}"' for name, value in self.moto.settings.items())
        text = PIPELINE.replace("PLUGIN", plugin).replace("SETTINGS", settings).replace("TASKS", str(tasks))
        write_pipeline(self.home, "p", text.replace("PREFIX", f"{self.home.parent.name}/").replace("MOTO", moto))

    def once(self) -> None:
        """Every record is there once, those of a key in order, and the state is that of one task."""
        found = TARGETS[self.kind][2](self.home, self.moto)
        assert sorted(row["n"] for row in found) == sorted(n for n in range(COUNT // 40) for _ in range(40))
        for key in {row["k"] for row in found}:
            numbers = [row["n"] for row in found if row["k"] == key]
            assert numbers == sorted(set(numbers)), key
        broker = state("p")
        delivered = broker.deliveries.get("to")
        broker.close()
        assert (delivered.cursor, delivered.division, delivered.counters["delivered"]) == (1, None, COUNT)


@pytest.fixture(scope="module")
def moto_server() -> Iterator[MotoServer]:
    server = MotoServer().start()
    client = server.client("s3")
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    client.close()
    yield server
    server.stop()


@pytest.fixture(params=list(TARGETS))
def target(request: pytest.FixtureRequest, quick: Path, moto_server: MotoServer) -> Target:
    made = Target(request.param, quick, moto_server)
    made.pipeline()
    lanes(quick / "data", COUNT)
    sealed()
    return made


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside()
    yield made
    made.stop()


def confirmed(shard: int) -> int:
    """Number of confirmed records of a shard."""
    broker = state("p")
    try:
        division = broker.deliveries.get("to").division
        return division.done[shard].count if division is not None else 0
    finally:
        broker.close()


@pytest.mark.proves("C10", "C9")
def test_a_task_that_is_killed_between_two_writes_is_run_again_alone_and_nothing_is_there_twice(
    target: Target, beside: Beside
) -> None:
    beside.retries = 1
    done = threading.Thread(target=deliver, args=(beside,))
    done.start()
    try:
        until(lambda: confirmed(1) >= 40, "the middle of the delivery")
        beside.processes[1][0].send_signal(signal.SIGKILL)
    finally:
        done.join()
    assert {piece: len(of) for piece, of in beside.processes.items()} == {0: 1, 1: 2}
    target.once()


@pytest.mark.proves("I4", "C10")
def test_a_task_that_stood_still_while_its_shard_was_given_to_another_writes_nothing_more(
    target: Target, beside: Beside
) -> None:
    with opened("p", "run") as context:
        to = context.pipeline.destination("to")
        with leased(context, to) as lease, keeping(lease):
            division = division_of(context, to, lease, context.broker.deliveries.get("to"))
            assert division is not None
            task = ShardTask(get_pipeline("p"), "to", 1, lease.token, "run", division=division)
            first = beside.start(task, 0)
            until(lambda: confirmed(0) >= 40, "the middle of the shard")
            first.send_signal(signal.SIGSTOP)
            answers = beside(task, [1, 0])
            first.send_signal(signal.SIGCONT)
            said = first.answer()
    assert isinstance(said, Fenced)
    # Of a folder, two processes never write files of the same shard: the other one waits until this one has ended.
    assert isinstance(answers[1], Unavailable) is (target.kind in ("parquet", "lines"))
    drive(run_all=beside)
    target.once()


@pytest.mark.proves("C10", "I5")
def test_redis_that_is_killed_before_the_first_confirm_and_a_file_that_asks_for_other_tasks_change_nothing(
    own_redis: RedisServer, quick: Path, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a micro-batch that was divided for two tasks, of which one has written and confirmed nothing, then Redis is
    killed, and the file asks for three tasks by then: two deliver it."""
    monkeypatch.setenv("CONDUIT_REDIS_URL", own_redis.url)
    forget()
    target = Target("parquet", quick, moto_server)
    target.pipeline()
    lanes(quick / "data", COUNT)
    sealed()
    with opened("p", "run") as context:
        to = context.pipeline.destination("to")
        with leased(context, to) as lease:
            division = division_of(context, to, lease, context.broker.deliveries.get("to"))
    assert division is not None
    own_redis.kill()
    own_redis.start()
    target.pipeline(3)
    jobs: list[int] = []

    def run_all(function: Any, pieces: Any) -> list[Any]:
        jobs.append(len(pieces))
        return here(function, pieces)

    drive(run_all=run_all)
    assert 2 in jobs
    assert 3 not in jobs
    target.once()


@pytest.mark.proves("C10")
def test_settings_that_one_task_needs_have_one_finish_what_several_have_begun(
    quick: Path, moto_server: MotoServer, beside: Beside
) -> None:
    """Given two tasks of a folder that were cut off in the middle, and a file that asks for one file of lines by then,
    then one task writes there what they had not confirmed, and the folder keeps the rest."""
    target = Target("parquet", quick, moto_server)
    target.pipeline()
    lanes(quick / "data", COUNT)
    sealed()
    beside.cut_off(deliver, lambda: confirmed(1) >= 40)
    broker = state("p")
    before = broker.deliveries.get("to").confirmed_records
    broker.close()
    text = (quick / "include/pipelines/p.yaml").read_text()
    write_pipeline(quick, "p", text.replace('path: out, format: parquet, rows-per-file: "20"', "path: out.jsonl"))
    drive(run_all=beside)
    rest = [json.loads(line)["payload"]["after"] for line in (quick / "out.jsonl").read_text().splitlines()]
    assert len(rest) == COUNT - before
    there = {(row["k"], row["n"]) for row in (*in_parquet(quick, moto_server), *rest)}
    assert len(there) == COUNT


@pytest.mark.proves("C6")
def test_one_task_that_finishes_what_several_have_begun_counts_each_record_once_in_the_nack_window(quick: Path) -> None:
    """Given two tasks of 100 records each, of which the first one has ended, with a nack at its 50th record, and a file
    that asks for one file of lines by then, then the nack of record 150 is the second one among the last 150."""
    settings = 'path: out, format: parquet, rows-per-file: "20"'
    fails = """
        processors:
          - {id: bad, plugin: error, settings: {message: bad}, condition: '{{ eq (mod .Payload.After.n 100) 50 }}'}
        dead-letter-queue: {window-size: 150, window-nack-threshold: 1}
"""
    text = PIPELINE.replace("PLUGIN", "file").replace("SETTINGS", settings).replace("TASKS", "2")
    text = text.replace("order-by: key", "order-by: none").replace(', rate-limit: "100/s"', "") + fails.lstrip("\n")
    write_pipeline(quick, "p", text)
    (quick / "data").mkdir(exist_ok=True)
    (quick / "data" / "a.jsonl").write_text("".join(json.dumps({"k": "k", "n": n}) + "\n" for n in range(200)))
    sealed()

    def first(function: Any, pieces: Any) -> list[Any]:
        here(function, pieces[:1])
        raise OSError("the other one's process ended")

    with pytest.raises(OSError, match="ended"):
        deliver(first)
    broker = state("p")
    assert broker.deliveries.get("to").counters["nacked"] == 1
    # When one task goes on
    write_pipeline(quick, "p", text.replace(settings, "path: out.jsonl"))
    with pytest.raises(PipelineStopped, match="does not tolerate"):
        deliver(here)
    # Then it is one nack too many, neither stored nor acked; started again, the pipeline delivers the rest
    assert broker.dead_letters.count("to") == 1
    broker.lifecycle.start()
    drive()
    delivered = broker.deliveries.get("to")
    broker.close()
    assert (delivered.counters["nacked"], delivered.counters["delivered"], delivered.cursor) == (2, 198, 1)


def test_confirmed_and_voted_records_of_shards_are_found_in_the_whole(quick: Path) -> None:
    """Given shards by key of the records with odd numbers, then what is confirmed there is told by numbers in the
    micro-batch, and what has voted by numbers among those records."""
    text = PIPELINE.replace("PLUGIN", "file").replace("SETTINGS", "path: out, format: parquet").replace("TASKS", "2")
    mark = "{id: mark, plugin: field.set, settings: {field: .Metadata.mark, value: 'm{{ mod .Payload.After.n 2 }}'}}"
    text = text.replace("key: k}}", f"key: k}}, processors: [{mark}]}}")
    write_pipeline(quick, "p", text + "        trigger: {filters: [{exact: {mark: m1}}]}\n")
    lanes(quick / "data", COUNT)
    sealed()
    with opened("p", "run") as context:
        to = context.pipeline.destination("to")
        with leased(context, to) as lease:
            division = division_of(context, to, lease, context.broker.deliveries.get("to"))
        assert division is not None
        manifest = context.spool.read_sealed(context.broker.micro_batches.get(1).manifest)
        odd = [seq for seqs, _ in rows_of(context, manifest, to) for seq in seqs.tolist()]
        assert (division.matched, odd) == (COUNT // 2, list(range(1, COUNT, 2)))
        of = [Shard("key", 2, n, manifest) for n in range(2)]
        seqs = [[s for found, _ in shard.rows(rows_of(context, manifest, to)) for s in found.tolist()] for shard in of]
        some = replace(division, done=(RangeSet.parse("1-4"), RangeSet()), whole=(None, len(seqs[1])))
        task = ShardTask(get_pipeline("p"), "to", 1, lease.token, "run", division=some)
        confirmed, voted = task.merged(context, [3, 5])
    assert confirmed == RangeSet.of((seq, seq) for seq in (*seqs[0][1:5], *seqs[1]))
    assert voted == RangeSet.of((odd.index(seq), odd.index(seq)) for seq in (*seqs[0][:3], *seqs[1][:5]))


@pytest.mark.proves("C10")
@pytest.mark.parametrize("kind", ["parquet", "s3"])
def test_a_refused_write_takes_away_nothing_that_was_confirmed(kind: str, quick: Path, moto_server: MotoServer) -> None:
    """Given rows that no one Parquet file can hold together, behind some that are confirmed by then, then they are
    written in smaller pieces, and each row is there once."""
    target = Target(kind, quick, moto_server)
    target.pipeline()
    if kind == "s3":
        text = (quick / "include/pipelines/p.yaml").read_text()
        write_pipeline(quick, "p", text.replace("format: payload", "format: parquet"))
    (quick / "data").mkdir(exist_ok=True)
    values = [f"text {n}" if n % 90 == 89 else n for n in range(COUNT)]
    lines = [json.dumps({"k": f"key {n % 7}", "n": value}) for n, value in enumerate(values)]
    (quick / "data" / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    drive()
    if kind == "s3":
        client = moto_server.client("s3")
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{quick.parent.name}/").get("Contents", ())
        data = [client.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read() for each in found]
        client.close()
        there = [row for each in data for row in in_one(each)]
    else:
        there = in_parquet(quick, moto_server)
    assert sorted(str(row["n"]) for row in there) == sorted(map(str, values))


def in_one(data: bytes) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
    return rows
