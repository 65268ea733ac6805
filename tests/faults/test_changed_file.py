"""A pipeline file that changes while something is in flight: what is sealed goes where it was meant to go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.parts import Receiver, account, drive, events
from tests.micro_batch.harness import payloads, run_once, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file,
         settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, cloudevents.subject: "{{ .Payload.After.k }}"}}
      - id: web
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {timeout: 20s}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
"""
TRIGGER = '        trigger: {filters: [{exact: {subject: "3"}}]}\n'


@pytest.mark.proves("C10", "T3", "I6")
@pytest.mark.parametrize(("before", "after"), [("", TRIGGER), (TRIGGER, "")], ids=["added", "removed"])
def test_a_trigger_that_changes_decides_about_later_micro_batches_only(
    before: str, after: str, quick: Path, receiver: Receiver
) -> None:
    # Given a micro-batch that is sealed and not delivered
    text = PIPELINE.replace("URL", receiver.url)
    write_pipeline(quick, "p", text.replace("        delivery", f"{before}        delivery"))
    receiver.mode("down")
    rows = events(quick / "data", 70)
    run_once("p")
    # When the destination's trigger changes, and more is read
    write_pipeline(quick, "p", text.replace("        delivery", f"{after}        delivery"))
    rows += events(quick / "data", 70, 70)
    receiver.mode("up")
    drive()
    # Then each micro-batch went where its trigger said when it was sealed
    assert receiver.accepted() == 70 + 10
    assert account()["destinations"]["web"]["delivered"] == 80
    assert payloads(quick / "out/file.jsonl") == rows
