"""`conduit status` and what `conduit run` shows: once, again and again, and drawn where there is a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.cli.account import account, left
from conduit_tasks.cli.live import Course, Line, drawn, headline, lasting
from conduit_tasks.cli.main import app
from conduit_tasks.cli.places import place
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.operate.status import snapshot
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.record.counts import Counts
from conduit_tasks.topology import Destination
from tests.faults.parts import events
from tests.micro_batch.harness import here, plan_run, run_once, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 50}
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, partition-by: file}
      - {id: out, type: destination, plugin: file, settings: {path: out/all.jsonl}}
"""


@pytest.fixture
def delivered(home: Path) -> None:
    """`p` with thirty records of three files delivered."""
    write_pipeline(home, "p", PIPELINE)
    for name in ("a", "b", "c"):
        events(home / "data" / name, 10)
        (home / "data" / name / "a.jsonl").rename(home / "data" / f"{name}.jsonl")
    run_once("p")


def test_a_source_of_many_parts_tells_its_total_once(delivered: None) -> None:
    said = CliRunner().invoke(app, ["status", "p"])
    lines = said.stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("source"))
    parts = lines[start + 1 : start + 4]
    assert [re.split(r"  +", line.strip())[0] for line in parts] == ["in", "data/b.jsonl", "data/c.jsonl"]
    assert [line.count("30") for line in parts] == [1, 0, 0]
    assert all(line.index("data/") == parts[0].index("data/") for line in parts)


def test_what_some_of_several_tasks_have_confirmed_is_not_behind(delivered: None, home: Path) -> None:
    # Given a sealed micro-batch of ten records at a destination that delivers in two tasks
    (home / "data" / "d").mkdir()
    events(home / "data" / "d", 10)
    (home / "data" / "d" / "a.jsonl").rename(home / "data" / "d.jsonl")
    plan_run("p", "second")
    with opened("p", "second") as context:
        read_source(context, "in", here, 5.0)
        broker = context.broker
        m = broker.micro_batches.latest_sealed()
        with broker.leases.acquire("destinations.out", "test", ttl=60.0) as lease:
            assert broker.shards.divide("out", m, lease.token, by="partition", count=2, matched=10)
            # When one of them has confirmed four
            ranges = RangeSet(((0, 3),))
            broker.shards.confirm("out", m, lease.token, 0, ranges, Counts(matched=4, delivered=4), total=10)
    # Then six are behind
    (out,) = snapshot("p")["destinations"]
    assert (out["behind"], out["lag"]["records"]) == (1, 6)


@contextmanager
def terminal(*command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command on a terminal of its own, 120 letters wide; and the terminal's other end."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "LINES": "30", "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait(60)
        os.close(ours)


def until(end: int, wanted: str, seconds: float = 120.0) -> str:
    """Reads a terminal until it has shown this; letters only."""
    shown, deadline = "", time.monotonic() + seconds
    while not re.search(wanted, shown):
        assert time.monotonic() < deadline, f"{wanted} not in {shown}"
        if select.select([end], [], [], 1.0)[0]:
            shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(end, 65_536).decode(errors="replace"))
    return shown


