"""Live view of a pipeline in a terminal: a line per node with a bar, its rate and the time left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conduit_tasks.cli.output import cell
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

WINDOW = 10.0
"""Seconds over which a rate is taken."""
NAMED = 3
"""Nodes that wait for the bottleneck, of which the names are told."""
BAR = 24
"""Width of a bar in characters."""
WIDE = 110
"""Columns of a terminal that has room for whole bars and for notes."""


@dataclass(frozen=True)
class Line:
    """A node's progress since the view began. `goal`: records that it has to do, None if nobody knows yet; `rate`:
    records per second; `left`: seconds, None if the rate does not say."""

    node: str
    done: int
    goal: int | None
    rate: float | None
    note: str = ""

    @property
    def left(self) -> float | None:
        if self.goal is None or not self.rate:
            return None
        return (self.goal - self.done) / self.rate


class Course:
    """Progress of a pipeline over several looks at it (`operate.status`)."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._looks: deque[tuple[float, dict[str, int]]] = deque()

    def look(self, found: Mapping[str, Any]) -> list[Line]:
        """Returns a line per source, the processors and each destination, compared with the earlier looks."""
        read, at = int(found["totals"].get("read", 0)), float(found["at"])
        under_way = (found["unsealed"] or {}).get("sources", {})
        done: dict[str, int] = {}
        goals: dict[str, int | None] = {}
        notes: dict[str, str] = {}
        for s in found["sources"]:
            node, now = str(Node.source(s["id"])), under_way.get(s["id"], {"planned": 0, "staged": 0})
            done[node] = s["done"]
            goals[node] = (
                None if now["planned"] is None and not now["staged"] else s["read"] + (now["staged"] or now["planned"])
            )
        if found["processors"]:
            done["processors"] = found["processors"]["done"]
            busy = "processors" in (found["unsealed"] or {}).get("missing", ())
            goals["processors"] = None if busy else done["processors"]
        for d in found["destinations"]:
            node = str(Node.destination(d["id"]))
            done[node], goals[node] = d["done"], read
            notes[node] = _note(d)
        for node, n in done.items():
            self._first.setdefault(node, n)
        self._looks.append((at, done))
        while len(self._looks) > 1 and at - self._looks[1][0] >= WINDOW:
            self._looks.popleft()
        return [
            Line(
                node,
                n - self._first[node],
                None if (goal := goals[node]) is None else goal - self._first[node],
                self._rate(node),
                notes.get(node, ""),
            )
            for node, n in done.items()
        ]

    def _rate(self, node: str) -> float | None:
        (then, before), (now, after) = self._looks[0], self._looks[-1]
        if now <= then or node not in before:
            return None
        return max(0, after[node] - before[node]) / (now - then)


class View:
    """A terminal's view of a pipeline, drawn again at every `show`; above it, what is printed stays."""

    def __init__(self, live: Live) -> None:
        self._live, self._course = live, Course()

    def show(self, found: Mapping[str, Any], tasks: Mapping[str, str] | None = None) -> None:
        """Draws the pipeline as it is now. `tasks`: node → state of its task in Airflow."""
        lines, width = self._course.look(found), self._live.console.width
        self._live.update(drawn(found, lines, tasks or {}, width), refresh=True)


@contextmanager
def viewing(console: Console, *, stays: bool = False) -> Iterator[View]:
    """Yields a view on a terminal. After the block it is gone, unless it `stays`."""
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=not stays) as live:
        yield View(live)


def drawn(found: Mapping[str, Any], lines: list[Line], tasks: Mapping[str, str], width: int) -> RenderableType:
    """Returns what a terminal of this width shows: what the pipeline is doing, who waits for whom, and a line per node.
    In a narrow one bars are short, and notes make room for figures."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    narrow = width < WIDE
    table = Table.grid(padding=(0, 1 if narrow else 2))
    for right in (False, False, True, True, True, False, False):
        table.add_column(justify="right" if right else "left", no_wrap=True)
    for line in lines:
        # A bar without a goal moves to and fro; one with nothing to do is full.
        total = None if line.goal is None else float(max(line.goal, 1))
        size, pulse = BAR // 4 if narrow else BAR, line.goal is None
        bar = ProgressBar(
            total, float(line.done if line.goal else 1), width=size, pulse=pulse, animation_time=found["at"]
        )
        table.add_row(
            Text(cell(line.node), style="bold"),
            bar,
            f"{line.done:,}" + ("" if line.goal is None else f" of {line.goal:,}"),
            "" if line.rate is None else f"{line.rate:,.0f}/s",
            "" if line.left is None or not line.left else f"{lasting(line.left)} left",
            Text(cell(tasks.get(line.node, "")), style="dim"),
            Text("" if narrow and tasks else cell(line.note), style="dim"),
        )
    # The line is there whether there is a bottleneck or not, so that nothing below it moves.
    first = Text(bottleneck(found), style="yellow", no_wrap=True, overflow="ellipsis")
    return Group(Text(headline(found), style="bold"), first, table)


def headline(found: Mapping[str, Any]) -> str:
    """Returns one line: status, micro-batches, and who the open one waits for."""
    said = f"{found['pipeline']}: {found['status']}, {found['sealed']:,} micro-batches sealed"
    if found["unsealed"]:
        said += f", {found['unsealed']['number']:,} is open and waits for {', '.join(found['unsealed']['missing'])}"
    if found["error"]:
        said += f"; first error: {found['error']['node']}: {found['error']['error']}"
    return cell(said)


def bottleneck(found: Mapping[str, Any]) -> str:
    """Returns one line: the bottleneck, why it is one, and who waits for it; empty if there is none."""
    if not (said := found["bottleneck"]):
        return ""
    names = said["waiting"]
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    waits = f"; {', '.join(names[:NAMED])}{more} {'waits' if len(names) == 1 else 'wait'} for it" if names else ""
    return cell(f"bottleneck: {said['node'] or found['pipeline']}: {said['why']}{waits}")


def lasting(seconds: float) -> str:
    """Returns a duration in a few letters: 41 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3600:.1f} h"


def _note(destination: Mapping[str, Any]) -> str:
    """Returns what else there is to say of a destination; nothing if all is well."""
    said = [] if destination["status"] == "running" else [destination["status"]]
    if destination["outage"]:
        said.append("does not answer")
    if destination["lag"]["records"]:
        said.append(f"oldest {lasting(destination['lag']['age'])}")
    said += [
        f"{destination[name]:,} {word}"
        for name, word in (("retried", "retried"), ("dead", "dead"))
        if destination[name]
    ]
    return ", ".join(said)
