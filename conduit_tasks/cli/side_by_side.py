"""Two texts side by side, where they differ, for a terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from conduit_tasks.cli.output import cell

CONTEXT = 2
"""Equal lines that are shown before and after a difference."""


def side_by_side(before: Sequence[str], after: Sequence[str], width: int) -> Iterator[str]:
    """Yields lines of `width` characters with a column for each text: `|` between lines that differ, `<` and `>` beside
    one that only that text has. Lines that both have are left out but for a few; `…` stands for them."""
    half = max(20, (width - 3) // 2)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    end = len(before)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        if group[0][1]:
            yield "…"
        end = group[-1][2]
        for what, i, j, k, m in group:
            for n in range(max(j - i, m - k)):
                left = before[i + n] if i + n < j else ""
                right = after[k + n] if k + n < m else ""
                mark = " " if what == "equal" else "<" if k + n >= m else ">" if i + n >= j else "|"
                yield f"{_fit(left, half)} {mark} {_fit(right, half)}".rstrip()
    if end < len(before):
        yield "…"


def _fit(text: str, width: int) -> str:
    shown = cell(text)
    return f"{shown[: width - 1]}…" if len(shown) > width else shown.ljust(width)
