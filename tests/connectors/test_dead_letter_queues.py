"""Dead letters at every destination that there is: a record that is refused arrives there once, with its error and its
position, and arrives at its own destination when it is redriven (SEMANTICS C14, T7, X2)."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.dead_letters import plugin as dead_letter_plugin
from conduit_tasks.dead_letters.handler import dead_letter_handler
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.operate.control import start
from conduit_tasks.record.jsons import DEPTH
from conduit_tasks.resend.redrive import redrive
from conduit_tasks.settings import settings
from conduit_tasks.topology import DeadLetterQueue, Delivery
from tests.connectors.places import PLACES, Place
from tests.delivery.test_dead_letters import letter
from tests.faults.parts import events
from tests.micro_batch.harness import payloads, run_once, state, write_pipeline

pytestmark = pytest.mark.xdist_group("moto")

SAID = "not on a Sunday, says the müller"
REFUSED = {"log": "drops them", "spark": "writes through the driver's session"}
"""Destinations that take none, and why (docs/pipeline-file.md)."""


def test_every_destination_that_there_is_is_tried_here() -> None:
    there = {name for name, found in registry.known().items() if found.destination is not None}
    assert there == {name.partition(",")[0] for name in PLACES} | REFUSED.keys()


PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}}}}
      - id: out
        type: destination
        plugin: file
        settings: {{path: out/good.jsonl, format: payload}}
        processors: [{processors}]
        dead-letter-queue: {{plugin: {plugin}, settings: {settings}, window-size: 0}}
"""
REFUSING = f"{{id: no, plugin: error, settings: {{message: '{SAID}'}}, condition: '{{{{ eq .Payload.After.n 2.0 }}}}'}}"


@pytest.fixture(params=PLACES)
def queue(request: pytest.FixtureRequest, home: Path) -> Place:
    return PLACES[request.param](home, request)


@pytest.mark.proves("C14", "C5", "X2", "I8")
def test_a_refused_record_arrives_as_a_letter_once_and_redriven_at_its_destination(home: Path, queue: Place) -> None:
    # Given a pipeline whose letters go there, and a record that is refused
    def write(processors: str) -> None:
        given = json.dumps(queue.settings)
        write_pipeline(home, "p", PIPELINE.format(processors=processors, plugin=queue.plugin, settings=given))

    write(REFUSING)
    rows = events(home / "data", 5)
    # When it runs
    said = run_once("p")
    # Then everything is acked but the one, whose letter is there once, whole
    assert state("p").deliveries.get("out").cursor == 1, said
    (stored,) = DeadLetterStore(settings().path(settings().dead_letters), "p").list()
    (there,) = queue.read()
    there = there.replace("\\u00fc", "ü")
    assert SAID in there
    assert stored["id"] in there, "whose letter it is"
    assert base64.b64encode(stored["position"]).decode() in there
    assert "destinations.out/no" in there
    # And when what was wrong is fixed, a redrive sends it where it belongs, from our copy
    write("")
    with opened("p", "operator") as context:
        (outcome,) = redrive(context, Selection(), "me", wait=60.0)
    assert (outcome.redriven, outcome.again) == (1, 0)
    assert sorted(row["n"] for row in payloads(home / "out/good.jsonl")) == [row["n"] for row in rows]
    assert len(queue.read()) == 1, "a redrive takes nothing out, and puts nothing in"


ONE = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {queue}
    processors: [{be}]
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out/good.jsonl, format: payload}},
          processors: [{at}]}}
"""


@pytest.mark.proves("T7", "C5", "I8")
@pytest.mark.parametrize("place", ["at a destination", "before the fan-out"])
def test_where_letters_cannot_be_stored_the_record_is_not_acked_and_goes_on_once_they_can(
    home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    # Given a place for letters that is away, and a record refused
    monkeypatch.setattr(dead_letter_plugin, "SENDS", Delivery(retry=1, backoff_delay=0.001))
    given = '{plugin: sql, settings: {url: "sqlite:///dead.db", table: letters}, window-size: 0}'
    text = ONE.format(queue=given, **{place[:2]: REFUSING, {"at": "be", "be": "at"}[place[:2]]: ""})
    write_pipeline(home, "p", text)
    rows = events(home / "data", 5)
    (home / "dead.db").mkdir()
    # When it runs
    # Then nothing of the record is confirmed, or acked, and it says why
    with pytest.raises(ConduitError, match=r"cannot be stored .*unable to open database file.* stay unacknowledged"):
        raise next(each for each in run_once("p").values() if isinstance(each, ConduitError))
    assert state("p").positions.acked("in") == {}
    assert state("p").dead_letters.count("out") + state("p").dead_letters.count("") == 0
    # And when it is back, everything goes on
    (home / "dead.db").rmdir()
    start("p")
    run_once("p", run="again")
    assert state("p").positions.acked("in") != {}
    assert sorted(row["n"] for row in payloads(home / "out/good.jsonl")) == [r["n"] for r in rows if r["n"] != 2]
    db = sqlite3.connect(home / "dead.db")
    assert db.execute("SELECT count(*) FROM letters").fetchall() == [(1,)]
    db.close()


@pytest.mark.proves("T8", "C14")
def test_letters_that_come_again_after_a_crash_are_the_same_and_others_beside_them_are_kept(
    home: Path, queue: Place
) -> None:
    # Given letters of two destinations about the same record, of records of all shapes
    def handler(destination: str) -> Any:
        made = DeadLetterQueue(queue.plugin, queue.settings)
        return dead_letter_handler(made, root=str(home / "store"), pipeline="flights", destination=destination)

    raw = replace(letter(6), record=replace(letter(6).record, after=b"\xff raw", key={"k": [1]}, before=None))
    odd = replace(letter(7), record=replace(letter(7).record, after={"n": "text", "o": {}}, metadata={}), index=None)
    deep: Any = 1
    for _ in range(DEPTH - 2):
        deep = [deep]
    worst = replace(letter(8, error="half a \udcff, none \0"), attempts=2**30)
    worst = replace(worst, record=replace(worst.record, after={"deep": deep, "big": 2**70, "none": "\0"}))
    handler("delays").store([letter(5), raw, odd, worst])
    handler("archive").store([replace(letter(5), node="destinations.archive")])
    # When the first are stored once more, as after a crash before they were confirmed
    handler("delays").store([letter(5), raw, odd, worst])
    # Then none of them has gone, and where a letter can be told by its id, it is there once
    found = queue.read()
    if queue.once:
        assert len(found) == 5
    assert len({_name(text) for text in found}) == 5


def _name(text: str) -> str:
    """The letter's own id, in whichever form it is written."""

    def inside(value: Any) -> Iterator[str]:
        if isinstance(value, str) and value.startswith(("{", "[")):
            try:
                value = json.loads(value)
            except ValueError:
                return
        if isinstance(value, dict):
            if "letter" in value:
                yield value["letter"]
            value = list(value.values())
        if isinstance(value, list | tuple):
            for each in value:
                yield from inside(each)

    return next(iter(inside(text)))
