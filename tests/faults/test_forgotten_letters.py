"""Redis forgets dead letters and parked keys of which it knew others: none stays closed (SEMANTICS X7, C14)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.micro_batch import rebuild
from tests.faults.forgetful import Forgetful, broker
from tests.faults.parts import drive
from tests.micro_batch.harness import payloads, run_once, state, write_pipeline

__all__ = ["broker"]

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {window-size: 0}
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}
        processors: [{id: early, plugin: error, condition: '{{ eq .Payload.After.bad "early" }}'}]
      - id: a
        type: destination
        plugin: file
        settings: {path: out/a.jsonl, format: payload}
        delivery: {order-by: key, park-keys: PARKS}
        processors: [{id: late, plugin: error, condition: '{{ eq .Payload.After.bad "late" }}'}]
"""


class Source:
    """The file that is read; `kept`: what is in order of its records."""

    def __init__(self, home: Path, parks: bool) -> None:
        write_pipeline(home, "p", PIPELINE.replace("PARKS", str(parks).lower()))
        self.folder, self.count = home / "data", 0
        self.folder.mkdir()

    def put(self, *rows: tuple[str, str]) -> None:
        """(key, what fails it)."""
        with (self.folder / "a.jsonl").open("a") as file:
            for key, bad in rows:
                file.write(json.dumps({"n": self.count, "k": key, "bad": bad}) + "\n")
                self.count += 1


def letters(destination: str) -> list[tuple[int, int]]:
    """Micro-batch and number of each that can be sent again."""
    found = state("p")
    try:
        return [(entry.micro_batch, entry.seq) for entry in found.dead_letters.entries(destination)]
    finally:
        found.close()


def delivered(home: Path, key: str) -> list[int]:
    return [row["n"] for row in payloads(home / "out/a.jsonl") if row["k"] == key]


@pytest.mark.proves("X7", "C14")
@pytest.mark.parametrize("part", range(5))
def test_letters_of_the_second_that_redis_forgot_are_open_beside_the_older_ones(
    quick: Path, broker: Forgetful, part: int
) -> None:
    # Given dead letters before the fan-out and at a destination, and more in a second of which Redis keeps a part
    source = Source(quick, parks=False)
    source.put(("x", "early"), ("y", "late"), ("z", ""))
    drive()
    early = broker.log()
    source.put(("x", "early"), ("y", "late"), ("z", ""))
    run_once("p")
    late = broker.log()
    # When that part is what is left of it
    broker.put_back(early + late[len(early) : len(early) + (len(late) - len(early)) * part // 4])
    drive()
    # Then all can be sent again
    assert [m for m, _ in letters("")] == [1, 2]
    assert letters("a") == [(1, 1), (2, 1)]
    assert delivered(quick, "z") == [2, 5]


@pytest.mark.proves("X7", "C9")
def test_keys_that_were_parked_since_an_older_copy_keep_their_order(quick: Path, broker: Forgetful) -> None:
    # Given a copy of Redis that knows one parked key, after which two more were parked, with records behind them
    source = Source(quick, parks=True)
    source.put(("A", "late"), ("B", ""), ("C", ""))
    drive()
    copy = broker.log()
    source.put(("B", "late"), ("B", ""), ("C", "late"), ("A", ""))
    drive()
    source.put(("B", ""), ("C", ""))
    drive()
    # When it is put back, and more comes of each
    broker.put_back(copy)
    source.put(("A", ""), ("B", ""), ("C", ""), ("D", ""))
    drive()
    # Then none overtakes, and a redrive after the cause is fixed brings each key in its order
    assert [delivered(quick, key) for key in "ABCD"] == [[], [1], [2], [12]]
    for file in (quick / "include" / "pipelines").iterdir():
        file.write_text(file.read_text().replace("eq .Payload.After.bad", "eq .Payload.After.k"))
    done = CliRunner().invoke(app, ["dead-letters", "redrive", "p"])
    assert done.exit_code == 0, done.output
    drive()
    assert [delivered(quick, key) for key in "ABCD"] == [[0, 6, 9], [1, 3, 4, 7, 10], [2, 5, 8, 11], [12]]


@pytest.mark.proves("X7", "I5")
def test_letters_are_brought_back_whole_where_the_first_attempt_was_cut_off(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a Redis that has forgotten letters, and a rebuild that is cut off when it has written one of two
    source = Source(quick, parks=False)
    source.put(("x", "late"), ("z", ""))
    drive()
    copy = broker.log()
    source.put(("x", "late"), ("y", "late"), ("z", ""))
    drive()
    broker.put_back(copy)
    write, written = rebuild._write, list[Any]()

    def cut_off(rebuilt: Any, nonce: str, each: Any, rest: list[str], **more: Any) -> None:
        if rest and list(each) == [rebuilt.keys.dead("a")]:
            if written:
                raise BrokerUnavailable("cut off")
            written.append(rest)
        write(rebuilt, nonce, each, rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "PORTION", 1)
        patch.setattr(rebuild, "portions", lambda items: ([item] for item in items))
        patch.setattr(rebuild, "_write", cut_off)
        with pytest.raises(BrokerUnavailable):
            run_once("p")
    assert len(letters("a")) == 2
    # When it is done again
    assert CliRunner().invoke(app, ["broker", "rebuild", "p", "--replace"]).exit_code == 0
    drive()
    # Then they are all there
    assert letters("a") == [(1, 0), (2, 0), (2, 1)]
