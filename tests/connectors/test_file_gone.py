"""A folder whose files come and go, as logs that are rotated do: what is known of it has one size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.micro_batch import gone
from tests.micro_batch.harness import lines, payloads, run_once, run_until_quiet, state, write_pipeline
from tests.micro_batch.test_whole import events

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    spool: {retention: 0s}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s OPTIONS}}
      - {id: to, type: destination, plugin: file, settings: {path: out.jsonl}}
"""
DAY = 86_400_000_000


@pytest.fixture
def broker(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Of a pipeline with a look at each run."""
    monkeypatch.setattr(gone, "EVERY", 0.0)
    write_pipeline(home, "p", PIPELINE.replace(" OPTIONS", ""))
    (home / "data").mkdir()
    made = state("p")
    yield made
    made.close()


def later(broker: Any, days: float) -> None:
    """What is gone has been gone for so much longer."""
    key = broker.keys.gone("in")
    for part, since in broker.access.hash(key).items():
        broker.redis.hset(key, part, str(int(int(since) - days * DAY)))


def known(broker: Any) -> set[str]:
    return set(broker.positions.planned("in"))


def test_files_that_come_and_go_leave_a_state_of_one_size(home: Path, broker: Any) -> None:
    """Given a file a day that is removed the day after, partition by partition, then a month costs what ten days do."""
    write_pipeline(home, "p", PIPELINE.replace(" OPTIONS", ", partition-by: file"))
    sizes = []
    for day in range(30):
        (home / f"data/day-{day - 1:02d}.jsonl").unlink(missing_ok=True)
        events(home / "data", f"day-{day:02d}.jsonl", day * 3, 3)
        run_once("p", f"run-{day}")
        later(broker, 1)
        if day in (14, 29):
            kinds = ("planned", "acked", "index", "gone")
            sizes.append({kind: broker.redis.hlen(getattr(broker.keys, kind)("in")) for kind in kinds})
    assert sizes[0] == sizes[1]
    assert max(sizes[1].values()) < 12
    assert len(lines(home / "out.jsonl")) == 90


@pytest.mark.proves("C10")
@pytest.mark.parametrize(("days", "again"), [(6.9, 0), (7.1, 3)])
def test_a_file_that_comes_back_goes_on_as_it_was_until_it_is_forgotten(
    home: Path, broker: Any, days: float, again: int
) -> None:
    events(home / "data", "a.jsonl", 0, 3)
    events(home / "data", "stays.jsonl", 0, 1)
    run_until_quiet("p")
    content = (home / "data/a.jsonl").read_text()
    (home / "data/a.jsonl").unlink()
    run_once("p", "sees that it is gone")
    later(broker, days)
    run_once("p", "later")
    assert ("data/a.jsonl" in known(broker)) is not again
    (home / "data/a.jsonl").write_text(content)
    run_until_quiet("p")
    assert len(lines(home / "out.jsonl")) == 4 + again
    assert not broker.access.hash(broker.keys.gone("in")), "it is there"
    positions = [row["position"] for row in payloads(home / "out.jsonl")]
    assert positions[4:] == positions[:again], "under the ids that they had"


def test_what_is_not_delivered_yet_or_only_out_of_sight_is_not_forgotten(home: Path, broker: Any) -> None:
    events(home / "data", "a.jsonl", 0, 3)
    events(home / "data", "b.jsonl", 0, 3)
    run_until_quiet("p")
    # Given a path that leaves a file out, then it is not gone
    write_pipeline(home, "p", PIPELINE.replace(" OPTIONS", "").replace("*.jsonl", "a*.jsonl"))
    run_once("p", "narrow")
    assert not broker.access.hash(broker.keys.gone("in"))
    write_pipeline(home, "p", PIPELINE.replace(" OPTIONS", ""))
    # Nor is anything while there is no file at all, as in a folder that is not mounted
    (home / "data").rename(home / "elsewhere")
    run_once("p", "not mounted")
    assert not broker.access.hash(broker.keys.gone("in"))
    (home / "elsewhere").rename(home / "data")
    # Nor is what a micro-batch still has to tell its source
    events(home / "data", "c.jsonl", 3, 3)
    from conduit_tasks.micro_batch.plan import plan_run

    plan_run("p", "planned")
    (home / "data/c.jsonl").unlink()
    plan_run("p", "later")
    assert not broker.access.hash(broker.keys.gone("in"))
    assert "data/c.jsonl" in known(broker)


def test_names_are_kept_for_ever_where_that_is_asked_for(home: Path, broker: Any) -> None:
    write_pipeline(home, "p", PIPELINE.replace(" OPTIONS", ", forget-removed: never"))
    for name in "ab":
        events(home / "data", f"{name}.jsonl", 0, 1)
    run_until_quiet("p")
    (home / "data/a.jsonl").unlink()
    run_once("p", "later")
    assert not broker.access.hash(broker.keys.gone("in"))
    assert "data/a.jsonl" in known(broker)
