"""Redis at its maxmemory: nothing new is read, and what is under way ends, which is what frees memory (C13, T1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from conduit_tasks.connectors.base import Slice
from conduit_tasks.errors import BrokerFull
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.operate import control
from conduit_tasks.operate.metrics import samples
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.settings import Settings, forget
from tests.changes.parts import conduit
from tests.faults.parts import account, drive, events
from tests.gateway.test_kills import valkey
from tests.micro_batch.harness import here, payloads, run_once, state, write_pipeline
from tests.redis_server import RedisServer

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 20}
    lag-budget: {records: 1000}
    spool: {retention: 0s}
    dead-letter-queue: {window-size: 0}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: a
        type: destination
        plugin: file
        settings: {path: out/a.jsonl, format: payload}
        processors: [{id: seven, plugin: error, condition: '{{ eq .Payload.After.n 7.0 }}'}]
"""


def destination(id: str) -> str:
    return (
        f"      - {{id: {id}, type: destination, plugin: file, settings: {{path: out/{id}.jsonl, format: payload}}}}\n"
    )


@pytest.fixture(params=["redis 6.2", "valkey 9.1"])
def server(request: pytest.FixtureRequest, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, quick: Path) -> Any:
    if request.param != "redis 6.2":
        own_redis.kill()
        own_redis.program = valkey()
        own_redis.start()
    monkeypatch.setenv("CONDUIT_REDIS_URL", own_redis.url)
    forget()
    return own_redis


def limit(server: RedisServer, size: int) -> None:
    client = redis.Redis(unix_socket_path=str(server.socket))
    client.config_set("maxmemory", size)
    client.close()


@pytest.mark.proves("C13", "C15", "I1", "I6")
@pytest.mark.parametrize("retention", ["0s", "24h"])
def test_a_full_redis_takes_nothing_new_and_lets_everything_under_way_end(
    quick: Path, server: RedisServer, retention: str
) -> None:
    # Given a micro-batch that is opened, and a Redis that is full from there on
    write_pipeline(quick, "p", PIPELINE.replace("retention: 0s", f"retention: {retention}"))
    rows = events(quick / "data", 20)
    assert plan_run("p", "r").micro_batch == 1
    limit(server, 1)
    # When the run goes on
    with opened("p", "r") as context:
        read_source(context, "in", here, 5.0)
    run_once("p", "r")
    # Then it is read, delivered with its dead letter, acked, and collected where nothing asks for it any more; that the
    # task ended well is known, for the day that it is cleared
    written = payloads(quick / "out/a.jsonl")
    assert written == [row for row in rows if row["n"] != 7]
    assert account()["destinations"]["a"]["dead"] == 1
    assert state("p").access.numbers("collected") == [int(retention == "0s")]
    assert state("p").redeliveries.run_finished("a", "r") == (retention != "0s")
    # And nothing new is read, which the run, the figures and whoever opens something are told
    rows += events(quick / "data", 20, 20)
    said = plan_run("p", "r")
    assert (said.work, said.micro_batch) == (False, None)
    assert "maxmemory" in said.reason
    assert "CONDUIT_REDIS_SHARE" in said.reason
    broker = state("p")
    found = {s.metric.name: s.value for s in samples([get_pipeline("p")], lambda _: broker)}
    assert float(str(found["broker_memory_ratio"])) > 1
    with opened("p", "r") as context, pytest.raises(BrokerFull, match="has reached its maxmemory"):
        context.broker.micro_batches.open({"in": [Slice("a", "a", None, 1, 1)]}, "c", 2)
    # And it stops and starts
    assert control.stop("p", deadline=60).status == "stopped"
    assert control.start("p") == "running"
    # When there is room again, then the rest is delivered
    limit(server, 0)
    drive()
    assert payloads(quick / "out/a.jsonl") == [row for row in rows if row["n"] != 7]
    broker.close()


@pytest.mark.proves("C13", "C10")
@pytest.mark.parametrize("section", ["source", "destination"])
def test_what_is_under_way_through_dedupe_ends_where_redis_is_full(
    quick: Path, server: RedisServer, section: str
) -> None:
    # Given duplicates in a micro-batch that is opened, and a Redis that is full from there on
    dedupe = "{id: once, plugin: dedupe, settings: {key: .Payload.After.k}}"
    given = PIPELINE.replace("processors: [", f"processors: [{dedupe}, ")
    if section == "source":
        given = PIPELINE.replace("settle: 0s, key: k}}", f"settle: 0s, key: k}}, processors: [{dedupe}]}}")
    assert dedupe in given
    write_pipeline(quick, "p", given)
    rows = events(quick / "data", 20)
    assert plan_run("p", "r").micro_batch == 1
    limit(server, 1)
    # When the run goes on
    run_once("p", "r")
    # Then the first of each are delivered, which frees memory
    assert payloads(quick / "out/a.jsonl") == rows[:7]
    assert state("p").access.numbers("collected") == [1]
    # And nothing new is taken in, whose keys would have to be remembered
    rows += events(quick / "data", 20, 20, "new-")
    assert plan_run("p", "s").micro_batch is None
    # When there is room again, then what came first is still known
    events(quick / "data", 7)
    limit(server, 0)
    drive()
    assert payloads(quick / "out/a.jsonl") == rows[:7] + rows[20:27]


@pytest.mark.proves("C13")
def test_a_destination_is_dropped_and_forgotten_where_redis_is_full(
    quick: Path, server: RedisServer, tmp_path: Path
) -> None:
    # Given a destination that lacks something, and a Redis that is full
    both = PIPELINE.replace("retention: 0s", "retention: 24h") + destination("b")
    write_pipeline(quick, "p", both)
    events(quick / "data", 20)
    drive()
    events(quick / "data", 20, 20)
    assert plan_run("p", "r").micro_batch == 2
    with opened("p", "r") as context:
        read_source(context, "in", here, 5.0)
    limit(server, 1)
    # When it leaves the file, and what is known of it goes for good, which frees memory
    without = tmp_path / "without.yaml"
    without.write_text(both.replace(destination("b"), ""))
    for word in ("--drop", "--forget"):
        result = conduit("apply", without, word, "b", "--yes", "--deadline", "0")
        assert result.exit_code == 0, (result.output, result.exception)
    # Then nothing of it is left, and the pipeline, which ran, was started again and goes on
    broker = state("p")
    assert broker.lifecycle.registered()[1] == ["a"]
    assert not [key for key in broker.redis.keys("*") if key.endswith((":b", ".b"))]
    assert broker.lifecycle.status().status == "running"
    run_once("p", "s")
    assert len(payloads(quick / "out/a.jsonl")) == 39
    broker.close()


def test_reading_stops_at_a_share_of_maxmemory(
    quick: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a Redis that uses half of what it may
    write_pipeline(quick, "p", PIPELINE)
    events(quick / "data", 20)
    client = connect(Settings())
    used = int(client.info("memory")["used_memory"])  # type: ignore[index, arg-type, call-overload]
    client.close()
    limit(server, 2 * used)
    # Then nothing is read where less than that is allowed, and otherwise it is
    monkeypatch.setenv("CONDUIT_REDIS_SHARE", "0.3")
    forget()
    assert "nothing new is read" in plan_run("p", "r").reason
    monkeypatch.setenv("CONDUIT_REDIS_SHARE", "0.9")
    forget()
    assert plan_run("p", "r").micro_batch == 1
