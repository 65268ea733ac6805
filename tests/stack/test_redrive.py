"""`<pipeline>.resend` under the real scheduler, for dead letters: form, result, several runs at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stack.conftest import Receiver, Stack, until
from tests.stack.test_stack import http

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]


def trigger(stack: Stack, *runs: tuple[str, dict[str, Any]]) -> dict[str, tuple[str, Any]]:
    """Starts these runs of `failing.resend` at the same time; their states and results."""
    dag = "failing.resend"
    with stack.api() as api:
        until(lambda: api.dag(dag))
        for run, conf in runs:
            api.trigger(dag, run, conf)
        until(lambda: not api.active_runs(dag))
        out = {}
        for run, _ in runs:
            path = f"/dags/{dag}/dagRuns/{run}/taskInstances/redrive/xcomEntries/return_value"
            found = api.request("GET", path, absent=True)
            out[run] = (api.run(dag, run)["state"], found and found["value"])
    return out


@pytest.mark.proves("X2", "I4")
def test_dead_letters_go_again_from_airflow_and_none_of_them_twice(stack: Stack, receiver: Receiver) -> None:
    # Given thirty records that were refused
    receiver.refuse = set(range(1, 31))
    stack.pipeline("failing", http(receiver) + ", dead-letter-queue: {window-size: 0}")
    stack.write("failing", "a", 1, 40)
    stack.run("failing")
    assert receiver.got == list(range(31, 41))

    # When they are looked at first, nothing goes, and the result says what would
    result = trigger(stack, ("look", {"dry-run": True, "destination": "out", "classes": ["http 400"]}))
    assert result["look"] == ("success", [{"destination": "out", "letters": 30, "parked": 0}])
    assert len(receiver.got) == 10

    # And two runs send them at once, while one is refused still
    receiver.refuse, receiver.pause = {7}, 0.02
    runs = trigger(stack, ("one", {}), ("two", {"what": "dead-letters", "classes": ["http 400"]}))

    # Then each arrived once, in order, and the results add up to them
    assert receiver.got[10:] == [n for n in range(1, 31) if n != 7]
    results = [outcome for _, value in runs.values() for outcome in value or ()]
    assert sum(o["redriven"] for o in results) == 29
    assert "failed" in {state for state, _ in runs.values()}, "a letter that is dead again is told"

    # And the last one goes by its date and nothing by another's
    receiver.refuse = set()
    runs = trigger(stack, ("old", {"until": "2020-01-01"}), ("new", {"since": "1h"}))
    assert runs["old"] == ("success", [])
    assert runs["new"][0] == "success"
    assert receiver.got[39:] == [7]
