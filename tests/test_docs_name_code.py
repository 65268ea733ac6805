"""The documents say where their code is: every section of these pages has a line that names the files."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from tests.test_docs import ROOT

DOCS = ROOT / "docs"
PAGES = (
    "api.md",
    "assets.md",
    "changes.md",
    "cluster.md",
    "compose.md",
    "concepts.md",
    "connections.md",
    "filters.md",
    "handlers.md",
    "ledger.md",
    "lineage.md",
    "metrics.md",
    "moving.md",
    "on-delivered.md",
    "operations.md",
    "pipeline-file.md",
    "pipeline-keys.md",
    "pipes.md",
    "records.md",
    "replay.md",
    "schedules.md",
    "schema-evolution.md",
    "scale.md",
    "security.md",
    "spark.md",
    "verify.md",
    "your-airflow.md",
    "your-dags.md",
    "comparison.md",
)
WITHOUT = {
    ("security.md", "Reporting"),
    ("your-airflow.md", "Hosts"),
    ("your-airflow.md", "What was tried"),
    ("your-airflow.md", "Beside other DAGs"),
    ("your-dags.md", "DAGs scheduled on a delivery"),
    ("comparison.md", "When this is the wrong tool"),
    ("scale.md", "More than one installation's worth"),
}
"""Sections (page, heading) that say nothing about what the code does."""

_FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
_LINE = re.compile(r"^\*Code: .+\.\*$", re.M)
_TARGET = re.compile(r"\[`[^`]+`\]\(([^)]+)\)")


def sections(text: str) -> dict[str, str]:
    """Heading of each `##` section → its text, that of its subsections included."""
    text = _FENCE.sub("", text)
    heads = [(found.start(), found[1]) for found in re.finditer(r"^## (.+)$", text, re.M)]
    return {name: text[start:end] for (start, name), (end, _) in pairwise([*heads, (len(text), "")])}


def faults(text: str) -> list[str]:
    """Sections without a line that names their code, and files in such lines that are not there."""
    found = sections(text)
    without = [name for name, body in found.items() if not any(map(_TARGET.search, _LINE.findall(body)))]
    targets = [target for line in _LINE.findall(text) for target in _TARGET.findall(line)]
    return without + [target for target in targets if not (DOCS / target).is_file()]


@pytest.mark.parametrize("page", PAGES)
def test_every_section_names_its_code(page: str) -> None:
    exceptions = {name for of, name in WITHOUT if of == page}
    assert [fault for fault in faults((DOCS / page).read_text()) if fault not in exceptions] == []


def test_a_section_without_its_line_and_a_file_that_is_gone_are_found() -> None:
    # Given a page whose second section has lost its line, and whose third names a file that is not there
    page = (
        "# Page\n\n## One\n\nText.\n\n*Code: [`waits.py`](../conduit_tasks/waits.py) limits.*\n\n## Two\n\nText.\n\n"
        "## Three\n\n*Code: [`gone.py`](../conduit_tasks/gone.py) nothing.*\n"
    )
    # Then both are found
    assert faults(page) == ["Two", "../conduit_tasks/gone.py"]


def test_sections_that_are_excepted_are_there() -> None:
    assert [(page, name) for page, name in WITHOUT if name not in sections((DOCS / page).read_text())] == []
