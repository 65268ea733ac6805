"""When a pipeline is woken: what a look sees, and how often it may wake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.micro_batch import wake
from conduit_tasks.micro_batch.wake import LEFT, LONGEST, Look, WakePace, Watch
from tests.micro_batch.harness import run_once, run_until_quiet, state, write_pipeline
from tests.redis_server import RedisServer

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    schedule: "@daily"
    wake: {wake}
    micro-batch: {{max-records: 4}}
    connectors:
      - {{id: lines, type: source, plugin: file, settings: {{path: "in/*.jsonl", format: jsonl}}}}
      - id: rest
        type: source
        plugin: generator
        settings: {{recordCount: "1", format.type: raw, format.options.n: int}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.jsonl}}}}
      - {{id: far, type: destination, plugin: file, settings: {{path: "{far}"}}}}
"""
NEWS, NOTHING = Look(("web",)), Look()


# --- the pace


def test_news_wake_at_once_and_again_only_after_the_pause() -> None:
    pace = WakePace(10)
    assert pace.wake(NOTHING, 0) == ""
    assert pace.wake(NEWS, 1) == "new in web"
    # When a run has read it and there is more at once, the pause is kept
    assert pace.wake(Look(("web",), progress=(1,)), 5) == ""
    assert pace.wake(Look(("web",), progress=(1,)), 11) == "new in web"


def test_after_a_quiet_time_news_wake_at_once_again() -> None:
    pace = WakePace(10)
    assert pace.wake(NEWS, 0)
    assert pace.wake(NOTHING, 2) == ""
    assert pace.wake(Look(("web", "disk"), progress=(1,)), 11) == "new in web, disk"


def test_a_wake_up_that_is_lost_comes_again_and_ever_more_rarely_while_nothing_comes_of_it() -> None:
    pace, woken = WakePace(10), []
    for second in range(2000):
        if pace.wake(NEWS, second):
            woken.append(second)
    assert woken[:5] == [0, 20, 60, 140, 300]
    assert {b - a for a, b in pairwise(woken[5:])} == {LONGEST}
    # When a run gets somewhere, the pause is the first one again
    assert pace.wake(Look(("web",), progress=(1,)), woken[-1] + 10) == "new in web"


def test_a_storm_of_news_is_a_wake_up_per_pause_at_most() -> None:
    pace = WakePace(10)
    woken = [t for t in range(1000) if pace.wake(Look(("web",), progress=(t,)), t)]
    assert len(woken) == 100


