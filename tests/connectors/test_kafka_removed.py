"""A topic that is deleted while records of it are planned, or sealed and not yet acked."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.kafka.source import KafkaSource
from conduit_tasks.errors import AckFailed, Missing, Unavailable
from conduit_tasks.micro_batch.plan import plan_run
from tests.connectors.kafka import Kafka, records
from tests.micro_batch.harness import payloads, run_once, run_until_quiet, state, write_pipeline
from tests.micro_batch.test_missing import advice, follow

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - id: in
        type: source
        plugin: kafka
        settings: {servers: "SERVERS", topics: "TOPICS", readFromBeginning: "true", timeout: 6s, on-lost: LOST}
      - {id: out, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
"""


def numbers(first: int, count: int) -> list[bytes]:
    return [b'{"n": %d}' % n for n in range(first, first + count)]


def unreachable(self: KafkaSource, position: object) -> None:
    raise Unavailable("not now")


def planned(home: Path, kafka: Kafka, lost: str) -> str:
    """A topic that stays and one that is deleted, each with three records that are planned; the one that stays."""
    kept, gone = kafka.topic(prefix="kept"), kafka.topic(prefix="gone")
    kafka.put(kept, numbers(0, 3))
    kafka.put(gone, numbers(10, 3))
    text = PIPELINE.replace("SERVERS", kafka.servers).replace("TOPICS", f"{kept}, ^{gone}").replace("LOST", lost)
    write_pipeline(home, "p", text)
    assert plan_run("p", "first").work
    kafka.remove(gone)
    return kept


def test_a_topic_that_was_deleted_before_it_was_read_is_an_error_with_ways_out_that_work(
    home: Path, kafka: Kafka
) -> None:
    # Given a micro-batch with records of a topic that is deleted
    kept = planned(home, kafka, "fail")
    # When it is read
    with pytest.raises(Missing, match=r"gone-.*:0 is gone, the topic was deleted.*`on-lost: skip`") as failed:
        run_until_quiet("p")
    # Then the commands that the error names let the pipeline go on with the other topic
    commands = [words for words in advice(failed.value) if words[0] != "start"] + [["start", "p"]]
    assert [words[0] for words in commands] == ["stop", "positions", "start"]
    follow(commands)
    kafka.put(kept, numbers(3, 2))
    run_until_quiet("p")
    assert [line["n"] for line in payloads(home / "out/file.jsonl")] == [0, 1, 2, 3, 4]


def test_a_topic_that_was_deleted_before_it_was_read_is_passed_over_where_asked(
    home: Path, kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    kept = planned(home, kafka, "skip")
    with caplog.at_level(logging.WARNING):
        run_until_quiet("p")
    assert "3 offsets are passed over" in caplog.text
    kafka.put(kept, numbers(3, 2))
    run_until_quiet("p")
    assert [line["n"] for line in payloads(home / "out/file.jsonl")] == [0, 1, 2, 3, 4]


def test_a_topic_that_was_deleted_before_its_records_are_acked_holds_nothing_up(
    home: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delivered micro-batch of two topics, and one of a single topic, whose topics are deleted before the ack
    for topics in (2, 1):
        names = [kafka.topic(prefix=f"gone{topics}") for _ in range(topics)]
        for name in names:
            kafka.put(name, numbers(topics, 1))
        text = PIPELINE.replace("SERVERS", kafka.servers).replace("TOPICS", f"^gone{topics}").replace("LOST", "fail")
        write_pipeline(home, "p", text)
        with monkeypatch.context() as away:
            away.setattr(KafkaSource, "ack", unreachable)
            with pytest.raises(AckFailed):
                run_once("p", "before")
        for name in names:
            kafka.remove(name)
        # Then the ack finds nothing to tell, once its pause after a failure is over
        deadline = time.monotonic() + 60
        while state("p").positions.acked("in") != state("p").positions.planned("in"):
            assert time.monotonic() < deadline
            run_once("p", "after")
    assert sorted(line["n"] for line in payloads(home / "out/file.jsonl")) == [1, 2, 2]


@pytest.mark.slow
def test_further_slices_of_a_topic_that_is_gone_do_not_wait_for_it_again(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.put(topic, numbers(0, 6))
    source = kafka.source(topic, on_lost="skip", timeout="20s")
    [whole] = source.plan({}, Limit())
    kafka.remove(topic)
    assert records(source, [whole]) == []
    reader = source._reader
    assert reader is not None
    asked: list[object] = []
    reader._seek = lambda *slice: asked.append(slice)  # type: ignore[method-assign]
    assert records(source, [whole]) == []
    assert asked == []
    assert source.skipped == 2
