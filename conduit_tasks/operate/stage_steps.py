"""Way of a stage's last records through the processors that follow it: each step, with the record before and after it.

What they made in the run is kept nowhere, but for what the last one of a section made. So they run again, by the file
in force, a record at a time: as in a trial, in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.operate.peek import PROCESSORS, Found
from conduit_tasks.operate.places import Places, variables
from conduit_tasks.operate.trying import Entry, Outside, Trial, entry_of, entry_of_letter
from conduit_tasks.operate.walk import Row
from conduit_tasks.record.shown import Shown
from conduit_tasks.topology import Node, Pipeline, Processor

Made = Callable[[Found, Shown], dict[str, Any]]
"""Function from a record of a stage to its `steps`, and at a destination what would be `sent`."""


class _Section(Trial):
    """A trial that ends before the fan-out: what follows is another stage."""

    def fan_out(self, rows: list[Row]) -> None:
        return


def has_steps(pipeline: Pipeline, node: str) -> bool:
    """Returns whether processors follow the stage `node`, or failed records of it."""
    whole = Node(node).whole
    if whole != node:
        return True
    if whole.kind == "sources":
        return bool(pipeline.processors) or any(s.processors for s in pipeline.sources if s.node == whole)
    return any(d.processors for d in pipeline.destinations if d.node == whole)


def maker(pipeline: Pipeline, node: str, outside: Outside, leave: Callable[[Processor], str], until: str = "") -> Made:
    """Returns the function that runs the processors after the stage `node`. `until`: the last one that runs, ""
    all."""
    text = Path(pipeline.file).read_text(encoding="utf-8-sig")
    places, values = Places(text, pipeline.id, os.environ), variables(text)

    def made(found: Found, shown: Shown) -> dict[str, Any]:
        told: list[dict[str, Any]] = []
        entry = _entry(pipeline, node, found)
        if entry is None:
            return {"steps": [], "sent": None}
        trial = _Section(
            pipeline, told.append, shown=shown, places=places, outside=outside, leave=leave, variables=values
        )
        trial.go(found.record.copy(), entry)
        steps = [step for step in told if step.get("step") == "processor" and "outcome" in step]
        last = next((n for n, step in enumerate(steps, 1) if step["processor"] == until), len(steps))
        return {"steps": steps[:last], "sent": _sent(told) if entry.node.kind == "destinations" else None}

    return made


def _entry(pipeline: Pipeline, node: str, found: Found) -> Entry | None:
    """Returns where a record of a stage goes on; None: that is another stage, or its node has left the file."""
    try:
        if found.error is not None:
            return entry_of_letter(pipeline, found.error["node"])
        kind = Node(node).kind
        return Entry(PROCESSORS) if kind == "sources" else entry_of(pipeline, node) if kind == "destinations" else None
    except ConfigError:
        return None


def _sent(told: list[dict[str, Any]]) -> dict[str, Any]:
    ended = [step for step in told if "outcome" in step]
    return {
        "records": next((step["after"] for step in ended if step["step"] == "sent"), []),
        "left_out": [step["processor"] for step in ended if step["outcome"] == "left out"],
    }
