"""Positions are shown, and set while a pipeline stands still (issue's API: positions)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.errors import ConfigError, Fenced, NotStopped
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.operate import control, positions
from tests.micro_batch.harness import run_once, run_until_quiet, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 5}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: out, type: destination, plugin: file, settings: {path: out/d.jsonl, format: opencdc}}
"""
LINE = len('{"n": 0}\n')
PART = "data/a=1.jsonl"


def at(records: int) -> str:
    """What to write after `--set` for a position behind so many records."""
    return f'{PART}={{"offset": {records * LINE}}}'


def planned() -> int:
    """How many records the source is planned up to."""
    return int(positions.positions("p")[0]["planned"][PART]["offset"]) // LINE


@pytest.fixture
def pipeline(home: Path) -> Path:
    write_pipeline(home, "p", PIPELINE)
    (home / "data").mkdir()
    (home / "data/a=1.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(8)))
    return home


def got(home: Path) -> list[tuple[int, str]]:
    """Number and position of each record that arrived: what its id is made of."""
    rows = [json.loads(line) for line in (home / "out/d.jsonl").read_text().splitlines()]
    return [(r["payload"]["after"]["n"], r["position"]) for r in rows]


def conduit(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.proves("T8")
def test_a_position_that_is_set_back_sends_again_what_lies_behind_it_with_the_same_ids(pipeline: Path) -> None:
    run_until_quiet("p")
    first = got(pipeline)
    assert [n for n, _ in first] == list(range(8))
    conduit("stop", "p")
    (shown,) = json.loads(conduit("positions", "p", "--format", "json"))
    assert (shown["id"], planned()) == ("in", 8)
    assert shown["acked"] == shown["planned"]
    assert str(shown["planned"][PART]["crc"]) in conduit("positions", "p")
    # A dry run says what would change, and changes nothing
    assert f'{{"offset": {5 * LINE}}}' in conduit("positions", "p", "--source", "in", "--set", at(5), "--dry-run")
    assert planned() == 8
    # When it is set, twice
    said = [conduit("positions", "p", "--source", "in", "--set", at(5)) for _ in range(2)]
    assert "back: conduit positions p --source in --set" in said[0]
    assert "back:" not in said[1]
    # Then what lies behind comes again, and the source was not told less than before
    conduit("start", "p")
    run_until_quiet("p")
    assert got(pipeline) == first + first[5:]
    assert positions.positions("p")[0] == shown


def test_what_is_jumped_over_is_never_read_and_a_forgotten_part_begins_anew(pipeline: Path) -> None:
    run_once("p")
    control.stop("p", wait=False)
    run_until_quiet("p")
    positions.place("p", "in", {PART: {"offset": 7 * LINE}})
    control.start("p")
    run_until_quiet("p")
    assert [n for n, _ in got(pipeline)] == [0, 1, 2, 3, 4, 7]
    control.stop("p", wait=False)
    run_until_quiet("p")
    assert "back: conduit" in conduit("positions", "p", "--source", "in", "--forget", PART)
    control.start("p")
    run_until_quiet("p")
    assert [n for n, _ in got(pipeline)] == [0, 1, 2, 3, 4, 7, *range(8)]


def test_a_pipeline_that_works_or_has_something_in_flight_is_left_alone(pipeline: Path) -> None:
    run_until_quiet("p")
    with pytest.raises(NotStopped, match=r"is running; .*`conduit stop p`"):
        positions.place("p", "in", {PART: {"offset": 0}})
    with opened("p", "test") as context:
        # Nor is what it has open touched
        dropped: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(context.broker.micro_batches), "drop_unsealed", lambda _: dropped.append(1))
            with pytest.raises(NotStopped):
                positions.place("p", "in", {PART: {"offset": 0}})
        assert not dropped
    control.stop("p", wait=False)
    run_until_quiet("p")
    with opened("p", "test") as context:
        # Sealed and not acked: what a forceful stop leaves, and no mark in the spool says otherwise
        for mark in (context.settings.home / ".conduit/spool/p/checkpoint").glob("acks.in-*"):
            mark.unlink()
        acked = context.broker.redis.hget(context.broker.keys.ack("in"), "m")
        context.broker.redis.hset(context.broker.keys.ack("in"), "m", "0")
        with pytest.raises(NotStopped, match="acked up to micro-batch 0 of 2"):
            positions.place("p", "in", {PART: {"offset": 0}})
        context.broker.redis.hset(context.broker.keys.ack("in"), "m", str(acked))
        # Somebody else was quicker
        with pytest.raises(Fenced, match="was moved meanwhile"):
            context.broker.positions.place("in", {PART: {"offset": LINE}}, {PART: {"offset": 0}})
    assert planned() == 8


def test_wrong_words_are_named(pipeline: Path) -> None:
    run_until_quiet("p")
    control.stop("p", wait=False)
    run_until_quiet("p")
    with pytest.raises(ConfigError, match="no source inn; it has in"):
        positions.place("p", "inn", {})
    with pytest.raises(ConfigError, match=r"no part 'b'; it has data/a=1\.jsonl"):
        positions.place("p", "in", {"b": 0})
    with pytest.raises(ConfigError, match=r"'x' cannot be the position of .*, which is .*offset.* now"):
        positions.place("p", "in", {PART: "x"})
    for words, said in (
        (["--set", "a=1"], "need --source"),
        (["--source", "in", "--set", "a"], "PART=TOKEN"),
    ):
        result = CliRunner().invoke(app, ["positions", "p", *words])
        assert said in str(result.exception)
