"""A source, or a file of it, that cannot be read is left out; the others are read as if it were not there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from conduit_tasks.airflow import tasks
from conduit_tasks.broker.broker import Broker
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.file import on_disk as file_open
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.errors import ConfigError, InvariantBroken, PartLeftOut, SourceError, Unavailable
from conduit_tasks.micro_batch import draining
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.recovery import counting
from conduit_tasks.micro_batch.wake import Watch
from tests.micro_batch.harness import lines, run_once, run_until_quiet, state, write_pipeline

LONGEST = 4 << 20
PIPELINE = """version: "2.2"
pipelines:
  - id: p
    status: running
    error-recovery: {{min-delay: {delay}, max-delay: {delay}, max-retries: {retries}}}
    connectors:
      - id: bad
        type: source
        plugin: file
        settings: {{path: "bad/*.jsonl", format: jsonl, settle: 0s{more}}}
      - id: good
        type: source
        plugin: file
        settings: {{path: "good/*.jsonl", format: jsonl, settle: 0s}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.jsonl, format: payload}}}}
"""


def put(path: Path, *records: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.writelines(f'{{"n": "{r}"}}\n' for r in records)


@pytest.fixture
def endless(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`bad/b.jsonl` has one record, and then no line end within what a record may hold; `good` has two."""
    monkeypatch.setattr(file_open, "MAX_RECORD", LONGEST)
    put(home / "bad/b.jsonl", "b")
    with (home / "bad/b.jsonl").open("a") as file:
        file.write("x" * (LONGEST + (4 << 20)))
    put(home / "good/g.jsonl", "g1", "g2")
    return home


def pipeline(home: Path, more: str = "", delay: str = "1ms", retries: int = 20) -> Broker:
    write_pipeline(home, "p", PIPELINE.format(more=more, delay=delay, retries=retries))
    return state("p")


def out(home: Path) -> set[str]:
    return {line.split('"')[3] for line in lines(home / "out.jsonl")}


@pytest.mark.proves("C16")
def test_a_file_without_a_line_end_holds_up_what_follows_it_and_no_other_source(endless: Path) -> None:
    put(endless / "bad/a.jsonl", "a")
    put(endless / "bad/c.jsonl", "c")
    broker = pipeline(endless)
    # When there is a run, all is read that lies before it, and all of the other source
    run_once("p")
    assert out(endless) == {"a", "b", "g1", "g2"}
    # Then the failure is kept, under the source's name, and names the file and the byte
    assert broker.lifecycle.status().status == "recovering"
    assert [f.node for f in broker.failures.failing(*broker.lifecycle.nodes())] == ["plan.bad"]
    assert (
        "bad/b.jsonl has no end of a record within 4 MiB from byte 11"
        in broker.failures.failing("plan.bad")[0].error.error
    )
    # When the other source has more, it goes on
    put(endless / "good/g.jsonl", "g3")
    run_once("p")
    assert "g3" in out(endless)
    # When nothing else is to be done, the run fails by it
    error = run_once("p")["plan"]
    assert isinstance(error, SourceError)
    assert "take the file away" in str(error)
    # When the file is taken away, what it held up goes on, and nothing is wrong any more
    (endless / "bad/b.jsonl").rename(endless / "b")
    run_until_quiet("p")
    assert out(endless) == {"a", "b", "c", "g1", "g2", "g3"}
    assert broker.lifecycle.status().status == "running"
    broker.close()


def test_between_files_without_an_order_it_holds_up_none(endless: Path) -> None:
    put(endless / "bad/c.jsonl", "c")
    broker = pipeline(endless, ", partition-by: file", delay="1h")
    run_once("p")
    put(endless / "bad/c.jsonl", "d")
    run_once("p")
    assert out(endless) == {"b", "c", "d", "g1", "g2"}, "a part that is left out is not waited for"
    assert broker.failures.failing("plan.bad")[0].failures == 1, "before its delay is over, it is no further failure"
    broker.close()


def test_a_file_whose_name_is_not_utf8_is_named_and_holds_up_no_other(home: Path) -> None:
    nameless = Path(os.fsdecode(os.fsencode(home / "bad") + b"/b\xff.jsonl"))
    put(home / "bad/a.jsonl", "a")
    put(nameless, "b")
    put(home / "bad/c.jsonl", "c")
    put(home / "good/g.jsonl", "g")
    broker = pipeline(home)
    run_once("p")
    # Then all others are read, also those behind it in the order of names
    assert out(home) == {"a", "c", "g"}
    assert r"the name of 'bad/b\udcff.jsonl' is not UTF-8" in broker.failures.failing("plan.bad")[0].error.error
    # When it is renamed, it is read, and nothing is wrong any more
    nameless.rename(home / "bad/b.jsonl")
    run_until_quiet("p")
    assert out(home) == {"a", "b", "c", "g"}
    assert broker.lifecycle.status().status == "running"
    broker.close()