def test_what_is_left_over_wakes_when_nobody_works_on_it_any_more() -> None:
    pace = WakePace(10)
    left = Look(left=True, progress=(1,))
    assert [t for t in range(200) if pace.wake(left, t)] == [LEFT, 2 * LEFT, 3 * LEFT]
    # While it moves nobody is woken
    pace = WakePace(10)
    assert [t for t in range(200) if pace.wake(Look(left=True, progress=(t // 50,)), t)] == []


# --- the look


@pytest.fixture
def watching(home: Path) -> Iterator[Callable[..., Watch]]:
    opened: list[Watch] = []

    def watch(wake: str = "[lines]", far: str = "far.jsonl") -> Watch:
        write_pipeline(home, "p", PIPELINE.format(wake=wake, far=far))
        (home / "in").mkdir(exist_ok=True)
        opened.append(Watch.open("p"))
        return opened[-1]

    yield watch
    for each in opened:
        each.close()


def put(home: Path, name: str, count: int) -> None:
    side = home / "in" / f"{name}.side"
    side.write_text("".join(f'{{"n": {n}}}\n' for n in range(count)))
    side.rename(home / "in" / f"{name}.jsonl")


@pytest.mark.parametrize("wake", ["[lines]", "{}", "{sources: [lines], look: 5s, pause: 1m}"])
def test_a_file_is_news_until_all_of_it_is_planned(home: Path, watching: Callable[..., Watch], wake: str) -> None:
    # Given a pipeline that has never run
    watch = watching(wake)
    assert watch.look() == Look((), False, (0, 0, 0, 0, 0))
    # When more comes than one micro-batch holds
    put(home, "a", 6)
    assert watch.look().news == ("lines",)
    before = watch.look()
    run_once("p", "first")
    # Then a run gets somewhere, and the rest is news still
    assert watch.look().progress > before.progress
    assert (watch.look().news, watch.look().left) == (("lines",), False)
    run_until_quiet("p")
    assert (watch.look().news, watch.look().left) == ((), False)
    # And a look changed nothing
    with closing(state("p")) as broker:
        assert broker.micro_batches.latest_sealed() == 3


def test_what_a_destination_did_not_take_is_left(home: Path, watching: Callable[..., Watch]) -> None:
    # Given one of two destinations that cannot be written
    (home / "blocked").write_text("a file where a folder should be")
    watch = watching(far="blocked/far.jsonl")
    put(home, "a", 2)
    run_once("p", "first")
    # Then nothing is new, and something is left
    assert (watch.look().news, watch.look().left) == ((), True)
    # And it is not where the pipeline is stopped meanwhile: only a person starts it
    with closing(state("p")) as broker:
        broker.lifecycle.force_stop()
    put(home, "b", 2)
    assert watch.look() == Look()


@pytest.mark.proves("X7")
def test_a_redis_that_has_forgotten_something_wakes_its_pipeline(home: Path, watching: Callable[..., Watch]) -> None:
    """Given a Redis that is put back to before a micro-batch was sealed, and nothing new, then the pipeline is woken,
    as its next run brings the state back from the spool; and then no more."""
    watch = watching(far="far.jsonl")
    run_until_quiet("p")
    broker = state("p")
    keys = [key for key in broker.redis.scan_iter("*") if broker.redis.type(key) == "hash"]
    before = {key: broker.redis.hgetall(key) for key in keys}
    (home / "in").mkdir(exist_ok=True)
    (home / "in" / "a.jsonl").write_text('{"n": 1}\n')
    run_until_quiet("p")
    assert watch.look() == Look(progress=watch.look().progress)
    (home / "in" / "a.jsonl").unlink()
    broker.redis.flushall()
    for key, fields in before.items():
        broker.redis.hset(key, mapping=fields)
    broker.lifecycle.initialise()
    assert watch.look().left
    run_until_quiet("p")
    assert not watch.look().left
    broker.close()


def test_a_header_alone_and_an_unfinished_line_are_no_news(home: Path) -> None:
    from conduit_tasks.connectors.file.connector import FileSource

    source = FileSource({"path": "*.csv", "format": "csv", "settle": "1h"})
    (home / "a.csv").write_text("x,y\n")
    (home / "b.csv").write_text("x,y\n1,")
    assert source.news({}) is False
    (home / "b.csv").write_text("x,y\n1,2\n")
    assert source.news({}) is True


def test_a_redis_that_is_gone_is_told_and_found_again(home: Path, redis_server: RedisServer) -> None:
    write_pipeline(home, "p", PIPELINE.format(wake="{}", far="far.jsonl"))
    (home / "in").mkdir()
    watch = Watch.open("p")
    redis_server.kill()
    try:
        with pytest.raises(BrokerUnavailable):
            watch.look()
    finally:
        redis_server.start()
    assert watch.look().news == ()
    watch.close()


# --- a pipeline that runs without a pause


STREAM = """
version: "2.2"
pipelines:
  - id: p
    schedule: "@continuous"
    connectors:
      - {id: lines, type: source, plugin: file, settings: {path: "in/*.jsonl", format: jsonl}}
      - {id: out, type: destination, plugin: file, settings: {path: out.jsonl}}
"""


def test_a_pipeline_that_runs_without_a_pause_is_woken_where_no_run_is_under_way(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(home, "p", STREAM)
    with closing(state("p")) as broker, closing(Watch.open("p")) as watch:
        # A run may be on its way from its plan to its nodes
        assert not watch.look().over
        monkeypatch.setattr(wake, "OVER", 0.0)
        assert watch.look().over
        assert WakePace(10).wake(watch.look(), 0) == "no run is under way"
        broker.runs.begin("one", None, 0, lasts=True)
        before = watch.look().progress
        # Its tasks are on their way
        assert not watch.look().over
        broker.runs.tell_at_work("one", "sources.lines", 30.0, begins=True)
        assert not watch.look().over
        # When it was killed, or has ended
        broker.runs.tell_at_work("one", "sources.lines", 0)
        assert watch.look().over
        # But not where nobody wants it to run
        broker.lifecycle.force_stop()
        assert not watch.look().over
        broker.lifecycle.start()
        assert watch.look().over
        # And each run is progress: after the next one it is woken as soon as after the first
        broker.runs.begin("two", None, 0, lasts=True)
        assert watch.look().progress != before
