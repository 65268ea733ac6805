"""A run that drains, under the real scheduler: its tasks side by side, cleared, marked, and with too few slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from conduit_tasks.stack.environment import POOL
from tests.stack.conftest import Receiver, Stack, until
from tests.stack.test_stack import http

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]

NODES = ("sources.lines", "destinations.out", "acks.lines")
SMALL = "micro-batch: {max-records: 50}"


def runs(stack: Stack, id: str) -> list[dict[str, Any]]:
    """Those that did something, oldest first: a run that found nothing has nothing but skipped tasks."""
    with stack.api() as api:
        found = api.request("GET", f"/dags/{id}/dagRuns", params={"order_by": "run_after", "limit": 100})["dag_runs"]
        return [r for r in found if tasks(api, id, r["dag_run_id"])["acks.lines"]["state"] != "skipped"]


def tasks(api: Any, id: str, run: str) -> dict[str, dict[str, Any]]:
    return {task["task_id"]: task for task in api.tasks(id, run)}


def applications(id: str) -> set[psutil.Process]:
    """The processes of the pipeline's destination that are at work."""
    wanted = ["--pipeline", id, "--node", "destinations.out"]
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if any(words[n : n + len(wanted)] == wanted for n in range(len(words))):
                found.add(process)
    return found


@contextmanager
def slots(stack: Stack, count: int) -> Iterator[None]:
    """So many slots in the pool for the block."""
    with stack.api() as api:
        before = api.request("GET", f"/pools/{POOL}")

        def set(slots: int) -> None:
            body = {"name": POOL, "slots": slots, "include_deferred": before["include_deferred"]}
            api.request("PATCH", f"/pools/{POOL}", json=body)

        set(count)
        try:
            yield
        finally:
            set(before["slots"])


@pytest.mark.slow
def test_one_run_delivers_a_backlog_of_many_micro_batches_its_nodes_side_by_side(
    stack: Stack, receiver: Receiver
) -> None:
    receiver.stop_at = 101
    stack.pipeline("backlog", http(receiver, timeout="200s"), f"{SMALL}\n    lag-budget: {{records: 100}}")
    stack.write("backlog", "a", 1, 400)
    stack.run("backlog", "--no-wait")
    # When more comes while the run is under way, and each of its nodes at work
    until(lambda: len(receiver.got) > 100)
    with stack.api() as api:
        until(lambda: all(tasks(api, "backlog", stack.last_run("backlog"))[name]["start_date"] for name in NODES))
    receiver.pause = 0.01
    stack.write("backlog", "b", 401, 500)
    receiver.gate.set()
    # Then that run delivers it all, in order, and each node of it was started once
    until(lambda: len(receiver.got) == 500)
    with stack.api() as api:
        until(lambda: not api.active_runs("backlog"))
        (run,) = runs(stack, "backlog")
        assert run["state"] == "success"
        found = tasks(api, "backlog", run["dag_run_id"])
    assert receiver.got == list(range(1, 501))
    nodes = [found[name] for name in NODES]
    assert [(node["state"], node["try_number"]) for node in nodes] == [("success", 1)] * 3
    assert max(node["start_date"] for node in nodes) < min(node["end_date"] for node in nodes)


@pytest.mark.slow
def test_a_pool_of_one_slot_drains_by_runs_that_follow_each_other(stack: Stack, receiver: Receiver) -> None:
    stack.pipeline("narrow", http(receiver), f"{SMALL}\n    lag-budget: {{records: 100}}")
    stack.write("narrow", "a", 1, 300)
    with slots(stack, 1):
        # Which `conduit run` watches to the last one
        stack.run("narrow")
    assert receiver.got == list(range(1, 301))
    first, *others = runs(stack, "narrow")
    assert others
    assert all(run["dag_run_id"].startswith("conduit__after_") for run in others)
    assert {run["state"] for run in (first, *others)} == {"success"}


@pytest.mark.proves("C9", "C10")
@pytest.mark.parametrize("how", ["cleared", "success"])
def test_a_delivery_that_is_cleared_or_marked_in_the_middle_loses_and_repeats_nothing_that_was_confirmed(
    stack: Stack, receiver: Receiver, how: str
) -> None:
    id = f"middle-{how}"
    receiver.pause, receiver.stop_at = 0.02, 101
    stack.pipeline(id, http(receiver, timeout="200s"), SMALL)
    stack.write(id, "a", 1, 300)
    stack.run(id, "--no-wait")
    until(lambda: len(receiver.got) > 100)
    run = stack.last_run(id)
    first = applications(id)
    with stack.api() as api:
        # When somebody clears the task under way, or says that it has succeeded
        if how == "cleared":
            body = {"dry_run": False, "dag_run_id": run, "task_ids": ["destinations.out"], "only_failed": False}
            api.request("POST", f"/dags/{id}/clearTaskInstances", json={**body, "only_running": True})
        else:
            api.request("PATCH", f"/dags/{id}/dagRuns/{run}/taskInstances/destinations.out", json={"new_state": how})
        # Until its processes are gone: what it would send meanwhile it might not have confirmed
        until(lambda: not first & applications(id))
        receiver.gate.set()
        until(lambda: not api.active_runs(id))
    stack.run(id)
    until(lambda: len(set(receiver.got)) == 300)
    # Then all is there, in order, and what was sent twice is one record, the one that was on its way
    assert list(dict.fromkeys(receiver.got)) == list(range(1, 301))
    assert len(receiver.got) <= 300 + 1