def test_all_that_can_be_read_comes_with_the_error(endless: Path) -> None:
    put(endless / "bad/c.jsonl", "c")
    settings = {"path": "bad/*.jsonl", "format": "jsonl", "settle": "0s", "partition-by": "file"}
    source = FileSource(settings)
    with pytest.raises(PartLeftOut, match=r"bad/b.jsonl has no end") as raised:
        source.plan({}, Limit(records=10))
    assert [(s.part, s.records) for s in raised.value.slices] == [("bad/b.jsonl", 1), ("bad/c.jsonl", 1)]
    assert source.news({})
    position = {s.part: s.end for s in raised.value.slices}
    with pytest.raises(SourceError, match=r"bad/b.jsonl has no end") as raised_again:
        source.plan(position, Limit(records=10))
    assert not isinstance(raised_again.value, PartLeftOut), "nothing can be read"


@pytest.mark.parametrize(
    "error", [SourceError("no such mount"), Unavailable("no answer"), ConfigError("no table"), KeyError("a defect")]
)
def test_whatever_a_source_fails_with_the_others_are_read(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    broken(monkeypatch, error)
    put(home / "good/g.jsonl", "g")
    broker = pipeline(home)
    run_once("p")
    assert out(home) == {"g"}
    counted = [f.node for f in broker.failures.failing(*broker.lifecycle.nodes())]
    assert counted == ([] if isinstance(error, Unavailable) else ["plan.bad"])
    broker.close()


def test_a_broken_invariant_is_nobodys_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, InvariantBroken("invariant 3"))
    put(home / "good/g.jsonl", "g")
    pipeline(home).close()
    assert isinstance(run_once("p")["plan"], InvariantBroken)
    assert out(home) == set()


def test_a_source_that_failed_is_not_asked_before_its_delay_is_over(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = broken(monkeypatch, SourceError("no such mount"))
    broker = pipeline(home, delay="1h")
    for n in range(3):
        put(home / "good/g.jsonl", str(n))
        run_once("p", f"run-{n}")
    assert out(home) == {"0", "1", "2"}
    assert asked == ["bad"]
    assert "plan.bad failed once" in run_once("p")["plan"]
    broker.close()


@pytest.mark.proves("C16")
def test_one_that_fails_for_long_degrades_the_pipeline_as_error_recovery_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, SourceError("no such mount"))
    broker = pipeline(home, delay="1ms", retries=1)
    for n in range(2):
        put(home / "good/g.jsonl", str(n))
        run_once("p", f"run-{n}")
    assert broker.lifecycle.status().status == "degraded"
    assert "no such mount" in str(broker.lifecycle.status().error)
    broker.close()