def ended(process: subprocess.Popen[bytes], end: int, seconds: float = 120.0) -> int | None:
    """The exit code of a command whose terminal is read until then: a full one would hold it up."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([end], [], [], 0.2)[0]:
            with suppress(OSError):
                os.read(end, 65_536)
    return process.returncode


def test_a_destination_that_does_not_answer_is_named_with_its_answer_and_the_run(home: Path, delivered: None) -> None:
    web = '      - {id: web, type: destination, plugin: http, settings: {url: "http://127.0.0.1:1"}}\n'
    write_pipeline(home, "p", PIPELINE + web)
    events(home / "data", 20)
    run_once("p", "manual__1")
    said = CliRunner().invoke(app, ["status", "p"]).stdout
    (line,) = [line for line in said.splitlines() if line.startswith("web does not answer")]
    assert re.match(r"web does not answer since [-0-9]+ [:0-9]+ UTC, last tried [:0-9]+ by run manual__1: ", line)
    assert "Connection refused" in line
    assert "bottleneck: destinations.web: it does not answer; it is tried again" in said
    notes = {each.node: each.note for each in Course().look(snapshot("p"))}
    assert notes["destinations.web"].startswith("does not answer, oldest ")


@pytest.mark.slow
def test_on_a_terminal_a_watch_draws_each_node_with_its_bar_and_goes_on_living(home: Path, delivered: None) -> None:
    # Given a watch of a pipeline that has nothing to do
    with terminal(sys.executable, "-m", "conduit_tasks.cli", "status", "p", "--watch") as (process, end):
        until(end, r"p: running, 1 micro-batches sealed[\s\S]*destinations\.out +━+ +0 of 0")
        # When more is delivered
        events(home / "data", 20)
        run_once("p", "next")
        # Then it is drawn over what was there, until somebody interrupts it
        until(end, r"destinations\.out +━+ +20 of 20")
        process.send_signal(signal.SIGINT)
        assert ended(process, end) == 0


@pytest.mark.slow
def test_without_a_terminal_a_watch_prints_plain_lines_again(delivered: None) -> None:
    command = [sys.executable, "-m", "conduit_tasks.cli", "status", "p", "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        seen = 0
        for line in process.stdout:
            assert "\x1b" not in line
            seen += line.startswith("destination ")
            if seen == 2:
                break
        process.kill()


def test_rate_and_time_left_are_those_since_the_view_began(delivered: None) -> None:
    found = snapshot("p")
    course, at = Course(), found["at"]
    course.look(found)
    # Ten seconds later there are 100 more, of which 40 are delivered, and a micro-batch of 50 is being read
    found["totals"]["read"] += 100
    found["sources"][0] |= {"read": 130, "done": 130}
    found["destinations"][0] |= {"done": 70, "lag": {"records": 60, "age": 75.0}}
    found["unsealed"] = {"number": 2, "missing": ["sources.in"], "sources": {"in": {"planned": 50, "staged": 0}}}
    found["at"] = at + 10
    source, out = course.look(found)
    assert (source.done, source.goal, source.rate, source.left) == (100, 150, 10.0, 5.0)
    assert (out.done, out.goal, out.rate, out.left, out.note) == (40, 100, 4.0, 15.0, "oldest 75 s")
    assert headline(found) == "p: running, 1 micro-batches sealed, 2 is open and waits for sources.in"
    assert [lasting(s) for s in (41.2, 720, 12_600)] == ["41 s", "12 min", "3.5 h"]


@pytest.mark.parametrize("width", [80, 120])
def test_figures_are_whole_in_a_terminal_of_any_width_and_no_line_is_broken(delivered: None, width: int) -> None:
    found = snapshot("p")
    found["bottleneck"] = {"node": "destinations.out", "rule": "down", "why": "long " * 40, "waiting": ["sources.in"]}
    lines = [Line(f"destinations.some-{n}", 123_456, 1_234_567, 12_345.0, "oldest 75 s, 3 dead") for n in range(3)]
    tasks = {line.node: "running" for line in lines}
    with (console := Console(width=width, color_system=None)).capture() as shown:
        console.print(drawn(found, lines, tasks, width))
    first, second, *rest = shown.get().splitlines()
    assert first == "p: running, 1 micro-batches sealed"
    assert second.startswith("bottleneck: destinations.out: long")
    assert len(rest) == 3
    for line in rest:
        assert "123,456 of 1,234,567" in line
        assert "12,345/s" in line
        assert "2 min left" in line
        assert "running" in line
        assert ("3 dead" in line) is (width == 120)


def test_a_run_ends_by_saying_what_it_did_and_where_it_is(
    home: Path, delivered: None, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot("p")
    events(home / "data", 20)
    run_once("p", "next")
    account(get_pipeline("p"), before, snapshot("p"))
    said = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    assert ["in", "20", "data/*.jsonl"] in said
    (out,) = [line for line in said if line[0] == "out"]
    assert (out[1], out[-1]) == ("20", "out/all.jsonl")


def test_what_is_left_is_told_with_the_command_that_shows_it(delivered: None) -> None:
    found = snapshot("p")
    assert left(found) == []
    found["destinations"][0] |= {"dead": 3, "lag": {"records": 7, "age": 600.0}}
    assert left(found) == [
        "out is 7 records behind, the oldest for 10 min",
        "dead letters: 3; see `conduit dead-letters list p`",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "https://ann:hush@example.org:8443/hush?key=hush"}, "https://example.org:8443"),
        ({"url": "postgresql+psycopg2://ann:hush@db/x", "table": "orders"}, "orders"),
        ({"url": "http://[hush"}, ""),
        ({"path": "out/all.jsonl"}, "out/all.jsonl"),
        ({"message": "hush"}, "log"),
    ],
)
def test_a_place_is_told_without_a_secret(settings: dict[str, str], said: str) -> None:
    assert place(Destination("x", "builtin:log", settings)) == said
