"""Tables as the benchmarks print them: rows, then the figures to reach with what was measured beside them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

COMPARE = {"≥": operator.ge, "≤": operator.le}


@dataclass(frozen=True)
class Figure:
    """One figure to reach (docs/benchmarks.md). `sign` is ≥ or ≤; `reach` None: only told, nothing is asked."""

    what: str
    got: float
    sign: str = "≤"
    reach: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.reach is None else bool(COMPARE[self.sign](self.got, self.reach))

    def row(self) -> list[str]:
        asked = f"{self.sign} {number(self.reach)}{self.unit}" if self.reach is not None else "–"
        return [self.what, f"{number(self.got)}{self.unit}", asked, {None: "", True: "met", False: "NOT MET"}[self.met]]


@dataclass
class Result:
    """What one benchmark came to. `facts`: measured values by name, for tests and for other programs."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)

    def text(self) -> str:
        parts = [f"## {self.title}", "", table(self.head, self.rows)]
        if self.figures:
            parts += ["", table(["figure", "measured", "to reach", ""], [f.row() for f in self.figures])]
        return "\n".join([*parts, *(["", *self.notes] if self.notes else []), ""])


def number(value: float | None) -> str:
    """Three significant digits at most, thousands parted."""
    if value is None:
        return "–"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers right-aligned."""
    cells = [[number(c) if isinstance(c, int | float) else str(c) for c in row] for row in rows]
    right = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
    widths = [max(3, len(head[i]), *(len(row[i]) for row in cells)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right)) + " |"

    rule = "|" + "|".join("-" * (w + 1) + (":" if r else "-") for w, r in zip(widths, right)) + "|"
    return "\n".join([line(list(head)), rule, *map(line, cells)])
