"""Writes the table of docs/metrics.md from `conduit_tasks/metrics/definitions.py`.

`python scripts/metrics_page.py` writes it; `--check` changes nothing and ends with 1 where it is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

from conduit_tasks.metrics.definitions import METRICS, Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
HEAD = "| metric | kind, unit | labels | meaning |\n|---|---|---|---|\n"


def table() -> str:
    """Head and rows."""
    return HEAD + "".join(map(_row, METRICS.values()))


def _row(metric: Metric) -> str:
    unit = "" if metric.unit == "1" else f", {metric.unit.strip('{}')}"
    return f"| `{metric.prometheus}` | {metric.kind}{unit} | {', '.join(metric.labels)} | {metric.meaning} |\n"


def written(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(HEAD)
    lines = rest.splitlines(keepends=True)
    end = next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return before + table() + "".join(lines[end:])


def main() -> int:
    """Exit code."""
    page = PAGE.read_text()
    if "--check" in sys.argv:
        return 0 if page == written(page) else 1
    PAGE.write_text(written(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
