"""A target that is down, answers 503 for a while, or refuses some events: what each costs, and whom."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.errors import Unavailable
from conduit_tasks.operate.status import snapshot
from tests.faults.parts import Receiver, account, dead_letters, drive, events
from tests.micro_batch.harness import look, payloads, run_once, state, write_pipeline
from tests.waiting import until

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 100}
    dead-letter-queue: {window-size: 0}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: web
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {timeout: 20s, retry: 2, backoff-delay: 10ms, max-unconfirmed: 8, order-by: key}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
"""
ISOLATED = PIPELINE.replace("    micro-batch", "    isolate: true\n    lag-budget: {records: 1000}\n    micro-batch")


@pytest.mark.proves("C10", "C13", "T4", "T6", "X1")
@pytest.mark.parametrize(("text", "others_get"), [(PIPELINE, 100), (ISOLATED, 300)], ids=["together", "isolated"])
def test_a_destination_that_is_down_waits_with_its_cursor_unmoved_and_gets_everything_later(
    text: str, others_get: int, quick: Path, receiver: Receiver, acks: list[dict[str, Any]]
) -> None:
    # Given 300 events and a target that is down
    rows = events(quick / "data", 300)
    write_pipeline(quick, "p", text.replace("URL", receiver.url))
    receiver.mode("down")
    # When the pipeline runs four times
    said = [run_once("p", f"down-{n}") for n in range(4)]
    # Then the destination ends waiting each time, says why, and moves nothing
    assert all(isinstance(run["destinations.web"], Unavailable) for run in said)
    assert "503" in str(said[0]["destinations.web"])
    broker = state("p")
    assert (broker.deliveries.get("web").cursor, broker.lifecycle.status().status) == (0, "running")
    broker.close()
    assert dead_letters() == []
    assert acks == [], "nothing is acked while a destination waits"
    # And the other one has what was sealed: one micro-batch, or, isolated, everything within the lag budget
    assert payloads(quick / "out/file.jsonl") == rows[:others_get]
    # When the target is back
    receiver.mode("up")
    drive()
    # Then everything is delivered, once and in order
    seen = receiver.summary()
    assert (seen["accepted"], seen["duplicates"], seen["out_of_order"]) == (300, 0, 0)
    assert payloads(quick / "out/file.jsonl") == rows
    assert account()["destinations"]["web"]["delivered"] == 300
    assert acks


def with_outage(receiver: Receiver, begins: int, while_down: Callable[[], Any]) -> list[dict[str, Any]]:
    """Runs the pipeline; takes the target down once it has `begins` events, until `while_down` is true."""
    with ThreadPoolExecutor(1) as pool:
        receiver.hold(begins)
        runs = pool.submit(drive)
        until(lambda: receiver.accepted() >= begins, "the middle of the delivery")
        receiver.mode("down")
        receiver.release()
        until(while_down, "the outage to be felt")
        receiver.mode("up")
        return runs.result(240)


SLOW = PIPELINE.replace("max-records: 100", "max-records: 1000").replace(
    "timeout: 20s,", "timeout: 20s, rate-limit: 500,"
)


@pytest.mark.proves("C9", "T5", "T6", "T8", "T9")
def test_503_for_a_while_within_the_retries_costs_nobody_anything(quick: Path, receiver: Receiver) -> None:
    rows = events(quick / "data", 600)
    text = SLOW.replace("retry: 2, backoff-delay: 10ms", "retry: 2000, backoff-policy: constant, backoff-delay: 50ms")
    write_pipeline(quick, "p", text.replace("URL", receiver.url))
    # When the target answers 503 in the middle until at least 30 requests were refused
    runs = with_outage(receiver, 100, lambda: receiver.summary()["unavailable"] >= 30)
    # Then one run delivers all of it, each once and in order
    assert len(runs) == 2
    seen = receiver.summary()
    assert (seen["accepted"], seen["duplicates"], seen["out_of_order"]) == (600, 0, 0)
    found = account()["destinations"]["web"]
    assert (found["delivered"], found["nacked"]) == (600, 0)
    assert found["retried"] == seen["unavailable"]
    assert payloads(quick / "out/file.jsonl") == rows


@pytest.mark.proves("C9", "C10", "T6", "T7")
def test_503_beyond_the_retries_waits_dead_letters_nothing_and_goes_on_by_itself(
    quick: Path, receiver: Receiver, acks: list[dict[str, Any]]
) -> None:
    rows = events(quick / "data", 600)
    write_pipeline(quick, "p", SLOW.replace("URL", receiver.url))
    # When the target answers 503 for several runs
    refused = 3 * 8 * 4
    runs = with_outage(receiver, 100, lambda: receiver.summary()["unavailable"] >= refused)
    # Then some runs ended waiting
    waited = [run for run in runs if isinstance(run.get("destinations.web"), Unavailable)]
    assert waited
    # And afterwards everything is there, in order, none of it twice or among the dead letters
    seen = receiver.summary()
    assert (seen["accepted"], seen["duplicates"], seen["out_of_order"]) == (600, 0, 0)
    assert account()["destinations"]["web"]["delivered"] == 600
    assert dead_letters() == []
    assert payloads(quick / "out/file.jsonl") == rows
    assert len(acks) == 1


