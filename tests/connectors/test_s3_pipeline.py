"""A pipeline into a bucket, killed at every point of its way: each record is there once (C10, B8)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.connectors.s3.connector import S3Destination
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.pipeline.load import load_folder
from tests.connectors.moto_server import MotoServer
from tests.micro_batch.endings import end_at, home_of, lapse
from tests.micro_batch.harness import run_once, run_until_quiet, write_pipeline
from tests.micro_batch.test_whole import events

pytestmark = pytest.mark.xdist_group("moto")

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 12}
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - id: out
        type: destination
        plugin: s3
        settings: {bucket: killed, format: payload, records-per-object: "5", %s}
        delivery: {timeout: 50ms, max-redeliveries: 100, guarantee: effectively-once}
"""
CONDUITS = """
version: "2.2"
pipelines:
  - id: p
    status: running
    connectors:
      - id: in
        type: source
        plugin: "builtin:s3"
        settings:
          aws.accessKeyId: testing
          aws.secretAccessKey: a-secret-of-tests
          aws.region: eu-central-1
          aws.bucket: killed
          prefix: from/
          pollingPeriod: 1s
      - id: out
        type: destination
        plugin: "builtin:s3"
        settings:
          aws.accessKeyId: testing
          aws.secretAccessKey: a-secret-of-tests
          aws.region: eu-central-1
          aws.bucket: killed
          prefix: to/
          format: json
"""
OPERATIONS: list[tuple[type, str]] = [
    (S3Destination, "tidy"),
    (S3Destination, "_remove"),
    (S3Destination, "_put"),
    (Deliveries, "confirm"),
]


class Bucket:
    """What is in it, under a prefix for each try."""

    def __init__(self, server: MotoServer) -> None:
        self.client, self._settings, self.prefix = server.client("s3"), server.settings, ""
        self.client.create_bucket(Bucket="killed", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})

    def pipeline(self) -> str:
        settings = {**self._settings, "prefix": self.prefix}
        return PIPELINE % ", ".join(f'{name}: "{value}"' for name, value in settings.items())

    def objects(self, number: Callable[[Any], int] = itemgetter("n")) -> list[list[int]]:
        """The number of each record, object by object."""
        found = self.client.list_objects_v2(Bucket="killed", Prefix=self.prefix).get("Contents", ())
        data = [self.client.get_object(Bucket="killed", Key=each["Key"])["Body"].read() for each in found]
        return [[number(json.loads(line)) for line in each.splitlines()] for each in data]


@pytest.fixture
def bucket(moto: MotoServer) -> Iterator[Bucket]:
    made = Bucket(moto)
    yield made
    for each in made.client.list_objects_v2(Bucket="killed").get("Contents", ()):
        made.client.delete_object(Bucket="killed", Key=each["Key"])
    made.client.delete_bucket(Bucket="killed")
    made.client.close()


def run_and_die(runs: int, at: int) -> None:
    """Runs in which this process is killed before operation number `at`."""
    end_at(OPERATIONS, at)
    for number in range(runs):
        run_once("p", f"killed-{number}")


@pytest.mark.proves("C10", "B8", "I4")
def test_a_kill_at_any_point_leaves_every_record_once(
    home: Path, redis_server: Any, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    number = 0
    while True:
        number += 1
        redis_server.flush()
        this = home_of(home, number, monkeypatch.setenv)
        bucket.prefix = f"{number}/"
        write_pipeline(this, "p", bucket.pipeline())
        events(this / "data", "a.jsonl", 0, 14)
        try:
            in_child(run_and_die, 2, number)
            break
        except ChildDied:
            lapse()
            run_until_quiet("p")
            assert list(chain(*bucket.objects())) == list(range(14)), f"operation {number}"
    assert number > 9, "the kills cover the whole life of a micro-batch"


@pytest.mark.proves("C10", "B8")
def test_after_kills_in_the_first_write_pieces_of_other_sizes_take_the_place_of_what_is_there(
    home: Path, bucket: Bucket
) -> None:
    # Given a first piece that was written, and confirmed by nobody
    bucket.prefix = "first/"
    write_pipeline(home, "p", bucket.pipeline())
    events(home / "data", "a.jsonl", 0, 14)
    with pytest.raises(ChildDied):
        in_child(run_and_die, 1, 4)  # before it confirms
    lapse()
    assert bucket.objects() == [[0, 1, 2, 3, 4]]
    # When larger pieces are written, and killed between two of them, and then smaller ones
    write_pipeline(home, "p", bucket.pipeline().replace('records-per-object: "5"', 'records-per-object: "7"'))
    with pytest.raises(ChildDied):
        in_child(run_and_die, 1, 6)  # before the second piece is confirmed
    lapse()
    assert bucket.objects() == [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]
    write_pipeline(home, "p", bucket.pipeline().replace('records-per-object: "5"', 'records-per-object: "2"'))
    run_until_quiet("p")
    # Then only what was confirmed before has its size
    assert bucket.objects() == [[0, 1, 2, 3, 4, 5, 6], [7, 8], [9, 10], [11], [12, 13]]


@pytest.mark.proves("F1")
def test_a_conduit_file_from_bucket_to_bucket_runs_as_it_is(
    home: Path, bucket: Bucket, moto: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a file with Conduit's names of the plugin and of its settings, and objects that its source is to read
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.settings["endpoint-url"])
    bucket.prefix = "to/"
    for number in range(2):
        lines = "".join(json.dumps({"n": 5 * number + n}) + "\n" for n in range(5))
        bucket.client.put_object(Bucket="killed", Key=f"from/{number}.jsonl", Body=lines.encode())
    write_pipeline(home, "p", CONDUITS)
    assert load_folder(home / "include/pipelines", plugins=True).findings == []
    # When it runs, then the other bucket has each record
    run_until_quiet("p")
    found = bucket.objects(lambda record: record["payload"]["after"]["n"])
    assert list(chain(*found)) == list(range(10))
