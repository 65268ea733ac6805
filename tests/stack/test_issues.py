"""A task that fails in the real Airflow is an issue, is told of once, and is resolved when it succeeds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stack.conftest import PATIENCE, Stack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]

NOTIFIER = """
from pathlib import Path

from airflow.sdk.bases.notifier import BaseNotifier


class ToFile(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, path, text):
        super().__init__()
        self.path, self.text = path, text

    def notify(self, context):
        with Path(self.path).open("a") as file:
            file.write(self.text + "\\n")
"""


@pytest.mark.slow
def test_a_task_that_fails_is_an_issue_until_it_succeeds(stack: Stack) -> None:
    (stack.home / "include" / "told.py").write_text(NOTIFIER)
    told = stack.home / "told"
    arguments = {"path": str(told), "text": "{{ conduit.state }} {{ conduit.node }} {{ ti.task_id }}"}
    alerts = json.dumps([{"notifier": "include.told.ToFile", "arguments": arguments, "issues": True}])
    stack.pipeline("shortened", "plugin: file, settings: {path: out/shortened.jsonl}", f"alerts: {alerts}")
    stack.write("shortened", "a", 1, 20)
    stack.run("shortened")
    # Given a file of which a part is gone that was read
    path = stack.home / "in" / "shortened" / "a.jsonl"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    # When a run fails by that, then all its attempts are one issue, which says where its log is
    stack.run("shortened", code=1)
    (issue,) = issues(stack, code=1)
    assert (issue["kind"], issue["state"], issue["log"]["run"]) == ("task", "open", stack.last_run("shortened"))
    assert "a.jsonl" in issue["sample"]["error"]
    assert issue["count"] == issue["log"]["try"] >= 1
    # And it is told of once
    until(told.exists, PATIENCE)
    assert told.read_text().splitlines() == [f"new {issue['node']} {issue['log']['task']}"]
    # When the file is put back, then the next run resolves it
    path.write_text(whole)
    stack.write("shortened", "b", 21, 30)
    stack.run("shortened")
    until(lambda: not issues(stack), PATIENCE)
    # On a busy machine another task may have failed once meanwhile, which is another issue.
    (same,) = [each for each in issues(stack, "--all") if each["id"] == issue["id"]]
    assert (same["state"], same["count"]) == ("resolved", issue["count"])
    assert same["succeeded"] > same["last"]
    assert told.read_text().splitlines().count(f"new {issue['node']} {issue['log']['task']}") == 1


def issues(stack: Stack, *options: str, code: int | None = None) -> list[dict[str, Any]]:
    said = stack.conduit("issues", "list", "shortened", "--format", "json", *options, code=code)
    found: list[dict[str, Any]] = json.loads(said[said.index("[") : said.rindex("]") + 1])
    return found