def test_a_run_that_left_a_source_out_fails_in_its_acks_once_all_is_done(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given acks that wait for no task of this run: there are none
    monkeypatch.setattr(draining, "NEVER", 0.0)
    broken(monkeypatch, SourceError("no such mount"))
    put(home / "good/g.jsonl", "g")
    broker = pipeline(home, delay="1h")
    said = tasks.plan("p", "run", {})
    assert isinstance(said, dict)
    assert said["left_out"] == {"bad": "SourceError: no such mount"}
    run_once("p", "run")

    class Task:
        dag_id, run_id = "p", "run"

        def get_dagrun_state(self, dag_id: str, run_id: str) -> str:
            return "running"

        def xcom_pull(self, task_ids: str) -> Any:
            assert task_ids == "plan"
            return said

    with pytest.raises(AirflowFailException, match="bad was left out of this run: SourceError: no such mount"):
        tasks.ack("p", "bad", "run", ti=Task())
    assert tasks.ack("p", "good", "run", ti=Task())["acked"] is None, "acked by the run already"
    # A later run that does not ask it is no failure
    put(home / "good/g.jsonl", "h")
    later = tasks.plan("p", "later", {})
    assert isinstance(later, dict)
    assert later["left_out"] == {}
    broker.close()


@pytest.mark.proves("C16")
@pytest.mark.parametrize("error", [SourceError("an error of the disk"), Unavailable("no answer")])
def test_a_source_that_cannot_be_read_leaves_the_micro_batch_to_the_others(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    away = unreadable(monkeypatch, error)
    put(home / "bad/b.jsonl", "b")
    put(home / "good/g.jsonl", "g1")
    broker = pipeline(home, delay="1h")
    # Given a run that reads the one and fails at the other
    run_that_fails(error)
    assert out(home) == set()
    # When there is another run, the micro-batch goes on without the one that failed, which is told
    run_once("p", "second")
    assert out(home) == {"g1"}
    assert [f.node for f in broker.failures.failing(*broker.lifecycle.nodes())] == ["sources.bad"]
    # Then what the others have in later runs is read as well, and it is left alone until its delay is over
    put(home / "good/g.jsonl", "g2")
    run_once("p", "third")
    assert out(home) == {"g1", "g2"}
    assert "sources.bad failed once" in run_once("p")["plan"]
    # When its delay is over and it can be read, nothing of it is missing, and nothing is wrong any more
    away.clear()
    over(broker)
    run_until_quiet("p")
    assert sorted(line.split('"')[3] for line in lines(home / "out.jsonl")) == ["b", "g1", "g2"]
    assert broker.lifecycle.status().status == "running"
    broker.close()


@pytest.mark.parametrize(
    ("error", "then"), [(SourceError("an error of the disk"), "degraded"), (Unavailable("no answer"), "recovering")]
)
def test_only_one_that_is_there_and_fails_for_long_degrades_the_pipeline(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, then: str
) -> None:
    unreadable(monkeypatch, error)
    put(home / "bad/b.jsonl", "b")
    broker = pipeline(home, delay="1h", retries=0)
    run_that_fails(error)
    assert broker.lifecycle.status().status == then
    broker.close()


def test_a_micro_batch_of_that_source_alone_holds_up_none_either(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = SourceError("an error of the disk")
    unreadable(monkeypatch, error)
    put(home / "bad/b.jsonl", "b")
    broker = pipeline(home, delay="1h")
    run_that_fails(error)
    # When something comes for the other, the very next run reads it
    put(home / "good/g.jsonl", "g")
    run_once("p", "second")
    assert out(home) == {"g"}
    # When what could not be read is taken away, nothing is wrong any more
    (home / "bad/b.jsonl").unlink()
    over(broker)
    run_until_quiet("p")
    assert broker.lifecycle.status().status == "running"
    broker.close()


def test_one_without_others_is_read_again_as_it_was_planned(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = SourceError("an error of the disk")
    away = unreadable(monkeypatch, error)
    put(home / "bad/b.jsonl", "b")
    alone = PIPELINE.format(more="", delay="1h", retries=20)
    begin, end = alone.index("      - id: good"), alone.index("      - {id: out")
    write_pipeline(home, "p", alone[:begin] + alone[end:])
    run_that_fails(error)
    away.clear()
    over(broker := state("p"))
    broker.close()
    assert "micro-batch 1 is not sealed yet" in run_once("p", "second")["plan"]
    assert out(home) == {"b"}


def test_a_broken_invariant_of_reading_leaves_nothing_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = InvariantBroken("invariant 10")
    unreadable(monkeypatch, error)
    put(home / "bad/b.jsonl", "b")
    put(home / "good/g.jsonl", "g")
    pipeline(home, delay="1h").close()
    run_that_fails(error)
    assert "micro-batch 1 is not sealed yet" in run_once("p", "second")["plan"]
    assert out(home) == set()


def test_a_source_that_cannot_be_looked_at_keeps_no_other_from_waking_the_pipeline(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    own = FileSource.news

    def news(self: FileSource, position: Any) -> bool:
        asked.append(self.connector)
        if self.connector == "bad":
            raise SourceError("no such mount")
        return own(self, position)

    monkeypatch.setattr(FileSource, "news", news)
    put(home / "good/g.jsonl", "g")
    pipeline(home).close()
    watch = Watch.open("p")
    try:
        assert [watch.look().news for _ in range(3)] == [("good",)] * 3
        assert asked.count("bad") == 1, "it is not looked at again at once"
    finally:
        watch.close()


def unreadable(monkeypatch: pytest.MonkeyPatch, error: Exception) -> set[str]:
    """Has the source `bad` fail when it is read, as long as it is in the set that is returned."""
    away = {"bad"}
    own = FileSource.read

    def read(self: FileSource, slice: Slice) -> Any:
        if self.connector in away:
            raise error
        return own(self, slice)

    monkeypatch.setattr(FileSource, "read", read)
    return away


def run_that_fails(error: Exception) -> None:
    """A run in which `bad` fails to be read, and what its application makes of that."""
    with suppress(type(error)):
        run_once("p", "first")
    with opened("p", "first") as context, suppress(type(error)), counting(context, "sources.bad"):
        raise error


def over(broker: Broker) -> None:
    """The delay of `sources.bad` is over."""
    broker.redis.hset(broker.keys.lease("sources.bad"), "retry_at", "0")


def broken(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[str]:
    """Has the source `bad` fail when it is planned; who was asked so."""
    asked: list[str] = []
    own = FileSource.plan

    def plan(self: FileSource, position: Any, limit: Limit) -> Any:
        if self.connector == "bad":
            asked.append(self.connector)
            raise error
        return own(self, position, limit)

    monkeypatch.setattr(FileSource, "plan", plan)
    return asked
