"""Redis killed in the middle and started again with its append-only file; Redis that is not there at all."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.application import app
from conduit_tasks.settings import forget
from conduit_tasks.topology import UNTOLD
from tests.faults.forgetful import Forgetful
from tests.faults.parts import Receiver, account, drive, events
from tests.micro_batch.harness import payloads, run_once, write_pipeline
from tests.redis_server import RedisServer
from tests.waiting import until

COUNT, IN_FLIGHT = 2_000, 16
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: web
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {rate-limit: 1000, timeout: 5s, max-unconfirmed: 16, order-by: key}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
"""


@pytest.fixture
def on_own_redis(own_redis: RedisServer, quick: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONDUIT_REDIS_URL", own_redis.url)
    forget()
    return quick


@pytest.mark.proves("C9", "C10", "C11", "T1", "I5")
def test_redis_killed_in_mid_delivery_and_started_again_loses_nothing(
    on_own_redis: Path, own_redis: RedisServer, receiver: Receiver, acks: list[dict[str, Any]]
) -> None:
    # Given a delivery under way
    rows = events(on_own_redis / "data", COUNT)
    write_pipeline(on_own_redis, "p", PIPELINE.replace("URL", receiver.url))
    receiver.hold(300)
    with ThreadPoolExecutor(1) as pool:
        runs = pool.submit(drive)
        until(lambda: receiver.accepted() >= 300, "the middle of the delivery")
        # When Redis is killed, and started again a second and a half later
        own_redis.kill()
        assert receiver.accepted() < COUNT
        receiver.release()
        time.sleep(1.5)
        own_redis.start()
        # Then runs go on by themselves
        runs.result(240)
    seen = receiver.summary()
    assert (seen["accepted"], seen["out_of_order"]) == (COUNT, 0)
    assert seen["duplicates"] <= IN_FLIGHT + UNTOLD
    assert payloads(on_own_redis / "out/file.jsonl") == rows
    found = account()
    assert [d["delivered"] for d in found["destinations"].values()] == [COUNT, COUNT]
    assert acks


@pytest.mark.proves("C10", "T1", "I4", "I5")
def test_what_redis_forgot_of_its_last_moments_is_found_again_in_spool_and_source(
    on_own_redis: Path, own_redis: RedisServer, receiver: Receiver
) -> None:
    # Given three micro-batches, and the append-only file as it was after the first, then in the middle of the second
    write_pipeline(on_own_redis, "p", PIPELINE.replace("URL", receiver.url).replace("rate-limit: 1000, ", ""))
    rows = events(on_own_redis / "data", 100)
    drive()
    redis = Forgetful(own_redis)
    early = redis.log()
    rows += events(on_own_redis / "data", 100, 100)
    run_once("p")
    late = redis.log()
    assert len(late) > len(early)
    for known in (early, early + late[len(early) : (len(early) + len(late)) // 2]):
        # When a crash of the machine takes what Redis had not written yet, a torn command at its end among it
        redis.put_back(known)
        rows += events(on_own_redis / "data", 100, len(rows))
        drive()
        # Then the file has every record once, and HTTP every record
        assert payloads(on_own_redis / "out/file.jsonl") == rows
        assert receiver.accepted() == len(rows)
        account()


@pytest.mark.proves("T1")
@pytest.mark.parametrize("node", ["sources.in", "destinations.web"])
def test_an_unreachable_redis_is_named_without_its_password(
    node: str, quick: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_pipeline(quick, "p", PIPELINE.replace("URL", "http://127.0.0.1:9"))
    monkeypatch.setenv("CONDUIT_REDIS_URL", "redis://someone:sesame@127.0.0.1:1/0")
    forget()
    # When an application starts
    code = app.main(["--pipeline", "p", "--node", node, "--run", "r"])
    # Then it fails with the address, and never the password
    assert code == 1
    said = capfd.readouterr().err
    event = json.loads(said.strip().splitlines()[-1].removeprefix("conduit "))
    assert (event["event"], event["error"]) == ("failed", "BrokerUnavailable")
    assert "127.0.0.1:1" in event["reason"]
    assert "sesame" not in said