@pytest.mark.proves("C9", "C10", "T6", "T7")
@pytest.mark.parametrize("unavailable", ["wait", "dead-letter"])
def test_a_breaker_spares_a_target_that_is_down_over_runs_and_loses_nothing(
    quick: Path, receiver: Receiver, acks: list[dict[str, Any]], unavailable: str
) -> None:
    # Given a target that is down, and a breaker that opens at three failures
    rows = events(quick / "data", 600)
    more = f"timeout: 20s, on-unavailable: {unavailable}, breaker: {{failures: 3, pause: 1h, pause-max: 3h}},"
    text = PIPELINE.replace("timeout: 20s,", more).replace("retry: 2", "retry: 5")
    write_pipeline(quick, "p", text.replace("URL", receiver.url))
    receiver.mode("down")
    for run, (asked, hours) in enumerate([(3, 1), (1, 2), (1, 3), (1, 3)]):
        before = receiver.summary()["unavailable"]
        # When runs come, then the first opens it, or tries one record; the others send nothing, and need no JVM
        said = [run_once("p", f"r{run}-{n}")["destinations.web"] for n in range(3)]
        assert isinstance(said[0], Unavailable)
        assert all("web waits: its breaker is open" in each for each in said[1:])
        assert asked <= receiver.summary()["unavailable"] - before <= asked + (7 if run == 0 else 0)
        work = look("p", "destinations.web", f"r{run}-x")
        assert (work.submit, work.over) == (False, True)
        [left] = re.findall(r"one record is tried in (\d+) s", work.reason)
        assert 3600 * (hours - 1) < int(left) <= 3600 * hours
        assert look("p", "destinations.web", f"r{run}-x", cleared=True).submit
        # And it is shown
        status = CliRunner().invoke(app, ["status", "p"])
        assert re.search(r"web waits: its breaker is open: \d+ sends in a row failed", status.output)
        assert "503" in status.output
        over()
    assert dead_letters() == []
    assert acks == []
    # And when the target is back, all of it arrives once and in order, and the breaker is closed
    receiver.mode("up")
    drive()
    seen = receiver.summary()
    assert (seen["accepted"], seen["duplicates"], seen["out_of_order"]) == (600, 0, 0)
    assert payloads(quick / "out/file.jsonl") == rows
    assert "breaker" not in CliRunner().invoke(app, ["status", "p"]).output
    assert snapshot("p")["destinations"][0]["breaker"] is None
    assert dead_letters() == []


def over() -> None:
    """Lets the pause of the breaker be over."""
    broker = state("p")
    key = broker.keys.destination("web")
    kept = json.loads(broker.access.hash(key)["breaker"])
    broker.redis.hset(key, "breaker", json.dumps(kept | {"until": "1"}))
    broker.close()


@pytest.mark.proves("T7")
def test_on_unavailable_dead_letter_gives_the_document_literally(quick: Path, receiver: Receiver) -> None:
    events(quick / "data", 50)
    text = PIPELINE.replace("timeout: 20s,", "timeout: 20s, on-unavailable: dead-letter,").replace(
        "retry: 2", "retry: 1"
    )
    write_pipeline(quick, "p", text.replace("URL", receiver.url))
    receiver.mode("down")
    # When the target is down through one run
    drive()
    # Then every record went to the dead letters after its attempts, and is acked
    letters = dead_letters()
    assert [letter["seq"] for letter in letters] == list(range(50))
    assert {(letter["error_class"], letter["attempts"]) for letter in letters} == {("http 503", 2)}
    assert account()["destinations"]["web"]["nacked"] == 50


@pytest.mark.proves("C5", "C9", "C14", "T6", "T7", "I8", "I10")
def test_every_hundredth_event_refused_is_dead_lettered_alone_and_the_rest_flows(
    quick: Path, receivers: Callable[..., Receiver], acks: list[dict[str, Any]]
) -> None:
    # Given 1,000 events of which every hundredth is refused with 400
    receiver = receivers("--refuse", "bad=1")
    rows = []
    for start in range(0, 1000, 100):
        rows += events(quick / "data", 1, start, bad=1) + events(quick / "data", 99, start + 1)
    write_pipeline(quick, "p", PIPELINE.replace("max-records: 100", "max-records: 400").replace("URL", receiver.url))
    # When it runs
    drive()
    # Then exactly those are dead letters, whole, each with its status after one attempt
    letters = dead_letters(destination="web")
    assert [letter["record"]["payload"]["after"]["n"] for letter in letters] == list(range(0, 1000, 100))
    assert {(letter["error_class"], letter["attempts"]) for letter in letters} == {("http 400", 1)}
    assert {letter["node"] for letter in letters} == {"destinations.web"}
    # And the rest flowed, in order, and the sums come out
    seen = receiver.summary()
    assert (seen["accepted"], seen["refused"], seen["duplicates"], seen["out_of_order"]) == (990, 10, 0, 0)
    found = account()["destinations"]
    assert (found["web"]["delivered"], found["web"]["nacked"]) == (990, 10)
    assert payloads(quick / "out/file.jsonl") == rows
    assert len(acks) == 3


@pytest.mark.proves("T6")
def test_refused_complete_counts_the_refused_ones_as_completed(quick: Path, receivers: Callable[..., Receiver]) -> None:
    receiver = receivers("--refuse", "bad=1")
    events(quick / "data", 95)
    events(quick / "data", 5, 95, bad=1)
    text = PIPELINE.replace("timeout: 20s,", "timeout: 20s, refused: complete,")
    write_pipeline(quick, "p", text.replace("URL", receiver.url))
    drive()
    found = account()["destinations"]["web"]
    assert (found["delivered"], found["completed"], found["nacked"]) == (95, 5, 0)
    assert dead_letters() == []
    assert receiver.summary()["refused"] == 5
