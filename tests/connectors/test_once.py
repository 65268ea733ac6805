"""The documents say of each destination what its class does (SEMANTICS B8)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import BatchDestination

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = (
    "destination",
    "`effectively-once`",
    "by what",
    "`at-least-once`: after a crash",
    "`at-most-once`",
    "killed in",
)


def table() -> dict[str, dict[str, str]]:
    """Destination → column → text, from docs/pipes.md."""
    _, _, section = (ROOT / "docs/pipes.md").read_text().partition("### What each destination gives")
    head, _, *rows = (
        [cell.strip() for cell in line[1:-1].split("|")] for line in section.splitlines() if line[:1] == "|"
    )
    assert tuple(head) == COLUMNS
    return {row[0].strip("`"): dict(zip(COLUMNS, row, strict=True)) for row in rows}


def test_the_table_has_every_destination_once() -> None:
    there = [name for name, found in registry.known().items() if name in registry.BUILTIN and found.destination]
    assert list(table()) == there


@pytest.mark.proves("B8")
@pytest.mark.parametrize("name", list(table()))
def test_what_the_table_says_of_a_destination_is_what_its_class_declares(name: str) -> None:
    cls, row = registry.destination_class(name), table()[name]
    batch = issubclass(cls, BatchDestination)
    assert row["`effectively-once`"] == ("yes" if cls.effectively_once else "no")
    assert row["`at-most-once`"] == ("yes" if cls.effectively_once or not batch else "no")
    if batch and cls.effectively_once:
        assert row["by what"].startswith("state: ") is not cls.keeps_index
    if issubclass(cls, BatchDestination):
        once = row["`at-least-once`: after a crash"].startswith(("once", "`mode: upsert`: once"))
        assert once is (cls.idempotent({}) or (cls.effectively_once and not cls.keeps_index))
        chunks = re.findall(r"([\d,]+)(?: entries|\))", row["`at-least-once`: after a crash"])
        assert [int(n.replace(",", "")) for n in chunks] in ([], [cls.chunk])


@pytest.mark.proves("B8")
@pytest.mark.parametrize("name", list(table()))
def test_what_is_promised_once_is_killed_on_the_way_by_a_test(name: str) -> None:
    row = table()[name]
    linked = re.findall(r"\(\.\./(tests/[\w/]+\.py)\)", row["killed in"])
    assert linked or row["`effectively-once`"] == "no"
    texts = {path: (ROOT / path).read_text() for path in linked}
    for path, text in texts.items():
        assert re.search(r"SIGKILL|in_child|returncode in \(-9|kill\(|crash", text), f"{path} kills nothing"
    if row["`effectively-once`"] == "yes":
        assert any('"B8"' in text for text in texts.values()), f"none of {linked} says that it proves B8"
