"""A stream, or its group, that is removed while its entries are planned or read: never passed over in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from conduit_tasks.errors import Missing
from conduit_tasks.micro_batch.plan import plan_run
from tests.connectors.redis_entries import add, step
from tests.connectors.test_redis import _url
from tests.micro_batch.harness import lines, run_once, run_until_quiet, state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: redis, settings: {url: "URL", streams: s MISSING}}
      - {id: out, type: destination, plugin: file, settings: {path: out.jsonl, format: payload}}
"""


def removed(client: redis.Redis, how: str) -> None:
    if how == "the group":
        client.xgroup_destroy("s", "conduit.p.in")
    else:
        client.delete("s")
    if how == "the stream, created again":
        add(client, 7, 8)


HOW = ("the group", "the stream", "the stream, created again")


@pytest.mark.proves("T2", "T4")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("way", ["skip", "once"])
def test_what_is_removed_after_it_was_planned_is_an_error_with_ways_out(
    home: Path,
    client: redis.Redis,
    how: str,
    way: str,
) -> None:
    # Given entries that were read, others that are planned, and a stream or a group that is removed then
    given = PIPELINE.replace("URL", _url(client))
    write_pipeline(home, "p", given.replace(" MISSING", ""))
    add(client, 1, 2)
    run_until_quiet("p")
    add(client, 3)
    assert plan_run("p", "r").micro_batch == 2
    removed(client, how)
    # When a run reads it, then it fails, and says what is gone and what to do
    with pytest.raises(Missing, match=r"conduit\.p\.in|the stream or its group") as error:
        run_once("p", "r")
    assert "`missing: skip` in the settings of in" in str(error.value)
    once = "XGROUP CREATE s conduit.p.in 0 MKSTREAM"
    assert once in str(error.value)
    # When one of these is done
    if way == "skip":
        write_pipeline(home, "p", given.replace(" MISSING", ", missing: skip"))
    else:
        client.execute_command(*once.split())
    run_until_quiet("p")
    add(client, 9)
    run_until_quiet("p")
    # Then what the stream holds is delivered, also what comes later, and what is passed over is counted
    found = [json.loads(line)["n"] for line in lines(home / "out.jsonl")]
    assert found[:2] == ["1", "2"]
    assert (
        found[2:]
        == {
            "the group": ["1", "2", "3", "9"],
            "the stream": ["9"],
            "the stream, created again": ["7", "8", "9"],
        }[how]
    )
    broker = state("p")
    assert broker.micro_batches.totals().get("sources.in/skipped", 0) == (1 if way == "skip" else 0)
    broker.close()


@pytest.mark.proves("T2")
@pytest.mark.parametrize("start", ["0", "$"])
def test_a_group_that_is_removed_between_two_plans_begins_at_the_first_entry(
    client: redis.Redis,
    reader: Any,
    start: str,
) -> None:
    source = reader(start=start)
    step(source, {})
    add(client, 1)
    read, position = step(source, {})
    assert read == ["1"]
    client.delete("s")
    add(client, 2)
    assert step(source, position)[0] == ["2"]


@pytest.mark.proves("T2")
def test_entries_of_a_new_stream_with_lower_ids_are_read_again_by_the_attempt_after_a_dead_one(
    client: redis.Redis,
    reader: Any,
) -> None:
    # Given a stream that was read, and another one under its name, whose ids are lower
    add(client, 1)
    _, position = step(reader(), {})
    client.delete("s")
    client.xadd("s", {"n": "2"}, id="1-0")
    # When an attempt dies with what it read
    assert step(reader(), position)[0] == ["2"]
    # Then the next one reads it
    read, after = step(source := reader(), position)
    assert read == ["2"]
    # And not again once it is staged
    assert step(source, after)[0] == []
