"""A planned slice that cannot be read any more: the error's own advice works word by word, as does `missing: skip`."""

from __future__ import annotations

import json
import logging
import re
import shlex
from base64 import b64decode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.connectors.file.on_disk import part_and_life, place_of
from conduit_tasks.errors import Missing, NotStopped
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.operate.positions import positions
from tests.micro_batch.harness import here, run_once, run_until_quiet, state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 6}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, MORE}}
      - {id: out, type: destination, plugin: file, settings: {path: out/d.jsonl, format: opencdc}}
"""


def pipeline(home: Path, more: str = "missing: fail") -> None:
    write_pipeline(home, "p", PIPELINE.replace("MORE", more))


def write(home: Path, name: str, first: int, count: int) -> None:
    (home / "data").mkdir(exist_ok=True)
    (home / "data" / name).write_text("".join(f'{{"n": {n}}}\n' for n in range(first, first + count)))


def got(home: Path) -> list[int]:
    path = home / "out/d.jsonl"
    return (
        [json.loads(line)["payload"]["after"]["n"] for line in path.read_text().splitlines()] if path.exists() else []
    )


def places(home: Path) -> list[str]:
    return [json.loads(line)["position"] for line in (home / "out/d.jsonl").read_text().splitlines()]


def advice(error: object) -> list[list[str]]:
    """The commands that a message names, in its order."""
    return [shlex.split(words)[1:] for words in re.findall(r"`(conduit [^`]+)`", str(error))]


def follow(commands: list[list[str]]) -> None:
    for words in commands:
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, (words, result.output)


def vanish(home: Path, how: str) -> None:
    path = home / "data" / "b.jsonl"
    if how == "removed":
        path.unlink()
    elif how == "shortened":
        path.write_text('{"n": 99}\n')
    else:
        path.write_text("".join(f'{{"m": {n}}}\n' for n in range(100, 110)))


@pytest.mark.proves("C9", "I3")
@pytest.mark.parametrize("how", ["removed", "shortened"])
def test_following_the_advice_of_the_error_goes_on_without_what_is_gone(home: Path, how: str) -> None:
    """Given a file that is gone between plan and read, when an operator calls what the error says, literally, then
    everything else is delivered once and in order."""
    pipeline(home)
    write(home, "a.jsonl", 0, 3)
    write(home, "b.jsonl", 10, 3)
    write(home, "c.jsonl", 20, 5)
    plan_run("p", "first")
    vanish(home, how)
    for _ in range(2):
        with pytest.raises(Missing, match=r"data/b\.jsonl was (removed|shortened)") as caught:
            run_once("p")
    *once, start = advice(caught.value)[1:]
    assert [words[0] for words in [*once, start]] == ["stop", "positions", "start"]
    follow([*once, start])
    run_until_quiet("p")
    rest = [99] if how == "shortened" else []
    assert got(home) == [0, 1, 2, *rest, 20, 21, 22, 23, 24]


def test_the_advice_also_works_on_a_degraded_pipeline(home: Path) -> None:
    pipeline(home)
    write(home, "b.jsonl", 10, 3)
    write(home, "c.jsonl", 20, 1)
    plan_run("p", "first")
    vanish(home, "removed")
    with pytest.raises(Missing) as caught:
        run_once("p")
    with opened("p", "test") as context:
        context.broker.lifecycle.fail("sources.in", str(caught.value), "Missing")
    follow(advice(caught.value)[1:])
    run_until_quiet("p")
    assert got(home) == [20]


@pytest.mark.parametrize("how", ["removed", "shortened"])
def test_the_advice_also_works_where_something_is_in_flight(home: Path, how: str) -> None:
    """Given a sealed micro-batch that is not delivered beside the one that cannot be read, and another source that has
    staged its share of that, when the operator follows each error's advice, then all that is there arrives once."""
    pipeline(home)
    file = home / "include/pipelines/p.yaml"
    text = file.read_text().replace("max-records: 6}", "max-records: 6}\n    lag-budget: {records: 100}")
    other = "{id: other, type: source, plugin: file, settings: {path: other.jsonl, format: jsonl, settle: 0s}}"
    file.write_text(text.replace("connectors:", f"connectors:\n      - {other}"))
    (home / "other.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(100, 106)))
    write(home, "a.jsonl", 0, 3)
    for run, broken in (("first", False), ("second", True)):
        plan_run("p", run)
        if broken:
            vanish(home, how)
        with opened("p", run) as context:
            read_source(context, "other", here, 5.0)
            if not broken:
                read_source(context, "in", here, 5.0)
                write(home, "b.jsonl", 10, 2)
                continue
            with pytest.raises(Missing) as caught:
                read_source(context, "in", here, 5.0)
    force, positions_, start = advice(caught.value)[1:]
    follow([force])
    result = CliRunner().invoke(app, positions_)
    assert isinstance(result.exception, NotStopped)
    follow([[*words, "--no-wait"] if words[0] == "stop" else words for words in advice(result.exception)])
    run_until_quiet("p")
    follow([positions_, start])
    run_until_quiet("p")
    assert sorted(got(home)) == [0, 1, 2, *([99] if how == "shortened" else []), *range(100, 106)]
    broker = state("p")
    indexes = {s: broker.access.hash(broker.keys.index(s)) for s in ("in", "other")}
    broker.close()
    assert indexes == {"in": {"": str(3 + (how == "shortened"))}, "other": {"": "6"}}, "no index is left out"


def test_with_skip_set_afterwards_a_start_goes_on(home: Path) -> None:
    """The error's other advice: the setting, and `conduit start`."""
    pipeline(home)
    write(home, "b.jsonl", 10, 3)
    write(home, "c.jsonl", 20, 2)
    plan_run("p", "first")
    vanish(home, "removed")
    with pytest.raises(Missing, match="set `missing: skip` in the settings of in and call `conduit start p`") as caught:
        run_once("p")
    with opened("p", "test") as context:
        context.broker.lifecycle.fail("sources.in", str(caught.value), "Missing")
    pipeline(home, "missing: skip")
    follow(advice(caught.value)[:1])
    run_until_quiet("p")
    assert got(home) == [20, 21]


@pytest.mark.parametrize("how", ["removed", "shortened", "replaced"])
def test_what_is_passed_over_is_counted_logged_and_shown(
    home: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline(home, "missing: skip")
    write(home, "a.jsonl", 0, 1)
    write(home, "b.jsonl", 10, 3)
    write(home, "c.jsonl", 20, 2)
    plan_run("p", "first")
    vanish(home, how)
    with caplog.at_level(logging.WARNING):
        run_once("p")
    assert "data/b.jsonl" in caplog.text
    assert "3 records are passed over (missing: skip)" in caplog.text
    assert got(home) == [0, 20, 21]
    broker = state("p")
    assert broker.micro_batches.totals()["sources.in/skipped"] == 1
    assert broker.micro_batches.totals()["sources.in/read"] == 3
    broker.close()
    assert "in: 1 slices passed over" in CliRunner().invoke(app, ["status", "p"], catch_exceptions=False).output


def test_a_file_that_comes_back_as_another_one_is_neither_skipped_nor_taken_for_the_old(home: Path) -> None:
    """Given a file that was read and comes back under its name with other content: by default an error that names the
    ways out, with `missing: skip` a new file whose records have ids of their own."""
    pipeline(home)
    write(home, "b.jsonl", 10, 3)
    run_until_quiet("p")
    write(home, "b.jsonl", 50, 2)
    error = run_once("p")["plan"]
    assert isinstance(error, Missing)
    assert "shortened or replaced after 30 bytes" in str(error)
    assert advice(error)[0] == ["start", "p"]
    pipeline(home, "missing: skip")
    follow([["stop", "p"], ["start", "p"]])
    run_until_quiet("p")
    write(home, "b.jsonl", 70, 1)
    run_until_quiet("p")
    assert got(home) == [10, 11, 12, 50, 51, 70]
    assert len(set(places(home))) == 6
    assert positions("p")[0]["planned"]["data/b.jsonl"]["life"] == 2
    # And what is appended to it follows
    with (home / "data/b.jsonl").open("a") as file:
        file.write('{"n": 71}\n')
    run_until_quiet("p")
    assert got(home)[-2:] == [70, 71]


def test_a_file_whose_name_looks_like_another_ones_next_life_has_ids_of_its_own(home: Path) -> None:
    """Given files that end with a number sign and a number, and one that is replaced, then no two records share an id,
    and of each it is known whether it lies before a position."""
    pipeline(home, "missing: skip")
    write_pipeline(home, "p", PIPELINE.replace("MORE", "missing: skip").replace("*.jsonl", "*"))
    for n, name in enumerate(["b", "b#1", "b#1#0", "b#1#1"]):
        write(home, name, 10 * n, 2)
    run_until_quiet("p")
    for n, name in enumerate(["b", "b#1"]):
        write(home, name, 50 + 10 * n, 1)
    run_until_quiet("p")
    assert got(home) == [0, 1, 10, 11, 20, 21, 30, 31, 50, 60]
    assert len(set(places(home))) == 10
    source = FileSource({"path": "data/*", "format": "jsonl", "missing": "skip"})
    planned = positions("p")[0]["planned"]
    assert all(source.before(b64decode(place), planned) for place in places(home))
    assert not source.before(b"data/b#1:10", planned), "of its second life, not of the other file"
    assert not source.before(b"data/b#1#1:10", {**planned, "data/b#1#1": {"offset": 0}})
    assert not source.before(b"data/b#2:0", planned)
    assert source.before(b"data/b#1#1#0:9", planned)


@given(st.text("a#01", min_size=1), st.integers(0, 12))
def test_what_the_positions_begin_with_tells_file_and_life(part: str, life: int) -> None:
    assert part_and_life(place_of(part, life)) == (part, life)


def test_names_without_a_number_at_their_end_are_as_they_were() -> None:
    assert [place_of("data/a.csv", life) for life in (0, 1, 2)] == ["data/a.csv", "data/a.csv#1", "data/a.csv#2"]
    assert [place_of(name, 0) for name in ("#a", "a#b", "a#", "#1.csv")] == ["#a", "a#b", "a#", "#1.csv"]


def test_undoing_what_is_open_gives_indexes_and_positions_back(home: Path) -> None:
    pipeline(home)
    write(home, "a.jsonl", 0, 3)
    run_until_quiet("p")
    before = positions("p")[0]["planned"]
    write(home, "b.jsonl", 10, 3)
    plan_run("p", "second")
    with opened("p", "test") as context:
        assert context.broker.positions.before_unsealed("in").items() >= before.items()
        context.broker.lifecycle.force_stop()
        context.broker.micro_batches.undo_unsealed()
        context.broker.micro_batches.undo_unsealed()
        assert context.broker.positions.planned("in")["data/a.jsonl"] == before["data/a.jsonl"]
        assert context.broker.positions.planned("in")["data/b.jsonl"]["offset"] == 0
        context.broker.positions.place("in", context.broker.positions.planned("in"), {})
        assert context.broker.positions.planned("in") == {}
        context.broker.lifecycle.start()
        with pytest.raises(NotStopped):
            context.broker.positions.place("in", {}, {})
