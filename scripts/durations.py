"""Prints what runs how long, a row per folder of tests, from pytest's report: `make test` writes it.

`python scripts/durations.py [REPORT]`: files of tests, tests, seconds (of all processes together), the longest file.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

REPORT = Path(".pytest_cache/report.xml")


def read(report: Path) -> dict[str, list[float]]:
    """Returns file of tests → seconds of each of its tests."""
    files: defaultdict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314  our own report
        parts = case.attrib["classname"].split(".")
        while parts and not parts[-1].startswith("test_"):  # a class in the file
            parts.pop()
        if parts:  # else a file that could not be imported
            files["/".join(parts)].append(float(case.attrib["time"]))
    return files


def table(files: dict[str, list[float]]) -> str:
    """Returns the table, the longest folder first."""
    folders: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        folders[file.rpartition("/")[0]].append(file)
    rows = []
    for folder, its in folders.items():
        seconds = {file: sum(files[file]) for file in its}
        longest = max(its, key=lambda file: seconds[file])
        tests = sum(len(files[file]) for file in its)
        last = f"{longest.rpartition('/')[2]}.py, {seconds[longest]:,.0f}"
        rows.append((sum(seconds.values()), f"| `{folder}/` | {len(its)} | {tests:,} | ", f" | {last} |"))
    lines = [f"{begin}{seconds:,.0f}{end}" for seconds, begin, end in sorted(rows, reverse=True)]
    total = sum(seconds for seconds, *_ in rows)
    head = ["| folder | files | tests | seconds | the longest file |", "|---|---:|---:|---:|---|"]
    count = sum(map(len, files.values()))
    return "\n".join([*head, *lines, f"| together | {len(files)} | {count:,} | {total:,.0f} | |"])


if __name__ == "__main__":
    sys.stdout.write(table(read(Path(sys.argv[1]) if len(sys.argv) > 1 else REPORT)) + "\n")
